"""The user's own model and data: everything that may be handed to ``ft.Custom``."""

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

import fedtaper as ft
from fedtaper.problems import readers
from fedtaper.problems.network import flat_parameters, parameters_of
from fedtaper.problems.trial import trial


def squared(model, x, y):
    return 0.5 * mse_loss(model(x).squeeze(-1), y)


def linear():
    return torch.nn.Linear(3, 1)


def arrays(client, size=24):
    rng = np.random.default_rng(client)
    x = rng.normal(size=(size, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=size)


class Pairs(torch.utils.data.Dataset):
    """Samples one by one; with ``noise``, another augmentation every time one is read."""

    def __init__(self, client, noise=0.0):
        x, y = arrays(client)
        self.x, self.y = torch.tensor(x).float(), torch.tensor(y).float()
        self.noise, self.read = noise, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.read += 1
        other = np.random.normal() + torch.randn(()).item()  # noqa: NPY002
        return self.x[i] + self.noise * other, self.y[i]


class Sheet:
    """What a data frame offers, without pandas."""

    def __init__(self, columns, values):
        self.columns, self.values = columns, np.asarray(values)

    def to_numpy(self):
        return self.values


def custom(data, **how):
    return ft.Custom(how.pop("loss", squared), how.pop("init", linear), data, **how)


def experiment(problem, **how):
    settings = {"rounds": 3, "local_epochs": 2, "batch_size": 5} | how
    return ft.Experiment(problem, ft.Power(0.2, 0.8), **settings)


def by_name(model, batch):
    return squared(model, batch["x"], batch["y"])


def as_dicts(client):
    x, y = arrays(client)
    return [{"x": list(row), "y": float(target)} for row, target in zip(x, y, strict=True)]


FORMS = {
    "tensors": (lambda c: tuple(torch.tensor(a).float() for a in arrays(c)), squared),
    "float64 NumPy": (arrays, squared),
    "float64 tensors": (lambda c: [torch.tensor(a) for a in arrays(c)], squared),
    "frames": (lambda c: (Sheet(list("abc"), arrays(c)[0]), Sheet(["y"], arrays(c)[1])), squared),
    "a dictionary": (lambda c: dict(zip("xy", arrays(c), strict=True)), by_name),
    "TensorDataset": (
        lambda c: torch.utils.data.TensorDataset(*(torch.tensor(a).float() for a in arrays(c))),
        squared,
    ),
    "a data set": (Pairs, squared),
    "dictionaries, one per sample": (as_dicts, by_name),
}


@pytest.fixture(scope="module")
def usual():
    return ft.run(
        experiment(custom([FORMS["tensors"][0](c) for c in range(2)])), engine="reference"
    )


@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_the_same_data_in_any_form_gives_the_same_run(form, usual):
    make, loss = FORMS[form]
    problem = custom([make(c) for c in range(2)], loss=loss)
    run = ft.run(experiment(problem), engine="reference")
    assert np.allclose(run.w, usual.w, rtol=0, atol=1e-7)  # single-precision rounding of the data
    assert problem.sizes.tolist() == [24, 24]


def test_pandas_frames():
    pandas = pytest.importorskip("pandas")
    x, y = arrays(0)
    frame = pandas.DataFrame(x, columns=["age", "weight", "pressure"])
    problem = custom([(frame, pandas.Series(y))])
    assert torch.equal(problem.x[0], torch.tensor(x).float())
    frame.loc[7, "weight"] = np.nan
    with pytest.raises(
        ft.FedtaperError, match=r"client 1: NaN .* array 0, sample 7, column 'weight'"
    ):
        custom([(x, y), (frame, y)])
    frame["sex"] = "f"
    with pytest.raises(ft.FedtaperError, match="column 'sex' holds no numbers"):
        custom([(frame, y)])


def test_a_hugging_face_data_set():
    datasets = pytest.importorskip("datasets")
    problem = custom([datasets.Dataset.from_list(as_dicts(c)) for c in range(2)], loss=by_name)
    run = ft.run(experiment(problem), engine="reference")
    plain = ft.run(experiment(custom([arrays(c) for c in range(2)])), engine="reference")
    assert np.allclose(run.w, plain.w, atol=1e-6)


def test_data_sets_are_read_when_needed_and_once_if_asked():
    sets = [Pairs(c) for c in range(2)]
    problem = custom(sets)
    assert sets[0].read == 0
    ft.run(experiment(problem), engine="reference")
    assert sets[0].read >= 3 * 2 * 24
    sets = [Pairs(c, noise=0.5) for c in range(2)]
    ft.run(experiment(custom(sets, lazy=False)), engine="reference")
    assert sets[0].read == 24


def test_augmentation_is_fresh_and_repeatable():
    problem = custom([Pairs(c, noise=0.5) for c in range(2)])
    e = experiment(problem)
    rows = [list(problem.batches(e, 0, 0, k)) for k in (0, 1)]
    first = {tuple(problem.take(0, row)[0][0].tolist()) for k in (0, 1) for row in rows[k]}
    assert len(first) == sum(map(len, rows))  # no sample twice the same
    again = problem.take(0, rows[0][2])
    assert torch.equal(again[0], problem.take(0, rows[0][2])[0])
    before = torch.get_rng_state()
    problem.take(0, rows[0][0])
    assert torch.equal(before, torch.get_rng_state())  # the user's own generator is untouched


def test_reading_ahead_changes_nothing(monkeypatch):
    monkeypatch.setattr(readers, "LOOKED_AT", 0)  # from the start
    runs = [
        ft.run(experiment(custom([Pairs(c, noise=0.5) for c in range(2)], workers=workers)))
        for workers in (0, 2)
    ]
    assert np.array_equal(runs[0].w, runs[1].w)


def ragged(samples):
    x = torch.stack([x for x, _ in samples])
    return x * 2.0, torch.stack([y for _, y in samples])


def test_collate_and_sampler():
    doubled = custom([arrays(0)], collate=ragged)
    e = experiment(doubled)
    row = next(iter(doubled.batches(e, 0, 0, 0)))
    assert torch.allclose(doubled.take(0, row)[0], 2 * custom([arrays(0)]).take(0, row)[0])

    def only_some(client):
        return torch.utils.data.WeightedRandomSampler([1.0] * 4 + [0.0] * 20, 24)

    chosen = custom([arrays(0)], sampler=only_some)
    for settings in ({}, {"local_epochs": None, "local_steps": 7}):
        e = experiment(chosen, **settings)
        found = [np.concatenate([b.index for b in chosen.batches(e, 0, 0, k)]) for k in (0, 0, 1)]
        assert found[0].max() < 4 and len(found[0]) == (48 if not settings else 35)
        assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    with pytest.raises(ft.FedtaperError, match="outside 0 to 23"):
        wrong = custom([arrays(0)], sampler=lambda client: [99])
        wrong.batches(experiment(wrong), 0, 0, 0)


def broken(place, value=np.nan):
    x, y = arrays(0)
    x[place] = value
    return x, y


class Broken(Pairs):
    def __getitem__(self, i):
        if i == 3:
            raise OSError("disk")
        return self.x[i] * (np.nan if i == 4 else 1.0), self.y[i]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: custom([arrays(0), broken((5, 2))]), "client 1: NaN .* sample 5, column 2"),
        (lambda: custom([broken((0, 0), np.inf)]), "client 0: NaN or infinity"),
        (lambda: custom([(np.array(["a"] * 4), np.zeros(4))]), "array 0 holds no numbers"),
        (lambda: custom([(np.zeros((4, 3)), np.zeros(5))]), "differ in length"),
        (lambda: custom([3]), "a data set with a length"),
        (lambda: custom([Broken(0)]).take(0, _row(3)), r"sample 3 cannot be read \(OSError: disk"),
        (lambda: custom([Broken(0)]).take(0, _row(4)), "sample 4 holds NaN"),
        (lambda: custom([["text", "more"]]).take(0, _row(0)), None),
        (lambda: custom([arrays(0)], buffers="keep"), "buffers must be"),
        (lambda: custom([arrays(0)], init=lambda: 3).module(), "must make a torch.nn.Module"),
        (lambda: trial(custom([(np.zeros((4, 2)), np.zeros(4))])), "client 0's first samples"),
        (lambda: custom([arrays(0)], init=_scripted).module(), "compiled with torch.jit"),
        (lambda: custom([arrays(0)], init=lambda: torch.nn.LazyLinear(1)).dim, "has no size yet"),
        (lambda: custom([arrays(0)], init=_complex).dim, "weight is complex"),
        (lambda: _scores(lambda model: [1.0]), "a dictionary of names and numbers"),
        (lambda: _scores(lambda model: {"a": "b"}), "a dictionary of names and numbers"),
        (lambda: trial(custom([arrays(0)], loss=lambda m, x, y: 0.5)), "must return a tensor"),
    ],
)
def test_mistakes_are_named(make, says):
    if says is None:
        assert make() == (["text"],)  # samples may be anything: the loss turns them into numbers
        return
    with pytest.raises(ft.FedtaperError, match=says):
        make()


