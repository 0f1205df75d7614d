"""Late and asynchronous updates: every engine agrees, and theory predicts where they lead."""

import heapq
import math
import warnings

import numpy as np
import pytest
from recorders import recorder

import fedtaper as ft
from fedtaper import engines
from fedtaper.core import draws
from fedtaper.core.protocols import Options
from fedtaper.engines import registry
from fedtaper.rules.arrivals import mean_factors
from fedtaper.rules.delays import drawn
from fedtaper.rules.events import simulate

UNLIKE = (1.0, ft.Duration(2.0), ft.Duration(1.0, "lognormal"), ft.Duration(3.0, "pareto", 2.5))
KINDS = {
    "fixed": {"delays": 3},
    "mixed": {
        "delays": (0, 2, ft.RandomDelay(4.0, most=20), ft.HeavyDelay(0.7, most=30)),
        "participation": 0.6,
        "staleness": ft.Polynomial(0.5),
    },
    "own clock": {"own_clock": True, "participation": (1.0, 0.5, 0.3, 0.9)},
    "asynchronous": {
        "asynchronous": ft.Asynchronous(buffer=3, durations=UNLIKE, mean_on=5.0, mean_off=3.0),
        "staleness": ft.Hinge(1, 2.0),
    },
    "adam": {
        "asynchronous": ft.Asynchronous(durations=UNLIKE),
        "server": ft.Adam(),
        "local": ft.Proximal(0.1),
        "own_clock": True,
    },
    "momentum": {"delays": (0, 3, 1, 2), "server": ft.AverageMomentum(0.5)},
}


@pytest.fixture(scope="module")
def four():
    return ft.LinearRegression(num_clients=4, samples=200, feature_spread=1.0, seed=1)


def experiment(problem, rounds=40, **settings):
    chosen = {"local_steps": 3, "batch_size": 7} | settings
    schedule = ft.Power(0.5, 0.8, offset=100)
    return ft.Experiment(problem, schedule, rounds=rounds, **chosen)


@pytest.mark.parametrize("name", KINDS)
def test_compiled_and_reference_agree(four, name):
    e = experiment(four, **KINDS[name])
    slow = ft.run(e, seeds=[0, 5], engine="reference", progress=False, updates=True)
    fast = ft.run(e, seeds=[0, 5], progress=False, updates=True)
    assert fast.engine == "events"
    assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-12)
    assert np.allclose(fast.updates, slow.updates, rtol=0, atol=1e-12)
    assert np.allclose(fast.update_norms, slow.update_norms, rtol=0, atol=1e-12)
    for column in fast.metrics:
        assert np.allclose(fast.metrics[column], slow.metrics[column], atol=1e-9)


def test_streams_compiled_and_reference_agree():
    stream = ft.RegressionStream(num_clients=4, rho=(0.0, 0.5, 0.9, 0.99), feature_spread=1.0)
    moving = ft.MovingRegression(stream, drift=0.1, change_round=10, change=2.0)
    for problem in (stream, moving):
        e = experiment(problem, participation=0.7)
        slow = ft.run(e, seeds=[0, 5], engine="reference", progress=False)
        fast = ft.run(e, seeds=[0, 5], progress=False)
        assert fast.engine == "events"
        assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["mixed", "asynchronous", "adam"])
def test_late_samples_are_of_the_round_that_they_are_drawn_for(name):
    """Also where a client gets the same model again: it draws anew, from the same population."""
    stream = ft.RegressionStream(num_clients=4, rho=(0.0, 0.5, 0.9, 0.99), feature_spread=1.0)
    moving = ft.MovingRegression(stream, drift=0.1, change_round=10, change=2.0)
    e = experiment(moving, **KINDS[name])
    slow = ft.run(e, seeds=[0, 5], engine="reference", progress=False)
    fast = ft.run(e, seeds=[0, 5], progress=False)
    assert fast.engine == "events"
    assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-11)
    assert np.abs(slow.w).max() < 100


