"""The report: what it says is what the runs hold, and it works alone in a browser."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.show import charts, labels, report_page, style
from fedtaper.storage import store


def make(tiny, rounds=60, **how):
    schedules = [ft.Power(0.1, 0.8, offset=5), ft.Power(0.1, 1.0, offset=5)]
    e = ft.Experiment(
        tiny, [schedules[0], *[schedules[1]] * 2], rounds=rounds, local_steps=2, batch_size=5
    )
    return ft.run(e, **how)


def read(path):
    """The page's text without what only keeps words on one line, and its charts."""
    text = path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    text = re.sub(r'<span class="whole">(.*?)</span>', r"\1", text)
    specs = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)[1])
    return text, {spec["title"]: spec for spec in specs}


def cells(text, row):
    """The cells of the first row that starts with a word."""
    line = re.search(rf"<tr><td[^>]*>{re.escape(row)}</td>(.*?)</tr>", text)[1]
    return re.findall(r"<td[^>]*>(.*?)</td>", line)


def test_one_seed_has_values_and_no_quantiles(tiny, tmp_path):
    run = make(tiny)
    own = {"accuracy/north": np.linspace(0, 1, 60), "accuracy/south": np.linspace(1, 0.5, 60)}
    run = replace(
        run, metrics=run.metrics | own | {"seconds": np.ones(60), "auc": own["accuracy/north"]}
    )
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    assert "10 %" not in text and "seconds" not in specs and "Seconds" not in specs
    assert not any("low" in one for spec in specs.values() for one in spec["series"])
    assert specs["AUC"]["series"][0]["values"] == charts.plain(own["accuracy/north"])
    shared = specs["Accuracy"]["series"]  # metrics with one beginning are read together
    assert [one["name"] for one in shared] == ["accuracy/north", "accuracy/south"]
    assert cells(text, "auc") == ["1"]
    error = specs["Distance to the optimum"]
    assert error["x"] == list(range(1, 61))
    assert error["series"][0]["values"] == charts.plain(run.metrics["error"])
    assert f"{run.metrics['error'][-1]:.3g} from w*(p_n)" in text


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
@pytest.mark.parametrize("seeds", [None, range(2)])
def test_influence_is_that_of_the_last_recorded_round(tmp_path, seeds):
    """Of a run that ended early, not of the round that was planned as the last."""
    from fedtaper.ui.detail import detail

    wild = [ft.Power(3.0, 0.5), *[ft.Power(3.0, 1.0)] * 2]
    e = ft.Experiment(ft.LinearRegression(num_clients=3), wild, rounds=400, local_steps=5)
    run = ft.run(e, seeds=seeds, out=tmp_path / "lost", progress=False)
    assert run.diverged and 1 <= run.last_round < 400
    now = e.influence(run.last_round).effective[1]
    assert now > 1.5 * e.influence().effective[1]
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    assert labels.number(now) in cells(text, "clients 1 and 2")
    assert specs["Influence"]["series"][1]["values"][-1] == pytest.approx(now, rel=1e-6)
    shown = detail(tmp_path / "lost")["influence"]
    assert shown["groups"][1]["now"] == pytest.approx(now, rel=1e-5)
    assert shown["round"][-1] == run.last_round


def test_influence_is_that_of_the_experiment_with_the_sites_names(tiny, tmp_path):
    run = make(tiny, out=tmp_path / "run")
    rows = [{"site": name, "samples": 40, "parameters": 2} for name in ("north", "south", "west")]
    (tmp_path / "run" / store.SITES).write_text(json.dumps(rows))
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    curves = {one["name"]: one["values"] for one in specs["Influence"]["series"]}
    assert list(curves) == ["north", "south, west"]
    wanted = run.experiment.effective_influence(0, 60)[:, 1]
    assert curves["south, west"] == charts.plain(wanted)
    assert next(one["name"] for one in specs["What each client sent"]["series"]) == "north"
    assert "client 0" not in text


