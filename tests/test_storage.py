"""Run folders: nothing lost, nothing mixed, and every kind of damage named in one line."""

import json
import os
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtaper as ft
from fedtaper.storage import checkpoints, durable, store
from fedtaper.storage.fingerprint import differences, fingerprint


@dataclass(frozen=True)
class Clipped(ft.Memoryless):
    """A local rule of the user's own."""

    bound: float = 1.0

    def direction(self, gradient, w, anchor):
        return np.clip(gradient, -self.bound, self.bound)


class Halved(ft.Average):
    """A server rule of the user's own, by inheritance."""

    def weights(self, samples, steps, step_sums):
        return super().weights(samples, steps, step_sums) / 2


@dataclass(frozen=True)
class Stepped(ft.Power):
    """A subclass of Power with step sizes of its own."""

    every: float = 10.0

    def __call__(self, n):
        return super().__call__(np.ceil(np.asarray(n) / self.every))


def experiment(problem, schedule=None, **changes):
    how = {"rounds": 12, "local_steps": 2, "batch_size": 4} | changes
    return ft.Experiment(problem, schedule or ft.Power(0.1, 0.8), **how)


def saved(run, folder, **how):
    return store.save(run, store.prepare(folder), **how)


def equal(a, b):
    names = ("round", "n", "t", "w", "w0", "update_norms", "updates", "model")
    same = [np.array_equal(getattr(a, n), getattr(b, n), equal_nan=True) for n in names[:6]]
    same += [(getattr(a, n) is None) == (getattr(b, n) is None) for n in names]
    same += [np.array_equal(a.metrics[k], b.metrics[k], equal_nan=True) for k in a.metrics]
    return all(same) and a.seeds == b.seeds and a.experiment == b.experiment


# ------------------------------------------------------------------ fingerprints

CHANGES = {
    "rounds": 13,
    "local_steps": 3,
    "batch_size": 5,
    "local": ft.Proximal(0.2),
    "server": ft.Adam(),
    "clock": "round",
    "participation": 0.5,
    "seed": 1,
}
PROBLEM_CHANGES = {
    "dim": 3,
    "samples": 41,
    "feature_spread": 1.5,
    "sigma_w": 4.0,
    "true_w": (1.0, 2.0),
    "snr_db": 9.0,
    "init_spread": 2.0,
    "seed": 8,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_is_in_the_fingerprint(tiny, name):
    e = experiment(tiny)
    assert fingerprint(e) == fingerprint(experiment(tiny))
    (found,) = differences(fingerprint(e), fingerprint(replace(e, **{name: CHANGES[name]})))
    assert found.startswith(f"{name}: ") and " -> " in found


@pytest.mark.parametrize("name", PROBLEM_CHANGES)
def test_every_setting_of_the_problem_is_in_the_fingerprint(tiny, name):
    e = experiment(tiny)
    other = experiment(replace(tiny, **{name: PROBLEM_CHANGES[name]}))
    found = differences(fingerprint(e), fingerprint(other))
    assert len(found) == 1 and name in found[0]


def test_differences_are_named_setting_by_setting(tiny):
    e = experiment(tiny, [ft.Power(0.1, 0.8)] * 3)
    stored = fingerprint(e)
    other = replace(e, schedules=[ft.Power(0.9, 0.8), ft.Power(0.1, 0.8), ft.Constant(0.1)])
    assert differences(stored, fingerprint(other)) == [
        "schedule of client 0: c 0.1 -> 0.9",
        "schedule of client 2: Power(c=0.1, delta=0.8) -> Constant(a=0.1)",
    ]
    y = [a.copy() for a in tiny.y]
    y[2][0] += 1e-9
    own, changed = (ft.LinearRegression.from_arrays(tiny.x, values) for values in (tiny.y, y))
    pair = fingerprint(experiment(own)), fingerprint(experiment(changed))
    assert differences(*pair) == ["data of client 2 differs"]
    names = {f.name for f in ft.Experiment.__dataclass_fields__.values()}
    key = "behaviours" if "behaviours" in names else "clients"
    idle = fingerprint(replace(e, **{key: {1: ft.Idle()}}))
    assert differences(stored, idle) == ["behaviour of client 1: none -> Idle()"]
    assert (
        "clients" in differences(stored, fingerprint(experiment(replace(tiny, num_clients=2))))[0]
    )
    assert json.loads(json.dumps(stored)) == stored


def test_own_code_counts_by_name_source_and_settings(tiny):
    def rule(bound):
        return fingerprint(experiment(tiny, local=Clipped(bound)))

    assert differences(rule(1.0), rule(1)) == []
    assert differences(rule(1.0), rule(2.0)) == ["local: bound default -> 2"]
    namespace = {"ft": ft}
    exec("class Clipped(ft.Memoryless):\n    def direction(self, g, w, a): return g", namespace)
    found = differences(rule(1.0), fingerprint(experiment(tiny, local=namespace["Clipped"]())))
    assert len(found) == 1 and found[0].startswith("local: ")


def test_data_of_a_custom_problem_counts():
    torch = pytest.importorskip("torch")
    from torch.nn.functional import mse_loss

    def problem(shift=0.0, factor=1.0):
        data = [(torch.ones(8, 3) * i, torch.ones(8, 1) + shift * (i == 1)) for i in range(2)]
        return ft.Custom(
            lambda model, x, y: factor * mse_loss(model(x), y), lambda: torch.nn.Linear(3, 1), data
        )

    stored = fingerprint(experiment(problem()))
    assert differences(stored, fingerprint(experiment(problem()))) == []
    assert differences(stored, fingerprint(experiment(problem(1e-3)))) == [
        "data of client 1 differs"
    ]
    (found,) = differences(stored, fingerprint(experiment(problem(factor=2.0))))
    assert found.startswith("problem: loss")


class Shifted:
    """A data set that is read sample by sample."""

    def __init__(self, x, y):
        self.x, self.y = x.tolist(), y  # x is seen by reading it, y by its contents
        self.reads = 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, place):
        self.reads += 1
        return np.float32(self.x[place]) + np.float32(np.random.uniform()), self.y[place]  # noqa: NPY002