def _scripted():
    return torch.jit.script(torch.nn.Linear(3, 1))


def _complex():
    return torch.nn.Linear(3, 1, dtype=torch.complex64)


def test_a_model_in_double_precision_trains_in_single_precision_in_every_way():
    def double():
        made = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Identity()).double()
        made[1].register_buffer("shift", torch.zeros(1, dtype=torch.float64))
        return made

    e = experiment(custom([arrays(0), arrays(1)], init=double))
    one, other = (ft.run(e, way=way, progress=False) for way in ("per-client", "stacked"))
    assert other.way == "stacked"
    assert np.allclose(one.w, other.w, rtol=1e-4, atol=1e-6)
    assert all(t.dtype == torch.float32 for t in one.state_dict().values())


def test_a_loss_of_another_model_is_noticed():
    mine = torch.nn.Linear(3, 1)
    e = experiment(
        custom([arrays(0)], loss=lambda model, x, y: (mine(x).squeeze(1) - y).abs().mean())
    )
    with pytest.warns(ft.FedtaperWarning, match="no client moved the model"):
        ft.run(e, progress=False)


def _row(place):
    from fedtaper.problems.network import Minibatches

    return Minibatches(np.array([place]), np.array([1]))


def _scores(evaluate):
    problem = custom([arrays(0)], evaluate=evaluate)
    return problem.scores(problem.module())


