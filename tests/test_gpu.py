"""The CUDA engine against the CPU engine: ``make test-gpu``. Skipped where there is no GPU.

It needs pytest alone besides fedtaper and PyTorch.
"""

from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft

torch = pytest.importorskip("torch")

from test_images import smooth  # noqa: E402 (after torch)
from test_own_images import Frozen, Mixing, Rows, dropping, pooled  # noqa: E402

from fedtaper import engines  # noqa: E402
from fedtaper.engines.cuda.session import CudaSession  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
STEPS = {
    "tapering-unequal": (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9)),
    "tapering-equal": (ft.Power(0.08, 0.8),) * 3,
    "constant-unequal": (ft.Constant(0.03), ft.Constant(0.02), ft.Constant(0.01)),
    "constant-equal": (ft.Constant(0.02),) * 3,
}
MEMORY = {
    "momentum": {"local": ft.Momentum(0.8)},
    "momentum-reset": {"local": ft.Momentum(0.8, reset=True)},
    "nesterov": {"local": ft.Momentum(0.7, nesterov=True)},
    "adamw": {"local": ft.AdamW()},
    "adamw-reset": {"local": ft.AdamW(reset=True)},
    "scaffold": {"local": ft.Scaffold(), "server": ft.Controlled()},
    "feddyn": {"local": ft.Dynamic(0.3), "server": ft.DynamicServer(0.3)},
}
RULES = MEMORY | {
    "fedavg": {},
    "fedprox": {"local": ft.Proximal(0.3)},
    "fednova": {"server": ft.Normalised()},
    "by-samples": {"server": ft.Average(by="samples")},
    "fedadagrad": {"server": ft.Adagrad(eta=0.01)},
    "fedadam": {"server": ft.Adam(eta=0.01)},
    "fedyogi": {"server": ft.Yogi(eta=0.01)},
    "fedavgm": {"server": ft.AverageMomentum(0.6)},
}
OPTIONS = {
    "participation": {"participation": 0.6},
    "present": {"participation": 0.6, "average_over": "present"},
    "steps": {"local_steps": (2, 3, 1), "local_epochs": None},
    "updates": {"clock": "update"},
    "rounds": {"clock": "round"},
}
# for images the same, a tenth as large
GENTLE = {
    "tapering-unequal": (ft.Power(0.01, 0.76), ft.Power(0.01, 1.0), ft.Power(0.005, 0.9)),
    "tapering-equal": (ft.Power(0.008, 0.8),) * 3,
}
# of the way that the model went, in float32: without kinks the engines are a hundred times as near.
# A rounding error that tips a ReLU or a maximum over pixels moves a model by up to 2 %.
TOLERANCE = 1e-3
KINKS = 0.03
BF16 = 2.0  # times as far off as the same steps in bf16 on the CPU


def images(augment=False, model=smooth, data_set="digits"):
    split = ft.Dirichlet(0.5, smallest=32)
    return ft.ImageClassification(
        data_set, split=split, model=model, num_clients=3, augment=augment
    )


def loss(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def custom():
    x = torch.linspace(-1, 1, 240).reshape(80, 3).sin()
    parts = [x[i::3] for i in range(3)]
    return ft.Custom(loss, network, [(part, part.pow(2).sum(1, keepdim=True)) for part in parts])


def experiment(problem, steps="tapering-unequal", **changes):
    basic = {"rounds": 3, "local_epochs": 1, "batch_size": 16, "seed": 4}
    wanted = {k: v for k, v in (basic | changes).items() if v is not None}
    sizes = GENTLE if isinstance(problem, ft.ImageClassification) else STEPS
    return ft.Experiment(problem, sizes[steps], **wanted)


def same(e, tolerance=TOLERANCE, **how):
    """Both engines from the same draws: the models are near, beside the way that they went."""
    how = {"precision": "float32"} | how
    here, there = ft.run(e, engine="cpu"), ft.run(e, engine="cuda", **how)
    first = e.problem.initial(e.seed)
    way = np.linalg.norm(here.final - first)
    assert np.linalg.norm(there.final - here.final) < tolerance * way
    np.testing.assert_allclose(
        there.update_norms, here.update_norms, rtol=10 * tolerance, atol=1e-6
    )
    for name in set(here.metrics) & {"train_loss", "test_loss", "change"}:
        np.testing.assert_allclose(
            there.metrics[name], here.metrics[name], rtol=10 * tolerance, err_msg=name
        )


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_on_a_network_of_ones_own(rule, steps):
    same(experiment(custom(), steps, **RULES[rule]))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_on_images(rule):
    same(experiment(images(augment=True), **RULES[rule]))


def test_a_network_with_kinks():
    same(experiment(images(augment=True, model="cnn")), KINKS)


@pytest.mark.parametrize("way", ["per-client", "stacked", "compiled"])
@pytest.mark.parametrize("rule", ["fedavg", "momentum"])
def test_every_way_on_images(rule, way):
    same(experiment(images(), **RULES[rule]), way=way)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in MEMORY])
