"""Callbacks, early stopping, warm starts, and what is kept where the user's own code fails."""

import numpy as np
import pytest
import torch

import fedtaper as ft
from fedtaper.engines import workers
from fedtaper.storage import store

NAMES = ("north", "south", "east")
RNG = np.random.default_rng(5)
DATA = [(RNG.normal(size=(24, 3)), RNG.normal(size=(24, 1))) for _ in NAMES]


def squared(model, x, y):
    return ((model(x) - y) ** 2).mean()


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))


def weight(model):
    return {"weight": float(sum(p.detach().abs().sum() for p in model.parameters()))}


def experiment(rounds=8, problem=None, **how):
    problem = problem or ft.Custom(squared, net, DATA, weight)
    how = {"local_epochs": 1, "batch_size": 8, "names": NAMES} | how
    return ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=rounds, **how)


def regression(rounds=60, c=0.005):
    problem = ft.LinearRegression(num_clients=3, samples=80, seed=2)
    return ft.Experiment(problem, ft.Power(c, 0.8), rounds=rounds, local_steps=2, batch_size=9)


def same(a, b):
    assert np.array_equal(a.round, b.round) and np.array_equal(a.final, b.final)
    assert np.array_equal(a.update_norms, b.update_norms)
    for name in set(a.metrics) - {"seconds"}:
        assert np.array_equal(a.metrics[name], b.metrics[name], equal_nan=True)


@pytest.mark.parametrize("make", [experiment, regression])
def test_a_callback_sees_every_round_and_changes_nothing(make):
    seen = []

    def look(progress):
        now = {k: v for k, v in progress.metrics.items() if k != "seconds"}
        seen.append((progress.round, now, progress.w))

    plain, watched = ft.run(make()), ft.run(make(), callbacks=[look])
    same(plain, watched)
    assert [k for k, _, _ in seen] == plain.round.tolist()
    for row, (_, now, w) in enumerate(seen):
        assert now == {k: plain.metrics[k][row] for k in now}
        assert np.array_equal(w, plain.w[row])


def test_a_callback_of_many_seeds_and_of_thinned_rounds():
    seen = []
    ft.run(regression(20), seeds=[3, 4], thin=5, callbacks=[lambda p: seen.append(p.metrics)])
    assert len(seen) == 4 and seen[0]["error"].shape == (2,)


def test_the_module_in_a_callback_is_the_shared_model():
    def stop(progress):
        model = progress.module()
        assert not model.training
        assert weight(model)["weight"] == pytest.approx(progress.metrics["weight"], rel=1e-6)
        return progress.round == 3

    run = ft.run(experiment(), callbacks=[stop])
    assert run.round.tolist() == [1, 2, 3] and run.stopped == "stop ended it"


def test_early_stopping_ends_in_the_same_round_after_a_resume(tmp_path):
    stop = ft.EarlyStopping("error", patience=7)
    e = regression(600, c=0.03)
    run = ft.run(e, callbacks=[stop], out=tmp_path / "a")
    error = run.metrics["error"]
    assert len(run.round) < 600 and error[:-7].min() < error[-7:].min()
    assert run.stopped == "error has not improved for 7 rounds"
    assert ft.load(tmp_path / "a").stopped == run.stopped
    same(ft.run(e, out=tmp_path / "a", resume=True), run)  # it counts as finished

    def fails(progress):
        if progress.round == len(run.round) - 3:
            raise OSError("the disk is gone")

    with pytest.raises(ft.OwnCodeError, match="callback failed"):
        ft.run(e, callbacks=[fails, stop], out=tmp_path / "b")
    again = ft.run(e, callbacks=[stop], out=tmp_path / "b", resume=True)
    same(again, run)
    more = ft.run(regression(610, c=0.03), out=tmp_path / "a", resume=True)
    same(more, ft.run(regression(610, c=0.03)))


