"""The edge: odd names, extreme numbers, wrong types. Each of these failed before it was mended."""

import io
import json
import struct
import warnings
import zipfile
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_file import FILE
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli import main as cli_main
from fedtaper.cli.main import app
from fedtaper.cli.terminal import show_error, show_warning
from fedtaper.deploy.scaffold import new_app
from fedtaper.storage import store, tensors


def test_brackets_in_paths_are_not_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[red]x[").mkdir()
    file = tmp_path / "[red]x[" / "e.toml"
    file.write_text(FILE)
    found = CliRunner().invoke(app, ["run", str(file), "--out", "[/red]"])
    assert found.exit_code == 0, found.output
    assert "[/red]" in found.output


def test_brackets_in_errors_and_warnings_are_not_markup(capsys):
    show_error("[/red] is not a folder\nsecond line")
    show_warning("[/nothing] [bold]", ft.FedtaperWarning)
    told = capsys.readouterr().err
    assert told == "error: [/red] is not a folder second line\nwarning: [/nothing] [bold]\n"


@pytest.mark.parametrize("name", ["torch", "numpy", "json", "class", "Flwr", "fedtaper"])
def test_a_new_app_does_not_hide_a_package(tmp_path, name):
    with pytest.raises(ft.FedtaperError, match="choose another"):
        new_app(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def png():
    def chunk(kind, data):
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    )


def test_reports_take_figures_from_their_folder_only(tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png())
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "link.png").symlink_to(secret)
    (folder / "text.png").write_text("not a picture")
    (folder / "own.png").write_bytes(png())
    words = ("statement", "summary", "measure", "refuted_by", "nearest")
    claim = {word: word for word in words} | {"id": "R1", "verdict": "reproduced", "numbers": []}
    claim["figures"] = ["link.png", "text.png", "own.png", "../secret.png", 3]
    (folder / "claims.json").write_text(json.dumps({"claims": [claim]}))
    page = ft.report([folder], tmp_path / "page.html").read_text()
    assert page.count("data:image/png") == 1 and 'alt="own.png"' in page


def test_control_characters_are_written_as_toml(tiny):
    import tomllib

    from fedtaper.storage.written import value

    for text in ("a\x00b", "tab\tnew\nline\r\x1b[0m", '"\\', "\x7f\u2028é", "\ud800"):
        back = tomllib.loads(f"x = {value(text)}")["x"]
        assert back == text.encode("utf-8", "replace").decode()


def test_a_million_million_schedules_take_no_memory():
    with pytest.raises(ft.FedtaperError, match="1000000000000 schedules for 3 clients"):
        ft.from_toml(FILE.replace("\nclients = 3\n", "\nclients = 1000000000000\n"))


def test_a_step_beyond_all_numbers_is_a_warning_and_a_stored_divergence(tmp_path):
    """The stability check was a LinAlgError."""
    problem = ft.LinearRegression(num_clients=3, samples=400)
    e = ft.Experiment(problem, ft.Constant(1.0), rounds=5, local_steps=250, batch_size=4)
    with pytest.warns(ft.StabilityWarning, match="diverges in round 1"):
        ft.run(e, out=tmp_path / "a", engine="reference")
    (found,) = ft.load(tmp_path / "a").diverged
    assert found.round <= 5 and "above 2: unstable" in found.reason


@pytest.mark.filterwarnings("ignore::fedtaper.StabilityWarning")
def test_what_is_asked_of_a_run_that_diverged_in_round_1_is_told_so(tiny):
    e = ft.Experiment(tiny, ft.Constant(1e200), 30, 5, batch_size=4, challenges=ft.Challenges())
    run = ft.run(e, updates=True, progress=False)
    assert not len(run.round)
    for ask in (
        ft.audit, ft.intervals, ft.contributions, ft.noise_sums, ft.tracking_error, ft.bound,
        ft.probability_one,
    ):  # fmt: skip
        with pytest.raises(ft.FedtaperError, match="no finite round: seed 0 diverged in round 1"):
            ask(replace(run, experiment=replace(e, challenges=None)))
    missing = ft.board(run).missing
    assert sum("no finite round" in why for why in missing) == 2  # of the audit and intervals


