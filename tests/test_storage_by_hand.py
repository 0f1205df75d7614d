"""Run folders that somebody edited: an archive made anew with one number or note changed."""

import errno
import io
import json
import os
import shutil
import zipfile
from dataclasses import replace

import interrupted
import numpy as np
import pytest

import fedtaper as ft
from fedtaper.engines import reference
from fedtaper.simulation import drive
from fedtaper.storage import checkpoints, durable

HOW = {"engine": "reference", "progress": False}
NOTES = {
    "no fingerprint": {"fingerprint": {}}, "null": {"fingerprint": None},
    "half": {"fingerprint": {"settings": {}}}, "a list": {"fingerprint": [1]},
    "too many clients": {"fingerprint": {
        "settings": {"rounds": "12"}, "behaviours": {}, "problem": {}, "data": None,
        "schedules": [["Power", 10**15]], "sizes": [["40", 3]],
    }},
}  # fmt: skip


def experiment(rounds=12):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
    return ft.Experiment(problem, ft.Power(0.1, 0.8), rounds, 2, batch_size=4)


def rewritten(path, change):
    """Make an archive anew, so that its own sums fit."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def put(members, name, array):
    file = io.BytesIO()
    np.save(file, array)
    members[f"{name}.npy"] = file.getvalue()


def nudged(name):
    """Change one number of one array."""

    def change(members):
        array = np.load(io.BytesIO(members[f"{name}.npy"]))
        array.flat[array.size // 2] += 1
        put(members, name, array)

    return change


def noted(**notes):
    """Change what an archive says of itself."""

    def change(members):
        kept = json.loads(np.load(io.BytesIO(members["manifest.npy"])).tobytes())
        text = json.dumps({k: v for k, v in (kept | notes).items() if v != "gone"})
        put(members, "manifest", np.frombuffer(text.encode(), dtype=np.uint8))

    return change


def arrays(path):
    with np.load(path) as found:
        return [name for name in found.files if name != durable.MANIFEST]


def stopped(e, out, monkeypatch, **how):
    monkeypatch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(reference, "BLOCK_UPDATES", 60)
    interrupted.stopped(e, out, monkeypatch, **HOW, **how)


def refused(folder, e):
    with pytest.raises(ft.FedtaperError, match="damaged") as trouble:
        ft.run(e, out=folder, resume=True, **HOW)
    assert "\n" not in str(trouble.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by-hand") / "run"
    ft.run(experiment(), out=folder, updates=True, **HOW)
    return folder


def test_more_rounds_are_not_added_to_changed_numbers(tmp_path, finished):
    """What is not trained on is copied from the old run, so it is checked too."""
    more = experiment(rounds=15)
    for name in arrays(finished / "run.npz"):
        folder = shutil.copytree(finished, tmp_path / name)
        rewritten(folder / "run.npz", nudged(name))
        refused(folder, more)
    for name in arrays(finished / "state.npz"):
        folder = shutil.copytree(finished, tmp_path / f"state-{name}")
        rewritten(folder / "state.npz", nudged(name))
        refused(folder, more)
    ft.run(more, out=shutil.copytree(finished, tmp_path / "right"), resume=True, **HOW)


@pytest.mark.parametrize(
    "notes",
    [*NOTES.values(), {"files": None}, {"checksums": None}, {"fingerprint": "gone"},
     {"files": "gone"}],
)  # fmt: skip
def test_a_description_that_makes_no_sense_is_one_line(tmp_path, finished, notes):
    for rounds in (12, 15):
        folder = shutil.copytree(finished, tmp_path / f"to-{rounds}")
        rewritten(folder / "run.npz", noted(**notes))
        refused(folder, experiment(rounds))


def test_a_stopped_run_does_not_go_on_from_changed_numbers(tmp_path, monkeypatch):
    e = experiment(rounds=60)
    stopped(e, tmp_path / "run", monkeypatch)
    both = (checkpoints.CHECKPOINT, checkpoints.PREVIOUS)
    for k, name in enumerate(arrays(tmp_path / "run" / both[0])):
        folder = shutil.copytree(tmp_path / "run", tmp_path / f"{k}")
        for one in both:
            rewritten(folder / one, nudged(name))
        refused(folder, e)
    for k, notes in enumerate([*NOTES.values(), {"failed": [1]}]):
        if notes.get("fingerprint", 0) is None:  # as in the checkpoints of old versions
            continue
        folder = shutil.copytree(tmp_path / "run", tmp_path / f"noted-{k}")
        for one in both:
            rewritten(folder / one, noted(**notes))
        if "failed" in notes:
            ft.run(e, out=folder, resume=True, **HOW)
        else:
            refused(folder, e)


def test_old_checkpoints_without_checksums_go_on(tmp_path, monkeypatch):
    e = experiment(rounds=60)
    stopped(e, tmp_path / "run", monkeypatch)
    rewritten(tmp_path / "run" / checkpoints.CHECKPOINT, noted(checksums="gone"))
    found = ft.run(e, out=tmp_path / "run", resume=True, **HOW)
    assert np.array_equal(found.w, ft.run(e, **HOW).w)


FORMS = {
    "an axis more": lambda array: array[..., None],
    "complex": lambda array: array.astype(complex),
    "text": lambda array: array.astype("U8"),
    "nothing": lambda array: np.array([]),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_old_checkpoint_with_arrays_of_another_form_is_damaged(tmp_path, monkeypatch, form):
    """Without checksums, as those of old versions, whatever is not of the run's form is seen."""
    e = experiment(rounds=60)
    e = replace(e, challenges=ft.Challenges(every=20), local=ft.Momentum(0.5, reset=True))
    how = HOW | {"updates": True}
    stopped(e, tmp_path / "run", monkeypatch, updates=True)

    def change(name):
        def changed(members):
            array = np.load(io.BytesIO(members[f"{name}.npy"]))
            put(members, name, FORMS[form](array))
            del members["manifest.npy"]

        return changed

    for name in arrays(tmp_path / "run" / checkpoints.CHECKPOINT):
        for rounds in (60, 70):
            folder = shutil.copytree(tmp_path / "run", tmp_path / f"{name}-{rounds}")
            for one in (checkpoints.CHECKPOINT, checkpoints.PREVIOUS):
                rewritten(folder / one, change(name))
            with pytest.raises(ft.FedtaperError) as trouble:
                ft.run(replace(e, rounds=rounds), out=folder, resume=True, **how)
            assert "\n" not in str(trouble.value)


