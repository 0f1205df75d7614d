"""Sites that lie, break or attack: every answer is checked, and the server goes on."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from flower_loop import LoopGrid, Source, told
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import fedtaper as ft
from fedtaper.deploy.server import event_log, serve
from fedtaper.engines.flower import roster as rosters
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.roster import Roster
from fedtaper.engines.flower.sizes import check_samples
from fedtaper.storage import store

SITES = ("north", "south", "west")
SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(rosters, "LONGEST_PAUSE", 0.02)


def experiment(problem, **changes):
    basic = {"rounds": 6, "local_steps": 3, "batch_size": 10, "seed": 4}
    return ft.Experiment(problem, changes.pop("schedules", SCHEDULES), **(basic | changes))


def federation(**changes):
    return ft.Federation(**({"sites": SITES, "deadline": 0.3, "wait": 0.1} | changes))


def over_loop(e, spoil=None, out=None, introduce=None, **changes):
    grid = LoopGrid(Source(e, federation(**changes)), spoil, introduce=introduce)
    return serve(grid, grid.source, out)


def events(out, *kinds):
    lines = (Path(out) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [x for x in map(json.loads, lines) if not kinds or x["kind"] in kinds]


def by_south(change):
    return lambda site, round_, reply: change(reply, round_) if site == "south" else reply


def measured(**metrics):
    def change(reply, round_):
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return by_south(change)


def scaled(factor, rounds):
    def change(reply, round_):
        if round_ in rounds:
            update = wire.joined(reply.content["update"]) * factor
            reply.content["update"] = wire.packed(update)
        return reply

    return by_south(change)


# ------------------------------------------------------------------ what sites measure


def test_a_sites_metrics_never_take_the_place_of_the_servers_own(tiny, tmp_path):
    e = experiment(tiny)
    lies = {"error": 0.0, "change": -7.0, "answered": 99, "seconds": 0.0, "train_loss": 0.0}
    run = over_loop(e, measured(**lies), tmp_path / "run", metrics=("error", "train_loss", "age"))
    plain = over_loop(e)
    assert list(run.metrics) == list(plain.metrics)
    for name in set(plain.metrics) - {"seconds"}:
        assert np.array_equal(run.metrics[name], plain.metrics[name])
    (event,) = events(tmp_path / "run", "ignored")  # once, not in every round
    assert event["site"] == "south"
    assert "answered = 99" in event["why"]


def test_only_agreed_metrics_are_taken_and_their_names_are_plain(tiny, tmp_path):
    odd = {'=HYPERLINK("http://x")': 1.0, "[/red]": 2.0, "age": 50.0, "x\x1b[2J": 3.0}
    run = over_loop(experiment(tiny), measured(**odd), tmp_path / "run", metrics=("age",))
    assert run.metrics["age"].tolist() == [50.0] * 6
    text = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8")
    assert "HYPERLINK" not in text
    assert "[/red]" not in text
    assert "\x1b" not in events(tmp_path / "run", "ignored")[0]["why"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_metric_that_is_no_sensible_number_is_left_out(tiny, value):
    run = over_loop(experiment(tiny), measured(age=value), metrics=("age",))
    assert "age" not in run.metrics


def test_twenty_thousand_metrics_are_not_looked_at(tiny, tmp_path):
    many = {f"m{i}": 1.0 for i in range(20_000)}
    run = over_loop(experiment(tiny, rounds=2), measured(**many), tmp_path / "run")
    assert list(run.metrics) == list(over_loop(experiment(tiny, rounds=2)).metrics)
    assert "20,000 metrics" in events(tmp_path / "run", "ignored")[0]["why"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"metrics": ("=x",)}, "not a valid name"),
        ({"metrics": ("answered",)}, "server's own"),
        ({"metrics": "age"}, "list of names"),
        ({"samples": {"east": 5}}, "no site 'east'"),
        ({"samples": {"north": "many"}}, "pair"),
        ({"samples": {"north": [9, 5]}}, "bounds 9 and 5"),
        ({"samples": {"north": True}}, "pair"),
        ({"max_growth": 0.5}, "above 1"),
        ({"max_size_ratio": math.nan}, "above 1"),
        ({"nodes": {"north": "5; rm"}}, "must be a number"),
        ({"nodes": [1]}, "table"),
        ({"own_schedules": "yes"}, "True or False"),
        ({"task": 5}, "module:name"),
        ({"sites": "abc"}, "list of names"),
        ({"sites": 5}, "list of names"),
        ({"deadline": True}, "number above 0.* in seconds"),
        ({"retries": 1.5}, "whole number"),
    ],
)
def test_bad_settings_are_one_line(bad, why):
    with pytest.raises(ft.FedtaperError, match=why):
        federation(**bad)


# ------------------------------------------------------------------ what sites say of themselves


@pytest.mark.parametrize(
    "lie",
    [
        {"samples": "abc"}, {"samples": math.nan}, {"samples": [40]}, {"samples": -5},
        {"samples": 10**9}, {"samples": 0}, {"samples": True}, {"samples": 4.5},
        {"c": 1e300}, {"c": math.nan}, {"c": "x"}, {"c": -1.0}, {"c": [0.1]}, {"delta": 1e9},
        {"delta": -1.0}, {"offset": math.inf}, {"offset": b"x"}, {"site": 5}, {"site": ""},
        {"site": ["south"]}, {"site": "north\n"}, {"version": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_site_that_lies_about_itself_is_refused_and_named(tiny, tmp_path, lie):
    def introduce(site, reply):
        whole = {"c": 0.1, "delta": 0.8, "offset": 0.0, "samples": 40}
        return told(reply, **(whole | lie)) if site == "south" else reply

    run = over_loop(
        experiment(tiny, rounds=2), out=tmp_path / "run", introduce=introduce, own_schedules=True
    )
    assert (run.update_norms[:, 1] > 0).sum() == 0
    assert "node 101" in events(tmp_path / "run", "refused")[0]["why"]


def test_an_implausible_number_of_samples_stops_the_run_before_it_begins():
    sizes = {"north": 40, "south": 400_000, "west": 60}
    with pytest.raises(ft.FedtaperError, match=r"south reports 400,000 samples, 8,000 times"):
        check_samples(federation(), sizes)
    check_samples(federation(samples={"south": [1, 500_000]}), sizes)
    check_samples(federation(max_size_ratio=1e5), sizes)
    check_samples(ft.Federation(("only",)), {"only": 10**6})


class Holding(Source):
    """A source whose sites alone know how much data they hold."""

    def __init__(self, experiment, federation, sizes):
        super().__init__(experiment, federation)
        self.held = sizes

    def samples(self, site):
        found = self.held[site]
        if isinstance(found, Exception):
            raise found
        return found


def test_expected_sizes_are_held_to(tiny, tmp_path):
    agreed = federation(samples={"south": 40, "west": [30, 50]}, quorum=1)
    source = Holding(experiment(tiny), agreed, {"north": 40, "south": 41, "west": 40})
    run = serve(LoopGrid(source), source, tmp_path / "run")
    assert "its samples is 41" in events(tmp_path / "run", "refused")[0]["why"]
    assert run.metrics["answered"].max() == 2


def test_a_server_that_hears_an_implausible_size_makes_no_round(tiny, tmp_path):
    source = Holding(experiment(tiny), federation(), {"north": 40, "south": 400_000, "west": 60})
    with pytest.raises(ft.FedtaperError, match="south reports 400,000 samples"):
        serve(LoopGrid(source), source, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "run.npz").exists()
    assert store.load_checkpoint(tmp_path / "run") is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_event_on_a_full_disk_is_one_line(tmp_path):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    heard = []
    with pytest.raises(ft.FedtaperError, match=r"events\.jsonl cannot be written: No space left"):
        event_log(tmp_path, heard.append)(3, "south", "rejected", "NaN")
    assert heard == ["round 3 south rejected: NaN"]


def test_a_site_cannot_change_its_size_when_it_comes_back(tiny):
    e = experiment(tiny)
    source = Holding(e, federation(), dict.fromkeys(SITES, 40))
    heard = []
    grid = LoopGrid(source)
    roster = Roster(grid, source.federation, lambda *words: heard.append(words))
    assert set(roster.present()) == set(SITES)
    grid.sites = {k: v for k, v in grid.sites.items() if v != "south"}
    assert set(roster.present()) == {"north", "west"}
    grid.sites[201] = "south"
    source.held["south"] = 4000
    assert set(roster.present()) == {"north", "west"}
    assert "reported 40 before" in heard[-1][3]


def test_sites_learn_their_own_size_only(tiny):
    grid = LoopGrid(Source(experiment(tiny, rounds=2), federation()))
    serve(grid, grid.source, None)
    orders = [(site, dict(m.content["order"])) for site, round_, m in grid.sent if round_ >= 0]
    assert len(orders) == 2 * len(SITES)
    for site, order in orders:
        schedule = {"c", "delta", "offset", "factor"}
        assert set(order) == {"round", "draw", "n", "seed", "samples", *schedule}
        assert order["samples"] == tiny.sizes[SITES.index(site)]


def test_a_site_whose_data_changed_says_so(tiny, tmp_path):
    source = Source(experiment(tiny), federation(retries=0))

    def shrunk(sizes, client=None):
        smaller = ft.LinearRegression(num_clients=3, dim=2, samples=30, seed=7)
        return experiment(smaller) if client == 1 else source.known

    source.experiment = shrunk
    serve(LoopGrid(source), source, tmp_path / "run")
    assert "30 samples now, and had 40" in events(tmp_path / "run", "lost")[0]["why"]


def test_failing_data_is_named_at_once_and_once(tiny, tmp_path, capsys):
    agreed = federation(wait=300.0, task="some:task")
    trouble = FileNotFoundError("no /data/west.csv\x1b[31m")
    source = Holding(experiment(tiny), agreed, {"north": 40, "south": 40, "west": trouble})
    with pytest.raises(ft.FedtaperError, match=r"west: FileNotFoundError: no /data/west.csv"):
        serve(LoopGrid(source), source, tmp_path / "run")
    (event,) = events(tmp_path / "run")
    assert (event["site"], event["kind"]) == ("west", "failed")
    assert "\x1b" not in event["why"]


def test_the_wait_names_whom_it_waits_for(tiny, capsys):
    grid = LoopGrid(Source(experiment(tiny), federation(quorum=1, wait=0.1)))
    grid.sites = {100: "north"}
    serve(grid, grid.source, None)
    out = capsys.readouterr().out
    assert out.count("waiting for south, west") == 1
    assert "round 1/6, 1 answered" in out
    assert "round 6/6" in out


@pytest.mark.filterwarnings("ignore:constant and tapering")
def test_schedules_of_any_shape_run_on_flower(tiny):
    shapes = (ft.Cosine(0.1, over=10), ft.WarmUp(ft.Power(0.1, 0.9), over=5), ft.Constant(0.02))
    e = experiment(tiny, schedules=shapes)
    np.testing.assert_array_equal(over_loop(e).w, ft.run(e, engine="reference").w)


# ------------------------------------------------------------------ updates out of proportion


def test_an_update_too_large_to_have_a_size_is_rejected(tiny, tmp_path):
    run = over_loop(experiment(tiny), scaled(1e307, {3}), tmp_path / "run")
    (event,) = events(tmp_path / "run")
    assert (event["round"], event["kind"]) == (4, "rejected")
    assert np.abs(run.w).max() < 1e3


def test_an_update_out_of_proportion_is_an_event_and_can_be_rejected(tiny, tmp_path):
    e = experiment(tiny)
    over_loop(e, scaled(1e6, {3}), tmp_path / "told")
    event = events(tmp_path / "told", "unusual")[0]  # the others' follow: the model is far off
    assert (event["round"], event["site"]) == (4, "south")
    run = over_loop(e, scaled(1e6, {3, 4}), tmp_path / "rejected", max_growth=50.0)
    assert [x["round"] for x in events(tmp_path / "rejected", "rejected")] == [4, 5]
    assert run.metrics["answered"].tolist() == [3, 3, 3, 2, 2, 3]


def test_the_limit_on_growth_holds_after_a_resume(tiny, tmp_path):
    class Killed(BaseException):
        pass

    def killed(site, round_, reply):
        if round_ == 3:
            raise Killed
        return reply

    e = experiment(tiny)
    with pytest.raises(Killed):
        over_loop(e, killed, tmp_path / "run", max_growth=50.0)
    run = over_loop(e, scaled(1e6, {3}), tmp_path / "run", max_growth=50.0)
    assert run.metrics["answered"].tolist() == [3, 3, 3, 2, 3, 3]


# ------------------------------------------------------------------ a thousand hostile answers

JUNK = (
    None, True, 0, -1, 2**62, 10**9, 0.5, math.nan, math.inf, -math.inf, 1e300, 1e-320, "", "x",
    "=cmd()", "[/red]", "\x1b[2J", "\u202e", "x" * 5000, b"", b"\xff" * 50, [], [1, 2], [0.1],
    ["a"], [math.nan], [True],
)  # fmt: skip


def junk_record(rng):
    values = {str(i): rng.choice(JUNK) for i in range(rng.randrange(4))}
    return ConfigRecord({k: v for k, v in values.items() if v is not None})


def with_field(reply, rng):
    found = dict(reply.content["told"])
    name = rng.choice([*found, "samples", "trouble", "extra"])
    found.pop(name, None)
    value = rng.choice(JUNK)
    reply.content["told"] = ConfigRecord(found if value is None else found | {name: value})
    return reply


def with_metrics(reply, rng):
    names = ["train_loss", "answered", "change", "error", "=1+1", "[bold]", "\x00", "age"]
    numbers = [math.nan, math.inf, 1e308, -5, 0.5, [1.0, 2.0], [], 2**60]
    reply.content["metrics"] = MetricRecord({rng.choice(names): rng.choice(numbers)})
    return reply


def with_array(reply, rng):
    honest = wire.joined(reply.content["update"]) if "update" in reply.content else np.zeros(2)
    arrays = [
        honest * 1e308, honest * math.nan, honest * 1e6, honest * 0, honest[:1], honest[None],
        honest.astype(np.float32), honest.astype(complex), np.array(["a", "b"]),
        honest.astype(">f8"), np.zeros(0), np.full(2, 1e200), np.full(2, np.inf), np.zeros(5000),
        np.zeros(2, dtype=[("a", "f8")]), np.array([True, False]), np.arange(2),
    ]  # fmt: skip
    chosen = arrays[rng.randrange(len(arrays))]
    with np.errstate(all="ignore"):
        reply.content["update"] = ArrayRecord({"0": Array(np.ascontiguousarray(chosen))})
    return reply


def with_bytes(reply, rng):
    good = wire.packed(np.zeros(2))["0"].data
    cut = rng.randrange(len(good))
    spoiled = bytearray(good)
    spoiled[cut] ^= 1 << rng.randrange(8)
    data = rng.choice([good[:cut], bytes(spoiled), good + b"x" * cut, b"", b"\x93NUMPY\x02\x00"])
    kind = rng.choice(["numpy.ndarray", "numpy.ndarray", "pickle", ""])
    reply.content["update"] = ArrayRecord({"0": Array("float64", (2,), kind, data)})
    return reply


def with_keys(reply, rng):
    array = wire.packed(np.zeros(2))["0"]
    names = rng.choice([(), ("1",), ("0", "1"), ("w",), tuple(str(i) for i in range(300))])
    reply.content["update"] = ArrayRecord(dict.fromkeys(names, array))
    return reply


def without_a_part(reply, rng):
    name = rng.choice(["told", "update", "metrics"])
    if name in reply.content:
        del reply.content[name]
    return reply


def another_kind(reply, rng):
    kinds = [junk_record(rng), MetricRecord({"x": 1}), ArrayRecord(numpy_ndarrays=[np.ones(2)])]
    reply.content[rng.choice(["told", "update", "metrics"])] = kinds[rng.randrange(3)]
    return reply


def an_error(reply, rng):
    return Message(Error(rng.choice([0, 1, 2, 999]), rng.choice(["", "x\x1b[2J" * 500])),
                   reply_to=Message(RecordDict(), 101, "train"))  # fmt: skip


ATTACKS = (
    with_field, with_field, with_metrics, with_array, with_array, with_bytes, with_keys,
    without_a_part, another_kind,
)  # fmt: skip


def test_five_hundred_hostile_answers_to_a_round(tiny, tmp_path):
    rng = random.Random(17)
    seen = []

    def attack(site, round_, reply):
        if site == "north":
            return reply
        attacked = rng.choice(ATTACKS)
        seen.append(attacked.__name__)
        return attacked(reply, rng)

    e = experiment(tiny, rounds=250)
    run = over_loop(e, attack, tmp_path / "run", max_growth=20.0, quorum=1)
    assert len(seen) == 500
    assert set(seen) == {attack.__name__ for attack in ATTACKS}
    assert list(run.metrics) == list(over_loop(experiment(tiny, rounds=1)).metrics)
    assert set(run.metrics["answered"]) == {1.0, 2.0, 3.0}
    honest = ft.run(e, engine="reference")
    assert np.abs(run.w - honest.w).max() < 5 * np.abs(honest.w).max(), "the model stays in place"
    found = events(tmp_path / "run")
    assert {x["site"] for x in found} == {"south", "west"}
    assert {x["kind"] for x in found} <= {"rejected", "unusual", "ignored", "audit: idle"}
    assert len(events(tmp_path / "run", "rejected")) > 250
    assert all(x["why"].isprintable() and len(x["why"]) < 500 for x in found)


def test_five_hundred_hostile_introductions(tiny):
    rng = random.Random(18)
    heard = []

    def introduce(site, reply):
        return rng.choice((with_field, with_field, without_a_part, another_kind))(reply, rng)

    grid = LoopGrid(Source(experiment(tiny), federation(own_schedules=True)), introduce=introduce)
    grid.sites = {1000 + i: SITES[i % 3] for i in range(500)}
    roster = Roster(grid, grid.source.federation, lambda *words: heard.append(words))
    found = roster.present()
    for site in found.values():
        assert site.samples is None or 1 <= site.samples <= 10**8
        assert site.schedule is None or site.schedule.c > 0
    refused = [words for words in heard if words[2] == "refused"]
    assert len(refused) > 250
    assert all(str(words[3]).isprintable() and len(str(words[3])) < 500 for words in heard)


def test_an_error_in_place_of_an_answer_is_one_line(tiny, tmp_path):
    rng = random.Random(19)

    def spoil(site, round_, reply):
        if site != "south":
            return reply
        made = an_error(reply, rng)
        made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return made

    run = over_loop(experiment(tiny, rounds=5), spoil, tmp_path / "run")
    assert run.metrics["answered"].tolist() == [2] * 5
    lost = events(tmp_path / "run", "lost")
    assert lost and all(x["why"].isprintable() for x in lost)
