"""The paper's claims, each judged from data."""
