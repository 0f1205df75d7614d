"""All clients' models as one: the same numbers as client by client, and as the reference loop."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss
from torch.utils._pytree import tree_leaves, tree_unflatten
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper import engines
from fedtaper.cli.main import app
from fedtaper.core.protocols import Way
from fedtaper.engines import cpu, late
from fedtaper.engines.cuda.graphs import MOST, Captured
from fedtaper.engines.network_client import Lane
from fedtaper.engines.stacked import choice, remembered
from fedtaper.engines.stacked import stack as stack_module
from fedtaper.engines.stacked.stack import Stack, usual_sizes
from fedtaper.engines.stacked.trial import objection

SIZES = (20, 9, 20, 13, 5)  # some with short batches, one with fewer than a batch
RULES = {
    "sgd": (ft.Sgd(), ft.Average()),
    "proximal": (ft.Proximal(0.3), ft.Adam()),
    "momentum": (ft.Momentum(0.8), ft.Average()),
    "nesterov": (ft.Momentum(0.8, nesterov=True, reset=True), ft.AverageMomentum()),
    "adamw": (ft.AdamW(), ft.Average()),
    "adamw reset": (ft.AdamW(reset=True), ft.Average()),
    "scaffold": (ft.Scaffold(), ft.Controlled()),
    "feddyn": (ft.Dynamic(0.1), ft.DynamicServer(0.1)),
    "median": (ft.Sgd(), ft.Median()),
}


def scored(model, x, y):
    answers = model(x)
    return cross_entropy(answers, y), (answers.argmax(1) == y).to(answers.dtype).mean()


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 3, count)


def problem(loss=scored, init=mlp, data=None, **how):
    data = data or [(numbers(n, 4, seed=n), labels(n, n)) for n in SIZES]
    return ft.Custom(loss, init, data, **how)


def experiment(made=None, rule="sgd", **how):
    local, server = RULES[rule]
    plain = {"rounds": 4, "local_epochs": 2, "batch_size": 8, "local": local, "server": server}
    schedules = [ft.Power(0.1, 0.6), ft.Power(0.05, 0.9)] + [ft.Constant(0.03)] * 3
    made = made or problem()
    return ft.Experiment(made, schedules[: made.num_clients], **(plain | how))


pytestmark = pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")


def in_double(e, seeds=(0,), make=cpu.CpuSession, width=None):
    """The stacked rounds in double precision, all lanes in one process."""
    state = engines.init(e, np.array(seeds))
    state.way = Way("stacked", width or len(SIZES) * len(seeds))
    session = make(e, state, workers=1, way=None, dtype=torch.float64)
    block = session.advance(e.rounds)
    session.sync()
    return block, state


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_agrees_with_the_reference_loop(rule):
    e = experiment(rule=rule, participation=(1.0, 0.6, 0.7, 1.0, 0.5))
    wanted = ft.run(e, engine="reference", progress=False)
    block, _ = in_double(e)
    assert np.allclose(block.w[0], wanted.w, rtol=0, atol=1e-10)
    assert np.allclose(block.update_norms[0], wanted.update_norms, rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", [{"local_steps": (3, 1, 4, 2, 3), "local_epochs": None}, {}])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_neither_chunks_nor_unequal_steps_change_the_result(how, width):
    e = experiment(rule="momentum", **how)
    wanted = ft.run(e, engine="reference", progress=False)
    block, _ = in_double(e, width=width)
    assert np.allclose(block.w[0], wanted.w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("words", [False, True], ids=["tuple", "dictionary"])
def test_data_that_stay_on_the_device_are_looked_up_there(words, monkeypatch):
    """As on a GPU, where mini-batches are not copied from the host: the same bits."""
    made = problem()
    if words:
        data = [{"x": numbers(n, 4, seed=n), "y": labels(n, n)} for n in SIZES]
        made = problem(lambda model, b: cross_entropy(model(b["x"]), b["y"]), data=data)
    e = experiment(made, participation=(1.0, 0.6, 0.7, 1.0, 0.5))
    _, wanted = in_double(e)
    make = stack_module.Stack.__init__

    def with_data(self, *args, **how):
        make(self, *args, **how)
        self.resident = stack_module.Resident(self.problem, self.device, self.dtype)

    monkeypatch.setattr(stack_module.Stack, "__init__", with_data)
    _, found = in_double(e)
    assert np.array_equal(found.w, wanted.w)


def test_seeds_side_by_side_are_the_seeds_one_by_one():
    e = experiment(rule="scaffold", participation=0.7)
    block, state = in_double(e, seeds=(3, 8, 5))
    for row, seed in enumerate((3, 8, 5)):
        alone, own = in_double(e, seeds=(seed,))
        assert np.allclose(block.w[row], alone.w[0], rtol=0, atol=1e-12)
        assert np.allclose(state.clients[0][row], own.clients[0][0], rtol=0, atol=1e-12)


def test_late_updates_agree_with_the_reference_loop():
    e = experiment(delays=(0, 1, 2, 0, 3), staleness=ft.Polynomial(0.5))
    wanted = ft.run(e, engine="reference", progress=False)
    block, _ = in_double(e, make=late.LateSession)
    assert np.allclose(block.w[0], wanted.w, rtol=0, atol=1e-10)


def test_all_else_goes_on_as_it_does_client_by_client():
    e = experiment(
        rounds=8, behaviours={1: ft.After(2, ft.Noise(0.1)), 3: ft.Copies()},
        challenges=ft.Challenges(base=2, every=3), participation=0.8,
    )  # fmt: skip
    one, two = (
        ft.run(e, way=way, updates=True, seeds=(1, 4), progress=False)
        for way in ("per-client", "stacked")
    )
    assert (one.way, two.way) == ("per-client", "stacked")
    for name in ("w", "update_norms", "updates"):
        assert np.allclose(getattr(one, name), getattr(two, name), rtol=1e-4, atol=1e-5), name
    for name in ("train_loss", "train_accuracy", "change"):
        assert np.allclose(one.metrics[name], two.metrics[name], rtol=1e-4, atol=1e-5), name
    assert np.allclose(one.challenges.size, two.challenges.size, rtol=1e-3, equal_nan=True)
    assert np.allclose(one.challenges.product, two.challenges.product, atol=1e-5, equal_nan=True)


def test_a_diverged_seed_is_named_as_client_by_client():
    e = experiment(rounds=30, local_epochs=6)
    e = ft.Experiment(e.problem, ft.Constant(1e20), rounds=30, local_epochs=6, batch_size=8)
    one, two = (ft.run(e, way=way, progress=False) for way in ("per-client", "stacked"))
    assert one.diverged == two.diverged and one.diverged


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.body(self.words(x)).mean(1))


class Noisy(nn.Module):
    """Draws in several ways, also along a transposed tensor."""

    def __init__(self, choose=False):
        super().__init__()
        self.body, self.head, self.choose = nn.Linear(4, 20), nn.Linear(20, 3), choose

    def forward(self, x):
        inner = torch.tanh(self.body(x)) + 0.1 * torch.randn_like(x[:, :1])
        inner = nn.functional.dropout(inner.T, 0.3).T * (1 + torch.rand(20).to(inner))
        if self.choose:
            inner = inner * torch.multinomial(torch.ones(20), 20).to(inner)
        inner = inner + torch.empty_like(inner).normal_(0.0, 0.1)
        return self.head(nn.functional.alpha_dropout(inner, 0.2, self.training))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.words(x))).mean(1)[:, :3]


class OneNumber(nn.Module):
    """One of its parameters has no axes."""

    def __init__(self):
        super().__init__()
        self.head, self.heat = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.head(x) * self.heat


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.still, self.head = nn.Linear(4, 6).requires_grad_(False), nn.Linear(6, 3)
        self.register_buffer("scale", torch.rand(6))

    def forward(self, x):
        return self.head(torch.relu(self.still(x)) * self.scale)


def weird(model, x, y):
    """Looks at pairs of samples, at a part of the model and at its parameters."""
    inner = model[0](x)
    alike = cosine_similarity(inner[:, None], inner[None], dim=-1)
    pull = (alike * (y[:, None] == y[None])).mean()
    return (
        cross_entropy(model(x), y)
        + 0.1 * pull
        + 0.01 * sum(p.square().sum() for p in model.parameters())
    )


def one_number():
    return nn.ParameterDict({"slope": nn.Parameter(torch.tensor(0.5))})


def of_one_number(model, x, y):
    return ((x.sum(1) * model["slope"] - y) ** 2).mean()


def lora():
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    how = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), how)


def of_text(model, x, y):
    answers = model(input_ids=x).logits
    return cross_entropy(answers[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def rows(kind):
    if kind == "words":
        made = [np.random.default_rng(n).integers(0, 11, (n, 6)) for n in (12, 9)]
    elif kind == "series":
        made = [numbers(n, 5, 4, seed=n) for n in (12, 9)]
    elif kind == "images":
        made = [numbers(n, 1, 8, 8, seed=n) for n in (12, 9)]
    else:
        made = [numbers(n, 4, seed=n) for n in (12, 9)]
    return [(x, labels(len(x))) for x in made]


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip


ZOO = {
    "gru": (scored, lambda: Recurrent(nn.GRU), "series"),
    "lstm": (scored, lambda: Recurrent(nn.LSTM), "series"),
    "transformer": (scored, Attention, "words"),
    "transformer with dropout": (scored, lambda: Attention(0.3), "words"),
    "noise of many kinds": (scored, Noisy, "plain"),
    "tied weights": (scored, Tied, "words"),
    "a parameter that is one number": (scored, OneNumber, "plain"),
    "one number alone": (of_one_number, one_number, "plain"),
    "compiled by its owner": (scored, lambda: torch.compile(mlp()), "plain"),
    "frozen layers": (scored, Frozen, "plain"),
    "convolution": (scored, convolution, "images"),
    "weird loss": (weird, mlp, "plain"),
    "LoRA": (of_text, lora, "words"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_models_of_all_kinds_are_stacked_and_agree(name):
    loss, init, kind = ZOO[name]
    e = experiment(problem(loss, init, rows(kind)), rounds=2)
    assert objection(e) is None
    one, two = (ft.run(e, way=way, progress=False) for way in ("per-client", "stacked"))
    wanted = ft.run(e, engine="reference", progress=False)
    assert two.way == "stacked"
    assert np.allclose(one.final, two.final, rtol=1e-4, atol=1e-5)
    assert np.allclose(one.final, wanted.final, rtol=1e-4, atol=1e-5)
    moved = np.abs(one.final - e.problem.initial(0)).max()
    assert moved > 1e-3  # or there was nothing to compare


@pytest.mark.parametrize("init", [lambda: Attention(0.3), Noisy], ids=["dropout", "noise"])
@pytest.mark.parametrize("rule", ["momentum", "scaffold"])
def test_what_a_model_draws_is_what_the_reference_loop_draws(rule, init):
    """Some clients have short batches or are absent, and lanes stand in two stacks."""
    data = rows("words") if init is not Noisy else rows("plain")
    e = experiment(problem(init=init, data=data * 2), rule, participation=(1.0, 0.6, 0.7, 1.0))
    wanted = ft.run(e, engine="reference", progress=False)
    block, _ = in_double(e, width=3)
    assert np.allclose(block.w[0], wanted.w, rtol=0, atol=1e-10)
    other = ft.run(replace(e, seed=1), engine="reference", progress=False)
    assert np.abs(other.w - wanted.w).max() > 1e-2


def of_words(model, batch):
    return mse_loss(model(batch["x"])[:, 0], batch["y"])


def test_a_dictionary_of_arrays_is_stacked_too():
    data = [{"x": numbers(n, 4, seed=n), "y": numbers(n, seed=n)} for n in SIZES]
    e = experiment(problem(of_words, data=data), rounds=2)
    one, two = (ft.run(e, way=way, progress=False) for way in ("per-client", "stacked"))
    assert two.way == "stacked" and np.allclose(one.w, two.w, atol=1e-5)


def choosing(model, x, y):
    answers = model(x)
    return cross_entropy(answers, y) * (2 if answers.mean() > 0 else 1)


class Counting(nn.Module):
    """Remembers from call to call outside its parameters: stacked, it counts otherwise."""

    def __init__(self):
        super().__init__()
        self.head, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.head(x) * self.calls


class Sparse(nn.Module):
    """Its gradient is a sparse tensor."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 5, sparse=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.words(x))


