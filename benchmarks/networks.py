"""Milliseconds per update of ten clients, for networks of all kinds, beside a plain PyTorch loop.

    python benchmarks/networks.py [--device cuda] [--only mlp transformer] [--repeats 3] [--seeds 5]
                                  [--clients 100 1000]

float32 (on a GPU both with TF32), SGD, batch 32 (8 for ResNet-18), random data. The plain loop is
what people write: one model and one ``torch.optim.SGD`` per client, all threads. ``per-client`` is
one network, client after client, the clients over all cores. ``chosen`` is the way that a long run
picks by itself.
All in turn on one machine; the quickest round of each counts. ``--seeds`` adds the time of so
many seeds side by side over that of one, ``--clients`` the time per update of one client among so
many, the stacked way (beyond ten they share the data of ten).
"""

import argparse
import copy
import os
import tempfile
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import fedtaper as ft
from fedtaper import engines
from fedtaper.engines import cpu
from fedtaper.problems.models import build

CLIENTS = 10


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """Samples x tokens x width."""
        samples, tokens, width = x.shape
        parts = self.qkv(self.one(x)).view(samples, tokens, 3, self.heads, width // self.heads)
        mixed = scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4))
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(gelu(self.up(self.two(x))))


class Transformer(nn.Module):
    """Words in, four classes out."""

    def __init__(self, words=64, width=32, heads=2, layers=2, tokens=16):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(words, width),
            nn.Parameter(torch.zeros(tokens, width)),
        )
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        """Samples x tokens."""
        return self.head(self.body(self.words(x) + self.places).mean(1))


class Vit(nn.Module):
    """Images of 32 x 32 in patches of 4, ten classes out."""

    def __init__(self, width=128, heads=4, layers=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.zeros(64, width))
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        """Images."""
        return self.head(self.body(self.patches(x).flatten(2).mT + self.places).mean(1))


