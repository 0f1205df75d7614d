"""Flower's means for differential privacy with our clients, and what they do to influence."""

import logging

import numpy as np
import pytest
from flower_loop import LoopGrid, Source
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

import fedtaper as ft
from fedtaper.deploy.server import serve
from fedtaper.engines.flower.privacy import on_models
from fedtaper.engines.flower.rounds import GridEngine, GridSession

SITES = ("north", "south", "west")
SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.05, 0.76), ft.Power(0.01, 0.76))


def experiment(problem, **changes):
    basic = {"rounds": 5, "local_steps": 3, "batch_size": 40, "seed": 4}
    return ft.Experiment(problem, SCHEDULES, **(basic | changes))


def over_loop(e, mods=None, **changes):
    source = Source(e, ft.Federation(SITES, deadline=5.0, **changes))
    return serve(LoopGrid(source, mods=mods), source, None, progress=False)


class Wrapped(GridSession):
    """Rounds in which one of Flower's own wrappers aggregates our clients' models."""

    strategy = None

    def _step(self, intake):
        models = [self.w + self.moves[i] for i in range(self.e.num_clients)]
        self.strategy.current_arrays = ArrayRecord([self.w])
        replies = [self.reply(model) for model in models]
        made, _ = self.strategy.aggregate_train(self.state.round + 1, replies)
        self.answered, self.w = intake.count, made.to_numpy_ndarrays()[0]
        return intake.norms, {}

    def reply(self, model):
        asked = Message(RecordDict({"c": ConfigRecord()}), 1, "train")
        told = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"w": ArrayRecord([model]), "m": told}), reply_to=asked)


def by_wrapper(e, strategy, monkeypatch):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    monkeypatch.setattr(Wrapped, "strategy", strategy)
    monkeypatch.setattr(GridEngine, "open", lambda engine, e, state, _: Wrapped(engine, e, state))
    return over_loop(e)


def shares(run, limit=np.inf):
    """How far each client moved the model in all, beside the first."""
    moved = np.minimum(run.update_norms, limit).sum(axis=0)
    return moved / moved[0]


def test_our_clipping_is_that_of_flowers_central_wrapper(tiny, monkeypatch):
    e, limit = experiment(tiny), 0.02
    mine = over_loop(e, clipping_norm=limit)
    fixed = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, limit, 3)
    theirs = by_wrapper(e, fixed, monkeypatch)
    assert (mine.update_norms > limit).any()
    np.testing.assert_allclose(mine.w, theirs.w, atol=1e-12)


def test_a_loose_norm_changes_nothing_and_a_tight_one_makes_all_sites_alike(tiny):
    e = experiment(tiny)
    plain = over_loop(e)
    assert np.array_equal(over_loop(e, clipping_norm=1e6).w, plain.w)
    assert shares(plain)[2] < 0.25, "as planned: a tenth of the step size"
    tight = float(plain.update_norms.min()) / 2
    clipped = over_loop(e, clipping_norm=tight)
    np.testing.assert_allclose(shares(clipped, tight), 1.0)
    assert np.linalg.norm(np.diff(clipped.w, axis=0), axis=1).max() <= tight


def test_flowers_fixed_clipping_mod_takes_the_norm_from_our_message(tiny):
    e, limit = experiment(tiny), 0.02
    mine = over_loop(e, clipping_norm=limit)
    at_the_sites = over_loop(e, mods=[on_models(fixedclipping_mod)], clipping_norm=limit)
    np.testing.assert_allclose(at_the_sites.w, mine.w, atol=1e-12)
    assert at_the_sites.update_norms.max() <= limit + 1e-12, "an audit sees what is left"
    assert mine.update_norms.max() > limit, "and here what was sent"
    with pytest.raises(ft.FedtaperError, match="no quorum"):  # the mod says why: no norm was sent
        over_loop(e, mods=[on_models(fixedclipping_mod)], retries=0)


def test_the_adaptive_mod_clips_too_but_nobody_moves_its_norm(tiny):
    e, limit = experiment(tiny), 0.02
    how = {"clipping_norm": limit, "metrics": ("norm_bit",)}
    run = over_loop(e, mods=[on_models(adaptiveclipping_mod)], **how)
    assert run.update_norms.max() <= limit + 1e-12
    assert "norm_bit" in run.metrics, "the site tells that it clipped; the norm stays what it is"


@pytest.mark.parametrize(("first", "factor"), [(0.02, -1), (100.0, 1)])
def test_flowers_adaptive_wrapper_runs_away(tiny, monkeypatch, first, factor):
    """Flower 1.41: where all are clipped its norm falls, where none is it rises, for ever."""
    e = experiment(tiny, rounds=30)
    adaptive = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 3, first, 0.5, 0.2, 0.0)
    run = by_wrapper(e, adaptive, monkeypatch)
    assert ((run.update_norms > first) == (factor < 0)).all()
    np.testing.assert_allclose(adaptive.clipping_norm, first * np.exp(factor * 0.2 * 0.5 * 30))


def test_noise_has_the_size_of_flowers_and_does_not_follow_the_seed(tiny):
    from flwr.supercore.differential_privacy import compute_stdv

    e, limit, multiplier = experiment(tiny, rounds=400), 1e-3, 2.0
    quiet = over_loop(e, clipping_norm=limit)
    runs = [over_loop(e, clipping_norm=limit, noise_multiplier=multiplier) for _ in range(2)]
    assert not np.array_equal(runs[0].w, runs[1].w)
    steps = np.diff(runs[0].w, axis=0) - np.diff(quiet.w, axis=0)
    expected = compute_stdv(multiplier, limit, 3)
    assert abs(steps.std() / expected - 1) < 0.25  # 798 numbers, and the pull differs a little
    assert np.diff(quiet.w, axis=0).std() < expected, "what is left is mostly noise"


@pytest.mark.parametrize("bad", [{"clipping_norm": 0.0}, {"noise_multiplier": 1.0}])
def test_bad_settings_are_told(bad):
    with pytest.raises(ft.FedtaperError, match="clipping_norm"):
        ft.Federation(SITES, **bad)
