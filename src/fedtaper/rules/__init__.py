"""What clients and the server do with gradients and updates."""
