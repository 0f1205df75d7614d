"""What clients minimise."""
