"""Values that look like numbers or lists and are none: a line, not a traceback or a full memory."""

import itertools
import warnings
from collections import deque

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core import checks

PROBLEM = ft.LinearRegression(num_clients=3, samples=40, dim=2, feature_spread=1.0)
LOOP = [1]
LOOP.append(LOOP)


def experiment(**how):
    settings = {"rounds": 20, "local_steps": 2, "batch_size": 4} | how
    return ft.Experiment(PROBLEM, settings.pop("schedules", ft.Power(0.1, 0.8)), **settings)


def wrong():
    import torch

    e, day = experiment(), np.timedelta64(3, "D")
    many, endless = np.broadcast_to(1.0, 10**12), itertools.repeat(1)
    slope = torch.zeros(3, requires_grad=True)
    loss, init = torch.nn.functional.mse_loss, torch.nn.Linear
    return {
        "a duration": lambda: ft.Cosine(0.1, 50, day),
        "a duration of rounds": lambda: ft.RandomDelay(2.0, day),
        "a delay of days": lambda: experiment(delays=day),
        "an array of nothing": lambda: experiment(local_steps=np.array(True)),
        "an array of a word": lambda: experiment(delays=np.array("x")),
        "a masked number": lambda: experiment(participation=np.ma.masked),
        "a masked target": lambda: ft.plan([1, 1, 1], 10, 2, sizes=np.ma.masked),
        "one number as target": lambda: ft.plan(np.array(True), 10, 2),
        "an array of a problem": lambda: ft.fair(PROBLEM, held_out=np.dtype("f8")),
        "a tensor with a gradient": lambda: ft.influence([ft.Power(0.1, 0.8)], n=slope),
        "a tensor per client": lambda: ft.LinearRegression(3, samples=40, snr_db=slope),
        "one tensor": lambda: ft.LinearRegression.from_arrays([np.ones((9, 2))], torch.tensor(3.0)),
        "numbers as data": lambda: ft.Custom(loss, init, torch.tensor([1, 2, 3])).sizes,
        "an array of a number as data": lambda: ft.Custom(loss, init, np.array(3)),
        "a long double": lambda: ft.board(ft.run(e, progress=False), level=np.longdouble(1) / 3),
        "more digits than Python prints": lambda: ft.Power(10**5000, 0.8),
        "so many rounds": lambda: experiment(rounds=-(10**5000)),
        "a huge view": lambda: ft.Piecewise(many),
        "a huge view of rates": lambda: ft.OnOff(many),
        "a huge view of the clock": lambda: ft.Constant(0.1)(many),
        "a huge view of data": lambda: ft.LinearRegression.from_arrays(many, many),
        "a huge view of numbers": lambda: ft.LinearRegression(3, samples=40, snr_db=many),
        "a huge range": lambda: ft.MovingRegression(ft.RegressionStream(3), drift=range(10**18)),
        "endless schedules": lambda: experiment(schedules=endless),
        "endless seeds": lambda: ft.run(e, seeds=endless),
        "endless experiments": lambda: ft.run_many(itertools.repeat(e)),
        "a true model of itself": lambda: ft.RegressionStream(3, true_w=LOOP),
        "sizes in a deque": lambda: ft.plan([1, 1, 1], 10, 2, sizes=deque([1, "x"])),
        "a file without end": lambda: ft.read_toml("/dev/zero"),
        "a list of itself": lambda: ft.Log(tensorboard=LOOP),
        "steps of a list of itself": lambda: experiment(local_steps=LOOP),
        "a short window": lambda: ft.tracking_error(ft.run(e, progress=False), window=5e-324),
        "a short time": lambda: ft.limit_ode(e).solve(w=[0.0, 0.0], end=5e-324),
        "figures to a device": lambda: ft.report(
            [ft.run(e, progress=False)], "page.html", figures="/dev/full"
        ),
    }


@pytest.mark.parametrize("name", wrong())
def test_what_only_looks_like_numbers_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ft.FedtaperError) as trouble:
        wrong()[name]()
    assert "\n" not in str(trouble.value) and len(str(trouble.value)) < 400


def test_what_can_be_read_as_numbers_is():
    """Arrays of one number, NumPy's own numbers, subclasses, and targets that are read once."""
    e = experiment()
    assert experiment(local_steps=np.array(2)) == e and experiment(rounds=np.int32(20)) == e
    assert experiment(delays=np.array([0, 1, 2])) == experiment(delays=(0, 1, 2))
    assert experiment(delays=np.array(2)) == experiment(delays=2)
    wanted = ft.plan([1, 0.1, 0.1], 10, 2).schedules
    assert ft.plan((x for x in (1, 0.1, 0.1)), 10, iter([2, 2, 2])).schedules == wanted
    assert ft.LinearRegression(3, samples=np.array(40)).sizes.tolist() == [40, 40, 40]


def test_a_value_without_a_repr_is_shown_by_its_type():
    class Mute:
        def __repr__(self):
            raise RuntimeError("no words")

    with pytest.raises(ft.FedtaperError, match="not a Mute"):
        ft.Power(Mute(), 0.8)
    assert checks.shown("x" * 200) == "'" + "x" * 79


def test_whole_numbers_beyond_64_bits_are_what_their_floats_are():
    """NumPy makes objects of them, and Numba cannot take them."""
    large = 2**70

    def moved(**settings):
        e = experiment(rounds=3, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ft.FedtaperWarning)
            return ft.run(e, progress=False).metrics["change"]

    def all_of(number):
        yield moved(local=ft.Proximal(number))
        yield moved(server=ft.Adam(tau=number))
        yield moved(schedules=ft.Power(0.1, 0.8, offset=number))
        yield moved(steering=ft.Steering(bound=number, every=2))
        yield np.array([s.c for s in ft.plan([1, 1, 1], 10, 2, c=number).schedules])

    for one, other in zip(all_of(large), all_of(float(large)), strict=True):
        assert np.array_equal(one, other)
