"""Delays, asynchronous servers, rates and streams that make no sense, as they stand in a file."""

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core.rules import Remembering

FILE = """
[experiment]
rounds = 5
local_steps = 2
{experiment}
[problem]
kind = "{kind}"
num_clients = 3
{problem}
[[schedules]]
c = 0.1
delta = 0.8
clients = 3
{more}
"""
STREAM = "fedtaper:RegressionStream"


def read(tmp_path, experiment="", kind="linear", problem="", more=""):
    file = tmp_path / "case.toml"
    file.write_text(FILE.format(experiment=experiment, kind=kind, problem=problem, more=more))
    return ft.read_toml(file)


def asynchronous(settings):
    return f'asynchronous = {{ kind = "asynchronous", {settings} }}'


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("delays = -1", "delay of client 0 is -1"),
        ("delays = [0, -3, 1]", "delay of client 1 is -3"),
        ('delays = { kind = "fixed_delay", most = -1 }', "delay"),
        ('delays = { kind = "random_delay", mean = -2.0 }', "mean"),
        ('delays = { kind = "heavy_delay", tail = 0.0 }', "tail"),
        (asynchronous("buffer = 4"), "more than the"),
        (asynchronous("buffer = 0"), "buffer"),
        (asynchronous("durations = [1.0, 0.0, 2.0]"), "mean time must be a number above 0"),
        (asynchronous("durations = [1.0, -1.0, 2.0]"), "mean time must be a number above 0"),
        (asynchronous("durations = [1.0, inf, 2.0]"), "mean time must be a number above 0"),
        (asynchronous('durations = "x"'), "mean time must be a number above 0, not 'x'"),
        (asynchronous('durations = [1.0, "x", 2.0]'), "mean time must be a number above 0"),
        ("participation = 1.5", "at most 1, not 1.5"),
        ("participation = -0.1", "at least 0"),
        ("participation = nan", "not nan"),
        ("participation = [0.5, 2.0, 0.5]", r"at most 1, not \(0.5, 2.0"),
        ("participation = 0.0", "no client ever takes part"),
        ('participation = { kind = "exactly", k = 4 }', "needs 4 clients; there are 3"),
    ],
)
def test_refused_in_a_file(tmp_path, setting, words):
    with pytest.raises(ft.FedtaperError, match=words):
        read(tmp_path, setting)


@pytest.mark.parametrize("rho", ["1.0", "1.5", "-0.1", "nan", "[0.5, 1.0, 0.1]"])
def test_a_stream_that_does_not_settle_is_refused_in_a_file(tmp_path, rho):
    read(tmp_path, kind=STREAM, problem="rho = 0.99")
    with pytest.raises(ft.FedtaperError, match=r"rho (of client|must be a number, not nan)"):
        read(tmp_path, kind=STREAM, problem=f"rho = {rho}")


@pytest.mark.parametrize(
    ("setting", "client"),
    [
        ("participation = [1.0, 0.0, 1.0]", 1),
        ('participation = { kind = "listed", rounds = [[0], [1]] }', 2),
    ],
)
def test_a_client_that_never_takes_part_is_named(tmp_path, setting, client):
    with pytest.warns(ft.FedtaperWarning, match=f"client {client} never takes part"):
        e = read(tmp_path, setting)
    assert e.limit_influence[client] == 0


def test_flowers_buffer_is_no_larger_than_its_federation():
    with pytest.raises(ft.FedtaperError, match="buffer"):
        ft.Federation(sites=("a", "b", "c"), buffer=4)


@pytest.mark.parametrize("law", [np.array([]), np.zeros((2, 3)), None, "gamma", 3])
def test_a_law_that_is_no_known_word_is_refused(law):
    with pytest.raises(ft.FedtaperError, match="law must be one of fixed, exponential"):
        ft.Duration(law=law)


@pytest.mark.parametrize("late", [{"delays": 1}, {"own_clock": True}])
def test_rules_that_receive_something_with_the_model_stay_in_step(late):
    class Told(Remembering):
        keeps = "round"
        receives = 1

        def init(self, w):
            return (w * 0.0,)

    problem = ft.LinearRegression(num_clients=2, samples=20)
    rules = {"local": Told(), "server": ft.Controlled()}
    with pytest.raises(ft.FedtaperError, match="receives nothing with the model"):
        ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=2, local_steps=1, **rules, **late)