def test_names_of_the_experiment(tiny, tmp_path):
    run = make(tiny, updates=True)
    named = replace(run, experiment=replace(run.experiment, names=("north", "south", "west")))
    text, specs = read(ft.report(named, tmp_path / "page.html"))
    assert [one["name"] for one in specs["Influence"]["series"]] == ["north", "south, west"]
    audit = text.split("who contributed as declared</h3>")[1]
    assert len(cells(audit, "west")) > 3 and "loss of south" in text


def test_a_single_run_says_each_thing_once_and_lists_its_parts(tiny, tmp_path):
    run = make(tiny)
    flat = np.minimum(np.linspace(0.5, 2, 60), 0.75)  # at its best long before the end
    metrics = {"accuracy": flat, "auc": flat, "change": run.metrics["change"]}
    text, specs = read(ft.report(replace(run, metrics=metrics), tmp_path / "page.html"))
    assert text.count("After 60 rounds") == 1 and "best" not in text
    assert "accuracy 0.75; " in text or "accuracy 0.75." in text
    assert {"AUC", "Accuracy"} < set(specs) and specs["Accuracy"]["ylabel"] == ""
    for name in ("metrics", "influence", "provenance"):
        assert f'<a href="#run-{name}">' in text and f'<h3 id="run-{name}">' in text


def test_thirty_clients_fit_a_sentence_and_a_legend(tmp_path):
    problem = ft.LinearRegression(num_clients=30, dim=2, samples=40, feature_spread=1.0)
    each = [ft.Power(0.1, 0.76 + 0.008 * i, offset=5) for i in range(30)]
    run = ft.run(ft.Experiment(problem, each, rounds=20, local_steps=2, batch_size=5))
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    assert text.count("will not count") == 1 and "In the limit 29 of 30 clients" in text
    p = run.experiment.influence().effective
    assert f"from 1 (client 0) down to {p.min():.3g} (client 29)" in text
    for title in ("Influence", "What each client sent"):
        names = [one["name"] for one in specs[title]["series"]]
        assert len(names) <= 21 and names[0] == "client 0" and names[-1] == "client 29"
    assert specs["Influence"]["ylabel"] == "relative to client 0"
    assert "9 of 30 clients" in text and cells(text, "client 17")


def test_runs_of_different_problems_are_not_ranked(tiny, tmp_path):
    other = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=8)
    runs = {"a": make(tiny), "b": make(tiny, rounds=90), "c": make(other)}
    given = [replace(run, path=tmp_path / name) for name, run in runs.items()]
    text, specs = read(ft.report(given, tmp_path / "page.html"))
    ends = {n: f"{run.metrics['error'][-1]:.3g}" for n, run in runs.items()}
    lead = text.split("<nav")[0].split("</header>")[1]
    assert "2 different problems" in lead and f"{ends['a']} in a" in lead
    assert " in c" not in lead and f"({ends['c']})" not in lead
    over = [s["series"] for s in specs.values() if {one["name"] for one in s["series"]} == {*"abc"}]
    assert over and all([one["colour"] for one in series] == [0, 1, 2] for series in over)


def test_the_audit_is_on_top_and_its_columns_have_names(tiny, tmp_path):
    run = make(tiny, rounds=40, updates=True)
    text, _ = read(ft.report(run, tmp_path / "page.html"))
    lead = text.split("<nav")[0]
    kept = sum(c.verdict == "as declared" for c in ft.audit(run).clients)
    assert "Audit:" in lead and (not kept or f"{kept} of 3 clients" in lead)
    table = text.split("who contributed as declared</h3>")[1].split("</thead>")[0]
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table)
    assert len(set(heads)) == len(heads) and "declared delta" in heads
    outcomes = text.split("Outcomes</h3>")[1].split("</table>")[0]
    assert "asked" not in outcomes and '<td class="n">' in outcomes and "%" in outcomes