def _frame(x, y):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(x, columns=["a", "b", "c"]), pandas.Series(y[:, 0])


@pytest.mark.parametrize(
    "form",
    [
        _frame,
        lambda x, y: list(zip(x, y, strict=True)),
        lambda x, y: (x.tolist(), y.tolist()),
        lambda x, y: {"x": x, "y": y},
        Shifted,
        lambda x, y: pytest.importorskip("torch").utils.data.Subset(Shifted(x, y), range(7)),
        lambda x, y: pytest.importorskip("datasets").Dataset.from_dict({"x": x, "y": y}),
    ],
)
@pytest.mark.parametrize("what", ["x", "y"])
def test_other_data_is_noticed_in_whatever_form_it_comes(form, what):
    torch = pytest.importorskip("torch")

    def stored(shift):
        x, y = (np.random.default_rng(3).normal(size=(80, k)).astype("float32") for k in (3, 1))
        changed = x if what == "x" else y
        changed[0, 0] += shift  # one number; of data sets, in a sample that is read
        problem = ft.Custom(lambda m, *b: m(b), lambda: torch.nn.Linear(3, 1), [form(x, y)] * 2)
        return fingerprint(experiment(problem))

    assert differences(stored(0.0), stored(0.0)) == []
    assert differences(stored(0.0), stored(1e-3)) == ["data of clients 0, 1 differs"]


def test_a_data_set_that_counts_its_reads_stays_the_same():
    torch = pytest.importorskip("torch")
    data = [Shifted(np.ones((8, 3)), np.ones((8, 1)))]
    problem = ft.Custom(lambda m, *b: m(b), lambda: torch.nn.Linear(3, 1), data)
    before = fingerprint(experiment(problem))
    assert data[0].reads and differences(before, fingerprint(experiment(problem))) == []


# ------------------------------------------------------------------ own rules and schedules


