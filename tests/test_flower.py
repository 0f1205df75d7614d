"""The Flower engine: the same numbers as in simulation, and answers that cannot be trusted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flower_loop import LoopGrid, Source, told
from flwr.app import Array, ArrayRecord, Context, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_file import TWO_SITES as FILE

import fedtaper as ft
from fedtaper.deploy.federation_file import read_federation
from fedtaper.deploy.files import write_deployment
from fedtaper.deploy.finished import finished
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.places import Ports
from fedtaper.deploy.scaffold import new_app
from fedtaper.deploy.server import serve
from fedtaper.deploy.simulated import run_file
from fedtaper.deploy.sites import realised_influence
from fedtaper.deploy.source import FileSource
from fedtaper.engines.flower.client import site_name
from fedtaper.engines.flower.federation import numbered
from fedtaper.engines.flower.privacy import on_models
from fedtaper.storage import durable, store

SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))


def experiment(problem, **changes):
    basic = {"rounds": 6, "local_steps": 3, "batch_size": 10, "seed": 4}
    return ft.Experiment(problem, SCHEDULES, **(basic | changes))


def federation(**changes):
    return ft.Federation(**({"sites": ("north", "south", "west"), "deadline": 0.3} | changes))


def over_loop(e, spoil=None, out=None, node_config=None, **changes):
    grid = LoopGrid(Source(e, federation(**changes)), spoil, node_config)
    return serve(grid, grid.source, out, progress=False)


def events(out):
    lines = (Path(out) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"local": ft.Proximal(0.3), "server": ft.Average(by="samples")},
        {"server": ft.Normalised(), "local_steps": (1, 3, 5)},
        {"server": ft.Adagrad()},
        {"server": ft.Adam(), "participation": 0.6},
        {"server": ft.Yogi(), "clock": "round"},
        {"participation": (1.0, 0.3, 0.9)},
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_every_rule_gives_the_same_models_as_the_reference(tiny, changes):
    e = experiment(tiny, **changes)
    mine, theirs = ft.run(e, engine="reference"), over_loop(e)
    assert np.abs(mine.w - theirs.w).max() < 1e-12
    assert np.abs(mine.update_norms - theirs.update_norms).max() < 1e-12
    for name, values in mine.metrics.items():
        np.testing.assert_allclose(theirs.metrics[name], values, rtol=1e-9, atol=1e-12)
    assert theirs.engine == "flower"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    rate=st.floats(0.2, 1.0),
    seed=st.integers(0, 2**20),
)
def test_same_models_for_any_steps_rates_and_seeds(steps, rate, seed):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
    e = experiment(problem, local_steps=tuple(steps), participation=rate, seed=seed, rounds=3)
    assert np.abs(ft.run(e, engine="reference").w - over_loop(e).w).max() < 1e-12


def test_networks_give_the_same_models_and_metrics():
    problem = ft.ImageClassification("digits", split=ft.RareClass(8), model="cnn", num_clients=3)
    e = ft.Experiment(problem, SCHEDULES, rounds=2, local_epochs=1, batch_size=32)
    mine, theirs = ft.run(e), over_loop(e, deadline=60.0)
    np.testing.assert_allclose(theirs.w, mine.w, atol=1e-6)
    for name in ("train_loss", "test_loss", "test_accuracy", "rare_test_accuracy", "change"):
        np.testing.assert_allclose(theirs.metrics[name], mine.metrics[name], atol=1e-5)


def spoiled_array(array):
    def spoil(reply):
        reply.content["update"] = ArrayRecord(numpy_ndarrays=[array])
        return reply

    return spoil


def other_key(reply):
    record = reply.content["update"]
    reply.content["update"] = ArrayRecord({"w": record["0"]})
    return reply


def garbage(reply):
    bad = Array(dtype="float64", shape=(2,), stype="numpy.ndarray", data=b"\x93NUMPY nonsense")
    reply.content["update"] = ArrayRecord({"0": bad})
    return reply


def nothing(reply):
    del reply.content["update"]
    return reply


FAULTS = {
    "not finite": spoiled_array(np.array([np.nan, 0.0])),
    "1 of its numbers": spoiled_array(np.array([0.0, np.inf])),
    "wrong shape: (1,)": spoiled_array(np.zeros(1)),
    "wrong shape: (3, 2)": spoiled_array(np.zeros((3, 2))),
    "wrong dtype: float32": spoiled_array(np.zeros(2, dtype=np.float32)),
    "wrong keys": other_key,
    "cannot be decoded": garbage,
    "missing": nothing,
    "answers for round 77": lambda reply: told(reply, round=77),
    "answers as west": lambda reply: told(reply, site="west"),
    "used c = 0.5": lambda reply: told(reply, c=0.5),
}


@pytest.mark.parametrize("why", FAULTS)
def test_a_bad_answer_is_rejected_named_and_the_round_goes_on(why, tiny, tmp_path):
    def spoil(site, round_, reply):
        return FAULTS[why](reply) if (site, round_) == ("south", 2) else reply

    e = experiment(tiny)
    run = over_loop(e, spoil, tmp_path / "run")
    (event,) = events(tmp_path / "run")
    assert (event["round"], event["site"], event["kind"]) == (3, "south", "rejected")
    assert why in event["why"]
    assert run.metrics["answered"].tolist() == [3, 3, 2, 3, 3, 3]
    assert np.isnan(run.update_norms[2, 1])
    without = over_loop(e, lambda site, k, r: None if (site, k) == ("south", 2) else r)
    assert np.array_equal(run.w, without.w), "a rejected answer counts as none"


def test_updates_are_kept_and_audited_as_in_simulation(tiny):
    e = experiment(tiny, rounds=12, participation=0.8)
    mine, theirs = ft.run(e, engine="reference", updates=True), over_loop(e)
    np.testing.assert_allclose(theirs.updates, mine.updates, atol=1e-12)
    verdicts = [[c.verdict for c in ft.audit(run).clients] for run in (mine, theirs)]
    assert verdicts[0] == verdicts[1]


def test_a_site_that_does_nothing_is_named_while_the_run_goes_on(tiny, tmp_path):
    class Killed(BaseException):
        pass

    calls = []

    def spoil(site, round_, reply):
        if round_ == 7 and not calls:
            calls.append(site)
            raise Killed
        if site == "west":
            return spoiled_array(np.zeros(2))(reply)
        return None if site == "south" and round_ % 3 == 0 else reply

    e = experiment(tiny, rounds=11)
    with pytest.raises(Killed):
        over_loop(e, spoil, tmp_path / "run")
    run = over_loop(e, spoil, tmp_path / "run")
    named = [(x["round"], x["site"]) for x in events(tmp_path / "run") if "audit" in x["kind"]]
    assert named == [(5, "west"), (10, "west")], "after a resume it is looked at afresh"
    verdicts = [c.verdict for c in ft.audit(run).clients]
    assert verdicts[2] == "idle"
    assert verdicts[1] != "idle", "a late site is absent, not idle"


def test_simulated_attackers_are_refused(tiny):
    with pytest.raises(ft.FedtaperError, match="does not simulate behaviours"):
        over_loop(experiment(tiny, behaviours={1: ft.Idle()}))


def test_a_late_answer_is_not_used_and_lowers_the_realised_influence(tiny, tmp_path):
    e = experiment(tiny, rounds=4)
    run = over_loop(
        e,
        lambda site, round_, reply: None if site == "west" and round_ % 2 else reply,
        tmp_path / "run",
    )
    assert [(x["round"], x["kind"]) for x in events(tmp_path / "run")] == [(2, "late"), (4, "late")]
    planned = e.influence().effective
    np.testing.assert_allclose(realised_influence(run), planned * [1, 1, 0.5])
    rows = json.loads((tmp_path / "run" / "sites.json").read_text(encoding="utf-8"))
    assert [row["rounds_counted"] for row in rows] == [4, 4, 2]


def test_without_quorum_a_round_is_asked_again_and_then_the_run_stops(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("fedtaper.engines.flower.rounds.RETRY_PAUSE", 0.0)
    e = experiment(tiny)
    tries = []

    def spoil(site, round_, reply):
        if round_ == 3 and site != "north":
            tries.append(site)
            return None if len(tries) <= 2 else reply
        return reply

    run = over_loop(e, spoil, tmp_path / "again")
    assert np.array_equal(run.w, over_loop(e).w), "a repeated round is the same round"
    out = tmp_path / "stops"
    with pytest.raises(ft.FedtaperError, match="round 4 has no quorum: 1 good"):
        over_loop(e, lambda s, k, r: None if k == 3 and s != "north" else r, out, retries=1)
    resumed = over_loop(e, out=out)
    assert np.array_equal(resumed.w, run.w), "what was whole is kept"


def test_killed_at_any_round_and_resumed_gives_the_undisturbed_models(tiny, tmp_path):
    class Killed(BaseException):
        pass

    e = experiment(tiny, server=ft.Adam(), participation=0.8, rounds=8)
    for stop in (0, 1, 3, 5, 7):
        calls = []

        def spoil(site, round_, reply, stop=stop, calls=calls):
            if round_ == stop and not calls:
                calls.append(site)
                raise Killed
            return reply

        out = tmp_path / str(stop)
        with pytest.raises(Killed):
            over_loop(e, spoil, out)
        grid = LoopGrid(Source(e, federation()))
        resumed = serve(grid, grid.source, out, progress=False)
        first = min(round_ for _, round_, _ in grid.sent if round_ >= 0)
        orders = {r: m.content["order"]["n"] for _, r, m in grid.sent if r >= 0}
        assert first in (stop, stop + 1), "goes on at the round that was not whole"
        assert all(n == r * e.period for r, n in orders.items()), "the clock is the server's"
        assert np.array_equal(resumed.w, over_loop(e).w)
        assert np.array_equal(resumed.update_norms, over_loop(e).update_norms)


def test_a_stopped_server_does_not_go_on_with_another_experiment(tiny, tmp_path):
    class Killed(BaseException):
        pass

    def stop(site, round_, reply):
        if round_ == 3:
            raise Killed
        return reply

    out = tmp_path / "run"
    with pytest.raises(Killed):
        over_loop(experiment(tiny), stop, out)
    other = experiment(tiny, server=ft.Average("samples"))
    with pytest.raises(ft.FedtaperError, match=r"(?s)another experiment.*server"):
        over_loop(other, out=out)
    own = {"south": {"c": 0.07, "delta": 0.8, "offset": 2.0}}
    with pytest.raises(ft.FedtaperError, match="schedule"):
        over_loop(experiment(tiny), out=out, node_config=own, own_schedules=True)
    assert np.array_equal(over_loop(experiment(tiny), out=out).w, over_loop(experiment(tiny)).w)


def test_a_finished_run_is_not_given_for_another_experiment(tiny, tmp_path):
    made = over_loop(experiment(tiny), out=tmp_path / "run")

    def again(**changes):
        return finished(Source(experiment(tiny, **changes), federation()), tmp_path / "run")

    assert np.array_equal(again().w, made.w)
    with pytest.raises(ft.FedtaperError, match=r"(?s)another experiment.*server"):
        again(server=ft.Average("samples"))
    with pytest.raises(ft.FedtaperError, match=r"finished run of 6 rounds.*another folder"):
        again(rounds=9)
    own = {"south": {"c": 0.07, "delta": 0.8, "offset": 2.0}}
    how = {"node_config": own, "own_schedules": True}
    made = over_loop(experiment(tiny), out=tmp_path / "own", **how)
    source = Source(experiment(tiny), federation(own_schedules=True))
    assert finished(source, tmp_path / "own").experiment.schedules == made.experiment.schedules


def test_a_finished_simulation_and_rehearsal_of_a_changed_file_are_refused(tmp_path):
    """Before anything starts or is written."""
    text = FILE + '[federation]\nsites = ["north", "south"]\n'
    file = tmp_path / "case.toml"
    file.write_text(text)
    grid = LoopGrid(FileSource(str(file), str(tmp_path)))
    for out in ("run", "local/server/run"):
        serve(LoopGrid(grid.source), grid.source, tmp_path / out, progress=False)
    assert len(run_file(file, out=tmp_path / "run", resume=True).round) == 2
    file.write_text(text.replace("c = 0.01", "c = 0.02"))
    with pytest.raises(ft.FedtaperError, match=r"(?s)another experiment.*0\.02"):
        run_file(file, out=tmp_path / "run", resume=True)
    with pytest.raises(ft.FedtaperError, match=r"(?s)another experiment.*0\.02"):
        LocalFederation(file, tmp_path / "local", resume=True)
    assert [p.name for p in (tmp_path / "local").iterdir()] == ["server"]


def test_what_became_of_the_sites_is_stored_before_the_run(tiny, tmp_path, monkeypatch):
    """A folder that counts as finished has it."""
    written, real = [], durable.write

    def noted(path, *words):
        written.append(path.name)
        real(path, *words)

    monkeypatch.setattr(durable, "write", noted)
    over_loop(experiment(tiny), out=tmp_path / "run")
    assert written.index("sites.json") < written.index("run.npz")


def test_a_site_may_keep_its_own_schedule_and_declare_it(tiny):
    own = {"south": {"c": 0.07, "delta": 0.8, "offset": 2.0}}
    e = experiment(tiny)
    run = over_loop(e, node_config=own, own_schedules=True)
    declared = ft.Power(0.07, 0.8, 2.0)
    assert run.experiment.schedules[1] == declared
    same = replace(e, schedules=(SCHEDULES[0], declared, SCHEDULES[2]))
    assert np.array_equal(run.w, ft.run(same, engine="reference").w)
    with pytest.raises(ft.FedtaperError, match="missing: south"):
        over_loop(e, node_config=own, wait=0.1, quorum=3)


def test_sites_are_known_by_name_not_by_order_of_arrival(tiny):
    e = experiment(tiny)
    grid = LoopGrid(Source(e, federation()))
    grid.sites = {7: "west", 9: "north", 8: "south"}
    assert np.array_equal(serve(grid, grid.source, None, progress=False).w, over_loop(e).w)
    grid = LoopGrid(Source(e, federation()))
    bound = {"north": "100", "south": "101", "west": "102"}
    assert np.array_equal(serve(grid, grid.source, None, bound, progress=False).w, over_loop(e).w)


def test_a_partition_number_names_the_site_where_no_name_is_given():
    sites = ("north", "south")
    context = Context(1, 1, {"partition-id": 1}, RecordDict(), {})
    assert site_name(context, sites) == "south"
    assert site_name(replace(context, node_config={"partition-id": 5}), sites) == "partition 5"
    with pytest.raises(ft.FedtaperError, match="does not say which site"):
        site_name(replace(context, node_config={}), sites)


def test_a_node_with_another_sites_name_is_refused(tiny, tmp_path):
    e = experiment(tiny)
    grid = LoopGrid(Source(e, federation()))
    grid.sites[666] = "north"
    out = tmp_path / "run"
    assert np.array_equal(serve(grid, grid.source, out, progress=False).w, over_loop(e).w)
    assert "which is connected already" in events(out)[0]["why"]
    grid = LoopGrid(Source(e, federation(wait=0.1, quorum=3)))
    with pytest.raises(ft.FedtaperError, match="missing: north"):
        serve(grid, grid.source, None, {"north": "5"}, progress=False)
    grid = LoopGrid(Source(e, federation()))
    grid.sites[50] = "stranger"
    out = tmp_path / "stranger"
    serve(grid, grid.source, out, progress=False)
    assert "not a site of this federation" in events(out)[0]["why"]


def test_a_lost_site_comes_back(tiny, tmp_path):
    e = experiment(tiny)
    grid = LoopGrid(Source(e, federation()))
    online = grid.get_node_ids

    def nodes():
        rounds = max((r for _, r, _ in grid.sent), default=-1)
        return [n for n in online() if not (n == 101 and 1 <= rounds < 3)]

    grid.get_node_ids = nodes
    run = serve(grid, grid.source, tmp_path / "run", progress=False)
    assert (run.update_norms[:, 1] > 0).tolist() == [True, True, False, False, True, True]
    assert {x["kind"] for x in events(tmp_path / "run")} == {"lost"}


def test_buffered_rounds_settle_where_the_influences_say(tiny):
    e = ft.Experiment(tiny, ft.Power(0.3, 0.8), rounds=400, local_steps=2, batch_size=40)

    def slow(site, round_, reply):
        return (2 if site == "west" else 0, reply)

    run = over_loop(e, slow, buffer=2, deadline=30.0)
    assert run.metrics["answered"].max() <= 2
    assert run.metrics["staleness"].max() > 0
    rate = (run.update_norms > 0).mean(axis=0)
    assert rate[2] < rate[0]
    target = tiny.equilibrium(realised_influence(run))
    equal = tiny.equilibrium(np.ones(3))
    assert np.linalg.norm(run.w[-1] - target) < 0.25 * np.linalg.norm(run.w0 - target)
    assert np.linalg.norm(run.w[-1] - target) < np.linalg.norm(run.w[-1] - equal)


def test_buffer_of_all_sites_is_the_plain_round(tiny):
    e = experiment(tiny)
    run = over_loop(e, buffer=3, deadline=30.0)
    assert np.abs(run.w - over_loop(e).w).max() < 1e-12
    assert run.metrics["staleness"].max() == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[federation]\nsites = ["a"]', "1 sites for 2 clients"),
        ('[federation]\nsites = ["a", "a"]', "listed twice"),
        ('[federation]\nsites = ["a", "b/c"]', "not a valid site name"),
        ('[federation]\nsites = ["a", "b"]\nquorum = 3', "more than the 2 sites"),
        ('[federation]\nsites = ["a", "b"]\ndeadline = -1', "number above 0.* in seconds"),
        ('[federation]\nsits = ["a", "b"]', "did you mean 'sites'"),
        ('[federation]\nsites = ["a", "b"]\ntask = "no.such:task"', "cannot be loaded"),
    ],
)
def test_mistakes_in_a_federation_file_are_told(text, why, tmp_path):
    file = tmp_path / "f.toml"
    file.write_text(FILE + text)
    with pytest.raises(ft.FedtaperError, match=why):
        read_federation(file).federation.load_task()


def test_a_file_without_the_table_numbers_its_sites(tmp_path):
    file = tmp_path / "f.toml"
    file.write_text(FILE)
    assert read_federation(file).federation.sites == numbered(2) == ("site-0", "site-1")
    assert ft.read_toml(file).num_clients == 2


def test_a_task_run_can_be_read_without_its_code(tmp_path):
    torch = pytest.importorskip("torch")
    task = ft.Task(
        loss=lambda model, x, y: torch.nn.functional.mse_loss(model(x), y),
        init=lambda: torch.nn.Linear(3, 1),
        data=lambda site: None,
    )
    data = {i: (torch.ones(10 + i, 3), torch.ones(10 + i, 1)) for i in range(3)}
    e = ft.Experiment(
        task.problem([10, 11, 12], data), SCHEDULES, rounds=3, local_epochs=1, batch_size=5
    )
    alone = replace(e, problem=task.problem([10, 11, 12], {1: data[1]}))
    assert alone.problem.sizes.tolist() == [10, 11, 12]
    over_loop(e, out=tmp_path / "run", deadline=30.0)
    found = store.load(tmp_path / "run")
    np.testing.assert_allclose(found.experiment.influence().effective, e.influence().effective)
    assert ft.report([tmp_path / "run"], tmp_path / "page.html").is_file()


def test_a_deployment_inside_the_app_does_not_copy_itself_nor_the_keys_of_another(tmp_path):
    app = new_app("mine", tmp_path)
    file = app / "mine" / "federation.toml"
    (app / "runs").mkdir()
    write_deployment(file, app / "first", "localhost", Ports())
    (app / "first" / "server" / "server.key").write_text("secret")
    write_deployment(file, app / "second", "localhost", Ports())
    for name in ("first", "second"):
        copied = {str(x.relative_to(app / name / "app")) for x in (app / name / "app").rglob("*")}
        assert copied == {
            "README.md", "pyproject.toml", "mine", "mine/__init__.py", "mine/task.py",
            "mine/federation.toml",
        }  # fmt: skip


def with_mods(e, *mods):
    grid = LoopGrid(Source(e, federation()), mods=mods)
    return serve(grid, grid.source, None, progress=False)


def test_local_privacy_clips_and_adds_noise_to_updates(tiny):
    from flwr.clientapp.mod import LocalDpMod

    e = experiment(tiny, rounds=3)
    plain = over_loop(e)
    loose = with_mods(e, on_models(LocalDpMod(1e6, 0.0, 1.0, 1e-5)))
    np.testing.assert_allclose(loose.w, plain.w, atol=1e-9)
    clipped = with_mods(e, on_models(LocalDpMod(0.01, 0.0, 1.0, 1e-5)))
    assert plain.update_norms.max() > 0.02
    assert clipped.update_norms.max() < 0.01 + 1e-9, "every site moves the model alike"
    noisy = with_mods(e, on_models(LocalDpMod(0.01, 1.0, 1.0, 1e-5)))
    assert noisy.update_norms.min() > 0.1, "what the server sees of a site is noise"


def test_secure_aggregation_of_flower_does_not_fit_and_says_so(tiny):
    from flwr.client.mod import secaggplus_mod

    source = Source(experiment(tiny), federation(retries=0))
    grid = LoopGrid(source, mods=[secaggplus_mod])
    with pytest.raises(ft.FedtaperError, match="round 1 has no quorum: 0 good answers"):
        serve(grid, source, None, progress=False)