def leaky():
    return nn.Sequential(nn.Linear(4, 6), nn.RReLU(), nn.Linear(6, 3))


class Parts(nn.Module):
    """One part is compiled by its owner, so that the whole cannot be traced."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.compile(nn.Linear(4, 6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("init", "kind"), [(Sparse, "words"), (leaky, "plain")])
def test_what_is_trained_client_by_client_agrees_with_the_reference_loop(init, kind):
    e = experiment(problem(init=init, data=rows(kind)), rounds=2)
    one, wanted = (ft.run(e, engine=engine, progress=False) for engine in ("cpu", "reference"))
    assert np.allclose(one.final, wanted.final, rtol=1e-4, atol=1e-5)
    assert np.abs(one.final - e.problem.initial(0)).max() > 1e-3


@pytest.mark.filterwarnings("default::fedtaper.core.errors.FedtaperWarning")
def test_a_model_that_the_compiler_does_not_take_is_stacked_without_it(tmp_path):
    e = experiment(problem(init=Parts, data=rows("plain")), rounds=2)
    with pytest.warns(ft.FedtaperWarning, match="torch.compile failed"):
        run = ft.run(e, way="compiled", progress=False)
    assert run.way == "stacked"
    assert np.allclose(run.final, ft.run(e, way="per-client", progress=False).final, atol=1e-5)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.head(x) / self.steps.clamp(min=1)


def spectral():
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))


@pytest.mark.parametrize(
    "how", [{"engine": "reference"}, {"way": "per-client"}, {"way": "stacked"}]
)
@pytest.mark.parametrize(("init", "name"), [(Counts, "steps"), (spectral, "weight.0._u")])
@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
def test_a_model_that_changes_its_buffers_as_it_trains_is_refused(init, name, how):
    e = experiment(problem(init=init, data=rows("plain")), rounds=2)
    with pytest.raises(ft.FedtaperError, match=f"changes its buffer .*{name} as it trains"):
        ft.run(e, progress=False, **how)
    still = experiment(problem(init=lambda: init().eval(), data=rows("plain")), rounds=2)
    assert np.isfinite(ft.run(still, progress=False, **how).final).all()


def batch_norm():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, i):
        return torch.full((4,), float(i)), i % 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: problem(choosing), "vmap cannot take"),
        (lambda: problem(init=Counting), "differs from the clients' own"),
        (lambda: problem(init=batch_norm, buffers="average"), "running statistics"),
        (lambda: problem(data=[Rows()] * 5), "read as they are needed"),
        (lambda: problem(init=lambda: Noisy(choose=True)), "multinomial.* draws random numbers"),
    ],
)
@pytest.mark.filterwarnings("default::fedtaper.core.errors.FedtaperWarning")
def test_what_cannot_be_stacked_goes_client_by_client_and_says_why(make, says):
    e = experiment(make(), rounds=1, local_epochs=None, local_steps=2)
    with pytest.warns(ft.FedtaperWarning, match=f"stacked is not possible: .*{says}"):
        run = ft.run(e, way="stacked", progress=False)
    assert run.way == "per-client"
    assert np.array_equal(run.final, ft.run(e, way="per-client", progress=False).final)


def test_a_loss_that_fails_is_an_objection_and_told_where_it_happens():
    def failing(model, x, y):
        raise ValueError("no such column")

    e = experiment(problem(failing), rounds=1)
    assert "no such column" in objection(e)
    with (
        pytest.warns(ft.FedtaperWarning, match="stacked is not possible: .*no such column"),
        pytest.raises(ft.OwnCodeError, match="no such column"),
    ):
        ft.run(e, way="stacked", progress=False)


def test_a_resumed_run_keeps_its_way_to_the_bit(tmp_path):
    e = experiment(rule="adamw", rounds=6, participation=0.8)
    whole = ft.run(e, way="stacked", out=tmp_path / "whole", progress=False)
    short = experiment(e.problem, rule="adamw", rounds=3, participation=0.8)
    ft.run(short, way="stacked", out=tmp_path / "parts", progress=False)
    with pytest.raises(ft.FedtaperError, match='trained with way="stacked", not "per-client"'):
        ft.run(e, way="per-client", out=tmp_path / "parts", resume=True, progress=False)
    went_on = ft.run(e, out=tmp_path / "parts", resume=True, progress=False)
    assert went_on.way == "stacked" == ft.load(tmp_path / "parts", e.problem).way
    assert went_on.provenance["way"] == "stacked"
    assert np.array_equal(whole.w, went_on.w)


def test_workers_change_nothing():
    e = experiment(rounds=3)
    found = []
    for workers in (1, 2):
        state = engines.init(e, np.array([0]))
        state.way = Way("stacked", 2)
        session = cpu.CpuSession(e, state, workers=workers, way=None)
        session.round_seconds = 1e9 if workers == 2 else 0.0  # that pays for a worker
        found.append(session.advance(3).w)
        assert (session.pool is not None) == (workers == 2)
        session.close()
    assert np.array_equal(*found)


def test_wrong_words_are_refused():
    e = experiment()
    with pytest.raises(ft.FedtaperError, match="way must be"):
        ft.run(e, way="vmap", progress=False)
    with pytest.raises(ft.FedtaperError, match="one way only"):
        ft.run(e, way="stacked", engine="reference", progress=False)


@pytest.mark.parametrize("init", [mlp, Noisy])
def test_compiled_agrees_too(init):
    """Full lanes, idle lanes, lanes that are left over, short batches; with memory."""
    e = experiment(problem(init=init), rule="momentum", rounds=1)
    state = engines.init(e, np.array([2]))
    kept = [torch.from_numpy(state.clients[0]).float() for _ in range(2)]
    w, a = [torch.from_numpy(state.w[0]).float()], e.step_sizes(0, 1)[0]
    lanes = [Lane(0, 2, i, 0) for i in range(5)]
    found = []
    for memory, compiled in zip(kept, (False, True), strict=True):
        stack = Stack(e, 6, compiled)
        found.append(stack.train(lanes, w, a, (memory,), [()]))
    assert list(stack.fast) == [8]  # the others are rare
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)
    assert torch.allclose(kept[0], kept[1], atol=1e-5) and kept[0].abs().max() > 1e-3


def test_what_was_compiled_is_found_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    e = experiment(rounds=1)
    for wanted in ("fxgraph_cache_miss", "fxgraph_cache_hit"):
        counters.clear()
        Stack(e, 3, compiled=True)
        assert counters["inductor"][wanted] == 1, dict(counters["inductor"])


class OnCpu(Captured):
    """Graphs as a GPU has them: fixed inputs, and results that the next replay overwrites."""

    room = MOST

    def _capture(self, flat, form):
        if len(self.graphs) == self.room:
            raise torch.cuda.OutOfMemoryError
        inputs = [t.clone() if torch.is_tensor(t) else t for t in flat]

        def compute():
            return self.step(*tree_unflatten(inputs, form))

        result = compute()

        class Graph:
            def replay(self):
                for room, value in zip(tree_leaves(result), tree_leaves(compute()), strict=True):
                    room.copy_(value)

        return Graph(), inputs, result


@pytest.mark.parametrize("room", [0, 1, MOST], ids=["no memory", "one graph", "all"])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "scaffold"])
def test_captured_steps_make_the_same_updates(rule, room, monkeypatch):
    """Unlike sizes, idle lanes and short batches; several rounds with the same graphs."""
    monkeypatch.setattr(stack_module, "Captured", OnCpu)
    monkeypatch.setattr(OnCpu, "room", room)
    e = experiment(rule=rule, rounds=3)
    found = []
    for captured in (False, True):
        state = engines.init(e, np.array([2]))
        session = cpu.CpuSession(e, state, workers=1, way="stacked")
        stack = session.trainer = Stack(e, 6)
        if captured:
            stack.capture(usual_sizes(e))
        session.advance(3)
        session.sync()
        found.append((state.w.copy(), [array.copy() for array in state.clients]))
        session.close()
    assert stack.fast[8] is stack.plain
    assert len(stack.plain.graphs) == room if room < MOST else len(stack.plain.graphs) > 2
    assert np.abs(found[0][0] - found[1][0]).max() < 1e-6
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert np.abs(one - other).max() < 1e-5


def test_a_shape_that_comes_once_gets_no_graph():
    step = OnCpu(lambda x: 2 * x)
    for length in (3, 4, 5, 4):
        assert torch.equal(step(torch.ones(length)), torch.full((length,), 2.0))
    assert len(step.graphs) == 1 and step(torch.ones(4)) is step(torch.zeros(4))


@pytest.fixture
def forgetful(tmp_path, monkeypatch):
    """Nothing is remembered from other tests, and even short runs are worth a trial."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "WORTH_A_TRIAL", 0.0)
    monkeypatch.setattr(choice, "MANY_UPDATES", 0)
    return monkeypatch


