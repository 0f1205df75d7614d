"""TensorBoard and MLflow: what is read back is what the run has."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from flower_loop import LoopGrid, Source
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.deploy.server import serve
from fedtaper.engines import registry
from fedtaper.storage.config import read_log

TOML = """
[experiment]
rounds = 4
local_steps = 2
batch_size = 5
[problem]
kind = "linear"
num_clients = 3
samples = 20
feature_spread = 1.0
[[schedules]]
c = 0.1
delta = 0.8
clients = 3
"""


def experiment(problem, **changes):
    return ft.Experiment(
        problem, ft.Power(0.1, 0.8), **({"rounds": 4, "local_steps": 2, "batch_size": 5} | changes)
    )


def from_tensorboard(folder):
    """Every tag's (steps, values), as TensorBoard's own reader sees them."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    return {tag: ([x.step for x in row], [x.value for x in row]) for tag, row in found.items()}


def same_as(run, found):
    columns = dict(run.metrics) | {
        f"update_norm/client_{i}": run.update_norms[:, i] for i in range(run.update_norms.shape[1])
    }
    assert set(found) == set(columns)
    for tag, (steps, values) in found.items():
        assert steps == run.round.tolist(), tag
        np.testing.assert_allclose(values, columns[tag], rtol=1e-6)


PROBLEMS = {  # something that the engine runs; Flower's rounds have a test of their own below
    "reference": lambda: ft.LinearRegression(num_clients=3, samples=20, feature_spread=1.0),
    "compiled": lambda: ft.LinearRegression(num_clients=3, samples=20, feature_spread=1.0),
    "events": lambda: ft.RegressionStream(num_clients=3, feature_spread=1.0),
    "cpu": lambda: ft.ImageClassification("digits", model="cnn", num_clients=3),
}


def test_no_engine_is_left_out():
    assert set(PROBLEMS) | {"cuda", "flower"} == set(registry.BUILT_IN)


@pytest.mark.parametrize("engine", PROBLEMS)
def test_tensorboard_has_every_round_of_every_engine(tmp_path, engine):
    run = ft.run(
        experiment(PROBLEMS[engine]()), engine=engine, log=ft.Log(tensorboard=str(tmp_path))
    )
    assert run.engine == engine and len(run.round) == 4
    same_as(run, from_tensorboard(tmp_path))


def test_tensorboard_of_a_run_over_flower_that_was_stopped_and_resumed(tiny, tmp_path):
    class Killed(BaseException):
        pass

    source = Source(experiment(tiny), ft.Federation(("a", "b", "c"), deadline=0.3))
    how = {"log": ft.Log(tensorboard=str(tmp_path / "log"))}

    def spoil(site, round_, reply, calls=[]):  # noqa: B006 (counts over both runs)
        if round_ == 2 and not calls:
            calls.append(site)
            raise Killed
        return reply

    with pytest.raises(Killed):
        serve(LoopGrid(source, spoil), source, tmp_path / "run", **how)
    run = serve(LoopGrid(source, spoil), source, tmp_path / "run", **how)
    same_as(run, from_tensorboard(tmp_path / "log"))


def test_many_seeds_are_logged_by_their_median_and_thinned_as_the_record(tiny, tmp_path):
    log = ft.Log(tensorboard=str(tmp_path))
    run = ft.run(experiment(tiny), seeds=range(5), thin=2, log=log)
    steps, values = from_tensorboard(tmp_path)["error"]
    assert steps == [2, 4]
    np.testing.assert_allclose(values, np.median(run.metrics["error"], axis=0), rtol=1e-6)


def test_mlflow_has_the_run_and_a_resume_goes_on_in_it(tiny, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    address = f"sqlite:///{tmp_path}/ml.db"
    log, e = ft.Log(mlflow=address), experiment(tiny, rounds=3)
    source = Source(e, ft.Federation(("a", "b", "c"), deadline=0.3))

    def broken(site, round_, reply):
        if round_ == 2:
            raise KeyboardInterrupt
        return reply

    out = tmp_path / "it's a run"
    with pytest.raises(KeyboardInterrupt):
        serve(LoopGrid(source, broken), source, out, progress=False, log=log)
    run = serve(LoopGrid(source), source, out, progress=False, log=log)
    client = mlflow.MlflowClient(tracking_uri=address)
    number = client.get_experiment_by_name("fedtaper").experiment_id
    (found,) = client.search_runs([number])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "it's a run"
    assert found.data.params["step size of clients 0 to 2"] == "0.1 / n^0.8"
    assert found.data.params["local_steps"] == "2"
    for name, values in run.metrics.items():
        history = client.get_metric_history(found.info.run_id, name)
        assert [x.step for x in history] == [1, 2, 3]
        if name != "seconds":
            np.testing.assert_allclose([x.value for x in history], values)


def test_a_file_says_where_to_log_and_the_command_may_say_otherwise(tmp_path):
    file = tmp_path / "case.toml"
    file.write_text(TOML + f'[log]\ntensorboard = "{tmp_path}/file"\n')
    assert read_log(file) == ft.Log(tensorboard=f"{tmp_path}/file")
    runner = CliRunner()
    words = ["run", str(file), "--out", str(tmp_path / "a")]
    assert runner.invoke(app, words).exit_code == 0
    words = ["run", str(file), "--out", str(tmp_path / "b"), "--tensorboard", f"{tmp_path}/said"]
    assert runner.invoke(app, words).exit_code == 0
    mine = from_tensorboard(tmp_path / "file")
    assert mine == from_tensorboard(tmp_path / "said")
    same_as(ft.load(tmp_path / "a"), mine)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[log]\ntensorbord = 'x'", "did you mean 'tensorboard'"),
        ("[log]\ntensorboard = 3", "tensorboard must be a text"),
        ("log = 3", "log"),
    ],
)
def test_mistakes_in_the_table_are_told(text, why, tmp_path):
    file = tmp_path / "case.toml"
    file.write_text(text + "\n" + TOML if text.startswith("log") else TOML + text)
    with pytest.raises(ft.FedtaperError, match=why):
        read_log(file)


def test_a_log_that_breaks_does_not_cost_the_run(tiny, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    honest = EventFileWriter.add_event

    def broken(self, event):
        if event.step > 1:
            raise OSError("no space left")
        honest(self, event)

    monkeypatch.setattr(EventFileWriter, "add_event", broken)
    with pytest.warns(ft.FedtaperWarning, match="logging stopped: no space left"):
        run = ft.run(experiment(tiny), log=ft.Log(tensorboard=str(tmp_path)))
    assert len(run.round) == 4


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_before_any_work(tiny, tmp_path, monkeypatch, name, module):
    for known in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ft.FedtaperError, match=rf"pip install \"fedtaper\[{name}\]\""):
        ft.run(replace(experiment(tiny)), log=ft.Log(**{name: str(tmp_path)}))