@pytest.mark.parametrize("model", ["cnn", smooth], ids=["stacked", "apart"])
def test_bf16_is_near(rule, model):
    e = experiment(images(model=model), **RULES[rule])
    state = engines.init(e, np.array([e.seed]))
    session = CudaSession(e, state, torch.bfloat16, device="cpu", compiled=False)
    session.advance(e.rounds)
    session.sync()
    exact = ft.run(e, engine="cpu").final
    found = ft.run(e, engine="cuda", precision="bf16").final
    usual = np.linalg.norm(state.w[0] - exact)
    assert np.linalg.norm(found - exact) < BF16 * usual
    assert BF16 * usual < 0.5 * np.linalg.norm(exact - e.problem.initial(e.seed))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rule", ["fedavg", "momentum", "scaffold"])
def test_every_option(option, rule):
    same(experiment(custom(), **RULES[rule], **OPTIONS[option]))
    same(experiment(images(), **RULES[rule], **OPTIONS[option]))


@pytest.mark.parametrize("make", [custom, images])
@pytest.mark.parametrize("rule", ["fedavg", "fedadam", "momentum", "adamw", "scaffold", "feddyn"])
def test_a_run_that_is_gone_on_with(rule, make, tmp_path):
    e = experiment(make(), rounds=4, **RULES[rule])
    whole = ft.run(e, engine="cuda")
    out = tmp_path / "run"
    ft.run(replace(e, rounds=2), engine="cuda", out=out)
    again = ft.run(e, engine="cuda", out=out, resume=True)
    first = e.problem.initial(e.seed)
    way = np.linalg.norm(whole.final - first)
    assert np.linalg.norm(again.final - whole.final) < 1e-5 * way


BEYOND = {  # what an audit, an operator or a federation out of step asks for
    "misbehaviour": {
        "behaviours": {0: ft.OtherSchedule(ft.Power(0.1, 1.0)), 1: ft.Idle(), 2: ft.Noise()}
    },
    "copying": {"behaviours": {1: ft.Copies()}},
    "median": {"server": ft.Median()},
    "delays": {"delays": (0, 1, 2), "rounds": 6},
    "asynchronous": {
        "asynchronous": ft.Asynchronous(durations=(1.0, 2.0, 4.0), buffer=2), "rounds": 6,
    },
    "steering": {"steering": ft.Steering("minmax", every=2, rate=3.0), "rounds": 8},
}  # fmt: skip


@pytest.mark.parametrize("make", [custom, images])
@pytest.mark.parametrize("asked", BEYOND)
def test_what_the_cpu_can_do(asked, make):
    same(experiment(make(), **BEYOND[asked]))