def test_early_stopping_by_hand():
    def waited(values, **how):
        return ft.EarlyStopping("x", **how)._waited(np.array(values))

    assert waited([3, 2, 1, 1.5, 2]) == 2
    assert waited([3, 2, 1, 1.5, 2], better="higher") == 4
    assert waited([3, 2.5, 2.2, 2.1], least=0.6) == 1  # 2.2 is 0.8 below 3
    assert waited([np.nan, 2, np.nan]) == 1


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        ([3], "list of functions"),
        ([ft.EarlyStopping], r"EarlyStopping\(\.\.\.\)"),
        ([lambda progress: 3], "a reason as text"),
        ([ft.EarlyStopping("wieght")], "did you mean 'weight'"),
    ],
)
def test_wrong_callbacks_are_told(callbacks, says):
    with pytest.raises(ft.FedtaperError, match=says):
        ft.run(experiment(2), callbacks=callbacks)


def test_a_warm_start_from_whatever_holds_a_model(tmp_path):
    first = ft.run(experiment(3), out=tmp_path / "first")
    starts = [
        first, first.module(), first.state_dict(), first.final, ft.load(tmp_path / "first"),
        {k: t.numpy() for k, t in first.state_dict().items()},
    ]  # fmt: skip
    runs = [ft.run(experiment(2, seed=1), start=start) for start in starts]
    for run in runs:
        same(run, runs[0])
    assert np.array_equal(runs[0].w0, first.final) and runs[0].start.startswith("run ")
    assert not np.array_equal(runs[0].final, ft.run(experiment(2, seed=1)).final)
    by_hand = ft.Custom(squared, first.module().train(), DATA, weight)  # the module as init
    same(ft.run(experiment(2, by_hand, seed=1)), runs[0])


def test_a_warm_start_of_regression_and_of_many_seeds():
    first = ft.run(regression(5), seeds=[1, 2])
    assert np.array_equal(ft.run(regression(2), seeds=[1, 2], start=first).w0, first.final)
    assert np.array_equal(ft.run(regression(2), start=first.state_dict(2)).w0, first.final[1])
    with pytest.raises(ft.FedtaperError, match="the same seeds"):
        ft.run(regression(2), start=first)


def test_another_start_is_another_run(tmp_path):
    one, two = ft.run(experiment(1)), ft.run(experiment(2))
    ft.run(experiment(2), start=one, out=tmp_path / "a")
    same(ft.load(tmp_path / "a", experiment=experiment(2)), ft.load(tmp_path / "a"))
    ft.run(experiment(2), start=one, out=tmp_path / "a", resume=True)
    for start in (two, None):
        with pytest.raises(ft.FedtaperError, match="start: run"):
            ft.run(experiment(2), start=start, out=tmp_path / "a", resume=True)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (torch.nn.Linear(3, 1), "does not fit the problem's model: .*0.weight"),
        (np.ones(3), "3 numbers, but the model has 21"),
        ({"0.weight": torch.zeros(4, 3)}, "Missing key"),
        (np.full(21, np.nan), "NaN"),
        ("model.pt", "not str"),
    ],
)
def test_wrong_starts_are_told(start, says):
    with pytest.raises(ft.FedtaperError, match=says):
        ft.run(experiment(2), start=start)


def test_frozen_weights_of_another_start_are_not_dropped_silently():
    def frozen(fill=1.0):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        torch.nn.init.constant_(model[0].weight, fill)
        model[0].requires_grad_(False)
        return model

    e = experiment(1, ft.Custom(squared, frozen, DATA))
    with pytest.raises(ft.FedtaperError, match=r"0\.weight is not trained"):
        ft.run(e, start=frozen(2.0))


class Fuse:
    """Code of the user's that raises at its n-th call, until it is mended."""

    def __init__(self, after):
        self.left = after

    def blow(self):
        self.left -= 1
        if self.left == 0:
            raise KeyError("age")


class Reads(torch.utils.data.Dataset):
    def __init__(self, pair, fuse):
        self.pair, self.fuse = pair, fuse

    def __len__(self):
        return len(self.pair[0])

    def __getitem__(self, place):
        self.fuse.blow()
        return tuple(torch.from_numpy(array[place]).float() for array in self.pair)


