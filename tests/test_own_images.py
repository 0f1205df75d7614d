"""Image networks of the user's own in the CUDA engine's steps, run on the CPU: all that it does
there but the capture, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_images import smooth
from torch import nn

import fedtaper as ft
from fedtaper import engines
from fedtaper.core.protocols import Options, Way
from fedtaper.core.rules import Memoryless
from fedtaper.engines import cpu
from fedtaper.engines.cuda import compiling, graphs
from fedtaper.engines.cuda import engine as cuda
from fedtaper.engines.cuda.session import CudaSession
from fedtaper.engines.cuda.trial import objection, stacks

CLIENTS = 4


def experiment(model, split=None, **settings):
    problem = ft.ImageClassification(
        "digits", split=split or ft.Dirichlet(0.5, smallest=32), model=model, num_clients=CLIENTS
    )
    schedules = [ft.Power(0.1, 0.76)] + [ft.Power(0.05, 0.9)] * (CLIENTS - 1)
    basic = {"rounds": 2, "local_epochs": 1, "batch_size": 32}
    return ft.Experiment(problem, schedules, **basic | settings)


def pooled(channels, height, width, classes):
    """GroupNorm without places: (samples, channels)."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.GroupNorm(4, 64), nn.Linear(64, classes),
    )  # fmt: skip


class Rows(nn.Module):
    """Rows of pixels as tokens: Linear on (samples, tokens, numbers), GroupNorm on (N, C, L)."""

    def __init__(self, channels, height, width, classes):
        super().__init__()
        self.embed, self.norm = nn.Linear(channels * width, 16), nn.GroupNorm(2, 16)
        self.head = nn.Linear(16, classes)
        self.register_buffer("place", torch.linspace(0, 1, height)[:, None].repeat(1, 16))

    def forward(self, x):
        tokens = self.embed(x.permute(0, 2, 3, 1).flatten(2)) + self.place
        return self.head(torch.tanh(self.norm(tokens.transpose(1, 2))).mean(2))


class Frozen(nn.Module):
    """Its GroupNorm is not trained, and it answers otherwise in evaluation mode."""

    def __init__(self, *sizes):
        super().__init__()
        self.body = smooth(*sizes)
        self.body[1].requires_grad_(False)

    def forward(self, x):
        return self.body(x) * (1.0 if self.training else 0.5)


class Mixing(nn.Module):
    """Its samples see one another."""

    def __init__(self, *sizes):
        super().__init__()
        self.body = smooth(*sizes)

    def forward(self, x):
        return self.body(x - 3 * x.mean(0))


class Wide(nn.Module):
    """Makes float32 of whatever it is given, which other layers do not take."""

    def __init__(self, *sizes):
        super().__init__()
        self.body = smooth(*sizes)

    def forward(self, x):
        return self.body(x * torch.ones(1, dtype=torch.float32))


def dropping(*sizes):
    return nn.Sequential(smooth(*sizes), nn.Dropout(0.5))


@pytest.mark.parametrize("together", [False, True], ids=["apart", "stacked"])
@pytest.mark.parametrize("model", [pooled, Rows, Frozen])
def test_they_are_trained_and_tested_as_on_the_cpu(model, together):
    e = experiment(model)
    assert objection(e, "cpu", torch.float32) is objection(e, "cpu", torch.bfloat16) is None
    assert stacks(e) == (model is not Frozen)
    if together and not stacks(e):
        return
    want = ft.run(e)
    for dtype, near in ((torch.float32, 1e-4), (torch.bfloat16, 0.2)):
        state = engines.init(e, np.array([0]))
        session = CudaSession(e, state, dtype, device="cpu", stacked=together)
        block = session.advance(2)
        session.sync()
        moved = np.linalg.norm(want.w[-1] - want.w0)
        assert np.linalg.norm(state.w[0] - want.w[-1]) < near * moved
        for name in ("train_loss", "test_loss", "test_accuracy"):
            np.testing.assert_allclose(block.metrics[name][0], want.metrics[name], rtol=10 * near)