class Mixed(torch.nn.Module):
    """A frozen random layer, a buffer, dropout, and a part that stays in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(3, 8).requires_grad_(False)
        self.register_buffer("scale", torch.rand(8))
        self.dropout, self.still = torch.nn.Dropout(0.4), torch.nn.Dropout(0.4).eval()
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.dropout(self.still(torch.relu(self.frozen(x)) * self.scale)))


def test_frozen_weights_and_buffers_are_the_problem_s():
    problem = custom([arrays(0)], init=Mixed)
    one, two = problem.module().state_dict(), problem.module().state_dict()
    assert {"frozen.weight", "scale", "last.weight"} <= set(one)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert problem.dim == 9
    assert not np.array_equal(problem.initial(0), problem.initial(1))
    assert np.array_equal(problem.initial(3), problem.initial(3))


def test_a_module_in_place_of_a_function_is_where_every_run_starts():
    model = linear()
    problem = custom([arrays(0)], init=model)
    assert np.array_equal(problem.initial(0), flat_parameters(model).double().numpy())
    problem.module().weight.data.zero_()
    assert model.weight.abs().sum() > 0


def test_init_may_hand_out_one_module_again_and_again():
    one = linear()
    before = {name: t.clone() for name, t in one.state_dict().items()}
    data = [arrays(c) for c in range(2)]
    runs = [ft.run(experiment(custom(data, init=lambda: one))) for _ in range(2)]
    assert np.array_equal(runs[0].w, runs[1].w)
    assert all(torch.equal(t, before[name]) for name, t in one.state_dict().items())


def test_evaluation_mode_and_back():
    seen = []
    problem = custom(
        [arrays(0)],
        init=Mixed,
        evaluate=lambda m: seen.append((m.training, torch.is_grad_enabled())) or {"one": 1},
    )
    model = problem.module()
    assert problem.scores(model) == {"one": 1.0}
    assert seen == [(False, False)]
    assert model.training and model.dropout.training and not model.still.training


def test_evaluate_gets_a_model_on_the_cpu_wherever_it_is_trained(monkeypatch):
    """There is no GPU here: "meta" is elsewhere, and has no numbers, so they are handed over."""
    from fedtaper.problems import custom as room

    problem = custom([arrays(0)], evaluate=lambda m: {"at": m(torch.ones(3)), "on": m.training})
    w = torch.arange(float(problem.dim))
    monkeypatch.setattr(room, "flat_parameters", lambda module: w)
    elsewhere = problem.module().to("meta")
    wanted = problem.module()
    torch.nn.utils.vector_to_parameters(w, wanted.parameters())
    for _ in range(2):
        with torch.no_grad():
            assert problem.scores(elsewhere) == {"at": float(wanted(torch.ones(3))), "on": 0.0}
        w += 1
        torch.nn.utils.vector_to_parameters(w, wanted.parameters())


def test_what_evaluate_draws_depends_on_nothing_but_the_model():
    def spread(model):
        draws = (torch.randn(3), np.random.normal(size=3))  # noqa: NPY002
        return {"noise": float(draws[0].sum() + draws[1].sum())}

    e = experiment(custom([arrays(0), arrays(1)], evaluate=spread))
    before = torch.get_rng_state()
    noise = [ft.run(e, engine=engine).metrics["noise"] for engine in ("cpu", "cpu", "reference")]
    assert np.array_equal(noise[0], noise[1]) and np.array_equal(noise[0], noise[2])
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_is_drawn_by_seed_client_round_and_step():
    problem = custom([arrays(0), arrays(1)], init=Mixed)
    assert trial(problem) and not trial(custom([arrays(0)]))
    e = experiment(problem, batch_size=24)
    w = problem.initial(0)
    rows = {
        (s, c, k): problem.batches(e, s, c, k)[0] for s in (0, 1) for c in (0, 1) for k in (0, 1)
    }
    keys = {row.key for row in rows.values()} | {problem.batches(e, 0, 0, 0)[1].key}
    assert len(keys) == 9
    same = [problem.gradient(0, w, rows[0, 0, 0]) for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], problem.gradient(0, w, rows[0, 0, 1]))


def batch_norm():
    return torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    )


def test_batch_norm_is_refused_with_two_ways_out():
    with pytest.raises(ft.FedtaperError, match=r"ft\.groupnorm.*buffers=\"average\""):
        custom([arrays(0)], init=batch_norm).module()
    changed = custom([arrays(0)], init=lambda: ft.groupnorm(batch_norm())).module()
    assert isinstance(changed[1], torch.nn.GroupNorm) and changed[1].num_groups == 4
    problem = custom([arrays(0)], init=batch_norm, buffers="average")
    trained = sum(p.numel() for p in parameters_of(problem.module()))
    assert problem.dim == trained + 16
    assert problem.initial(0)[trained:].tolist() == [0.0] * 8 + [1.0] * 8


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"server": ft.Adam()}, r"needs server=Average\(\)"),
        ({"server": ft.AverageMomentum(0.5)}, r"needs server=Average\(\)"),
        ({"local": ft.AdamW()}, r"needs local=Sgd\(\) or Momentum"),
        ({"local": ft.Proximal(0.1)}, r"needs local=Sgd\(\) or Momentum"),
        ({"engine": "reference"}, "the reference engine does not do buffers"),
    ],
)
def test_running_statistics_are_refused_where_no_plain_mean_is_made(how, says):
    engine = how.pop("engine", None)
    problem = custom([arrays(c) for c in range(2)], init=batch_norm, buffers="average")
    with pytest.raises(ft.FedtaperError, match=says):
        ft.run(experiment(problem, **how), engine=engine)
    plain = custom([arrays(c) for c in range(2)], buffers="average")  # nothing to average
    ft.run(experiment(plain, rounds=1, **how), engine=engine)


def test_groupnorm_keeps_scale_and_shift():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6))
    model[1].weight.data.fill_(2.0)
    changed = ft.groupnorm(model, groups=2)
    x = torch.randn(4, 3, 8, 8)
    inner = torch.nn.functional.group_norm(changed[0](x), 2)
    assert torch.allclose(changed(x), 2 * inner, atol=1e-6)


NETWORK_RULES = [
    {},
    {"local": ft.Momentum(0.5)},
    {"local": ft.Momentum(0.5, nesterov=True, reset=True)},
    {"local": ft.AdamW(decay=0.1)},
    ft.PRESETS["scaffold"],
    {"local": ft.Dynamic(0.5), "server": ft.DynamicServer(0.5)},
    {"server": ft.AverageMomentum(0.5)},
]


@pytest.mark.parametrize("rules", NETWORK_RULES)
@pytest.mark.parametrize("participation", [1.0, ft.Exactly(2)])
def test_the_cpu_engine_draws_dropout_and_keeps_memory_like_the_reference(rules, participation):
    problem = custom([arrays(c) for c in range(3)], init=Mixed)
    e = experiment(problem, participation=participation, average_over="present", **rules)
    slow, quick = (ft.run(e, engine=name) for name in ("reference", "cpu"))
    assert np.allclose(quick.w, slow.w, rtol=0, atol=2e-5)
    torch.rand(3)
    assert np.array_equal(ft.run(e, engine="cpu").w, quick.w)


class Noisy(torch.nn.Module):
    """Draws in every way that the stacked engine knows, as a variational model does."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(3, 1)

    def forward(self, x):
        noise = torch.randn_like(x) + torch.rand_like(x) + torch.empty_like(x).normal_(1.0, 2.0)
        noise = noise + torch.randn(x.shape, dtype=x.dtype) * torch.empty_like(x).uniform_(-1, 1)
        return self.last(x + noise * torch.empty_like(x).bernoulli_(0.5))


