"""The model of the updates checks itself: where curvatures are uneven, nobody is accused."""

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.auditing import own_check, trace_of
from fedtaper.auditing.judge import judge
from fedtaper.paper.federations import federation

datasets = pytest.importorskip("sklearn.datasets")
pytestmark = pytest.mark.filterwarnings("ignore::fedtaper.core.errors.StabilityWarning")


def uneven(ratio, seed, behaviours=None):
    """Features whose largest variance is ``ratio`` times the smallest."""
    rng = np.random.default_rng(seed)
    spread = 3 * np.sqrt(np.array([1, np.sqrt(ratio), ratio]))
    spread = spread / np.sqrt((spread**2).mean() / 9)
    xs = [rng.normal(size=(400, 3)) * spread for _ in range(8)]
    ys = [x @ rng.normal(size=3) * 3 + 2 * rng.normal(size=400) for x in xs]
    return ft.Experiment(
        ft.LinearRegression.from_arrays(xs, ys), ft.Power(0.02, 0.76), rounds=80, local_steps=5,
        batch_size=50, seed=seed, behaviours=behaviours or {},
    )  # fmt: skip


def diabetes(sites, seed, c=0.05):
    found = datasets.load_diabetes()
    x = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    y = (found.target - found.target.mean()) / found.target.std()
    parts = np.array_split(np.random.default_rng(seed).permutation(len(x)), sites)
    problem = ft.LinearRegression.from_arrays([x[p] for p in parts], [y[p] for p in parts])
    return ft.Experiment(
        problem, ft.Power(c, 0.76), rounds=80, local_steps=5, batch_size=10, seed=seed
    )


@pytest.mark.parametrize("seed", range(3))
def test_diabetes_sites_are_not_accused(seed):
    found = ft.audit(ft.run(diabetes(8, seed), updates=True, progress=False))
    assert {c.verdict for c in found.clients} == {"cannot tell"}
    assert "curvatures are unlike" in str(found) and "challenges" in str(found)
    by_sizes = ft.audit(ft.run(diabetes(8, seed), progress=False))
    assert not by_sizes.accused


@pytest.mark.parametrize("ratio", [3.0, 9.0])
def test_arrays_are_checked_by_what_they_show(ratio):
    """The server's own arrays: nothing but the updates says that curvatures are uneven."""
    run = ft.run(uneven(ratio, 1), updates=True, progress=False)
    how = {"n": run.n, "schedules": run.experiment.schedules, "quadratic": True}
    w = np.concatenate([run.w0[None], run.w[:-1]])
    found = ft.audit(run.update_norms, updates=run.updates, w=w, **how)
    assert {c.verdict for c in found.clients} == {"cannot tell"}


def test_challenges_still_tell():
    from dataclasses import replace

    e = uneven(9.0, 2, {3: ft.OtherSchedule(ft.Power(0.02, 1.0))})
    run = ft.run(replace(e, challenges=ft.Challenges(), local_steps=40), progress=False)
    assert [c.client for c in ft.audit(run).accused] == [3]


def test_where_the_model_holds_the_check_passes_as_often_as_it_says():
    """Federations of claim A1, seeds that judge nothing: p values are not crowded near 0."""
    from fedtaper.auditing import robust, taper

    p = []
    for seed in range(700_500, 700_508):
        e, kinds = federation(seed)
        trace = trace_of(ft.run(e, updates=True, progress=False))
        there = np.isfinite(trace.norms).astype(float)
        assert robust.bins(trace.declared.log_n[0])[-1] == 99
        fit = taper.fit_updates(trace.updates, trace.w, trace.declared, there)
        found = own_check.p_values(
            np.nan_to_num(trace.updates), trace.w, trace.declared, there, fit
        )
        p += [value for value, kind in zip(found, kinds, strict=True) if kind == "honest"]
    assert np.mean(np.array(p) < 0.05) < 0.2
    assert own_check.holds(np.array(p), np.ones(len(p), dtype=bool))


def test_who_fades_on_even_curvatures_is_still_found():
    found = []
    for seed in range(700_600, 700_612):
        e, kinds = federation(seed)
        verdicts = judge(trace_of(ft.run(e, updates=True, progress=False))).verdicts
        found += [v for v, k in zip(verdicts, kinds, strict=True) if k in ("delta 0.9", "delta 1")]
    assert found and set(found) == {"fading"}


def test_a_copy_is_late_and_a_like_minded_client_is_not():
    from fedtaper.auditing.directions import copying

    rng = np.random.default_rng(0)
    centre = np.array([1.0, 0.2, 0.1])
    honest = centre * [[[1]], [[1]], [[-1]], [[-0.8]], [[0.9]]]
    updates = honest + 0.05 * rng.normal(size=(5, 60, 3))
    updates[1, 1:] = np.delete(updates, 1, axis=0).mean(axis=0)[:-1]
    updates[1, 0] = centre
    assert copying(updates).tolist() == [False, True, False, False, False]