def test_late_updates_are_explained(tiny, tmp_path):
    e = ft.Experiment(
        tiny, ft.Power(1.0, 0.8), rounds=40, local_steps=5, batch_size=5, delays=ft.FixedDelay(10)
    )
    with pytest.warns(ft.StabilityWarning):
        run = ft.run(e, updates=True)
    text, _ = read(ft.report(run, tmp_path / "page.html"))
    assert "too large for the delays" in text and "Updates are late" in text


def test_settings_that_cannot_be_run_do_not_say_so(tmp_path):
    torch = pytest.importorskip("torch")
    data = [(np.ones((6, 2), "float32"), np.ones((6, 1), "float32")) for _ in range(2)]
    problem = ft.Custom(
        lambda model, x, y: ((model(x) - y) ** 2).mean(), lambda: torch.nn.Linear(2, 1), data
    )
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=3, local_epochs=1, batch_size=3)
    ft.run(e, out=tmp_path / "own")
    text, _ = read(ft.report(tmp_path / "own", tmp_path / "page.html"))
    assert "fedtaper run config.toml" not in text and "ft.load(folder, problem=problem)" in text


def test_many_seeds_several_runs(tiny, tmp_path):
    many = make(tiny, seeds=range(7), out=tmp_path / "many")
    longer = make(tiny, rounds=90, out=tmp_path / "longer")
    text, specs = read(ft.report([many, tmp_path / "longer"], tmp_path / "page.html"))
    over = {one["name"]: one for one in specs["Distance to w*(p_n)"]["series"]}
    middle = np.median(many.metrics["error"], axis=0)
    assert over["many"]["values"] == charts.plain(middle)
    assert over["longer"]["x"] == list(range(1, 91))
    last = np.quantile(many.metrics["error"][:, -1], [0.5, 0.1, 0.9])
    assert cells(text, "distance to w*(p_n)") == [labels.number(v) for v in last]
    row = cells(text, "longer")
    assert row[:2] == ["90", "1"] and labels.number(longer.metrics["error"][-1]) in row
    bars = ft.intervals(longer).rows()
    shown = text.split("Error bars</h3>")[2]  # that of the second run
    assert cells(shown, bars[1][0]) == bars[1][1:] and "loss of client 0" in shown
    differs = text.split("What differs</h2>")[1].split("</table>")[0]
    assert "rounds" in differs and "batch_size" not in differs
    assert text.index('href="#comparison"') < text.index('id="comparison"')
    twice = ft.report(
        [replace(longer, path=tmp_path / name) for name in "ab"], tmp_path / "two.html"
    )
    assert "Each run has 90 rounds and 1 seed." in read(twice)[0]


def test_numbers_are_right_aligned_under_their_heads():
    html = report_page.table(["run", "rounds", "p"], [["a", "5,000", "0.1"], ["b", "10", "–"]])
    assert re.findall(r"<th [^>]*>", html)[1:] == ['<th scope="col" class="n">'] * 2
    assert html.count('<td class="n">') == 4
    html = report_page.table(
        ["share", "interval"], [["7.9%", "661 to 670.5"], ["12 %", "1e-3 to 2"]]
    )
    assert html.count('<td class="n">') == 4


