"""What the ``fedtaper`` command does, one file per family."""
