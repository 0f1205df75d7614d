"""Runs that are stopped on their way, as by Ctrl-C."""

import pytest

import fedtaper as ft
from fedtaper.storage import checkpoints


def stopped(e, out, monkeypatch, after=3, **how):
    """A run that is stopped after so many checkpoints."""
    real, calls = checkpoints.save_checkpoint, []

    def stop(*words):
        real(*words)
        calls.append(1)
        if len(calls) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            ft.run(e, out=out, **how)