def test_a_diverged_run_is_reported_and_leaves_the_others_in_sight(tiny, tmp_path):
    bad = ft.Experiment(tiny, ft.Constant(6.0), rounds=400, local_steps=2, batch_size=5)
    with pytest.warns(ft.StabilityWarning):
        lost = ft.run(bad, seeds=range(3), out=tmp_path / "lost")
    fine = make(tiny, seeds=range(3), out=tmp_path / "fine")
    text, specs = read(ft.report([lost, fine], tmp_path / "page.html"))
    assert "lost diverged" in text and "3 of 3 seeds diverged" in text
    over = {one["name"]: one for one in specs["Distance to w*(p_n)"]["series"]}
    top = max(v for v in over["lost"]["values"] if v is not None)
    assert top <= 1e3 * np.max(fine.metrics["error"])
    (finite,) = np.flatnonzero(np.isfinite(lost.metrics["train_loss"]).any(axis=0))[-1:]
    assert f"After round {lost.round[finite]:,}, the last with finite numbers" in text
    some = replace(lost, diverged=lost.diverged[:2])
    some.metrics["error"][2] = some.metrics["error_limit"][2] = fine.metrics["error"][2][-1]
    text, _ = read(ft.report([some, fine], tmp_path / "page.html"))
    assert "2 of 3 seeds diverged" in text and "some seeds of lost diverged" in text
    assert cells(text, "lost")[1] == "1 of 3" and "Without the seeds that diverged" in text
    cut = make(tiny, rounds=1)
    assert ft.report(cut, tmp_path / "one.html").is_file()


def test_a_model_beyond_numbers_is_no_outcome(tiny, tmp_path):
    names = ("north", "south", "west")
    bad = ft.Experiment(
        tiny, ft.Constant(6.0), rounds=150, local_steps=2, batch_size=5, names=names
    )
    with pytest.warns(ft.StabilityWarning, match="first step size of north, south and west is"):
        run = ft.run(bad, out=tmp_path / "far")
    assert not run.diverged and not np.isfinite(run.metrics["error"][-1])
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    assert "no longer a finite number" in text and "the last with finite numbers" in text
    tables = re.findall("<td.*?</td>", text)
    assert tables and not any(re.search(r"\bnan\b|\binf\b", cell) for cell in tables)
    assert "Error bars" not in text and "Outcomes" not in text
    assert "Shared model" not in specs and "Distance to the ODE" not in specs


def test_a_client_has_one_colour_on_the_whole_page(tiny, tmp_path):
    e = ft.Experiment(
        tiny, ft.Power(0.1, 0.76, 4), rounds=100, local_steps=5, batch_size=20,
        names=("north", "south", "west"), challenges=ft.Challenges(),
        behaviours={2: ft.OtherSchedule(ft.Power(0.1, 1.0, 4))},
    )  # fmt: skip
    _, specs = read(ft.report(ft.run(e), tmp_path / "page.html"))
    grown = {one["name"]: one for one in specs["Estimated taper after each challenge"]["series"]}
    assert list(grown) == ["west", "north", "south", "declared"]  # who is accused comes first
    sent = {one["name"]: one["colour"] for one in specs["What each client sent"]["series"]}
    assert {name: grown[name]["colour"] for name in sent} == sent
    assert grown["declared"]["values"] == [0.76, 0.76] and grown["declared"]["style"] == "dashed"


def test_the_command_and_the_settings_make_the_same_run(tiny, tmp_path):
    run = make(tiny, seeds=range(2), updates=True)
    text, _ = read(ft.report(run, tmp_path / "page.html"))
    from html import unescape

    settings = unescape(re.search(r"</code>:</p><pre tabindex='0'>(.*?)</pre>", text, re.DOTALL)[1])
    (tmp_path / "config.toml").write_text(settings)
    assert "fedtaper run config.toml --seeds 2 --updates" in text
    again = ft.run(ft.read_toml(tmp_path / "config.toml"), seeds=range(2))
    np.testing.assert_array_equal(again.w, run.w)
    assert "who contributed as declared" in text and "cannot tell yet" in text


def test_fifty_runs_and_many_rounds_stay_small(tiny, tmp_path):
    shorter, run = (make(tiny, rounds=k, seeds=range(3)) for k in (2000, 5000))
    given = [replace(shorter, path=tmp_path / f"run-{i}") for i in range(50)]
    page = ft.report(given, tmp_path / "page.html")
    assert page.stat().st_size < 4e6
    single = ft.report(run, tmp_path / "single.html")
    assert single.stat().st_size < 4e5
    _, specs = read(single)
    x = specs["Distance to the optimum"]["x"]
    assert len(x) <= 400 and x[0] == 1 and x[-1] == 5000


