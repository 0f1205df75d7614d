"""The foundation of the package: schedules, influence, draws, errors, checks."""