def test_networks_and_reference_agree():
    problem = ft.ImageClassification("digits", split=ft.Iid(), model="cnn", num_clients=4)
    for name in ("mixed", "asynchronous"):
        schedule = ft.Power(0.05, 0.8)
        e = ft.Experiment(problem, schedule, rounds=3, local_steps=2, batch_size=8, **KINDS[name])
        fast = ft.run(e, progress=False, updates=True)
        slow = ft.run(e, engine="reference", progress=False)
        assert fast.engine == "cpu"
        assert np.allclose(fast.w, slow.w, rtol=0, atol=5e-6)
        assert np.allclose(fast.update_norms, slow.update_norms, rtol=1e-4, atol=1e-6)


def test_without_delay_it_is_the_run_in_step(four):
    plain = ft.run(experiment(four, participation=0.5), progress=False)
    late = ft.run(experiment(four, participation=0.5, delays=0), progress=False)
    assert plain.engine == "compiled" and late.engine == "events"
    assert np.array_equal(plain.w, late.w)


def test_delays_by_hand(four):
    """A loop of its own: update i of round k starts from the model of its delay ago."""
    taus, e = (0, 1, 4, 2), experiment(four, rounds=12, delays=(0, 1, 4, 2))
    models = [four.initial(0)]
    for k in range(12):
        total = np.zeros(3)
        for i, tau in enumerate(taus):
            sent = max(k - tau, 0)
            mine = models[sent].copy()
            for step in range(3):
                rows = draws.batch(0, i, k, step, 7, 200)
                x, y = four.x[i][rows], four.y[i][rows]
                a = 0.5 / (sent * 3 + step + 101) ** 0.8
                mine -= a * x.T @ (x @ mine - y) / 7
            total += (mine - models[sent]) / 4
        models.append(models[-1] + total)
    assert np.allclose(ft.run(e, progress=False).w, models[1:], atol=1e-12)


@pytest.mark.parametrize("name", ["mixed", "asynchronous"])
def test_stopping_changes_nothing(four, name):
    e = experiment(four, rounds=30, **KINDS[name])
    whole = ft.run(e, seeds=[1, 2], progress=False)
    engine, seeds = registry.get("events"), np.array([1, 2])
    state = engines.init(e, seeds)
    first = engine.open(e, state, Options()).advance(13)
    kept = recorder(e, state, many=True).checkpoint(state, 0.0)
    again = engines.init(e, seeds)
    recorder(e, again, many=True).restore(again, {k: np.copy(v) for k, v in kept.items()})
    rest = engine.open(e, again, Options()).advance(17)
    assert np.array_equal(np.concatenate([first.w, rest.w], axis=1), whole.w)


@pytest.mark.parametrize("name", ["mixed", "asynchronous"])
def test_more_rounds_later(four, name):
    """A run of 10 rounds that goes on to 40 is the run of 40, whatever was under way at 10."""
    whole = ft.run(experiment(four, rounds=40, **KINDS[name]), seeds=[1, 2], progress=False)
    engine, seeds = registry.get("events"), np.array([1, 2])
    short = experiment(four, rounds=10, **KINDS[name])
    state = engines.init(short, seeds)
    engine.open(short, state, Options()).advance(10)
    rest = engine.open(whole.experiment, state, Options()).advance(30)
    assert np.array_equal(rest.w, whole.w[:, 10:])


def test_arrivals_of_two_clients_by_hand():
    rule = ft.Asynchronous(durations=(1.0, 2.5))
    client, base, again, time, _ = simulate(rule, 2, 7, seed=0)
    assert client[:, 0].tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert time.tolist() == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 5.0]
    assert base[:, 0].tolist() == [0, 1, 0, 2, 4, 5, 3]
    assert not again.any()
    rule = ft.Asynchronous(buffer=2, durations=(1.0, 2.5))
    client, base, again, time, _ = simulate(rule, 2, 3, seed=0)
    assert client.tolist() == [[0, 0], [1, 0], [0, 0]]
    assert base.tolist() == [[0, 0], [0, 1], [2, 2]]
    assert again.tolist() == [[0, 1], [0, 0], [0, 1]]  # the same model a second time
    assert time.tolist() == [2.0, 3.0, 5.0]


