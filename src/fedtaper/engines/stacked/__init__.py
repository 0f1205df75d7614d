"""Clients side by side: one stacked model for any torch module."""
