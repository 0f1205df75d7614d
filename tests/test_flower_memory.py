"""Rules with memory over Flower: what a site remembers stays there, and is never mixed up."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fedtaper as ft

pytest.importorskip("flwr")

from flower_loop import LoopGrid, Source
from flwr.app import Context, RecordDict

from fedtaper.deploy.server import serve
from fedtaper.engines.flower.federation import numbered
from fedtaper.engines.flower.memory import (
    IN_CONTEXT,
    KEPT,
    RUNS,
    ContextVault,
    FileVault,
    LostError,
    Stamp,
)
from fedtaper.storage import store

SITES = ("north", "south", "west")
TAPERING = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))
STEPS = {
    "tapering-unequal": TAPERING,
    "tapering-equal": (ft.Power(0.08, 0.8),) * 3,
    "constant-unequal": (ft.Constant(0.03), ft.Constant(0.02), ft.Constant(0.01)),
    "constant-equal": (ft.Constant(0.02),) * 3,
}
RULES = {
    "momentum": {"local": ft.Momentum(0.8)},
    "momentum-reset": {"local": ft.Momentum(0.8, reset=True)},
    "nesterov": {"local": ft.Momentum(0.7, nesterov=True)},
    "adamw": {"local": ft.AdamW()},
    "adamw-reset": {"local": ft.AdamW(reset=True)},
    "scaffold": {"local": ft.Scaffold(), "server": ft.Controlled()},
    "feddyn": {"local": ft.Dynamic(0.3), "server": ft.DynamicServer(0.3)},
    "fedavgm": {"server": ft.AverageMomentum(0.6)},
}


class FolderSource(Source):
    """Sites with a folder each, as the scripts of a deployment give them."""

    def __init__(self, experiment, federation, folder):
        super().__init__(experiment, federation)
        self.place = Path(folder)

    def folder(self, site):
        return self.place / site


def experiment(problem, **changes):
    basic = {"rounds": 5, "local_steps": (3, 2, 4), "batch_size": 10, "seed": 4}
    schedules = changes.pop("schedules", TAPERING)
    return ft.Experiment(problem, schedules, **(basic | changes))


def federation(**changes):
    return ft.Federation(**({"sites": SITES, "deadline": 0.3} | changes))


def over_loop(e, folder=None, spoil=None, out=None, **changes):
    made = federation(**changes)
    source = Source(e, made) if folder is None else FolderSource(e, made, folder)
    return serve(LoopGrid(source, spoil), source, out, progress=False)


def events(out, kind):
    lines = (Path(out) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_the_models_of_the_reference(tiny, rule, steps):
    e = experiment(tiny, schedules=STEPS[steps], participation=0.7, **RULES[rule])
    mine, theirs = ft.run(e, engine="reference"), over_loop(e)
    assert np.abs(mine.w - theirs.w).max() < 1e-12
    assert np.abs(mine.update_norms - theirs.update_norms).max() < 1e-12


@pytest.mark.parametrize("rule", ["scaffold", "momentum"])
def test_the_mean_over_those_present(tiny, rule):
    e = experiment(tiny, participation=0.5, average_over="present", rounds=8, **RULES[rule])
    assert np.abs(ft.run(e, engine="reference").w - over_loop(e).w).max() < 1e-12


@pytest.mark.parametrize("rule", ["momentum", "adamw", "scaffold", "feddyn"])
def test_networks_give_the_models_of_the_cpu_engine(rule):
    import torch

    x = torch.linspace(-1, 1, 90).reshape(30, 3)
    data = [(x[i::3], x[i::3].pow(2).sum(1, keepdim=True)) for i in range(3)]
    problem = ft.Custom(
        lambda model, x, y: torch.nn.functional.mse_loss(model(x), y),
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)),
        data,
    )
    e = ft.Experiment(problem, TAPERING, rounds=4, local_epochs=1, batch_size=5, **RULES[rule])
    mine, theirs = ft.run(e, engine="cpu"), over_loop(e)
    np.testing.assert_allclose(theirs.w, mine.w, atol=2e-7)


class Killed(BaseException):
    """The server dies here."""


def killed_at(stop):
    calls = []

    def spoil(site, round_, reply):
        if round_ == stop and not calls:
            calls.append(site)
            raise Killed
        return reply

    return spoil


@pytest.mark.parametrize("rule", ["momentum", "adamw", "scaffold", "feddyn", "fedavgm"])
def test_a_killed_server_goes_on_with_the_memories_that_fit_its_model(tiny, tmp_path, rule):
    e = experiment(tiny, rounds=8, participation=0.8, **RULES[rule])
    whole = ft.run(e, engine="reference")
    for stop in (1, 5):
        out, folder = tmp_path / f"run-{stop}", tmp_path / f"sites-{stop}"
        with pytest.raises(Killed):
            over_loop(e, folder, killed_at(stop), out)
        with pytest.raises(Killed):  # and once more
            over_loop(e, folder, killed_at(min(stop + 2, 7)), out)
        assert np.abs(over_loop(e, folder, None, out).w - whole.w).max() < 1e-12


def test_an_older_checkpoint_is_gone_on_with_as_well(tiny, tmp_path):
    """The sites are ahead of the server: they start again from the round that it knows."""
    e = experiment(tiny, rounds=8, **RULES["momentum"])
    with pytest.raises(Killed):
        over_loop(e, tmp_path / "sites", killed_at(5), tmp_path / "run")
    (tmp_path / "run" / store.CHECKPOINT).write_bytes(b"")  # the one before it serves
    with pytest.warns(ft.FedtaperWarning, match="checkpoint before it"):
        run = over_loop(e, tmp_path / "sites", None, tmp_path / "run")
    assert np.abs(run.w - ft.run(e, engine="reference").w).max() < 1e-12


def test_an_update_that_does_not_count_leaves_no_trace_at_the_site(tiny):
    """South's answers of rounds 2 and 3 vanish: as if it had been absent, in memory too."""
    e = experiment(tiny, rounds=6, **RULES["scaffold"])

    def spoil(site, round_, reply):
        return None if site == "south" and round_ in (2, 3) else reply

    who = ft.Listed([(0, 2) if k in (2, 3) else (0, 1, 2) for k in range(6)])
    absent = experiment(tiny, rounds=6, participation=who, **RULES["scaffold"])
    lossy = over_loop(e, spoil=spoil)
    assert np.abs(lossy.w - ft.run(absent, engine="reference").w).max() < 1e-12