def chosen(e, **how):
    state = engines.init(e, np.array([0]))
    cpu.CpuSession(e, state, way=None, workers=1).close()
    return state.way


def test_the_quickest_way_is_chosen_remembered_and_kept(forgetful):
    e = experiment(rounds=50)
    asked = []

    def took(e, state, trainer, clients):
        asked.append(type(trainer).__name__)
        return {"Apart": 0.004, "Stack": 0.001}[asked[-1]]

    forgetful.setattr(choice, "_trial", took)
    first = chosen(e)
    assert (first.name, first.lanes) == ("stacked", 5) and "ms of processor time" in first.why
    assert asked == ["Apart", "Stack"]
    assert chosen(e).name == "stacked"
    assert asked == ["Apart", "Stack", "Apart"]  # the stack's time was remembered
    remembered.file().write_text("{", encoding="utf-8")  # damage: measured anew
    assert chosen(e).name == "stacked" and asked[-1] == "Stack"


def test_by_default_short_runs_go_client_by_client(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = ft.run(experiment(rounds=2), progress=False)
    assert (run.way, run.way_because) == ("per-client", "a short run")
    assert not remembered.file().exists()


def images():
    problem = ft.ImageClassification("digits", split=ft.Iid(), model="cnn", num_clients=4)
    return ft.Experiment(problem, ft.Power(0.05, 0.8), rounds=60, local_epochs=1, batch_size=32)


def test_times_on_the_cpu_are_kept_by_the_processor_also_beside_a_gpu(monkeypatch):
    e = experiment()
    there = remembered.key(e, 3, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: "H200")
    assert remembered.key(e, 3, "cpu") == there != remembered.key(e, 3, "cuda")


@pytest.mark.parametrize(("seconds", "tried"), [(3.0, False), (6.0, True)])
def test_convolutions_must_be_worth_more_before_they_are_compiled(forgetful, seconds, tried):
    """They compile slowly, and often gain nothing. Images are stacked like all else."""
    asked = []

    def compiled(*args, **how):
        asked.append(how.get("compiled", False))
        return SimpleNamespace(width=2)

    forgetful.setattr(choice, "_apart", lambda *args: seconds)
    forgetful.setattr(choice, "_together", lambda *args: seconds / 2)
    forgetful.setattr(choice, "Stack", compiled)
    e = images()  # 90 or 180 s of work, stacked
    state = engines.init(e, np.array([0]))
    way, _ = choice.choose(e, state, SimpleNamespace(device="cpu"), lambda: 2)
    assert asked == [False, True][: 1 + tried]
    assert way == "stacked"


def test_a_compiler_that_fails_is_left_out_with_a_line(forgetful):
    def broken(*args):
        raise RuntimeError("no g++")

    forgetful.setattr(choice, "_trial", lambda *args: 1.0)
    forgetful.setattr(choice, "WORTH_COMPILING", 0.0)
    forgetful.setattr(stack_module, "Compiled", broken)
    with pytest.warns(ft.FedtaperWarning, match=r"torch.compile failed \(RuntimeError\)"):
        assert chosen(experiment()).name in ("per-client", "stacked")


FILE = """
[experiment]
rounds = 2
local_steps = 2
batch_size = 5
[problem]
kind = "images"
data_set = "digits"
split = { kind = "iid" }
model = "cnn"
num_clients = 3
[[schedules]]
c = 0.05
delta = 0.8
clients = 3
[run]
way = "stacked"
"""


def test_the_way_is_read_from_a_file_and_from_the_command(tmp_path):
    (tmp_path / "e.toml").write_text(FILE, encoding="utf-8")
    words = [str(tmp_path / "e.toml"), "--out"]
    for out, more, way in (("a", [], "stacked"), ("b", ["--way", "per-client"], "per-client")):
        done = CliRunner().invoke(app, ["run", *words, str(tmp_path / out), *more])
        assert done.exit_code == 0, done.output
        assert ft.load(tmp_path / out).way == way
    a, b = (ft.load(tmp_path / out) for out in "ab")
    assert np.allclose(a.final, b.final, atol=1e-5) and not np.allclose(a.final, a.w0, atol=1e-4)
    for more, said in (
        (["--device", "cuda"], "no CUDA device" if not torch.cuda.is_available() else ""),
        (["--device", "tpu"], "tpu"),
        (["--precision", "float64"], "float64"),
    ):
        done = CliRunner().invoke(app, ["run", *words, str(tmp_path / "d"), *more])
        assert said in done.output and (done.exit_code != 0 or not said), done.output
    named = FILE + 'engine = "reference"\n'
    (tmp_path / "g.toml").write_text(named.replace('way = "stacked"\n', ""), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(tmp_path / "g.toml"), "--out", str(tmp_path / "g")])
    assert ft.load(tmp_path / "g").engine == "reference", done.output
    (tmp_path / "f.toml").write_text(FILE.replace("way =", "wya ="), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(tmp_path / "f.toml"), "--out", str(tmp_path / "c")])
    assert done.exit_code != 0 and "wya" in done.output
