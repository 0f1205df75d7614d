"""The image claims: judged from kept runs, which are never made again."""

import json

import pytest

from fedtaper.paper import LEDGER, image_runs, reproduce


def test_finished_runs_are_never_made_again(tmp_path, monkeypatch):
    small = image_runs.Setup(model="cnn", c=0.3, rounds=4, seeds=1)
    monkeypatch.setitem(image_runs.SETUPS, "digits", small)
    claims = [LEDGER["I2"], LEDGER["I3"]]
    first = reproduce(claims, tmp_path, options={"data_set": "digits"})
    assert [row["id"] for row in first] == ["I2", "I3"]
    assert all(row["figures"] for row in first)
    assert all((tmp_path / name).is_file() for row in first for name in row["figures"])
    assert first[0]["settings"]["data_set"] == "digits"

    def never(*args, **how):
        pytest.fail("a finished run was made again")

    monkeypatch.setattr(image_runs, "simulate", never)
    again = reproduce(claims, tmp_path, options={"data_set": "digits"})
    assert [row["numbers"] for row in again] == [row["numbers"] for row in first]
    assert json.loads((tmp_path / "claims.json").read_text())["provenance"]["data_set"] == "digits"