@pytest.mark.parametrize("way", ["per-client", "stacked"])
def test_every_engine_draws_the_same_noise_also_in_double_precision(way):
    e = experiment(custom([arrays(c) for c in range(3)], init=Noisy))
    slow, quick = ft.run(e, engine="reference"), ft.run(e, engine="cpu", way=way)
    assert np.allclose(quick.w, slow.w, rtol=0, atol=2e-5)


def test_a_warning_points_to_the_line_of_the_user_s_code():
    with pytest.warns(ft.FedtaperWarning, match="holds 1 sample, fewer") as found:
        experiment(custom([arrays(0, size=1)]))
    assert found[0].filename == __file__


def test_workers_change_nothing(monkeypatch):
    from fedtaper.engines import cpu

    problem = custom([arrays(c) for c in range(3)], init=Mixed)
    e = experiment(problem, rounds=4, **ft.PRESETS["scaffold"])
    alone = ft.run(e, engine="cpu")
    monkeypatch.setattr(cpu, "WORTHWHILE", 0.0)
    monkeypatch.setattr(cpu, "cores", lambda: 2)
    assert np.array_equal(ft.run(e, engine="cpu").w, alone.w)


def test_running_statistics_are_averaged_like_in_a_plain_loop():
    problem = custom([arrays(c) for c in range(2)], init=batch_norm, buffers="average")
    e = experiment(problem, rounds=2, batch_size=12, local_epochs=1)
    run = ft.run(e)
    shared = problem.module()
    torch.nn.utils.vector_to_parameters(
        torch.tensor(problem.initial(0)[:57]).float(), shared.parameters()
    )
    for k in range(2):
        copies = []
        for client in range(2):
            model = batch_norm()
            model.load_state_dict(shared.state_dict())
            for step, row in enumerate(problem.batches(e, 0, client, k)):
                model.zero_grad()
                squared(model, *problem.take(client, row)).backward()
                a = float(e.step_sizes(k, k + 1)[0, step, client])
                for p in model.parameters():
                    p.data -= a * p.grad
            copies.append(model.state_dict())
        mean = {name: (copies[0][name] + copies[1][name]) / 2 for name in copies[0]}
        shared.load_state_dict({n: v.to(copies[0][n].dtype) for n, v in mean.items()})
        both = [*shared.parameters(), *(b for n, b in shared.named_buffers() if "running" in n)]
        flat = torch.cat([t.detach().reshape(-1) for t in both])
        assert np.allclose(run.w[k], flat.numpy(), atol=1e-5)