def test_forecasts_of_extreme_steps_are_answered_or_refused(tiny):
    for schedule, n in (
        (ft.Power(1e300, 0.8), 1e6),
        (ft.Power(1e-300, 0.8), 1e300),
        (ft.Constant(1e10), 1e6),
        (ft.Power(0.1, 1.0, offset=1e300), 10),
    ):
        e = ft.Experiment(tiny, schedule, rounds=5, local_steps=2, batch_size=4)
        try:
            assert np.all(np.isfinite(ft.forecast(e, n=n).w))
        except ft.FedtaperError as trouble:
            assert "\n" not in str(trouble)


def test_clients_that_never_take_part(tiny):
    with pytest.raises(ft.FedtaperError, match="no client ever takes part"):
        ft.Experiment(tiny, ft.Power(0.1, 0.8), 5, local_steps=2, batch_size=4,
                      participation=[0, 0, 0])  # fmt: skip
    schedules = [ft.Power(0.1, 0.8), ft.Power(0.1, 1.0), ft.Power(0.1, 0.8)]
    with pytest.warns(ft.FedtaperWarning, match="client 1 never takes part"):
        ft.Experiment(tiny, schedules, 5, local_steps=2, batch_size=4, participation=[1, 0, 1])


def test_the_reference_client_never_takes_part(tiny):
    """Its influence is 0, and shares are those of the others alone."""
    schedules = [ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.1, 0.9)]
    how = {"rounds": 8, "local_steps": 2, "batch_size": 4}
    with pytest.warns(ft.FedtaperWarning, match="client 0 never takes part"):
        e = ft.Experiment(tiny, schedules, participation=[0, 1, 1], **how)
    a = e.step_sizes(7, 8)[0].sum(axis=0)
    assert e.influence(8).share == pytest.approx([0, a[1] / (a[1] + a[2]), a[2] / (a[1] + a[2])])
    assert e.limit_influence / e.limit_influence.sum() == pytest.approx([0, 0, 1])
    run = ft.run(e, engine="reference")
    assert np.all(run.update_norms[:, 0] == 0) and np.all(np.isfinite(run.metrics["error"]))
    assert np.all(np.isfinite(ft.forecast(e, n=1e6).w))


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30])
def test_seeds_beyond_64_bits_are_refused(tiny, seed):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), 2, local_steps=2, batch_size=4, seed=2**63 - 1)
    assert np.all(np.isfinite(ft.run(e, engine="reference").w))
    for make in (
        lambda: replace(e, seed=seed),
        lambda: replace(tiny, seed=seed),
        lambda: ft.run(e, seeds=[0, seed]),
        lambda: ft.ImageClassification("digits", seed=seed),
    ):
        with pytest.raises(ft.FedtaperError, match="below 2"):
            make()


def test_what_no_memory_holds_is_refused_at_once(tmp_path):
    for change in (("num_clients = 3", "num_clients = 1000000000000"),
                   ("samples = 50", "samples = 1000000000000"),
                   ("samples = 50", "samples = 50\ndim = 100000000"),
                   ("local_steps = 3", "local_steps = 4611686018427387904"),
                   ("batch_size = 5", "batch_size = 5\ndelays = 1000000000000")):  # fmt: skip
        with pytest.raises(ft.FedtaperError, match=r"[0-9]{3} bytes"):
            ft.from_toml(FILE.replace(*change))
    with pytest.raises(ft.FedtaperError, match="at most 100,000,000"):
        ft.RegressionStream(num_clients=100_000_001)
    with pytest.raises(ft.FedtaperError, match=r"recording every 1-th of .* bytes"):
        ft.run(ft.from_toml(FILE.replace("rounds = 30", "rounds = 1000000000000000")), thin=1)
    x = np.zeros((20, 8, 8), np.uint8)
    y = np.zeros(20, np.int64)
    far = np.where(np.arange(20) == 3, 2**62, y)
    arrays = {"train_images": x, "train_labels": far, "test_images": x, "test_labels": y}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ft.FedtaperError, match="has class 4611686018427387904"):
        assert ft.ImageClassification(
            str(tmp_path / "own.npz"), split=ft.Iid(), num_clients=2
        ).sizes


