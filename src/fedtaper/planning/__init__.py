"""From wanted influences to step sizes."""
