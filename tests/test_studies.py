"""Every study that judges claims, whole, at its smallest size: ``make coverage``, some minutes.

What they find at this size means nothing. They must come to a verdict, store it, and draw.
"""

import json

import pytest
from typer.testing import CliRunner

from fedtaper.cli.main import app
from fedtaper.paper import LEDGER, image_runs, pick, reproduce

pytestmark = pytest.mark.study
VERDICTS = ("reproduced", "not-at-this-horizon", "not-with-these-settings")


@pytest.mark.parametrize("family", ["R", "T", "O", "X", "A1", "A3", "E1", "E2"])
def test_a_family_of_claims_from_the_command_line(family, tmp_path):
    wanted = [claim.id for claim in pick(LEDGER, [family])]
    words = ["reproduce", family, "--seeds", "10", "--out", str(tmp_path / "study"), "--quiet"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    page = json.loads((tmp_path / "study" / "claims.json").read_text())
    assert [row["id"] for row in page["claims"]] == wanted
    for row in page["claims"]:
        assert row["verdict"] in VERDICTS and row["summary"] and row["numbers"]
        for name in row["figures"]:
            assert (tmp_path / "study" / name).read_bytes().startswith(b"\x89PNG")
    made = CliRunner().invoke(
        app, ["report", str(tmp_path / "study"), "--out", str(tmp_path / "p")]
    )
    assert made.exit_code == 0 and wanted[0] in (tmp_path / "p").read_text()


def test_the_claims_about_images(tmp_path, monkeypatch):
    small = image_runs.Setup(model="cnn", c=0.3, rounds=3, seeds=1)
    monkeypatch.setitem(image_runs.SETUPS, "digits", small)
    claims = [LEDGER[f"I{k}"] for k in range(1, 7)]
    rows = reproduce(claims, tmp_path, options={"data_set": "digits"})
    assert all(row["verdict"] in VERDICTS and row["figures"] for row in rows)
