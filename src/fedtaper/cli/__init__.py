"""What the ``fedtaper`` command does, a file for each family."""