def test_figures_for_a_paper(tiny, tmp_path):
    ft.report(make(tiny, seeds=range(3)), tmp_path / "page.html", figures=tmp_path / "figures")
    _, specs = read(tmp_path / "page.html")
    made = sorted(f.name for f in (tmp_path / "figures").iterdir())
    assert len(made) == 2 * len(specs)
    assert "run-influence.png" in made and "run-influence.svg" in made
    name = "Universitätsklinikum Hamburg-Eppendorf"
    given = tuple(charts.Curve(f"{name} {i}", [1, 2], [i, 1]) for i in range(3))
    wide = charts.Chart("names", "Names", "", given, log_x=False)
    charts.draw(wide, tmp_path / "names.svg")
    drawn = (tmp_path / "names.svg").read_text(encoding="utf-8")
    places = re.findall(r'<text[^>]* x="([\d.]+)"[^>]*>Univ', drawn)
    assert len(places) == 3
    assert len(set(places)) == 1  # below one another: beside, they leave the page
    assert b"<svg" in (tmp_path / "figures/run-influence.svg").read_bytes()


def test_drawing_leaves_the_users_matplotlib_alone(tmp_path):
    code = (
        "import matplotlib, sys; matplotlib.use('svg')\n"
        "from fedtaper.show import style\n"
        f"with style.figure({str(tmp_path / 'a.png')!r}) as axes: axes[0, 0].plot([1, 2])\n"
        "assert matplotlib.get_backend() == 'svg' and 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams['font.size'] == 10\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_log_axes_and_curves_that_coincide(tmp_path):
    with style.figure(tmp_path / "a.png") as axes:
        axes[0, 0].plot([1, 2, 3, 4, 5], [1, 2, 3, 4, 5e6])
        style.rounds_axis(axes[0, 0])
        style.log_axis(axes[0, 0])
        axes[0, 0].set_xlim(1, 5)
        axes[0, 0].figure.canvas.draw()
        assert [t.get_text() for t in axes[0, 0].get_xticklabels()] == ["1", "2", "3", "4", "5"]
    shared = style.coinciding({"a": [1.0, np.nan], "b": [1.01, np.nan], "c": [1.1, np.nan]})
    assert shared == {"a": "a, b", "c": "c"}
    assert style.smoothed(np.array([0.0, 2.0, 0.0, 2.0]), 2)[1:] == pytest.approx([1, 1, 1])


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    tiny = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
    runs = [make(tiny, rounds=100, seeds=range(3), updates=True), make(tiny, rounds=5)]
    named = [replace(r, path=folder / n) for r, n in zip(runs, ("long", "short"), strict=True)]
    return ft.report(named, folder / "page.html")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(page, watched, width, dark):
    expect = pytest.importorskip("playwright.sync_api").expect
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    view = watched(width, dark)
    view.goto(page.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    places = view.locator("[data-chart]")
    for number in range(places.count()):
        places.nth(number).scroll_into_view_if_needed()
    expect(view.locator("[data-chart]:not([data-drawn])")).to_have_count(0)
    assert view.locator(".chart canvas").count() == places.count() > 8
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(view)
    assert found.violations_count == 0, found.generate_report()


def test_the_contents_and_the_theme_by_keyboard(page, watched):
    expect = pytest.importorskip("playwright.sync_api").expect
    view = watched()
    view.goto(page.as_uri())
    view.locator("#theme").focus()
    view.keyboard.press("Enter")
    assert view.evaluate("document.documentElement.dataset.theme") == "dark"
    view.get_by_role("link", name="short").focus()
    view.keyboard.press("Enter")
    expect(view.locator("#short")).to_be_in_viewport()