def test_own_rules_and_schedules_are_stored_by_import_path(tmp_path, tiny):
    e = experiment(tiny, Stepped(0.1, 0.8, every=4.0), local=Clipped(2.0), server=Halved())
    run = saved(ft.run(e), tmp_path / "own")
    text = (tmp_path / "own/config.toml").read_text()
    assert f'kind = "{__name__}:Clipped"\nbound = 2.0' in text
    back = ft.load(tmp_path / "own")
    assert type(back.experiment.schedules[0]) is Stepped  # not plain Power
    assert back.experiment == e and equal(back, run)


def test_what_cannot_be_imported_is_stored_and_named(tmp_path, tiny):
    class Local(ft.Memoryless):
        def direction(self, gradient, w, anchor):
            return gradient

    e = experiment(tiny, local=Local())
    run = saved(ft.run(e), tmp_path / "own")  # not lost
    with pytest.raises(ft.FedtaperError, match=r"Local.*experiment="):
        ft.load(tmp_path / "own")
    assert equal(ft.load(tmp_path / "own", experiment=e), run)
    with pytest.raises(ft.FedtaperError, match="another experiment: seed: 0 -> 1"):
        ft.load(tmp_path / "own", experiment=replace(e, seed=1))


@pytest.mark.parametrize(
    "kind",
    ["os:system", "subprocess:Popen", "no_such_module_x:A", "numpy:array", "a b:c", "numpy:zz"],
)
def test_only_rules_are_made_from_import_paths(tiny, kind):
    text = ft.to_toml(experiment(tiny)).replace('kind = "sgd"', f'kind = "{kind}"')
    with pytest.raises(ft.FedtaperError):
        ft.from_toml(text)


def test_custom_problems_load_for_reports_without_their_code(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.nn.functional import mse_loss

    data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(2)]
    problem = ft.Custom(
        lambda model, x, y: mse_loss(model(x), y), lambda: torch.nn.Linear(3, 1), data
    )
    e = experiment(problem, ft.Power(0.01, 0.8), rounds=3)
    run = saved(ft.run(e), tmp_path / "own")
    back = ft.load(tmp_path / "own")
    np.testing.assert_array_equal(back.w, run.w)
    assert back.experiment.influence().effective.tolist() == [1.0, 1.0]
    assert ft.load(tmp_path / "own", problem=problem).experiment == e


def test_metrics_of_many_seeds_are_a_table(tmp_path, tiny, monkeypatch):
    run = saved(ft.run(experiment(tiny), seeds=[3, 5]), tmp_path / "many")
    lines = (tmp_path / "many/metrics.csv").read_text().splitlines()
    assert lines[0].startswith("seed,round,n,t,") and len(lines) == 1 + 2 * 12
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert (last["seed"], last["round"]) == ("5", "12")
    assert float(last["error"]) == run.metrics["error"][1, -1]
    monkeypatch.setattr(store, "CSV_ROWS", 8)
    assert [row.split(",")[1] for row in store.metrics_csv(run).splitlines()[1:5]] == [
        "3",
        "6",
        "9",
        "12",
    ]


# ------------------------------------------------------------------ writing


def test_a_folder_has_one_writer(tmp_path):
    with store.opened(tmp_path / "a") as folder:
        with pytest.raises(ft.FedtaperError, match="being written by another run"):
            store.opened(folder, resume=True).__enter__()
        (folder / ".left.part").touch()
    with store.opened(tmp_path / "a") as folder:  # free again, and swept
        assert [p.name for p in folder.iterdir()] == [durable.LOCK]
    assert list((tmp_path / "a").iterdir()) == []