def test_order_of_arrivals_against_a_plain_queue():
    times = (1.0, 1.7, 0.3, 2.9)
    client, base, _, time, _ = simulate(ft.Asynchronous(buffer=3, durations=times), 4, 200, seed=9)
    queue, sent, found = [(t, i) for i, t in enumerate(times)], [0] * 4, []
    heapq.heapify(queue)
    while len(found) < 600:
        now, i = heapq.heappop(queue)
        found.append((i, sent[i], now))
        sent[i] = len(found) // 3
        heapq.heappush(queue, (now + times[i], i))
    assert client.ravel().tolist() == [one[0] for one in found]
    assert base.ravel().tolist() == [one[1] for one in found]
    assert np.allclose(time, [one[2] for one in found[2::3]])


LAWS = {
    "laws": ft.Asynchronous(buffer=2, durations=UNLIKE),
    "drop-outs": ft.Asynchronous(durations=UNLIKE, mean_on=(1.0, 4.0, 2.0, 8.0), mean_off=3.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_arrival_rates(name):
    rule, rounds = LAWS[name], 40_000
    found = np.stack(
        [np.bincount(simulate(rule, 4, rounds, seed)[0].ravel(), minlength=4) for seed in range(8)]
    )
    share = found / found.sum(axis=1, keepdims=True)
    error = share.std(axis=0, ddof=1) / math.sqrt(8)
    expected = rule.arrival_rates(4) / rule.buffer
    assert expected.sum() == pytest.approx(1)
    assert np.all(np.abs(share.mean(axis=0) - expected) < 5 * error + 2e-4)


def test_mean_staleness_weight_where_it_is_known():
    """Exponential times, one arrival per round: the others' arrivals meanwhile are geometric."""
    pace = np.array([1.0, 0.5, 0.2])
    rule = ft.Asynchronous(durations=tuple(ft.Duration(1 / p) for p in pace))
    s = np.arange(3000)
    for discount in (ft.Undiscounted(), ft.Polynomial(0.7), ft.Hinge(2, 0.5)):
        found = mean_factors(rule, 3, discount)
        mine = pace / pace.sum()
        exact = [(discount(s) * m * (1 - m) ** s).sum() for m in mine]
        assert np.allclose(found, exact, rtol=0.01)


def test_laws_of_delays():
    delays = (ft.FixedDelay(3), ft.RandomDelay(4.0, most=30), ft.HeavyDelay(0.7, most=40))
    made = drawn(delays, np.ones((41_000, 3), dtype=bool), seed=2)[1000:]
    for i, delay in enumerate(delays):
        law = delay.law()
        assert law.sum() == pytest.approx(1) and len(law) == delay.most + 1
        share = np.bincount(made[:, i], minlength=len(law)) / len(made)
        assert np.all(np.abs(share - law) < 5 * np.sqrt(law * (1 - law) / len(made)) + 1e-6)
    u = np.append(np.random.default_rng(1).random(20_000), [0.0, 1 - 2.0**-53])
    for delay in (*delays[1:], ft.RandomDelay(0.0, most=3), ft.HeavyDelay(0.1, most=5000)):
        edges = np.cumsum(delay.law())[:-1]  # the inverse of the distribution, found anew
        near = np.min(np.abs(u[:, None] - edges[None, :100]), axis=1) < 1e-9
        wanted = np.searchsorted(edges, u, side="right")
        assert np.array_equal(delay.rounds(u)[~near & (u < 0.999)], wanted[~near & (u < 0.999)])
    long = ft.RandomDelay(4.0, most=1000).law()
    assert long @ np.arange(1001) == pytest.approx(4.0)
    assert drawn((ft.FixedDelay(9),), np.ones((12, 1), bool), 0)[:, 0].tolist() == [
        *range(9),
        9,
        9,
        9,
    ]


def apart(w, prediction):
    error = w.std(axis=0, ddof=1) / math.sqrt(len(w))
    return np.max(np.abs(w.mean(axis=0) - prediction) / error)


@pytest.mark.parametrize(
    ("settings", "without"),
    [
        ({"participation": (0.1, 0.3, 0.6, 1.0)}, np.ones(4)),
        ({"participation": (0.1, 0.3, 0.6, 1.0), "own_clock": True}, (0.1, 0.3, 0.6, 1.0)),
        ({"delays": (0, 10, 20, 30), "staleness": ft.Polynomial(0.5)}, np.ones(4)),
        ({"asynchronous": ft.Asynchronous(buffer=2, durations=(1.0, 2.0, 5.0, 10.0))}, np.ones(4)),
    ],
)
def test_the_prediction_holds_and_needs_its_factor(settings, without):
    problem = ft.LinearRegression(num_clients=4, samples=200, init_spread=1.0, seed=1)
    schedule = ft.Power(0.1, 0.8, offset=2000)
    e = ft.Experiment(problem, schedule, rounds=4000, local_steps=3, batch_size=7, **settings)
    w = ft.run(e, seeds=range(60), progress=False, thin=4000).w[:, -1]
    assert apart(w, ft.forecast(e, n=12_000).w) < 3
    assert apart(w, problem.equilibrium(without)) > 10


def test_influence_with_its_factors(four):
    rates = (0.1, 0.3, 0.6, 1.0)
    own = experiment(four, participation=rates, own_clock=True)
    assert np.allclose(own.limit_influence, np.array(rates) ** 0.2 / 0.1**0.2)
    far = own.field_weights(1e12)
    assert np.allclose(far / far[0], own.limit_influence, rtol=1e-6)
    fast = experiment(four, asynchronous=ft.Asynchronous(durations=(1.0, 2.0, 4.0, 8.0), buffer=3))
    assert np.allclose(fast.limit_influence, [1, 1 / 2, 1 / 4, 1 / 8])
    assert fast.counts.sum() == pytest.approx(3)
    late = experiment(four, delays=(0, 1, 3, 8), staleness=ft.Polynomial(1.0))
    assert np.allclose(late.limit_influence, [1, 1 / 2, 1 / 4, 1 / 9])
    plain = experiment(four, participation=rates)
    assert np.allclose(plain.effective_influence(0, 5), np.array(rates) / 0.1)


def test_plan_evens_speeds_out(four):
    made = ft.plan(
        target=[1, 1, 1, 1], problem=four, rounds=50, local_steps=3, batch_size=7,
        asynchronous=ft.Asynchronous(durations=(1.0, 2.0, 4.0, 8.0)),
    )  # fmt: skip
    assert np.allclose(made.experiment.effective_influence(0, 50), 1)


def test_waiting_for_everyone():
    rule = ft.Asynchronous(durations=(1.0, 3.0, 2.0))
    assert rule.waiting_times(3, 4, seed=0).tolist() == [3.0, 6.0, 9.0, 12.0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delays": -1}, "delay of client 0 is -1"),
        ({"delays": (1, 2)}, "2 delays for 4 clients"),
        ({"delays": 1.5}, "number of rounds"),
        ({"asynchronous": 3}, "Asynchronous"),
        ({"asynchronous": ft.Asynchronous(buffer=5)}, "more than the"),
        ({"asynchronous": ft.Asynchronous(durations=(1.0, 2.0))}, "2 durations for 4"),
        ({"asynchronous": ft.Asynchronous(), "delays": 1}, "leave out delays"),
        ({"asynchronous": ft.Asynchronous(), "participation": 0.5}, "mean_on"),
        ({"asynchronous": ft.Asynchronous(mean_on=0.0)}, "mean_on"),
        ({"staleness": 0.5}, "staleness"),
    ],
)
def test_bad_settings(four, settings, words):
    with pytest.raises(ft.FedtaperError, match=words):
        experiment(four, **settings)


def test_bad_parts():
    for make in (
        lambda: ft.Duration(0.0),
        lambda: ft.Duration(1.0, "gamma"),
        lambda: ft.Duration(1.0, "pareto", -1.0),
        lambda: ft.Asynchronous(buffer=0),
        lambda: ft.Polynomial(-1.0),
        lambda: ft.RandomDelay(-2.0),
        lambda: ft.HeavyDelay(0.0),
    ):
        with pytest.raises(ft.FedtaperError):
            make()
    no_mean = ft.Asynchronous(durations=ft.Duration(1.0, "pareto", 0.7))
    with pytest.raises(ft.FedtaperError, match="no client's working time has a mean"):
        no_mean.arrival_rates(3)


def test_refusals(four):
    with pytest.raises(ft.FedtaperError, match="events"):
        ft.run(experiment(four, delays=1), engine="compiled", progress=False)
    with pytest.raises(ft.FedtaperError, match='engine="reference"'):
        e = experiment(four, delays=1, behaviours={0: ft.Idle()})
        ft.run(e, engine="events", progress=False)
    with pytest.warns(ft.FedtaperWarning, match="client 1 never takes part"):
        experiment(four, participation=(1.0, 0.0, 1.0, 1.0))


@pytest.mark.parametrize("name", [n for n in KINDS if n != "adam"])
def test_as_a_file(four, name):
    e = experiment(four, **KINDS[name])
    assert ft.from_toml(ft.to_toml(e)) == e


def test_stored_and_loaded(four, tmp_path):
    e = experiment(four, rounds=5, **KINDS["asynchronous"])
    made = ft.run(e, out=tmp_path / "run", progress=False)
    again = ft.load(tmp_path / "run")
    assert again.experiment == e
    assert np.array_equal(again.metrics["time"], made.metrics["time"])


def test_a_stream_is_stored(tmp_path):
    stream = ft.RegressionStream(num_clients=2, rho=(0.5, 0.9), feature_spread=1.0)
    e = experiment(stream, rounds=5)
    made = ft.run(e, out=tmp_path / "run", progress=False)
    again = ft.load(tmp_path / "run")
    assert again.experiment == e and np.array_equal(again.w, made.w)


def test_what_theory_leaves_out(four):
    late = ft.run(experiment(four, delays=2), progress=False, updates=True)
    with pytest.raises(ft.FedtaperError, match="in step"):
        ft.bound(late)
    with pytest.raises(ft.FedtaperError, match="in step"):
        ft.noise_sums(late)
    with pytest.warns(ft.FedtaperWarning, match="updates are late"):
        ft.audit(late)
    loose = ft.run(experiment(four, **KINDS["asynchronous"]), progress=False)
    with pytest.raises(ft.FedtaperError, match="asynchronous"):
        ft.audit(loose)
    stream = ft.RegressionStream(num_clients=4, rho=0.9, feature_spread=1.0)
    assert ft.check(experiment(stream))["A4"].status == "fails"
    moving = experiment(ft.MovingRegression(stream, drift=0.1))
    with pytest.raises(ft.FedtaperError, match="moves"):
        ft.forecast(moving, n=100)


@pytest.mark.filterwarnings("ignore:.*fewer than batch_size")
def test_a_late_client_with_few_samples_draws_what_it_holds():
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=(6, 200, 9), seed=1)
    e = ft.Experiment(
        problem, ft.Power(0.05, 0.8, offset=30), 12, 3, batch_size=20, delays=(0, 1, 2)
    )
    quick, slow = (ft.run(e, engine=name, progress=False) for name in ("events", "reference"))
    np.testing.assert_allclose(quick.w, slow.w, rtol=1e-9)


