"""``fedtaper plan`` and ``fedtaper audit``."""

from typer.testing import CliRunner

from fedtaper.cli.main import app


def test_plan_and_audit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = (
        '[experiment]\nrounds = 1\nlocal_steps = 5\n[problem]\nkind = "linear"\nnum_clients = 3\n'
    )
    (tmp_path / "base.toml").write_text(f"{file}[schedules]\nc = 0.1\ndelta = 0.8\n")
    words = ["plan", "1", "0.1", "0.1", "--rounds", "30", "--stable", "--file", "base.toml"]
    done = CliRunner().invoke(app, [*words, "--out", "plan.toml", "--plot", "plan.png"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plan.png").is_file()
    text = (tmp_path / "plan.toml").read_text(encoding="utf-8")
    (tmp_path / "plan.toml").write_text(text + '[clients.2]\nkind = "idle"\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["run", "plan.toml", "--updates"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["audit", "runs/plan"])
    assert done.exit_code == 0, done.output
    assert "idle" in done.output
    assert "secure aggregation" in done.output
    done = CliRunner().invoke(app, ["report", "runs/plan"])
    assert done.exit_code == 0, done.output
    assert "who contributed as declared" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_plan_by_rule_and_its_mistakes():
    words = ["plan", "fade client 1 to 1% by round 20", "--rounds", "30", "--clients", "3"]
    done = CliRunner().invoke(app, [*words, "--local-steps", "5"])
    assert done.exit_code == 0, done.output
    assert "inside A2" in done.output
    assert CliRunner().invoke(app, words).exit_code == 2
    bad = ["plan", "make it so", "--rounds", "3", "--clients", "2", "--local-steps", "1"]
    assert CliRunner().invoke(app, bad).exit_code == 2
