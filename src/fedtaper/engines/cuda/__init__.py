"""Networks on one GPU."""
