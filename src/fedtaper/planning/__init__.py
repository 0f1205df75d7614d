"""From the influence that is wanted to step sizes."""