def test_a_file_that_claims_to_hold_more_than_any_memory_is_refused(tmp_path):
    """An npz of 800 bytes whose images are said to take 730 GiB was a raw MemoryError."""
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for part in ("train", "test"):
            for name, shape, kind in (("images", (10**9, 28, 28), "|u1"), ("labels", (9,), "<i8")):
                head = io.BytesIO()
                about = {"descr": kind, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(head, about)
                archive.writestr(f"{part}_{name}.npy", head.getvalue() + bytes(72))
    with pytest.raises(ft.FedtaperError, match=r"own.npz (says that it holds more|is damaged)"):
        assert ft.ImageClassification(str(tmp_path / "own.npz"), num_clients=2).sizes


def test_a_model_file_with_a_damaged_head_is_one_line(tmp_path, tiny):
    """Deep nesting was a RecursionError, an infinite size an OverflowError."""
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), 2, local_steps=2, batch_size=4)
    sizes = '{"w": {"dtype": "F64", "shape": [1e400], "data_offsets": [0, 0]}}'
    for head in (b"[" * 100_000, sizes.encode()):
        file = tmp_path / "model.safetensors"
        file.write_bytes(len(head).to_bytes(8, "little") + head)
        with pytest.raises(ft.FedtaperError, match=r"not a .safetensors file"):
            tensors.read(file)
        with pytest.raises(ft.FedtaperError):
            ft.run(e, start=file)


WRONG_CALLS = {  # raw errors among 10,000 wrong calls, before they were mended
    "ragged rates": (lambda: ft.OnOff(rate=[[1, 2], [3]]), "rate must be a number"),
    "an array for a flag": (
        lambda: ft.Auditor([ft.Power(0.1, 0.8)] * 2, quadratic=np.full(3, np.nan)),
        "quadratic must be True or False",
    ),
    "no name of a file": (lambda: ft.plan([1, 1], 5, 2).save(""), "not the name of a file"),
    "a list for a folder": (
        lambda: ft.ImageClassification("bloodmnist", data_dir=[[1], [2]]).sizes,
        "data_dir must be a folder",
    ),
    "an array for trust": (
        lambda: ft.read_toml("no.toml", trusted=np.zeros((2, 3))),
        "trusted must be True or False",
    ),
    "a time that no float holds": (
        lambda: ft.limit_ode(
            ft.Experiment(ft.LinearRegression(num_clients=2), ft.Power(0.01, 0.8), 5, 2)
        ).solve(end=10**400),
        "end must be a number",
    ),
}


@pytest.mark.parametrize("call, says", WRONG_CALLS.values(), ids=list(WRONG_CALLS))
def test_wrong_calls_that_were_raw_errors(call, says):
    with pytest.raises(ft.FedtaperError, match=says) as found:
        call()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("wrong", [{"model": 2**63 - 1}, {"model": {"kind": "x"}}, {"augment": []}])
def test_a_model_that_is_no_name_is_refused(wrong):
    """Two of 10,000 fuzzed files ended in a raw error of it."""
    with pytest.raises(ft.FedtaperError, match=r"must be (a name or a function|True or False)"):
        ft.ImageClassification("digits", **wrong)


def regression(**settings):
    how = {"rounds": 3, "local_steps": 2, "batch_size": 5} | settings
    return ft.Experiment(ft.LinearRegression(num_clients=3, samples=50), ft.Power(0.01, 0.8), **how)