@pytest.mark.parametrize("share", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_updates_and_challenges_of_images(precision, share):
    plan = ft.Challenges(base=2, every=2, share=share)
    e = experiment(images(), "tapering-equal", rounds=8, challenges=plan, local_epochs=2)
    here = ft.run(e, engine="cpu", updates=True)
    there = ft.run(e, engine="cuda", updates=True, precision=precision)
    plain = ft.run(replace(e, challenges=None), engine="cuda", precision=precision)
    np.testing.assert_array_equal(there.final, plain.final)  # answers are never aggregated
    near = 0.01 if precision == "float32" else 0.15
    off = np.linalg.norm(there.updates - here.updates) / np.linalg.norm(here.updates)
    assert off < near
    for name in ("product", "size"):
        wanted = getattr(here.challenges, name)
        assert np.linalg.norm(getattr(there.challenges, name) - wanted) < near * np.linalg.norm(
            wanted
        )
    for one, other in zip(ft.audit(there).clients, ft.audit(here).clients, strict=True):
        assert one.verdict == other.verdict


def test_updates_and_challenges_of_a_network_of_ones_own():
    e = experiment(custom(), "tapering-equal", rounds=8, challenges=ft.Challenges(base=2, every=2))
    here = ft.run(e, engine="cpu", updates=True)
    there = ft.run(e, engine="cuda", updates=True, precision="float32")
    off = np.linalg.norm(there.updates - here.updates) / np.linalg.norm(here.updates)
    assert off < 0.01


def test_several_seeds_are_those_one_by_one():
    e = experiment(custom(), local=ft.Momentum(0.8))
    many = ft.run(e, engine="cuda", seeds=[4, 9])
    for place, seed in enumerate((4, 9)):
        one = ft.run(replace(e, seed=seed), engine="cuda")
        np.testing.assert_allclose(many.final[place], one.final, atol=1e-6)


def test_dropout_is_drawn_by_seed_client_and_round():
    def dropping_out():
        return torch.nn.Sequential(network(), torch.nn.Dropout(0.3), torch.nn.Linear(1, 1))

    start = dropping_out().state_dict()
    # all seeds start there and take all samples at once: what differs is what dropout draws
    data = custom().client_data[:1] * 3
    e = experiment(
        replace(custom(), init=dropping_out, client_data=data), rounds=1, batch_size=len(data[0][0])
    )
    before = torch.cuda.get_rng_state()
    runs = [ft.run(replace(e, seed=seed), engine="cuda", start=start).final for seed in (4, 4, 5)]
    np.testing.assert_array_equal(*runs[:2])
    assert np.abs(runs[2] - runs[0]).max() > 1e-4
    assert torch.equal(before, torch.cuda.get_rng_state())


@pytest.mark.parametrize("model", ["cnn", "features"])
def test_hospitals(model):
    problem = ft.SeizureDetection("synthetic", model=model)
    e = ft.Experiment(
        problem, ft.Power(0.02, 0.8), rounds=2, local_epochs=None, local_steps=4, batch_size=16
    )
    same(e, KINKS if model == "cnn" else TOLERANCE)


def test_evaluate_gets_the_model_where_the_users_data_are():
    x = torch.linspace(-1, 1, 30).reshape(10, 3)

    def evaluate(model):
        assert not model.training
        return {"far": float(model(x).abs().mean())}

    e = experiment(replace(custom(), evaluate=evaluate))
    here, there = ft.run(e), ft.run(e, engine="cuda", precision="float32")
    np.testing.assert_allclose(there.metrics["far"], here.metrics["far"], rtol=1e-3)


@pytest.mark.parametrize("way", ["per-client", "stacked"])
def test_data_and_weights_of_classes_may_be_on_the_gpu(way):
    weights = torch.tensor([1.0, 3.0], device="cuda")
    data = [(torch.randn(20, 3, device="cuda"), torch.arange(20).cuda() % 2) for _ in range(3)]

    def weighted(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y, weight=weights)

    problem = ft.Custom(weighted, lambda: torch.nn.Linear(3, 2), data)
    assert ft.run(experiment(problem), engine="cuda", way=way).way == way


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("model", [pooled, Rows, Frozen])
def test_image_networks_of_ones_own(model, precision):
    e = experiment(images(model=model))
    near = TOLERANCE if precision == "float32" else 0.2
    same(e, near, precision=precision)
    assert ft.run(e, engine="cuda", precision=precision).way == "kernels"


@pytest.mark.parametrize("model", [dropping, Mixing])
def test_image_networks_that_the_steps_for_images_cannot_train(model):
    e = experiment(images(model=model))
    with pytest.warns(ft.FedtaperWarning, match="not by the steps for images"):
        there = [ft.run(e, engine="cuda", precision="float32") for _ in range(2)]
    np.testing.assert_array_equal(there[0].final, there[1].final)
    if model is Mixing:
        here = ft.run(e)
        way = np.linalg.norm(here.final - e.problem.initial(e.seed))
        assert np.linalg.norm(there[0].final - here.final) < TOLERANCE * way


class Picking(torch.nn.Module):
    """Waits for the device as it trains, so that no graph can hold it."""

    def __init__(self, *sizes):
        super().__init__()
        self.body = smooth(*sizes)

    def forward(self, x):
        return self.body(x * torch.ones(1).to(x))


def test_image_networks_that_cannot_be_captured_go_on_without_a_graph():
    e = experiment(images(model=Picking))
    here = ft.run(e)
    state = engines.init(e, np.array([e.seed]))
    session = CudaSession(e, state, torch.float32, compiled=False)
    with pytest.warns(ft.FedtaperWarning, match="no CUDA graph of this model"):
        session.advance(e.rounds)
    session.sync()
    session.close()
    way = np.linalg.norm(here.final - e.problem.initial(e.seed))
    assert np.linalg.norm(state.w[0] - here.final) < TOLERANCE * way
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_two_data_sets_in_one_process_are_tested_by_their_own_scales(tmp_path):
    digits = images().data
    dim = {"train_images": digits.train_x // 3, "test_images": digits.test_x // 3}
    labels = {"train_labels": digits.train_y, "test_labels": digits.test_y}
    np.savez(tmp_path / "dim.npz", **dim, **labels)
    for data_set in ("digits", str(tmp_path / "dim.npz")):
        same(experiment(images(data_set=data_set)))


def test_torchs_settings_are_the_users_after_a_run():
    there = torch.backends
    assert not there.cudnn.benchmark
    limit, before = torch._dynamo.config.recompile_limit, torch.get_float32_matmul_precision()
    convolutions = there.cudnn.allow_tf32
    for how in ({}, {"precision": "float32"}, {"way": "stacked"}):
        ft.run(experiment(images(), rounds=1), engine="cuda", **how)
        assert not there.cudnn.benchmark and there.cudnn.allow_tf32 == convolutions
        assert torch._dynamo.config.recompile_limit == limit
        assert torch.get_float32_matmul_precision() == before
    if torch.__version__ < "2.9":
        return
    new = [there.cuda.matmul, there.cudnn.conv, there.cudnn.rnn]
    kept = [unit.fp32_precision for unit in new]
    try:
        there.cudnn.conv.fp32_precision = "ieee"  # as PyTorch advises since 2.9
        there.cuda.matmul.fp32_precision = "tf32"
        users = [unit.fp32_precision for unit in new]
        for how in ({}, {"precision": "float32"}, {"way": "compiled"}):
            ft.run(experiment(images(), rounds=1), engine="cuda", **how)
            assert [unit.fp32_precision for unit in new] == users
    finally:
        for unit, value in zip(new, kept, strict=True):
            unit.fp32_precision = value


def test_a_rule_with_memory_has_no_bf16():
    with pytest.raises(ft.FedtaperError, match="float32 on a GPU"):
        ft.run(experiment(images(), local=ft.Momentum(0.8)), engine="cuda", precision="bf16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "form", [(3, 2, 5, 4, 16, 32), (2, 3, 8, 8, 32, 16), (10, 32, 14, 14, 64, 128)], ids=str
)
def test_the_stacked_convolution_is_each_clients(form, dtype):
    from fedtaper.engines.cuda.convolution import convolve

    clients, batch, height, width, deep, wide = form
    kind, near = getattr(torch, dtype), 1e-4 if dtype == "float32" else 2e-2
    torch.manual_seed(0)
    x = torch.randn(clients * batch, deep, height, width, device="cuda", dtype=kind)
    w = torch.randn(clients, wide, deep, 3, 3, device="cuda", dtype=kind)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    w.requires_grad_()
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        parts = zip(x.split(batch), w, strict=True)
        want = torch.cat([torch.nn.functional.conv2d(a, b, padding=1) for a, b in parts])
        got = convolve(x, w)
        toward = torch.randn_like(want)
        pairs = [(got, want)]
        grads = (torch.autograd.grad(y, (x, w), toward) for y in (got, want))
        pairs += list(zip(*grads, strict=True))
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    for one, other in pairs:
        assert (one - other).float().norm() < near * other.float().norm()


@pytest.mark.parametrize("way", ["stacked", "compiled"])
@pytest.mark.parametrize("rule", ["fedavg", "momentum", "scaffold", "adamw"])
def test_stacked_networks_agree_with_the_cpu(way, rule):
    """Clients of unlike sizes, with short batches: several shapes are captured."""
    e = experiment(custom(), **RULES[rule])
    wanted = ft.run(e, device="cpu", way="per-client", progress=False)
    found = ft.run(e, device="cuda", way=way, progress=False)
    assert found.way == way
    moved = np.linalg.norm(wanted.w[-1] - wanted.w0)
    assert np.linalg.norm(found.w[-1] - wanted.w[-1]) <= TOLERANCE * moved


def test_a_step_that_cannot_be_captured_goes_on_without_a_graph():
    from fedtaper.engines.cuda.graphs import Captured

    step = Captured(lambda x: x * float(x.sum()))  # waits for the device: no graph can hold that
    x = torch.ones(3, device="cuda")
    assert float(step(x).sum()) == 9.0  # a shape is captured when it comes again
    with pytest.warns(ft.FedtaperWarning, match="no CUDA graph of this model"):
        assert float(step(x).sum()) == 9.0
    assert not step.possible and float(step(2 * x).sum()) == 36.0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.get_sync_debug_mode() == 0


def test_a_capture_that_breaks_leaves_its_stream():
    """It does not wait on the device outside a graph, but asks for what a capture forbids."""
    from fedtaper.engines.cuda.graphs import captured

    def step():
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    with pytest.raises(RuntimeError):
        captured(step)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert float(torch.ones(3, device="cuda").sum()) == 3.0