def test_writers_never_share_a_temporary_name(tmp_path):
    def write(k):
        for _ in range(20):
            durable.write(tmp_path / "file", bytes([k]) * 10_000)

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set((tmp_path / "file").read_bytes())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_and_folders_reach_the_disk(tmp_path, tiny, monkeypatch):
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda place: (synced.append(place), real(place)))
    run = saved(ft.run(experiment(tiny)), tmp_path / "a")
    assert len(synced) >= 2 * len(list(run.path.iterdir()))


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_its_name_after(
    tmp_path, monkeypatch
):
    """Contents, then name, then the folder: a power cut at any instant leaves a whole one."""
    done = []

    def names(place):
        where = Path(f"/proc/self/fd/{place}").readlink()
        return "folder" if where == tmp_path else "contents"

    sync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda place: (done.append(names(place)), sync(place)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(Path(b).name), move(a, b)))
    for _ in range(2):
        done.clear()
        checkpoints.save_checkpoint(tmp_path, {"state_round": np.array(3)})
        last = len(done) - 1 - done[::-1].index(checkpoints.CHECKPOINT)
        assert "contents" in done[:last] and done[last + 1 :] == ["folder"]


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_fault_at_any_write_is_one_line_and_leaves_no_false_run(
    tmp_path, tiny, call, monkeypatch
):
    """A disk that fails at the k-th call: the folder is complete and right, or unfinished."""
    run = ft.run(experiment(tiny))
    real = getattr(os, call)
    for k in range(40):
        folder = store.prepare(tmp_path / f"{call}{k}")
        count = [0]

        def fails(*words, count=count, k=k, **how):
            if str(words[0]).endswith(".py"):
                return real(*words, **how)
            count[0] += 1
            if count[0] == k + 1:
                raise OSError(28, "No space left on device")
            return real(*words, **how)

        monkeypatch.setattr(os, call, fails)
        try:
            store.save(run, folder)
        except ft.FedtaperError as trouble:
            assert "\n" not in str(trouble) and "No space left" in str(trouble)
        monkeypatch.setattr(os, call, real)
        if store.is_complete(folder):
            assert equal(ft.load(folder), run)
        assert not list(folder.glob(".*"))
        if count[0] <= k:
            return
    raise AssertionError("more calls than expected")


# ------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
    folder = tmp_path_factory.mktemp("runs")
    runs = {}
    for name, how in (("a", {}), ("b", {"seed": 1}), ("c", {"rounds": 9})):
        runs[name] = saved(ft.run(experiment(problem, **how)), folder / name)
    checkpoint = {
        "state_round": np.array(3), "state_w": np.zeros((1, 2)), "seconds": np.array(1.0),
        "seeds": np.array([0]), "round": np.arange(1, 13), "dead_round": np.zeros(1, int),
        "dead_client": np.zeros(1, int) - 1, "norms": np.zeros((1, 3, 3)),
        "w": np.zeros((1, 3, 2)),
    }  # fmt: skip
    return folder, runs, checkpoint


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_named_or_harmless(stored, data):
    folder, runs, _ = stored
    place = folder / "hurt"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "a", place)
    name = data.draw(st.sampled_from(sorted(p.name for p in place.iterdir())))
    path = place / name
    content = path.read_bytes()
    how = data.draw(st.sampled_from(["flip", "cut", "empty", "gone", "swap", "more", "other"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(content) - 1))
        hurt = content[at] ^ data.draw(st.integers(1, 255))
        path.write_bytes(content[:at] + bytes([hurt]) + content[at + 1 :])
    elif how == "cut":
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    elif how == "more":
        path.write_bytes(content + b"x")
    elif how == "other":
        path.write_bytes(data.draw(st.binary(max_size=200)))
    else:
        shutil.copy(folder / data.draw(st.sampled_from(["b", "c"])) / name, path)
    try:
        found = ft.load(place)
    except ft.FedtaperError as trouble:
        assert "\n" not in str(trouble)
    else:
        assert equal(found, runs["a"])


def test_a_zero_length_run_is_not_complete(tmp_path, stored):
    shutil.copytree(stored[0] / "a", tmp_path / "a")
    (tmp_path / "a/run.npz").write_bytes(b"")
    assert not store.is_complete(tmp_path / "a")
    with pytest.raises(ft.FedtaperError, match="empty"):
        ft.load(tmp_path / "a")


def test_arrays_of_another_run_do_not_load(tmp_path, stored):
    folder = stored[0]
    shutil.copytree(folder / "a", tmp_path / "a")
    shutil.copy(folder / "b/config.toml", tmp_path / "a/config.toml")
    with pytest.raises(ft.FedtaperError, match=r"config.toml is not the file"):
        ft.load(tmp_path / "a")


def test_arrays_without_their_description_do_not_load(tmp_path, stored):
    shutil.copytree(stored[0] / "a", tmp_path / "a")
    with np.load(tmp_path / "a/run.npz") as found:
        arrays = {k: found[k] for k in found.files if k != durable.MANIFEST}
    np.savez(tmp_path / "a/run.npz", **arrays)
    with pytest.raises(ft.FedtaperError, match="description of its arrays is missing"):
        ft.load(tmp_path / "a")


def test_a_newer_format_says_so(tmp_path, stored, monkeypatch):
    shutil.copytree(stored[0] / "a", tmp_path / "a")
    monkeypatch.setattr(durable, "FORMAT", 1)
    with pytest.raises(ft.FedtaperError, match="upgrade fedtaper"):
        ft.load(tmp_path / "a")


def test_shapes_are_checked_without_checksums_too(tmp_path, stored):
    folder = stored[0]
    for name, change in (
        ("update_norms", lambda a: a[:, :2]),
        ("n", lambda a: a[:-1]),
        ("metric_error", lambda a: a[None]),
        ("round", lambda a: a[::-1].copy()),
        ("round", lambda a: a + 100),
        ("w", lambda a: a[:-2]),
    ):
        place = tmp_path / "old"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "a", place)
        with np.load(place / "run.npz") as found:
            arrays = {k: found[k] for k in found.files if k != durable.MANIFEST}
        arrays[name] = change(arrays[name])
        np.savez(place / "run.npz", **arrays)  # as older versions wrote it
        notes = json.loads((place / "provenance.json").read_text())
        del notes["format"]
        (place / "provenance.json").write_text(json.dumps(notes))
        with pytest.raises(ft.FedtaperError, match="damaged"):
            ft.load(place)