def test_steps_too_large_for_the_delay():
    problem = ft.LinearRegression(num_clients=4, samples=200, seed=1)
    settings = {"rounds": 3, "local_steps": 5, "batch_size": 7, "delays": (0, 0, 0, 50)}
    with pytest.warns(ft.StabilityWarning, match="delays"):
        ft.run(ft.Experiment(problem, ft.Power(0.01, 0.8), **settings), progress=False)
    ft.run(ft.Experiment(problem, ft.Power(0.1, 0.8, offset=3000), **settings), progress=False)


MISBEHAVING = {
    0: ft.OtherSchedule(ft.Power(0.1, 1.0, offset=300)),
    1: ft.After(3, ft.Noise()),
    2: ft.Copies(),
    3: ft.After(2, ft.Idle()),
}


def test_misbehaviour_out_of_step_is_that_in_step_where_nothing_is_late(four):
    in_step = ft.run(experiment(four, rounds=8, behaviours=MISBEHAVING), updates=True)
    late = experiment(four, rounds=8, behaviours=MISBEHAVING, delays=0)
    assert not late.in_step
    again = ft.run(late, engine="reference", updates=True, progress=False)
    np.testing.assert_allclose(again.w, in_step.w, rtol=1e-12)
    np.testing.assert_allclose(again.updates, in_step.updates, rtol=1e-9, atol=1e-14)
    honest = ft.run(experiment(four, rounds=8), progress=False)
    assert np.abs(honest.w[-1] - in_step.w[-1]).max() > 1e-3


