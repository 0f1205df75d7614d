"""Neonatal seizure detection, on the stand-in and on a small file of the real one's form."""

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.problems.data.eeg import HERTZ, features, load_eeg, stand_in
from fedtaper.problems.eeg import _apportioned


@pytest.fixture(scope="module")
def folds():
    return [ft.SeizureDetection("synthetic", model="features", fold=f) for f in range(5)]


def test_no_infant_is_on_both_sides_and_each_is_held_out_once(folds):
    held = [i for problem in folds for i in problem.held_out]
    assert sorted(held) == folds[0].windows.infants.tolist()
    for problem in folds:
        trained = [i for h in range(5) for i in problem.infants_of(h)]
        assert not set(trained) & problem.held_out
        assert sorted([*trained, *problem.held_out]) == problem.windows.infants.tolist()
        assert problem.sizes.sum() + len(problem._test_places) == len(problem.windows.y)


def test_hospitals_differ_in_size_and_in_seizures(folds):
    problem = folds[0]
    share = np.array(
        [np.mean([problem.windows.seizure(i) for i in problem.infants_of(h)]) for h in range(5)]
    )
    assert problem.infant_counts[0] > 3 * problem.infant_counts[-1]
    assert share[0] > 0.7 and share[1] < 0.5


@pytest.mark.parametrize("total", [1, 7, 62])
def test_apportioned(total):
    weight = np.array([0.4, 0.24, 0.16, 0.12, 0.08])
    counts = _apportioned(total, weight)
    assert counts.sum() == total
    assert np.all(np.abs(counts - total * weight) < 1)


def test_features_of_a_sine():
    t = np.arange(64) / HERTZ
    x = np.broadcast_to(10 * np.sin(2 * np.pi * 5 * t), (1, 18, 64)).astype(np.float32)
    found = features(x)[0]
    assert found[0] == pytest.approx(np.log(10 / np.sqrt(2) + 0.01), abs=1e-3)
    assert found[1] == pytest.approx(np.log(np.abs(np.diff(x[0, 0])).mean() + 0.01), abs=1e-5)
    assert np.argmax(found[2:6]) == 1  # 5 Hz lies in the second band
    assert np.all(found[6:] < 1e-6)  # every channel is the same


def test_the_detector_learns_the_stand_in(folds):
    scores, labels = [], []
    for problem in folds:
        e = ft.Experiment(
            problem, ft.Power(0.2, 0.76), rounds=10, local_steps=20, batch_size=16, clock="round"
        )
        run = ft.run(e, progress=False)
        _, seizure, score = problem.infant_scores(run.w[-1])
        scores += score.tolist()
        labels += seizure.tolist()
    scores, labels = np.array(scores), np.array(labels)
    assert np.mean(scores[labels][:, None] > scores[~labels]) > 0.8


def test_cpu_agrees_with_the_reference():
    problem = ft.SeizureDetection("synthetic", model="cnn")
    e = ft.Experiment(problem, ft.Power(0.05, 0.76), rounds=2, local_steps=2, batch_size=8)
    fast = ft.run(e, progress=False, engine="cpu")
    slow = ft.run(e, progress=False, engine="reference")
    assert np.allclose(fast.w, slow.w, atol=2e-5)


def test_scores_are_made_in_evaluation_mode(folds):
    """As a GPU's module is scored: where it is, and without what only training does."""
    torch = pytest.importorskip("torch")
    problem = folds[1]
    module = torch.nn.Sequential(problem.module(), torch.nn.Dropout(0.9))
    first = problem.scores(module)
    assert first == problem.scores(module) == problem.scores(module[0])
    assert module.training and module[1].training


def test_infant_scores_are_means_over_windows(folds):
    problem = folds[2]
    w = np.random.default_rng(0).normal(size=problem.dim)
    infant, seizure, score = problem.infant_scores(w)
    one = int(infant[0])
    inputs = problem._inputs[problem.windows.infant == one].astype(float)
    weight, bias = w[:24].reshape(2, 12), w[24:]
    odds = inputs @ (weight[1] - weight[0]) + bias[1] - bias[0]
    assert score[0] == pytest.approx(odds.mean(), rel=1e-4)
    assert seizure[0] == problem.windows.seizure(one)


def test_a_local_file(tmp_path, monkeypatch):
    made = stand_in(3)
    arrays = {}
    for name, part in (("A", slice(0, None, 2)), ("B", slice(1, None, 2))):
        arrays[f"x_{name}"] = made.x[part].transpose(0, 2, 1)
        arrays[f"y_{name}"] = made.y[part].astype(np.uint8)
        arrays[f"infant_{name}"] = made.infant[part].astype(np.uint8)
    np.savez(tmp_path / "neonatal_eeg.npz", **arrays)
    one = load_eeg(tmp_path, "A")
    assert np.array_equal(one.x, made.x[::2]) and np.array_equal(one.infant, made.infant[::2])
    monkeypatch.setenv("FEDTAPER_DATA", str(tmp_path))
    assert len(ft.SeizureDetection().windows.y) == len(made.y)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": "other"}, "data must be"),
        ({"model": "resnet"}, "model must be"),
        ({"shares": (0.5, 0.5)}, "seizure_shares"),
        ({"shares": (1, 1, 1, 1, 0)}, "above 0"),
        ({"seizure_shares": (0.5, 0.5, 0.5, 0.5, 1.0)}, "between 0 and 1"),
        ({"fold": 5}, "folds are 0 to 4"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ft.FedtaperError, match=words):
        ft.SeizureDetection(**({"data": "synthetic"} | settings))


def test_without_the_file(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDTAPER_DATA", raising=False)
    with pytest.raises(ft.FedtaperError, match="synthetic"):
        ft.SeizureDetection().windows  # noqa: B018
    with pytest.raises(ft.FedtaperError, match="expert"):
        load_eeg(tmp_path, "C")
    np.savez(tmp_path / "neonatal_eeg.npz", x_A=np.zeros((1, 64, 18)))
    with pytest.raises(ft.FedtaperError, match="no array"):
        load_eeg(tmp_path, "A")


def test_a_fading_hospital_is_found_by_challenges():
    from fedtaper.paper.eeg_audit import verdicts

    assert verdicts("synthetic", "features", 1, 0)[1] == "fading"
    assert set(verdicts("synthetic", "features", None, 0)) <= {"as declared", "cannot tell yet"}
