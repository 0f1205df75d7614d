"""Shared settings: warnings of the library are errors unless a test expects them."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests share the cores among themselves

import pytest

import fedtaper as ft


@pytest.fixture
def tiny():
    """A problem small enough for the reference engine, with gentle curvature."""
    return ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
