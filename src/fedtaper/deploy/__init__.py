"""From a federation file to running machines: what to write, and a rehearsal on this one."""
