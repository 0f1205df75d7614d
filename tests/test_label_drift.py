"""Labels that drift: shares, draws, and a run."""

import numpy as np
import pytest

import fedtaper as ft


@pytest.fixture(scope="module")
def drifting():
    split = ft.DominantClass(0.7)
    return ft.ImageClassification("digits", split=split, drift=ft.LabelDrift(rounds=20, start=5))


def test_mini_batches_follow_the_shares(drifting):
    e = ft.Experiment(drifting, ft.Power(0.1, 0.8), rounds=30, local_steps=40, batch_size=50)
    held = drifting.holdings[3]
    for round_, moved in ((0, 0.0), (15, 0.5), (29, 1.0)):
        found = np.concatenate(
            [drifting.y[3][batch.index] for batch in drifting.batches(e, 0, 3, round_)]
        )
        share = np.bincount(found, minlength=10) / len(found)
        expected = (1 - moved) * held / held.sum() + moved / 10
        assert np.all(np.abs(share - expected) < 5 * np.sqrt(expected / len(found)))
    again = [batch.index.tolist() for batch in drifting.batches(e, 0, 3, 15)]
    assert again == [batch.index.tolist() for batch in drifting.batches(e, 0, 3, 15)]


def test_a_run_and_its_file(drifting, tmp_path):
    e = ft.Experiment(drifting, ft.Power(0.1, 0.8), rounds=2, local_steps=2, batch_size=8)
    fast = ft.run(e, progress=False, out=tmp_path / "run")
    slow = ft.run(e, progress=False, engine="reference")
    assert np.allclose(fast.w, slow.w, atol=1e-5)
    assert ft.load(tmp_path / "run").experiment.problem.drift == drifting.drift


def test_bad_drifts():
    with pytest.raises(ft.FedtaperError, match="rounds"):
        ft.LabelDrift(rounds=0)
    with pytest.raises(ft.FedtaperError, match="class shares"):
        ft.LabelDrift(rounds=5, to=((0.0, 0.0),))
    with pytest.raises(ft.FedtaperError, match="row of 3"):
        ft.LabelDrift(rounds=5, to=((1.0, 0.0),)).shares(np.array([1, 1, 1]), 0, 0)
    with pytest.raises(ft.FedtaperError, match="holds no sample of class 1"):
        ft.LabelDrift(rounds=5, to=((1.0, 1.0),)).shares(np.array([3, 0]), 0, 0)