def test_files_that_are_not_needed_can_be_dropped(tmp_path, stored):
    shutil.copytree(stored[0] / "a", tmp_path / "a")
    store.drop(tmp_path / "a", store.METRICS)
    assert equal(ft.load(tmp_path / "a"), stored[1]["a"])


def test_the_checkpoint_before_the_last_is_kept(tmp_path, stored):
    values = stored[2]
    for done in (1, 2, 3):
        checkpoints.save_checkpoint(tmp_path, values | {"state_round": np.array(done)}, {"x": "y"})
    found = checkpoints.load_checkpoint(tmp_path)
    assert int(found["state_round"]) == 3 and found["fingerprint"] == {"x": "y"}
    last = tmp_path / checkpoints.CHECKPOINT
    for content in (b"", last.read_bytes()[:-20], b"nonsense"):
        last.write_bytes(content)
        with pytest.warns(ft.FedtaperWarning, match="checkpoint before it"):
            assert int(checkpoints.load_checkpoint(tmp_path)["state_round"]) == 2
    (tmp_path / checkpoints.PREVIOUS).write_bytes(b"")
    with pytest.raises(ft.FedtaperError, match="run again"):
        checkpoints.load_checkpoint(tmp_path)


def test_a_checkpoint_with_arrays_that_do_not_fit_is_refused(tmp_path, stored):
    for name, array in (
        ("norms", np.zeros((2, 3, 3))),
        ("state_w", np.zeros(2)),
        ("w", np.zeros((1, 5, 2))),
        ("dead_round", np.zeros(2, int)),
    ):
        checkpoints.save_checkpoint(tmp_path, stored[2] | {name: array})
        (tmp_path / checkpoints.PREVIOUS).unlink(missing_ok=True)
        with pytest.raises(ft.FedtaperError, match="do not fit"):
            checkpoints.load_checkpoint(tmp_path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    """So is a device: a report to /dev/null must leave the device there."""
    place, found = tmp_path / "pipe", []
    os.mkfifo(place)
    for content in (b"hello", lambda file: file.write(b"hello")):
        reader = threading.Thread(target=lambda: found.append(place.read_bytes()))
        reader.start()
        durable.write(place, content)
        reader.join(timeout=10)
    assert found == [b"hello", b"hello"] and place.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_full_is_one_line():
    with pytest.raises(ft.FedtaperError, match="/dev/full cannot be written: No space left"):
        durable.write(Path("/dev/full"), b"hello")
    assert Path("/dev/full").is_char_device()