def test_a_round_that_is_asked_again_starts_from_the_same_memories(tiny, monkeypatch):
    monkeypatch.setattr("fedtaper.engines.flower.rounds.RETRY_PAUSE", 0.0)
    e = experiment(tiny, rounds=4, **RULES["momentum"])
    lost = []

    def spoil(site, round_, reply):
        if round_ == 2 and site != "north" and len(lost) < 2:
            lost.append(site)
            return None
        return reply

    assert np.abs(over_loop(e, spoil=spoil).w - ft.run(e, engine="reference").w).max() < 1e-12
    assert lost == ["south", "west"]


def test_a_lost_memory_is_named_and_not_mixed(tiny, tmp_path):
    """Without a folder a site forgets when the server is resumed, and says so."""
    e = experiment(tiny, rounds=4, **RULES["momentum"])
    out = tmp_path / "run"
    with pytest.raises(Killed):
        over_loop(e, None, killed_at(2), out)
    with pytest.raises(ft.FedtaperError, match="no memory of round 2"):
        over_loop(e, None, None, out, retries=0)
    told = events(out, "memory")
    assert {entry["site"] for entry in told} == set(SITES)
    assert all("forgets when the SuperNode" in entry["why"] for entry in told)


def test_one_site_without_its_folder_is_left_out_or_begins_anew(tiny, tmp_path):
    e = experiment(tiny, rounds=6, **RULES["momentum"])
    for restart in (False, True):
        out, folder = tmp_path / f"run-{restart}", tmp_path / f"sites-{restart}"
        with pytest.raises(Killed):
            over_loop(e, folder, killed_at(3), out)
        for file in (folder / "south").iterdir():
            file.unlink()
        run = over_loop(e, folder, None, out, restart_memory=restart)
        counted = np.isfinite(run.update_norms[:, 1]).tolist()
        assert counted == [True] * 3 + [False] + [restart] * 2
        (first, *_) = events(out, "memory")
        assert first["site"] == "south"
        assert "has none of this run" in first["why"]
        assert ("starts again" in first["why"]) == restart


