"""The ``fedtaper`` command, one file per family of subcommands."""
