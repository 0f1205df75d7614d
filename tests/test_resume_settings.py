"""A resume with any one setting of an Experiment changed is refused, and names that setting."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedtaper as ft

ROUNDS = 6
TINY = {"num_clients": 3, "dim": 2, "samples": 40, "feature_spread": 1.0, "seed": 7}
USUAL = {"schedules": ft.Power(0.05, 0.8), "rounds": ROUNDS, "local_steps": 2, "batch_size": 4}


def steps(low=0.01, high=0.2):
    return st.floats(low, high, exclude_max=True).filter(lambda x: x != 0.05)


def changed(name, values):
    return values.map(lambda value: {name: value})


# what each field may be changed to, alone but for what it cannot be without
CHANGES = {
    "schedules": changed("schedules", st.builds(ft.Power, steps(), st.just(0.8))),
    "rounds": changed("rounds", st.integers(1, ROUNDS - 1)),  # fewer; more is allowed, see below
    "local_steps": changed("local_steps", st.integers(3, 9)),
    "local_epochs": st.integers(1, 4).map(lambda k: {"local_epochs": k, "local_steps": None}),
    "batch_size": changed("batch_size", st.integers(5, 40)),
    "local": changed("local", st.builds(ft.Proximal, steps())),
    "server": changed("server", st.builds(ft.Adam, eta=steps())),
    "clock": changed("clock", st.just("round")),
    "participation": changed("participation", st.floats(0.1, 0.9)),
    "behaviours": changed("behaviours", st.integers(0, 2).map(lambda i: {i: ft.Idle()})),
    "challenges": changed("challenges", st.just(ft.Challenges(every=2))),
    "delays": changed("delays", st.integers(1, 3)),
    "asynchronous": changed("asynchronous", st.just(ft.Asynchronous())),
    "staleness": changed("staleness", st.builds(ft.Polynomial, steps())),
    "own_clock": changed("own_clock", st.just(True)),
    "seed": changed("seed", st.integers(1, 10**6)),
    "average_over": changed("average_over", st.just("present")),
    "names": changed("names", st.permutations(["a", "b", "c"]).map(tuple)),
    "steering": changed("steering", st.just(ft.Steering())),
    "problem": changed(
        "problem", st.floats(0.5, 9.5).map(lambda s: ft.LinearRegression(**TINY, snr_db=s))
    ),
}
TOLD = {"schedules": "schedule of ", "behaviours": "behaviour of ", "problem": "problem: snr_db"}

# the same for the problem; its arrays are changed number by number below
PROBLEM = {
    "num_clients": st.integers(4, 6),
    "dim": st.integers(3, 5),
    "samples": st.integers(41, 60),
    "feature_spread": st.floats(1.1, 3.0),
    "sigma_w": st.floats(0.5, 4.5),
    "true_w": st.floats(0.5, 2.0).map(lambda w: ((w, 1.0),) * 3),
    "snr_db": st.floats(0.5, 9.5),
    "init_spread": st.floats(1.0, 19.0),
    "seed": st.integers(8, 10**6),
}


def experiment(problem=None, **changes):
    return ft.Experiment(problem or ft.LinearRegression(**TINY), **USUAL | changes)


def refused(folder, e):
    with pytest.raises(ft.FedtaperError) as trouble:
        ft.run(e, out=folder, resume=True, progress=False)
    assert "\n" not in str(trouble.value)
    return str(trouble.value)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    ft.run(experiment(), out=folder, progress=False)
    return folder


def test_every_setting_has_a_case():
    assert set(CHANGES) == {f.name for f in fields(ft.Experiment)}
    own = {f.name for f in fields(ft.LinearRegression) if f.init}
    assert set(PROBLEM) == own - {"arrays"}


@pytest.mark.filterwarnings("ignore::fedtaper.StabilityWarning")
@pytest.mark.parametrize("name", list(CHANGES))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_one_changed_setting_is_refused_and_named(stored, name, data):
    before = {p.name: p.read_bytes() for p in stored.iterdir()}
    told = refused(stored, experiment(**data.draw(CHANGES[name])))
    assert TOLD.get(name, f"{name}: ") in told
    assert before == {p.name: p.read_bytes() for p in stored.iterdir()}


@pytest.mark.filterwarnings("ignore::fedtaper.StabilityWarning")
@pytest.mark.parametrize("name", list(PROBLEM))
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_one_changed_setting_of_the_problem_is_refused_and_named(stored, name, data):
    problem = ft.LinearRegression(**TINY | {name: data.draw(PROBLEM[name])})
    told = refused(stored, experiment(problem))
    assert ("samples of " if name == "samples" else f"problem: {name}: ") in told


@settings(max_examples=10, deadline=None)
@given(client=st.integers(0, 2), row=st.integers(0, 39), by=st.floats(1e-9, 5.0))
def test_one_changed_number_in_the_data_is_refused(tmp_path_factory, client, row, by):
    tiny = ft.LinearRegression(**TINY)
    y = [values.copy() for values in tiny.y]
    y[client][row] += by
    own, other = (ft.LinearRegression.from_arrays(tiny.x, values) for values in (tiny.y, y))
    folder = tmp_path_factory.mktemp("data") / "a"
    ft.run(experiment(own), out=folder, progress=False)
    assert f"data of client {client} differs" in refused(folder, experiment(other))


@settings(max_examples=6, deadline=None)
@given(more=st.integers(1, 20))
def test_more_rounds_alone_are_allowed(tmp_path_factory, more):
    folder = tmp_path_factory.mktemp("more") / "a"
    ft.run(experiment(), out=folder, progress=False)
    longer = experiment(rounds=ROUNDS + more)
    went_on = ft.run(longer, out=folder, resume=True, progress=False)
    assert np.array_equal(went_on.w, ft.run(longer, progress=False).w)