def test_numbers_of_any_layout_have_the_checksum_that_is_read(tmp_path):
    """A view of one number, a transposed array and a single number come back as they went."""
    given = {
        "one": np.broadcast_to(2.0, (3, 4)), "turned": np.arange(6.0).reshape(2, 3).T,
        "number": np.float32(3), "none": np.zeros((0, 2)), "every": np.arange(9)[::2],
    }  # fmt: skip
    durable.write_arrays(tmp_path / "a.npz", given, {})
    found, _ = durable.read_arrays(tmp_path / "a.npz")
    for name, array in given.items():
        assert np.array_equal(found[name], array) and found[name].shape == np.shape(array)


def test_what_is_no_file_is_not_waited_for(tmp_path, finished):
    """A pipe or a loop of links in the place of a file."""
    for name in ("run.npz", "config.toml", "provenance.json", "state.npz"):
        for make in (os.mkfifo, lambda path: path.symlink_to(path.name), os.mkdir):
            folder = shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=False)
            (folder / name).unlink()
            make(folder / name)
            with pytest.raises(ft.FedtaperError):
                ft.load(folder)
            shutil.rmtree(folder)


def test_a_run_that_may_not_be_read_is_not_called_damaged(finished, monkeypatch):
    def refuse(path, *words):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ft.FedtaperError, match="cannot be read: Permission denied"):
        ft.load(finished)
