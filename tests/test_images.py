"""Networks: the engines agree with the float64 reference; splits, data, resume, refusals."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import fedtaper as ft
from fedtaper.core import draws
from fedtaper.problems.data import load_images

SPLITS = [ft.Iid(), ft.RareClass(8), ft.DominantClass(0.65), ft.DominantClass(0.8), ft.Dirichlet()]


def digits(**settings):
    return ft.ImageClassification("digits", **{"split": ft.RareClass(8)} | settings)


def experiment(problem=None, **settings):
    schedules = [ft.Power(0.1, 0.76)] + [ft.Power(0.05, 0.9)] * 9
    sizes = {"rounds": 2, "local_epochs": 1, "batch_size": 32}
    return ft.Experiment(problem or digits(), schedules, **sizes | settings)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_a_split_uses_no_sample_twice_and_is_fixed_by_its_seed(split):
    labels = load_images("digits").train_y
    parts = split.places(labels, 10, 10, seed=3)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0 and used.max() < len(labels)
    again, other = split.places(labels, 10, 10, seed=3), split.places(labels, 10, 10, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_rare_class_is_at_one_client_and_nowhere_else():
    held = digits().holdings
    assert held[0, 8] == held.sum(axis=0)[8] and held[0].sum() == held[0, 8]
    assert np.ptp(np.delete(held, 8, axis=1)[1:], axis=0).max() <= 1
    assert held.sum() == len(load_images("digits").train_y)


@pytest.mark.parametrize("share", [0.65, 0.7, 0.8])
@pytest.mark.parametrize("clients", [5, 10, 13])
def test_dominant_class_has_its_share(share, clients):
    held = digits(split=ft.DominantClass(share), num_clients=clients).holdings
    assert np.ptp(held.sum(axis=1)) == 0
    top = held.max(axis=1) / held.sum(axis=1)
    assert np.all(np.abs(top - share) <= 0.5 / held.sum(axis=1))  # to the nearest sample
    rest = np.sort(held, axis=1)[:, :-1]
    assert np.ptp(rest, axis=1).max() <= 1


def test_minibatches_go_through_every_sample_once_an_epoch():
    e = experiment(local_epochs=3, batch_size=50)
    batches = e.problem.batches(e, 1, 2, 7)
    assert len(batches) == e.steps[2] == 9
    for epoch in range(3):
        seen = np.concatenate([batches[3 * epoch + step].index for step in range(3)])
        assert np.array_equal(np.sort(seen), np.arange(e.problem.sizes[2]))
    assert not np.array_equal(batches[0].index, batches[3].index)
    assert np.array_equal(batches.index, e.problem.batches(e, 1, 2, 7).index)


def test_shuffles_are_uniform():
    first = np.array([draws.shuffle(0, 0, k, 0, 6)[0] for k in range(6000)])
    counts = np.bincount(first, minlength=6)
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # chi-square, 5 degrees: p = 0.001


def smooth(channels, height, width, classes):
    """No kinks: where a ReLU or a pool switches, float32 and float64 part ways for good."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.Tanh(),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * (height // 2) * (width // 2), classes),
    )