@pytest.mark.parametrize("name", ["asynchronous", "own clock"])
def test_networks_misbehave_late_as_in_the_reference(name):
    pytest.importorskip("torch")
    digits = ft.ImageClassification("digits", num_clients=4, split=ft.Iid(), model="cnn")
    settings = KINDS[name] | {"behaviours": {1: ft.Idle(), 2: ft.Copies(), 3: ft.Noise()}}
    e = ft.Experiment(
        digits, ft.Power(0.1, 0.8), rounds=4, local_steps=2, batch_size=8, **settings
    )  # fmt: skip
    quick = ft.run(e, engine="cpu", progress=False)
    slow = ft.run(e, engine="reference", progress=False)
    np.testing.assert_allclose(quick.final, slow.final, atol=2e-5)
    np.testing.assert_allclose(quick.update_norms, slow.update_norms, atol=2e-4)


def test_what_goes_beyond_the_theorem_has_a_row(four):
    plain = [row.id for row in ft.check(experiment(four)).rows]
    assert plain == ["A1", "A2", "A3", "A4", "A5"]
    rare = ft.check(experiment(four, participation=(1.0, 0.5, 0.5, 0.1)))["P"]
    assert rare.status == "holds" and rare.number == "in 0.1 to 1 of the rounds"
    late = ft.check(experiment(four, delays=(0, 1, ft.RandomDelay(2.0, most=9), 4)))["D"]
    assert late.number == "at most 9 rounds, 4 on average for the slowest"
    law = ft.Duration(1.0, "pareto", 0.7)
    endless = ft.Asynchronous(durations=(law, 1.0, 1.0, 1.0))
    found = ft.check(experiment(four, asynchronous=endless))["D"]
    assert found.status == "fails" and "client 0 has no mean" in found.why
    own = ft.check(experiment(four, participation=0.5, own_clock=True))["C"]
    assert own.status == "assumed"
    stream = ft.RegressionStream(num_clients=4, rho=0.9, feature_spread=1.0)
    with pytest.raises(ft.FedtaperError, match="there is no assumption 'M': choose from A1"):
        ft.check(experiment(stream))["M"]
    assert ft.check(experiment(ft.MovingRegression(stream, drift=0.1)))["M"].status == "fails"