class Pictures:
    """Samples large enough to be handed over on a reader's desk."""

    def __init__(self, client, kind):
        self.client, self.kind = client, kind

    def __len__(self):
        return 30

    def __getitem__(self, k):
        x = torch.full((3, 20, 20), 30.0 * self.client + k).sin() + 0.1 * torch.rand(3, 20, 20)
        y = torch.tensor(float(k % 2))
        return {"x": x.to(self.kind), "y": y, "name": f"picture {k}"}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("slot", [2**26, 2**15, 64])
def test_readers_hand_over_large_batches_as_they_are(monkeypatch, kind, slot):
    """On the desk, partly on it where it is full, or through the pipe: the same bits."""
    monkeypatch.setattr(readers, "LOOKED_AT", 0)
    monkeypatch.setattr(readers, "SLOT", slot)

    def loss(model, batch):
        assert batch["name"][0].startswith("picture")
        return torch.nn.functional.mse_loss(model(batch["x"].float())[:, 0], batch["y"].float())

    def run(workers):
        problem = ft.Custom(
            loss,
            lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1200, 1)),
            [Pictures(c, kind) for c in range(2)],
            workers=workers,
        )
        e = ft.Experiment(problem, ft.Power(1e-3, 0.8), rounds=3, local_epochs=1, batch_size=7)
        return ft.run(e, way="per-client").final

    assert np.array_equal(run(0), run(1)) and np.array_equal(run(0), run(3))