class Half:
    """What looks like a problem, and has only its kind."""

    kind = "gradient"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: regression(participation=ft.Exactly), r"a pattern such as Exactly\(3\)"),
        (
            lambda: ft.Experiment(Half(), ft.Power(0.1, 0.8), rounds=1, local_steps=1),
            "Half is not a problem yet: it has no default_clock, num_clients",
        ),
        *[
            (call, f"{name}: SimpleNamespace is not a problem yet: it has no default_clock, num_cl")
            for name, call in {
                "problem": lambda: ft.plan([1, 1], 5, 2, problem=SimpleNamespace(kind="linear")),
                "held_out": lambda: ft.fair(
                    regression().problem, held_out=SimpleNamespace(kind="quadratic")
                ),
                "judge": lambda: ft.run(
                    regression(steering=ft.Steering("minmax")),
                    judge=SimpleNamespace(kind="linear"),
                ),
            }.items()
        ],
        (lambda: ft.price(SimpleNamespace(kind="wrong")), "must be a problem such as"),
        (lambda: ft.plan([1, 1], 5, 2, problem=ft.LinearRegression), "must be a problem such as"),
        (lambda: ft.Clipped(norm=True), "norm must be a number above 0, not True"),
        (
            lambda: ft.Federation(("a",), wait=0),
            "wait must be a number above 0, not 0; it is in se",
        ),
        (lambda: ft.Federation(("a",), restart_memory=1), "restart_memory must be True or False"),
        (lambda: ft.Federation(("a",), max_growth="3"), "max_growth must be a number above 1"),
        (lambda: ft.Federation(("a",), max_size_ratio=None), "max_size_ratio must be a number ab"),
        (lambda: ft.run(regression(), seeds=range(10**12)), "this many seeds would take"),
        (lambda: ft.run("e.toml"), "run needs an Experiment, not str"),
        (lambda: ft.audit(ft.run(regression()), n=[1]), "n= is for arrays: a Run has its own"),
        (lambda: ft.audit(ft.run(regression()), updates=3), "updates= is for arrays"),
        (lambda: ft.forecast(regression(), n=1e9, w=[1, 2]), "one model of 3 finite numbers"),
        (lambda: ft.forecast(regression(), n=10).interval("a"), "level must be a number"),
        (lambda: ft.run(regression()).plot(3), "expected a file or folder, not 3"),
        (lambda: ft.run(regression()).to_csv(3), "expected a file or folder, not 3"),
        (lambda: ft.run(regression()).to_csv("/dev/null/a.csv"), "cannot be written: Not a dir"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(wrong, said):
    with pytest.raises(ft.FedtaperError, match=said) as found:
        wrong()
    assert "\n" not in str(found.value)


def test_what_scales_each_coordinate_has_no_ode():
    e = regression(local=ft.AdamW())
    for tool in (ft.limit_ode, lambda e: ft.forecast(e, n=1e6)):
        with pytest.raises(ft.FedtaperError, match=r"AdamW.* scales each coordinate separately"):
            tool(e)
    plan = ft.plan([1, 2, 3], rounds=3, local_steps=2, problem=e.problem, local=ft.AdamW())
    assert "stability: not judged; AdamW scales" in str(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ft.StabilityWarning)
        ft.run(replace(e, schedules=ft.Power(0.5, 0.8)))


def test_ctrl_c_while_the_commands_are_put_together_leaves_no_trace(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtaper.cli.main.app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli_main.main()
    assert ended.value.code == 130


def test_half_an_app_is_not_left_on_a_full_disk(tmp_path, monkeypatch):
    real = store.write_text

    def full(path, text):
        if path.name == "federation.toml":
            raise ft.FedtaperError(f"{path} cannot be written: No space left on device")
        real(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_text", full)
        with pytest.raises(ft.FedtaperError, match="No space left"):
            new_app("mine", tmp_path)
    assert not list(tmp_path.iterdir())
    assert (new_app("mine", tmp_path) / "pyproject.toml").is_file()