@pytest.mark.parametrize("own_clock", [False, True])
def test_the_reference_client_never_comes(four, own_clock):
    """Influence, equilibrium and forecast are then those of the federation without it."""
    slow, mid, fast = ft.Power(0.5, 0.76, offset=99), ft.Power(0.5, 0.9), ft.Power(0.2, 0.9)
    with pytest.warns(ft.FedtaperWarning, match="client 0 never takes part"):
        e = ft.Experiment(
            four, [slow, mid, fast, fast], rounds=30, local_steps=2,
            participation=(0.0, 1.0, 1.0, 1.0), own_clock=own_clock,
        )  # fmt: skip
    assert e.reference == 1
    np.testing.assert_allclose(e.limit_influence, [0.0, 1.0, 0.4, 0.4])
    np.testing.assert_allclose(e.influence(30).effective[[0, 2]], [0.0, 0.4])
    predicted = ft.forecast(e, n=1e15).w
    np.testing.assert_allclose(predicted, four.equilibrium([0.0, 1.0, 0.4, 0.4]), atol=1e-3)


@pytest.mark.parametrize("server", [ft.Average(), ft.Normalised(over="step_sums")])
def test_a_mean_over_those_present_on_streams(server):
    stream = ft.RegressionStream(num_clients=4, feature_spread=1.0)
    e = experiment(stream, participation=0.5, average_over="present", server=server)
    slow = ft.run(e, seeds=[0, 5], engine="reference", progress=False, updates=True)
    fast = ft.run(e, seeds=[0, 5], engine="events", progress=False, updates=True)
    assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-11)
    assert np.allclose(fast.updates, slow.updates, rtol=0, atol=1e-11)