def test_a_reader_without_a_desk_uses_its_pipe(monkeypatch):
    def none(*_):
        raise OSError("no address space")

    monkeypatch.setattr(readers.mmap, "mmap", none)
    desk = readers.Desk.laid()
    desk.clear(3)
    assert desk.room is None
    assert desk.put(torch.ones(10_000)).tolist() == [1.0] * 10_000


def test_finite_numbers_whose_sum_is_not_are_no_trouble():
    big = np.full((40, 3), 3e38, dtype=np.float32)
    problem = ft.Custom(squared, Mixed, [(big, np.zeros((40, 1), np.float32))])
    assert problem.sizes.tolist() == [40]


@pytest.mark.parametrize(("reading", "slow"), [(0.5, True), (0.36, True), (0.34, False)])
def test_readers_are_started_where_reading_takes_a_third_of_training(monkeypatch, reading, slow):
    now = [0.0]
    monkeypatch.setattr(readers.time, "perf_counter", lambda: now[0])
    pace = readers.Pace()

    def read():
        now[0] += reading
        return "found"

    for _ in range(9):
        assert not pace.known and not pace.slow
        assert pace.timed(read) == "found"
        now[0] += 1.0
    assert pace.known and pace.slow is slow and len(pace.reading) == 9
    assert pace.timed(read) == "found" and len(pace.reading) == 9, "no longer looked at"


@pytest.mark.parametrize(("worth", "started"), [(0.0, True), (np.inf, False)])
def test_slow_reading_is_handed_over_and_quick_reading_is_not(monkeypatch, worth, started):
    monkeypatch.setattr(readers, "WORTH", worth)
    made = []
    usual = readers.Readers
    monkeypatch.setattr(readers, "Readers", lambda *args: made.append(usual(*args)) or made[-1])
    e = experiment(custom([Pairs(c, noise=0.5) for c in range(2)], workers=1), rounds=6)
    alone = experiment(custom([Pairs(c, noise=0.5) for c in range(2)]), rounds=6)
    assert np.array_equal(ft.run(e).w, ft.run(alone).w)
    assert bool(made) is started
