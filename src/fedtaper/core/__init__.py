"""What everything else stands on: schedules, influence, draws, errors, checks."""