def test_a_late_client_with_few_samples_makes_smaller_batches():
    problem = ft.LinearRegression(num_clients=3, samples=(10, 60, 60), feature_spread=1.0, seed=7)
    with pytest.warns(ft.FedtaperWarning, match="fewer than batch_size 40"):
        e = experiment(problem, batch_size=40, delays=1)
    slow = ft.run(e, engine="reference", progress=False)
    fast = ft.run(e, engine="events", progress=False)
    assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-12)


def test_a_stream_never_runs_short_of_samples():
    """``samples`` is what a server weights by; batches are as large as they should be."""
    few = ft.RegressionStream(num_clients=3, samples=(3, 60, 60), feature_spread=1.0)
    with warnings.catch_warnings(action="ignore"):
        e = experiment(few, batch_size=40)
    slow = ft.run(e, engine="reference", progress=False)
    fast = ft.run(e, engine="events", progress=False)
    assert np.allclose(fast.w, slow.w, rtol=0, atol=1e-11)


class Learns(ft.PlainServer):
    """A server rule whose step uses all that it has learned."""

    def weights(self, samples, steps, step_sums):
        return np.broadcast_to(samples / samples.sum(), step_sums.shape)

    def init(self, w):
        return w * 0.0, w * 0.0

    def step(self, w, update, memory):
        return w + update + 0.01 * memory[0] + 0.001 * memory[1], memory

    def learn(self, update, step_sum, share, memory):
        return memory[0] + update / max(step_sum, 1e-9), memory[1] + share


def test_a_server_learns_from_late_rounds_as_from_those_in_step(four):
    settings = {"server": Learns(), "participation": (1.0, 0.5, 0.3, 0.9), "rounds": 12}
    in_step = ft.run(experiment(four, **settings), engine="reference", progress=False)
    late = ft.run(experiment(four, **settings, delays=0), engine="reference", progress=False)
    np.testing.assert_allclose(late.w, in_step.w, rtol=1e-12)
    plain = ft.run(experiment(four, **settings | {"server": ft.Average()}), progress=False)
    assert np.abs(plain.w[-1] - in_step.w[-1]).max() > 1e-3


def test_what_a_server_learns_of_late_updates_by_hand():
    problem = ft.LinearRegression(num_clients=2, samples=(100, 300), feature_spread=1.0, seed=1)
    told = []

    class Told(Learns):
        def learn(self, update, step_sum, share, memory):
            told.append((step_sum, share))
            return memory

    settings = {"delays": (0, 2), "staleness": ft.Polynomial(1.0), "server": Told()}
    e = experiment(problem, rounds=4, **settings)
    ft.run(e, engine="reference", progress=False)
    sums = e.step_sums(0, 4)
    factor, row = (1.0, 1 / 2, 1 / 3, 1 / 3), (0, 0, 0, 1)
    found = [0.25 * sums[k, 0] + 0.75 * factor[k] * sums[row[k], 1] for k in range(4)]
    np.testing.assert_allclose(told, [(one, 1.0) for one in found], rtol=1e-12)
    told.clear()
    turns = {"participation": ft.Listed([[0], [1]]), "own_clock": True, "server": Told()}
    ft.run(experiment(problem, rounds=2, **turns), engine="reference", progress=False)
    np.testing.assert_allclose(told, [(0.25 * sums[0, 0], 0.25), (0.75 * sums[0, 1], 0.75)])


@pytest.mark.parametrize("name", ["mixed", "asynchronous", "own clock"])
def test_networks_learn_late_as_in_the_reference(name):
    pytest.importorskip("torch")
    digits = ft.ImageClassification("digits", num_clients=4, split=ft.Iid(), model="cnn")
    settings = {"rounds": 4, "local_steps": 2, "batch_size": 8, "server": Learns()}
    e = ft.Experiment(digits, ft.Power(0.1, 0.8), **settings, **KINDS[name])
    quick = ft.run(e, engine="cpu", progress=False)
    slow = ft.run(e, engine="reference", progress=False)
    np.testing.assert_allclose(quick.final, slow.final, atol=2e-5)