def failing(part, fuse):
    def loss(model, x, y):
        if part == "loss":
            fuse.blow()
        return squared(model, x, y)

    def evaluate(model):
        if part == "evaluate":
            fuse.blow()
        return weight(model)

    data = [Reads(pair, fuse) for pair in DATA] if part == "data set" else DATA
    return ft.Custom(loss, net, data, evaluate)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("part", "after", "says"),
    [
        ("loss", 3 * 9 + 5, r"^round 4, south: loss failed \(KeyError: 'age'\); 3 rounds are kept"),
        ("evaluate", 4, r"^round 4: evaluate failed \(KeyError: 'age'\); 3 rounds are kept"),
        # the folder's fingerprint reads every sample once
        ("data set", 4 * 72 + 50, r"^round 4, east: sample \d+ cannot be read \(KeyError: 'age'"),
    ],
)
def test_code_that_fails_keeps_the_rounds_made(tmp_path, monkeypatch, part, after, says, engine):
    monkeypatch.setattr(workers, "cores", lambda: 1)
    usual = ft.run(experiment(6, failing(part, Fuse(0)), local=ft.Momentum(0.5)), engine=engine)
    e = experiment(6, failing(part, Fuse(after)), local=ft.Momentum(0.5))
    with pytest.raises(ft.OwnCodeError, match=says) as caught:
        ft.run(e, out=tmp_path / "a", engine=engine)
    trouble = caught.value
    assert (trouble.part, trouble.round, trouble.run.round.tolist()) == (part, 4, [1, 2, 3])
    assert "\n" not in str(trouble)
    assert np.array_equal(trouble.run.w, usual.w[:3])
    assert (tmp_path / "a" / store.CONFIG).is_file()
    mended = experiment(6, failing(part, Fuse(0)), local=ft.Momentum(0.5))
    same(ft.run(mended, out=tmp_path / "a", engine=engine, resume=True), usual)


def test_only_the_part_that_failed_may_be_mended(tmp_path):
    def breaks(model):
        if model.calls[0] == 3:
            raise ValueError("no more")
        model.calls[0] += 1
        return {}

    def counting():
        model = torch.nn.Linear(3, 1)
        model.calls = calls
        return model

    calls = [0]
    with pytest.raises(ft.OwnCodeError, match="evaluate failed"):
        ft.run(experiment(5, ft.Custom(squared, counting, DATA, breaks)), out=tmp_path / "a")
    with pytest.raises(ft.FedtaperError, match="problem: loss"):
        other = ft.Custom(lambda m, x, y: m(x).mean(), counting, DATA, weight)
        ft.run(experiment(5, other), out=tmp_path / "a", resume=True)
    with pytest.warns(ft.FedtaperWarning, match="evaluate failed and has changed"):
        mended = ft.Custom(squared, counting, DATA, weight)
        run = ft.run(experiment(5, mended), out=tmp_path / "a", resume=True)
    assert np.isnan(run.metrics["weight"][:3]).all() and len(run.round) == 5


def test_a_failure_in_a_worker_process_says_where(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr("fedtaper.engines.cpu.cores", lambda: 2)
    monkeypatch.setattr("fedtaper.engines.cpu.WORTHWHILE", 0.0)

    def loss(model, x, y):
        if float(x.sum()) in bad:
            raise RuntimeError("no room")
        return squared(model, x, y)

    bad = {float(torch.from_numpy(DATA[2][0]).float().sum())}
    with pytest.raises(ft.OwnCodeError, match=r"^round 1, east: loss failed \(RuntimeError"):
        ft.run(experiment(4, ft.Custom(loss, net, DATA), batch_size=24), engine="cpu")


@pytest.mark.parametrize("way", ["per-client", "stacked"])
def test_where_no_forked_process_can_train_all_clients_stay_in_this_one(monkeypatch, way):
    """PyTorch on a machine with a GPU: gradients fail in a process forked after the first ones."""
    monkeypatch.setattr("fedtaper.engines.cpu.cores", lambda: 2)
    monkeypatch.setattr("fedtaper.engines.cpu.WORTHWHILE", 0.0)
    e = experiment(3)
    usual = ft.run(e, engine="cpu", way=way)
    assert workers.can_fork()

    def backward():
        raise RuntimeError("Unable to handle autograd's threading in combination with fork")

    monkeypatch.setattr(workers, "_backward", backward)
    assert not workers.can_fork()
    monkeypatch.setattr(workers, "Workers", None)  # none is started
    monkeypatch.setattr("fedtaper.engines.cpu.Workers", None)
    same(ft.run(e, engine="cpu", way=way), usual)