def test_a_damaged_or_foreign_memory_is_named(tmp_path):
    vault = FileVault(tmp_path / "site")
    one, other = Stamp(1, 2, 3), Stamp(1, 9, 3)
    vault.save(one, (np.arange(3.0), np.ones(1)))
    first, second = vault.load(one)
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [1]
    with pytest.raises(LostError, match=r"no memory of round 3: .* has rounds \[3\]"):
        vault.load(other)  # of another session of the server
    path = tmp_path / "site" / f"{one.name}.npz"
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(3.0).tobytes()) + 8] ^= 1
    for damaged in (b"", bytes(content), bytes(content[:-30])):
        path.write_bytes(damaged)
        with pytest.raises(LostError, match="damaged"):
            vault.load(one)


def test_old_memories_go(tmp_path):
    vault = FileVault(tmp_path)
    for run in range(1, RUNS + 3):
        for k in range(1, KEPT + 4):
            vault.save(Stamp(run, 7, k), (np.zeros(2),))
    left = sorted(path.stem.split("-")[1] for path in tmp_path.iterdir())
    assert left == sorted(f"{run:x}" for run in range(3, RUNS + 3) for _ in range(KEPT))
    context = Context(1, 1, {}, RecordDict(), {})
    held = ContextVault(context)
    for k in range(1, 8):
        held.save(Stamp(1, 1, k), (np.full(2, k), np.zeros(1)))
    assert len(context.state) == 2 * IN_CONTEXT
    assert held.load(Stamp(1, 1, 7))[0].tolist() == [7, 7]
    with pytest.raises(LostError, match="no memory of round 1"):
        held.load(Stamp(1, 1, 1))


def test_buffered_rounds_take_no_memory(tiny):
    with pytest.raises(ft.FedtaperError, match="leave out buffer"):
        over_loop(experiment(tiny, **RULES["momentum"]), buffer=2)


def test_another_engine_does_not_go_on_without_the_sites_memories(tiny, tmp_path):
    e = experiment(tiny, rounds=6, **RULES["momentum"])
    out = tmp_path / "run"
    with pytest.raises(Killed):
        over_loop(e, tmp_path / "sites", killed_at(3), out)
    with pytest.raises(ft.FedtaperError, match="at the sites of a deployed federation"):
        ft.run(e, engine="reference", out=out, resume=True)


def in_process(app, count):
    """In place of Flower's simulation: its sites in this process."""
    known = Source(None, ft.Federation(numbered(count)))
    grid = LoopGrid(known)
    grid.app = app
    return nullcontext(grid)


@pytest.mark.parametrize("simulated", [False, pytest.param(True, marks=pytest.mark.federation)])
@pytest.mark.parametrize("rule", ["scaffold", "adamw"])
def test_memories_pass_between_the_simulation_and_other_engines(
    tiny, tmp_path, monkeypatch, rule, simulated
):
    """Three rounds on the reference, three on Flower's simulation, three on the reference."""
    if not simulated:
        monkeypatch.setattr("fedtaper.engines.flower.simulation.Simulation", in_process)
    for rounds, engine in ((3, "reference"), (6, "flower"), (9, "reference")):
        e = experiment(tiny, rounds=rounds, participation=0.8, **RULES[rule])
        run = ft.run(e, engine=engine, out=tmp_path / "run", resume=rounds > 3, progress=False)
    assert np.abs(run.w - ft.run(e, engine="reference").w).max() < 1e-12


@pytest.mark.federation
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_in_flowers_simulation(tiny, rule):
    steps = dict(zip(RULES, [*STEPS, *STEPS], strict=True))[rule]
    e = experiment(tiny, schedules=STEPS[steps], participation=0.8, **RULES[rule])
    run = ft.run(e, engine="flower", progress=False)
    assert np.abs(run.w - ft.run(e, engine="reference").w).max() < 1e-12
