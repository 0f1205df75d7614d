"""From an experiment to a run: the loop over rounds, its record, its progress, many jobs."""