@pytest.mark.parametrize(
    ("model", "dtype", "says"),
    [
        (Mixing, torch.float32, "how a batch is filled up"),
        (Wide, torch.bfloat16, "RuntimeError"),
        (Wide, torch.float32, None),
    ],
)
def test_what_the_steps_would_train_otherwise_is_found_by_a_trial(model, dtype, says):
    found = objection(experiment(model), "cpu", dtype)
    assert found is None if says is None else says in found
    assert not stacks(experiment(Mixing))


def test_every_data_set_is_tested_by_its_own_mean_and_deviation(tmp_path, monkeypatch):
    """What is compiled for one is used for all of its form."""
    monkeypatch.setattr(compiling, "_COMPILED", {})
    monkeypatch.setattr(compiling.torch, "compile", lambda function, dynamic: function)
    digits = ft.ImageClassification().data
    dim = {"train_images": digits.train_x // 3, "test_images": digits.test_x // 3}
    labels = {"train_labels": digits.train_y, "test_labels": digits.test_y}
    np.savez(tmp_path / "dim.npz", **dim, **labels)
    found = {}
    for name in ("digits", str(tmp_path / "dim.npz")):
        problem = ft.ImageClassification(name, split=ft.Iid(), model="cnn", num_clients=2)
        e = ft.Experiment(problem, ft.Constant(0.05), rounds=1, local_steps=2, batch_size=16)
        session = CudaSession(e, engines.init(e, np.array([0])), torch.float32, device="cpu")
        plain = session.tested
        session.tested = compiling.compile_once("test", plain)
        found[name] = session.advance(1).metrics["test_loss"][0, 0]
        assert found[name] == pytest.approx(ft.run(e, way="per-client").metrics["test_loss"][0])
    assert len(compiling._COMPILED) == 1 and len(set(found.values())) == 2


class Broken:
    """A compiler that fails."""

    def __call__(self, function, dynamic):
        def fail(*args):
            raise RuntimeError("no ptxas")

        return fail


def test_where_the_compiler_fails_a_function_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(compiling.torch, "compile", Broken())
    double = compiling.Compiled(lambda x: 2 * x)
    with pytest.warns(ft.FedtaperWarning, match=r"torch.compile failed \(RuntimeError\)"):
        assert double(3) == 6
    assert double(4) == 8
    wrong = compiling.Compiled(lambda x: x.nothing)
    with pytest.warns(ft.FedtaperWarning), pytest.raises(AttributeError):
        wrong(3)
    with pytest.raises(AttributeError):
        wrong(3)


class Learns(ft.Average):
    """A server rule that remembers how far the clients went."""

    def init(self, w):
        return (np.zeros_like(w),)

    def learn(self, update, step_sum, share, memory):
        return (memory[0] + update * step_sum * share,)


def test_a_server_rule_learns_after_every_round():
    e = experiment(smooth, server=Learns(), participation=0.7)
    found = []
    for make in (lambda s: cpu.CpuSession(e, s, workers=1), lambda s: here(e, s)):
        state = engines.init(e, np.array([3]))
        session = make(state)
        session.advance(2)
        session.sync()
        found.append(state.memory[0])
    assert np.abs(found[0]).max() > 0
    np.testing.assert_allclose(found[0], found[1], atol=1e-5 * np.abs(found[0]).max())


def here(e, state):
    return CudaSession(e, state, torch.float32, device="cpu")


class Unusual:
    """A rule without memory that is written with ``step`` alone."""

    added_curvature, gain, keeps, rescales, receives = 0.0, 1.0, "nothing", False, 0

    def init(self, w):
        return ()

    def begin(self, memory, sent):
        return memory

    def step(self, w, gradient, anchor, a, memory):
        return w - a * gradient, memory

    def finish(self, w, anchor, step_sum, memory):
        return memory

    def counts(self, a):
        return a

    def influence(self, weight, rate, sums):
        return weight * rate * sums


@pytest.fixture
def opened(monkeypatch):
    """What the engine opens, without a GPU: the name of the session, its precision, the State."""
    monkeypatch.setattr(cuda, "CudaSession", lambda e, state, dtype: ("images", dtype))
    monkeypatch.setattr(cuda, "trial", lambda problem, device: problem.model is dropping)
    monkeypatch.setattr(cuda, "objection", lambda e, device, dtype: objection(e, "cpu", dtype))

    def general(e, state, way, exact):
        state.way = state.way or Way(way or "per-client", 1, "because")
        return "general", exact

    monkeypatch.setattr(cuda, "_general", general)

    def how(e, began=None, **options):
        state = engines.init(e, np.array([0]))
        state.way = began
        return *cuda.ENGINE.open(e, state, Options(**options)), state.way

    return how


def test_which_steps_a_run_gets_and_keeps(opened):
    e = experiment("cnn")
    kernels = Way("kernels", e.num_clients, "images", "bf16")
    assert opened(e) == ("images", torch.bfloat16, kernels)
    assert opened(e, kernels) == ("images", torch.bfloat16, kernels)
    exact = opened(e, precision="float32")
    assert exact == ("images", torch.float32, replace(kernels, precision="float32"))
    assert opened(e, exact[2], precision="float32") == opened(e, exact[2]) == exact
    general = opened(e, way="stacked")
    assert general == ("general", False, Way("stacked", 1, "because"))
    assert opened(e, general[2]) == general
    exact = opened(e, way="stacked", precision="float32")
    assert exact == ("general", True, Way("stacked", 1, "because", "float32"))
    assert opened(e, exact[2]) == exact
    assert Memoryless not in type(Unusual()).__mro__
    assert opened(experiment("cnn", local=Unusual()))[0] == "general"
    for began, asked, says in (
        (kernels, {"precision": "float32"}, "did not begin with precision"),
        (general[2], {"precision": "float32"}, "did not begin with precision"),
        (kernels, {"way": "stacked"}, "resume without way="),
        (None, {"precision": "bf16", "way": "stacked"}, 'way="stacked" runs in float32'),
    ):
        with pytest.raises(ft.FedtaperError, match=says):
            opened(e, began, **asked)
    with pytest.raises(ft.FedtaperError, match="this engine or this version does not know"):
        state = engines.init(e, np.array([0]))
        state.way = kernels
        cpu.CpuSession(e, state, way=None)


@pytest.mark.parametrize(
    ("model", "says"), [(dropping, "draws random numbers"), (Mixing, "filled up")]
)
def test_a_network_that_the_steps_cannot_train_is_trained_as_any_other(opened, model, says):
    e = experiment(model)
    with pytest.warns(ft.FedtaperWarning, match=f"{says}.*runs in float32 on a GPU"):
        assert opened(e)[0] == "general"
    with pytest.raises(ft.FedtaperError, match="leave precision out"):
        opened(e, precision="bf16")


class FakeGpu:
    """What a capture needs of ``torch.cuda``; leaving a broken capture changes no stream back."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, broken):
        self.stream_now, self.mode, self.broken, self.modes = "usual", 0, broken, []

    def Stream(self):  # noqa: N802
        return self

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass

    def current_stream(self):
        now = self.stream_now
        return type("S", (), {"wait_stream": lambda *_: None, "name": now})()

    def set_stream(self, stream):
        self.stream_now = stream.name

    def stream(self, stream):
        from contextlib import nullcontext

        return nullcontext()

    def CUDAGraph(self):  # noqa: N802
        return "graph"

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode):
        self.mode = mode

    def graph(self, graph):
        outer = self

        class Capture:
            def __enter__(self):
                outer.stream_now = "capture"

            def __exit__(self, *args):
                if outer.broken:
                    raise RuntimeError("capture invalidated")
                outer.stream_now = "usual"

        return Capture()


@pytest.mark.parametrize("broken", [False, True])
def test_a_capture_leaves_stream_and_debug_mode_as_they_were(monkeypatch, broken):
    gpu = FakeGpu(broken)
    monkeypatch.setattr(graphs.torch, "cuda", gpu)
    modes, readied = [], []

    def step():
        modes.append((gpu.mode, gpu.stream_now))
        return "result"

    if broken:
        with pytest.raises(RuntimeError, match="invalidated"):
            graphs.captured(step, lambda: readied.append(1))
    else:
        assert graphs.captured(step, lambda: readied.append(1)) == ("graph", "result")
    assert modes == [(0, "usual"), (0, "usual"), ("error", "usual"), (0, "capture")]
    assert len(readied) == graphs.WARM_UP
    assert (gpu.stream_now, gpu.mode) == ("usual", 0)