class Basic(nn.Module):
    """ResNet-18's block, with GroupNorm."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(16, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(16, after),
        )  # fmt: skip
        plain = stride == 1 and before == after
        self.skip = nn.Identity() if plain else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        """Images."""
        return torch.relu(self.body(x) + self.skip(x))


def resnet18():
    sides = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [b for i, o, s in sides for b in (Basic(i, o, s), Basic(o, o, 1))]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def gpt():
    import peft
    import transformers

    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    how = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), how)


def classes(model, x, y):
    return cross_entropy(model(x), y)


def next_word(model, x, y):
    answers = model(input_ids=x).logits
    return cross_entropy(answers[:, :-1].flatten(0, 1), x[:, 1:].flatten())


RNG = np.random.default_rng(0)


def numbers(*shape):
    return lambda count: RNG.normal(size=(count, *shape)).astype(np.float32)


def words(count):
    return RNG.integers(0, 64, (count, 16))


MODELS = {  # name: loss, model, inputs, classes, batch size, updates per round
    "mlp": (
        classes,
        lambda: nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2)),
        numbers(30), 2, 32, 16,
    ),
    "lenet5": (classes, lambda: build("lenet5", 1, 28, 28, 10), numbers(1, 28, 28), 10, 32, 8),
    "cnn": (classes, lambda: build("cnn", 1, 28, 28, 10), numbers(1, 28, 28), 10, 32, 4),
    "resnet18": (classes, resnet18, numbers(3, 32, 32), 10, 8, 1),
    "vit": (classes, Vit, numbers(3, 32, 32), 10, 32, 8),
    "transformer": (classes, Transformer, words, 4, 32, 8),
    "gpt-lora": (next_word, gpt, words, 2, 32, 8),
}  # fmt: skip


def experiment(name, clients=CLIENTS):
    loss, init, inputs, labels, batch, updates = MODELS[name]
    count = batch * updates
    data = [(inputs(count), RNG.integers(0, labels, count)) for _ in range(min(clients, CLIENTS))]
    data = [data[i % CLIENTS] for i in range(clients)]
    problem = ft.Custom(loss, init, data)
    how = {"rounds": 10**6, "local_steps": updates, "batch_size": batch}
    return ft.Experiment(problem, ft.Power(0.01, 0.76), **how)


class Plain:
    """A round as it is usually written."""

    def __init__(self, e, device):
        self.e, self.problem, self.device = e, e.problem, device
        self.shared = e.problem.module().to(device)
        torch.set_float32_matmul_precision("high")

    def seconds(self):
        """Of one round."""
        data = [tuple(t.to(self.device) for t in s.tensors) for s in self.problem.samples]
        began = time.perf_counter()
        trained = [p for p in self.shared.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in trained]
        for part in data:
            model = copy.deepcopy(self.shared)
            mine = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.SGD(mine, lr=0.01)
            for batch in torch.randperm(len(part[0])).to(self.device).split(self.e.batch_size):
                optimiser.zero_grad()
                self.problem.loss(model, *(t[batch] for t in part)).backward()
                optimiser.step()
            for sum_, p in zip(total, mine, strict=True):
                sum_ += p.detach() / CLIENTS
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


class Ours:
    """A session that goes one way."""

    def __init__(self, e, device, way, seeds=1):
        self.state = engines.init(e, np.arange(seeds))
        one = {"workers": 1, "exact": False} if device == "cuda" else {}  # as ft.run has it there
        self.session = cpu.CpuSession(e, self.state, device=device, way=way, **one)
        self.seconds()  # the first round starts the workers

    def seconds(self):
        """Of one round of all seeds."""
        return float(self.session.advance(1).metrics["seconds"].sum())


def measured(name, options):
    e = experiment(name)
    began = time.perf_counter()
    ways = {"chosen": Ours(e, options.device, None)}
    opened = time.perf_counter() - began
    ways |= {"plain": Plain(e, options.device), "per-client": Ours(e, options.device, "per-client")}
    if options.seeds > 1:
        ways["seeds"] = Ours(e, options.device, None, options.seeds)
    best = dict.fromkeys(ways, np.inf)
    for _ in range(options.repeats):
        for which, way in ways.items():
            best[which] = min(best[which], *(way.seconds() for _ in range(options.rounds)))
    chosen = ways["chosen"].state.way.name
    for way in ways.values():
        if isinstance(way, Ours):
            way.session.close()
    each = {which: seconds / int(e.steps[0]) * 1e3 for which, seconds in best.items()}
    return each, chosen, opened


def crowd(name, options):
    """Microseconds per update of one client, by the number of clients."""
    found = []
    for clients in (CLIENTS, *options.clients):
        e = experiment(name, clients)
        ours = Ours(e, options.device, "stacked")
        best = min(ours.seconds() for _ in range(options.rounds))
        ours.session.close()
        found.append(f"{clients} clients {best / int(e.steps[0]) / clients * 1e6:.1f}")
    return f"{name:20} us per update of one client, stacked: {', '.join(found)}"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cpu")
    options.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--clients", type=int, nargs="*", default=[])
    options = options.parse_args()
    warnings.simplefilter("ignore")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    heads = "".join(f"{word:>11}" for word in ("plain", "per-client", "chosen"))
    print(f"{'ms per update of 10':20}{heads}   over the plain loop")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # every model is measured, none is remembered
        for name in options.only:
            each, way, opened = measured(name, options)
            times = each["plain"] / each["chosen"]
            line = (
                f"{name:20} {each['plain']:8.3f} {each['per-client']:10.3f} {each['chosen']:8.3f}"
            )
            line += f"   {times:.2f} times ({way}; {opened:.0f} s to choose and compile)"
            if "seeds" in each:
                line += f"; {options.seeds} seeds {each['seeds'] / each['chosen']:.2f} times one"
            print(line, flush=True)
            if options.clients:
                print(crowd(name, options), flush=True)


if __name__ == "__main__":
    main()