RULES = [
    {},
    {"local": ft.Proximal(0.5)},
    {"server": ft.Normalised()},
    {"server": ft.Average(by="samples")},
    {"server": ft.Adagrad()},
    {"server": ft.Adam()},
    {"server": ft.Yogi()},
    {"participation": 0.5},
    {"clock": "update"},
    {"clock": "round"},
    {"local_epochs": None, "local_steps": 4},
    {"local_epochs": None, "local_steps": (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_cpu_engine_agrees_with_the_reference(rule):
    problem = digits(split=ft.Dirichlet(0.5, smallest=32), augment=True, model=smooth)
    e = experiment(problem, **rule)
    fast, slow = ft.run(e), ft.run(e, engine="reference")
    assert np.abs(fast.w - slow.w).max() < 1e-5 * np.abs(slow.w).max()
    assert np.allclose(fast.update_norms, np.nan_to_num(slow.update_norms), rtol=1e-4, atol=1e-6)
    for name in ("change", "test_loss", "rare_test_loss"):
        assert np.allclose(fast.metrics[name], slow.metrics[name], rtol=1e-4), name


@pytest.mark.parametrize("stacked", [False, True], ids=["apart", "stacked"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_captured_step_agrees_with_the_cpu_engine(rule, stacked):
    """The CUDA engine's arithmetic, run on the CPU, where there is nothing to capture."""
    from fedtaper import engines
    from fedtaper.engines.cuda import session as cuda

    problem = digits(split=ft.Dirichlet(0.5, smallest=32), augment=True, model=smooth)
    e = experiment(problem, **rule)
    want = ft.run(e)
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        state = engines.init(e, np.array([0]))
        session = cuda.CudaSession(e, state, dtype, device="cpu", stacked=stacked)
        block = session.advance(2)
        session.sync()
        moved = np.linalg.norm(want.w[-1] - want.w0)
        assert np.linalg.norm(state.w[0] - want.w[-1]) < near * moved
        assert np.allclose(block.update_norms[0], want.update_norms, rtol=10 * near, atol=1e-6)
        if dtype == torch.float32:
            for name in ("change", "train_loss", "train_accuracy", "test_loss", "rare_test_loss"):
                assert np.allclose(block.metrics[name][0], want.metrics[name], rtol=1e-4), name


MISBEHAVIOUR = {
    0: ft.OtherSchedule(ft.Power(0.05, 1.0)), 2: ft.Idle(), 3: ft.Noise(), 5: ft.Copies(),
    6: ft.After(1, ft.Copies(0.5)),
}  # fmt: skip


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_misbehaviour_on_the_device_is_that_of_the_cpu_engine(participation):
    from fedtaper import engines
    from fedtaper.engines.cuda import session as cuda

    problem = digits(split=ft.Dirichlet(0.5, smallest=32), model=smooth)
    e = experiment(
        problem, behaviours=MISBEHAVIOUR, participation=participation, rounds=3,
    )  # fmt: skip
    want = ft.run(e, updates=True)
    state = engines.init(e, np.array([e.seed]), keep_updates=True)
    session = cuda.CudaSession(e, state, torch.float32, device="cpu")
    blocks = [session.advance(rounds) for rounds in (1, 2)]
    session.sync()
    moved = np.linalg.norm(want.w[-1] - want.w0)
    assert np.linalg.norm(state.w[0] - want.w[-1]) < 1e-5 * moved
    for name, values in (("update_norms", want.update_norms), ("updates", want.updates)):
        found = np.concatenate([getattr(block, name)[0] for block in blocks])
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_short_memory_halves_the_clients_side_by_side(monkeypatch):
    from fedtaper import engines
    from fedtaper.engines.cuda import session as cuda

    e = experiment()
    want = ft.run(e)
    real = cuda.DeviceRound.train

    def short(self, *args):
        if self.width > 3:
            raise torch.cuda.OutOfMemoryError
        real(self, *args)

    monkeypatch.setattr(cuda.DeviceRound, "train", short)
    state = engines.init(e, np.array([0]))
    session = cuda.CudaSession(e, state, torch.float32, device="cpu")
    with pytest.warns(ft.FedtaperWarning, match="clients at a time"):
        session.advance(2)
    session.sync()
    assert session.width == 3
    assert np.abs(state.w[0] - want.w[-1]).max() < 1e-4
    monkeypatch.setattr(
        cuda.DeviceRound,
        "train",
        lambda *args: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError()),
    )
    with (
        pytest.warns(ft.FedtaperWarning),
        pytest.raises(ft.FedtaperError, match="even one client"),
    ):
        session.advance(1)


def test_channels_last_norm_is_group_norm():
    from fedtaper.engines.cuda.session import channels_last

    norm = torch.nn.GroupNorm(4, 16)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    x = 3 * torch.randn(5, 16, 6, 7) + 2
    want = norm(x)
    assert torch.allclose(channels_last(norm)(x), want, atol=1e-5)


def test_which_networks_can_be_stacked():
    from fedtaper.engines.cuda.stacked import can_stack
    from fedtaper.problems import models

    assert can_stack(models.build("resnet9", 3, 32, 32, 10))
    assert can_stack(models.build("cnn", 1, 8, 8, 10))
    assert not can_stack(models.build("lenet5", 1, 28, 28, 10))  # 5 x 5
    tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    assert can_stack(tied)
    tied[2].weight = tied[0].weight
    assert not can_stack(tied)
    assert not can_stack(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.PReLU()))


@pytest.mark.parametrize("form", [(3, 2, 5, 4, 16, 32), (2, 3, 8, 8, 32, 16)], ids=str)
def test_stacked_convolution_is_each_clients_convolution(form):
    from fedtaper.engines.cuda.convolution import convolve

    clients, batch, height, width, deep, wide = form
    torch.manual_seed(0)
    x = torch.randn(clients * batch, deep, height, width, requires_grad=True)
    w = torch.randn(clients, wide, deep, 3, 3, requires_grad=True)
    parts = zip(x.split(batch), w, strict=True)
    want = torch.cat([torch.nn.functional.conv2d(a, b, padding=1) for a, b in parts])
    got = convolve(x, w)
    toward = torch.randn_like(want)
    pairs = [(got, want)]
    pairs += list(zip(*(torch.autograd.grad(y, (x, w), toward) for y in (got, want)), strict=True))
    for one, other in pairs:
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_kernels_of_the_stacked_convolution():
    """Triton's kernels, run by its interpreter, which needs no GPU."""
    pytest.importorskip("triton")
    code = """
import torch
from fedtaper.engines.cuda.convolution import _packed
from fedtaper.engines.cuda.convolution_kernels import gradient, multiplied
for clients, batch, size, deep, wide in ((3, 2, 5, 16, 32), (2, 3, 8, 32, 16), (1, 5, 32, 16, 16)):
    x = torch.randn(clients * batch, deep, size, size).contiguous(memory_format=torch.channels_last)
    w = _packed(torch.randn(clients, wide, deep, 3, 3))
    x.requires_grad_(), w.requires_grad_()
    parts = zip(x.split(batch), w)
    want = torch.cat([torch.nn.functional.conv2d(a, b, padding=1) for a, b in parts])
    dy = torch.randn_like(want).contiguous(memory_format=torch.channels_last)
    dx, dw = torch.autograd.grad(want, (x, w), dy)
    with torch.no_grad():
        found = multiplied(x, w, False), multiplied(dy, w, True), gradient(x, dy, w)
    for one, other in zip(found, (want, dx, dw)):
        assert (one - other).norm() < 1e-5 * other.norm()
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )


def test_reference_gradient_agrees_with_finite_differences():
    problem = digits()
    e = experiment(problem)
    batch = problem.batches(e, 0, 1, 0)[0]
    w = problem.initial(0)
    gradient = problem.gradient(1, w, batch)

    def loss(v):
        module = problem.module().double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(v), module.parameters())
        x, y = problem.take(1, batch, torch.float64)
        return float(torch.nn.functional.cross_entropy(module(x), y).detach())

    rng = np.random.default_rng(0)
    for _ in range(5):
        direction = rng.normal(size=w.size) / np.sqrt(w.size)
        h = 1e-5
        slope = (loss(w + h * direction) - loss(w - h * direction)) / (2 * h)
        assert slope == pytest.approx(gradient @ direction, rel=1e-5, abs=1e-8)


def test_workers_change_nothing():
    from fedtaper import engines
    from fedtaper.engines import cpu

    e = experiment(rounds=3)
    ends = []
    for workers in (1, 2, 3):
        state = engines.init(e, np.array([0]))
        session = cpu.CpuSession(e, state, workers=workers)
        session.round_seconds = 1e9  # worth it, says the last round
        session.advance(3)
        assert (session.pool is not None) == (workers > 1)
        session.sync()
        session.close()
        ends.append(state.w.copy())
    assert np.array_equal(ends[0], ends[1]) and np.array_equal(ends[0], ends[2])


def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path, monkeypatch):
    from fedtaper.engines import cpu
    from fedtaper.simulation import drive as simulate

    e = experiment(rounds=4, server=ft.Adam())
    whole = ft.run(e)
    monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", 0.0)
    real = cpu.CpuSession.advance

    def stop(self, rounds):
        if self.state.round == 2:
            raise KeyboardInterrupt
        return real(self, rounds)

    monkeypatch.setattr(cpu.CpuSession, "advance", stop)
    with pytest.raises(KeyboardInterrupt):
        ft.run(e, out=tmp_path / "run")
    monkeypatch.setattr(cpu.CpuSession, "advance", real)
    resumed = ft.run(e, out=tmp_path / "run", resume=True)
    assert np.array_equal(resumed.w, whole.w)
    assert np.array_equal(resumed.metrics["test_loss"], whole.metrics["test_loss"])
    assert np.array_equal(resumed.update_norms, whole.update_norms)


def test_many_seeds_are_the_single_runs():
    e = experiment()
    many = ft.run(e, seeds=[0, 5])
    assert np.array_equal(many.w[0], ft.run(e).w)
    assert not np.array_equal(many.w[0], many.w[1])


def test_a_stored_run_loads_without_its_data(tmp_path, monkeypatch):
    e = experiment()
    run = ft.run(e, out=tmp_path / "run")
    back = ft.load(tmp_path / "run")
    assert back.experiment == e
    assert np.array_equal(back.metrics["test_accuracy"], run.metrics["test_accuracy"])

    def refuse(*words):
        raise AssertionError("the data is looked at")

    monkeypatch.setattr("fedtaper.problems.images.load_images", refuse)
    assert ft.load(tmp_path / "run").experiment.steps.tolist() == e.steps.tolist()


def test_a_large_model_keeps_its_last_state_and_no_trajectory(tmp_path, monkeypatch):
    from fedtaper.engines import cpu
    from fedtaper.simulation import recorder

    monkeypatch.setattr(recorder, "KEEP_DIM", 10)
    monkeypatch.setattr(cpu, "KEEP_DIM", 10)
    run = ft.run(experiment(), out=tmp_path / "run")
    assert run.w is None and run.w0 is None and run.model.shape == (run.experiment.problem.dim,)
    assert np.array_equal(ft.load(tmp_path / "run").model, run.model)


def test_parameter_counts():
    from fedtaper.problems.models import build

    def count(*how):
        return sum(p.numel() for p in build(*how).parameters())

    assert count("resnet9", 3, 32, 32, 10) == 6_573_130
    assert count("lenet5", 1, 28, 28, 10) == 44_426


def test_a_model_of_ones_own_and_a_loss_of_ones_own(tmp_path):
    draw = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(40, 3, generator=draw), torch.randn(40, 1, generator=draw)) for _ in range(3)
    ]
    problem = ft.Custom(
        loss=lambda model, x, y: 0.5 * torch.nn.functional.mse_loss(model(x), y),
        init=lambda: torch.nn.Linear(3, 1),
        client_data=data,
        evaluate=lambda model: {"size": model.weight.norm()},
    )
    e = ft.Experiment(problem, ft.Constant(0.5), rounds=100, local_epochs=1, batch_size=40)
    run = ft.run(e, out=tmp_path / "run")
    columns = torch.cat([torch.cat([x, torch.ones(40, 1)], 1) for x, _ in data]).numpy()
    best = np.linalg.lstsq(columns, torch.cat([y for _, y in data]).numpy(), rcond=None)[0]
    assert np.abs(run.w[-1] - best.ravel()).max() < 1e-5  # one full batch a round: the joint fit
    assert "size" in run.metrics
    alone = ft.load(tmp_path / "run")  # its code cannot be named: what is known is its sizes
    assert alone.experiment.problem.kind == "recorded" and np.array_equal(alone.w, run.w)
    with pytest.raises(ft.FedtaperError, match="not run"):
        ft.run(alone.experiment)
    assert ft.load(tmp_path / "run", problem=problem).w.shape == run.w.shape


def batch_norm(channels, height, width, classes):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten()
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: experiment(digits(split=ft.RareClass(11))), "class 11 does not exist"),
        (lambda: digits(num_clients=5000).sizes, "fewer clients"),
        (lambda: digits(split=ft.RareClass(8), num_clients=1000).sizes, "fewer clients"),
        (lambda: ft.run(experiment(digits(model=batch_norm))), "running statistics"),
        (lambda: ft.run(experiment(), engine="compiled"), "does not run ImageClassification"),
        (lambda: ft.run(experiment(), device="tpu"), "device must be"),
        (lambda: experiment(digits(model="resnet")), "did you mean 'resnet9'"),
        (lambda: load_images("blodmnist"), "did you mean 'bloodmnist'"),
        (lambda: experiment(digits(split=3)), "split must be"),
        (lambda: ft.DominantClass(1.5), "share must be"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(ft.FedtaperError, match=says):
        made = make()
        ft.run(made)


@pytest.mark.parametrize("how", [{}, {"local_epochs": None, "local_steps": 3}])
def test_a_batch_larger_than_a_client_s_data_is_as_short_as_the_data(how):
    with pytest.warns(ft.FedtaperWarning, match="client 0 .*samples, fewer than batch_size"):
        e = experiment(batch_size=500, **how)
    sizes = e.problem.sizes
    for client in range(e.num_clients):
        rows = e.problem.batches(e, 0, client, 0)
        assert all(len(row.index) == min(500, sizes[client]) for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_asked_for_and_absent():
    with pytest.raises(ft.FedtaperError, match="no CUDA device"):
        ft.run(experiment(), device="cuda")


def write_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (40, 8, 8), dtype=np.uint8),
        "train_labels": np.arange(40, dtype=np.uint8)[:, None] % 8,
        "test_images": rng.integers(0, 256, (8, 8, 8), dtype=np.uint8),
        "test_labels": np.arange(8, dtype=np.uint8)[:, None],
    }
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})


def test_a_folder_of_ones_own(tmp_path, monkeypatch):
    write_npz(tmp_path / "bloodmnist.npz")
    assert load_images("bloodmnist", tmp_path).train_x.shape == (40, 8, 8, 1)
    monkeypatch.setenv("FEDTAPER_DATA", str(tmp_path))
    assert load_images("bloodmnist").classes[6] == "neutrophil"
    write_npz(tmp_path / "mine.npz")
    assert len(load_images(str(tmp_path / "mine.npz")).classes) == 8
    with pytest.raises(ft.FedtaperError, match=r"there is no .*organsmnist\.npz"):
        load_images("organsmnist")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"test_labels": None}, "has no test_labels"),
        ({"train_images": np.zeros((40, 8, 8))}, "must be bytes"),
        ({"train_labels": np.zeros(3, dtype=int)}, "40 whole numbers"),
        ({"test_labels": np.full(8, 9)}, "label 9"),
    ],
)
def test_a_file_with_something_wrong(tmp_path, changes, says):
    write_npz(tmp_path / "bloodmnist.npz", **changes)
    with pytest.raises(ft.FedtaperError, match=says):
        load_images("bloodmnist", tmp_path)


def test_a_damaged_file(tmp_path):
    write_npz(tmp_path / "bloodmnist.npz")
    whole = (tmp_path / "bloodmnist.npz").read_bytes()
    (tmp_path / "bloodmnist.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ft.FedtaperError, match="is damaged"):
        load_images("bloodmnist", tmp_path)


def test_a_wrong_download_leaves_no_trace_in_the_cache(tmp_path):
    import hashlib
    from dataclasses import replace

    from fedtaper.problems.data import sources

    served = tmp_path / "served.npz"
    write_npz(served)
    source = replace(sources.SOURCES["bloodmnist"], url=served.as_uri())
    cache = tmp_path / "cache"
    with pytest.raises(ft.FedtaperError, match="MD5"):
        sources.fetch(source, cache)
    assert not [file for file in cache.rglob("*") if file.is_file()]
    right = replace(source, md5=hashlib.md5(served.read_bytes()).hexdigest())
    found = sources.fetch(right, cache)
    assert found.read_bytes() == served.read_bytes()
    found.write_bytes(b"damaged since")
    assert sources.fetch(right, cache).read_bytes() == served.read_bytes()
    gone = replace(right, url=(tmp_path / "gone.npz").as_uri())
    with pytest.raises(ft.FedtaperError, match="cannot be downloaded"):
        sources.fetch(gone, tmp_path / "empty")


def test_cifar_comes_from_the_binary_archive(tmp_path):
    import io
    import tarfile

    from fedtaper.problems.data.sets import _read_cifar
    from fedtaper.problems.data.sources import SOURCES

    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (6, 4, 3073), dtype=np.uint8)
    rows[..., 0] %= 10
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        for name, part in zip(names, rows, strict=True):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = part.nbytes
            archive.addfile(entry, io.BytesIO(part.tobytes()))
    data = _read_cifar(tmp_path / "c.tar.gz", SOURCES["cifar10"])
    assert data.train_x.shape == (20, 32, 32, 3) and data.test_x.shape == (4, 32, 32, 3)
    assert data.train_x[5, 2, 3, 1] == rows[1, 1, 1 + 1024 + 2 * 32 + 3]
    assert np.array_equal(data.test_y, rows[5, :, 0])


def test_normalised_images_have_mean_0_and_deviation_1():
    data = load_images("digits")
    x = data.normalised(data.train_x)
    assert x.shape == (len(data.train_y), 1, 8, 8)
    assert abs(x.mean()) < 1e-3 and x.std() == pytest.approx(1, abs=1e-3)


def test_augmentation_flips_and_turns():
    from fedtaper.problems.network import augmented

    x = torch.randn(3, 2, 8, 8)
    none, half = torch.zeros(3), torch.full((3,), torch.pi / 2)
    off, on = torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
    assert torch.allclose(augmented(x, off, none), x, atol=1e-5)
    assert torch.allclose(augmented(x, on, none), x.flip(-1), atol=1e-5)
    turned = augmented(x, off, half)
    assert torch.allclose(turned, x.rot90(1, (-2, -1)), atol=1e-4) or torch.allclose(
        turned, x.rot90(-1, (-2, -1)), atol=1e-4
    )
