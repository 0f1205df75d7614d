"""The live page in a real browser, with a server and runs of its own."""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedtaper as ft

RESULTS = Path(__file__).parents[1] / "results/regression"
PAGES = ["runs", "studio", "claims", "audit"]
pytestmark = pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")


def made(folder):
    """Runs of several kinds, a damaged one, and claims."""
    problem = ft.LinearRegression(num_clients=4)
    slow, fast = ft.Power(0.05, 0.76, 4), ft.Power(0.05, 1.0, 4)
    for name, schedules in {"equal": slow, "one-counts": [slow, fast, fast, fast]}.items():
        e = ft.Experiment(problem, schedules, rounds=300, local_steps=5)
        ft.run(e, out=folder / name, progress=False)
    seeded = ft.Experiment(problem, slow, rounds=100, local_steps=5)
    ft.run(seeded, seeds=range(5), out=folder / "seeds", progress=False)
    audited = ft.Experiment(problem, slow, rounds=40, local_steps=5, behaviours={3: ft.Idle()})
    ft.run(audited, updates=True, out=folder / "audited", progress=False)
    shutil.copytree(folder / "equal", folder / "damaged")
    (folder / "damaged/run.npz").write_bytes(b"PK")
    (folder / "claims").mkdir()
    for file in (RESULTS / "claims.json", RESULTS / "r1-equal-steps.png"):
        shutil.copy(file, folder / "claims")


@pytest.fixture(scope="module")
def served(browser, tmp_path_factory):
    """The folder, the address, and the server's process."""
    folder = tmp_path_factory.mktemp("ui-browser")
    made(folder)
    words = [sys.executable, "-m", "fedtaper", "ui", str(folder), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().split()[1]
        yield folder, address, server.pid
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


@pytest.fixture
def open_page(served, watched):
    """Open one part of the page: ``open_page("studio", width, dark)``."""

    def start(name="runs", width=1280, dark=False):
        page = watched(width, dark)
        page.set_default_timeout(90_000)  # a cold start compiles for a while
        page.goto(served[1])
        page.wait_for_selector("h1")
        assert "token" not in page.url
        if name != "runs":
            page.get_by_role("link", name=name.title(), exact=True).click()
        ready(page, name)
        return page

    return start


def ready(page, name):
    """Wait until everything that the page draws by itself is there."""
    page.wait_for_selector(f"h1:text-is('{name.title()}')")
    if name == "claims":
        page.locator("summary").first.click()
        page.wait_for_function(
            "() => document.images.length && [...document.images].every(i => i.naturalWidth)"
        )
    else:
        page.wait_for_selector(".chart canvas")
    if name == "studio":
        page.locator(".drawn[aria-busy=false]").wait_for()


def choose(page, *names):
    """Exactly these runs."""
    for box in page.locator("tbody input").all():
        box.set_checked(box.get_attribute("data-run") in names)
    page.wait_for_function(
        "n => document.querySelectorAll('.runs .head').length === n", arg=len(names)
    )


def last_round(page, chart="metric error"):
    """The last round of a chart's curves, read with the keyboard."""
    plot = page.locator(f"[data-chart='{chart}'] .chart-plot")
    plot.focus()
    page.keyboard.press("End")
    said = page.locator(f"[data-chart='{chart}'] [aria-live]").text_content()
    return int(re.match(r"round ([\d,]+):", said)[1].replace(",", ""))


def test_pick_runs_and_compare(open_page, served):
    page = open_page()
    states = dict(
        zip(
            *(page.locator(f"tbody tr {s}").all_text_contents() for s in (".pick", ".state")),
            strict=True,
        )
    )
    assert states.pop("damaged") == "damaged" and set(states.values()) == {"finished"}
    choose(page, "equal", "one-counts")
    chart = page.locator("[data-chart='metric error']")
    chart.wait_for()
    names = chart.locator(".legend button").all_text_contents()
    assert sorted(names) == ["equal", "one-counts"]
    for row, name in enumerate(names):
        end = ft.load(served[0] / name).metrics["error"][-1]
        assert float(chart.locator(".legend .value").nth(row).text_content()) == pytest.approx(
            end, rel=1e-3
        )
    assert page.locator("[data-chart^=influence]").count() == 2
    choose(page, "damaged")
    page.locator(".head .trouble").wait_for()
    page.get_by_label("Filter").fill("seed")
    assert page.locator("tbody .pick").all_text_contents() == ["seeds"]


def test_a_run_is_started_grows_is_stopped_and_goes_on(open_page, served):
    page = open_page("studio")
    for name in ("Rounds", "Local steps per round", "Batch", "Number of clients"):
        page.get_by_label(name).press("End")
    page.get_by_text("too much work").wait_for()
    drawn(page, lambda: None)
    page.get_by_label("Name").fill("live")
    page.get_by_role("button", name="Run it").click()
    page.get_by_role("link", name="live").click()
    page.get_by_role("heading", name="live").wait_for()
    stop, resume = (page.get_by_role("button", name=f"{word} live") for word in ("Stop", "Resume"))
    page.locator("[data-chart='metric error'] canvas").wait_for()
    first = last_round(page)
    grown(page, first)
    stop.click()
    resume.wait_for()
    assert page.locator(".head .state").text_content() == "unfinished"
    assert not (served[0] / "live/run.npz").exists()
    first = last_round(page)
    resume.click()
    stop.wait_for()
    grown(page, first)
    stop.click()
    resume.wait_for()


def grown(page, first):
    end = time.monotonic() + 90  # a busy machine writes a checkpoint every 20 s at the latest
    while last_round(page) <= first:
        assert time.monotonic() < end, "the curve does not grow"
        page.wait_for_timeout(200)


def table(page, name):
    """A table's rows, a list of texts each."""
    rows = page.get_by_role("region", name=name).locator("tbody tr").all()
    return [row.locator("th, td").all_text_contents() for row in rows]


def drawn(page, act):
    """Do something that makes the studio draw anew, and wait until it has."""
    act()
    page.wait_for_timeout(50)
    page.locator(".drawn[aria-busy=false]").wait_for()


def near(text, value):
    return float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)


def test_sliders_show_what_the_library_computes(open_page):
    page = open_page("studio")
    drawn(
        page,
        lambda: page.get_by_label("Paper’s case").select_option(label="Case 3: one client counts"),
    )
    assert page.get_by_label("Paper’s case").input_value() == "Case 3: one client counts"
    slider = page.get_by_label("delta of client 1")
    drawn(page, lambda: [slider.press("ArrowLeft") for _ in range(8)])
    rows = table(page, "Clients")
    delta = float(rows[1][2])
    assert delta == 0.96 and page.get_by_label("Paper’s case").input_value() == ""
    problem = ft.LinearRegression()
    schedules = [ft.Power(0.1, 0.76), ft.Power(0.1, delta), *[ft.Power(0.1, 1.0)] * 8]
    e = ft.Experiment(problem, schedules, rounds=5000, local_steps=5)
    for row, p, limit in zip(rows, e.influence().effective, e.limit_influence, strict=True):
        assert near(row[3], p) and near(row[5], limit)
    run = ft.run(e)
    ends = dict(table(page, "Where the model ends"))
    assert near(ends["Its distance to w*(p_n)"], run.metrics["error"][-1])
    assert near(ends["Its distance to w*(p)"], run.metrics["error_limit"][-1])
    legend = page.locator("[data-chart=influence] .legend li")
    far = ft.influence(schedules, n=1e12)
    shown = {
        li.locator("button").text_content(): li.locator(".value").text_content()
        for li in legend.all()
    }
    assert list(shown) == ["client 0", "client 1", "clients 2 to 9"]
    assert near(shown["client 1"], far[1])


def test_goals_and_influence_sliders(open_page):
    page = open_page("studio")
    drawn(page, lambda: page.get_by_role("button", name="Find influences").click())
    page.get_by_text("Certificate").wait_for()
    drawn(page, lambda: None)
    wanted = ft.fair(ft.LinearRegression(), "minmax").p
    shares = [float(row[4].removesuffix(" %")) / 100 for row in table(page, "Clients")]
    assert shares == pytest.approx(wanted, abs=3e-3)
    assert page.get_by_label("Influence of client 0").is_visible()


def test_a_certificate_goes_when_the_settings_change(open_page):
    page = open_page("studio")
    drawn(page, lambda: page.get_by_role("button", name="Find influences").click())
    page.get_by_text("Certificate").wait_for()
    drawn(page, lambda: page.get_by_label("Influence of client 0").press("ArrowRight"))
    assert page.get_by_text("Certificate").count() == 0


def test_an_edit_survives_other_sliders(open_page):
    page = open_page("studio")
    influence, steps = (
        page.get_by_label(name, exact=True) for name in ("Influence", "c and delta")
    )
    first = page.get_by_label("c of client 1", exact=True)

    def shown(name):
        return float(page.locator(f"output[for={name}]").text_content())

    drawn(page, influence.check)
    drawn(page, lambda: page.get_by_label("Influence of client 1").fill("-1"))  # the slider's log
    drawn(page, lambda: page.get_by_label("delta of all clients").fill("0.9"))
    drawn(page, steps.check)
    assert shown("c-1") == pytest.approx(0.1 * shown("c-0"))
    assert shown("delta-0") == shown("delta-1") == 0.9
    drawn(page, lambda: first.fill("-1.3"))
    drawn(page, lambda: page.get_by_label("delta of client 2", exact=True).fill("0.8"))
    drawn(page, influence.check)
    assert shown("p-1") == pytest.approx(10**-1.3 / shown("c"), rel=1e-2) and shown("c") == 0.1
    drawn(page, steps.check)
    assert shown("c-1") == pytest.approx(10**-1.3, rel=1e-2) and shown("delta-2") == 0.8


def test_the_list_names_values_as_the_charts_do(open_page):
    page = open_page("runs")
    line = page.locator("tbody tr", has_text="one-counts")
    assert "Distance to w*(p_n)" in line.text_content() and " error " not in line.text_content()


def test_what_is_copied_runs(open_page, served):
    page = open_page("studio")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    drawn(page, lambda: page.get_by_label("Rounds").press("PageDown"))
    texts = {}
    for kind in ("TOML", "Python"):
        page.get_by_role("button", name=f"Copy as {kind}").click()
        page.get_by_text(f"Copied as {kind}.").wait_for()
        texts[kind] = page.evaluate("navigator.clipboard.readText()")
    names = {}
    exec(texts["Python"], names)
    error = names["run"].metrics["error"][-1]
    assert ft.from_toml(texts["TOML"]) == names["experiment"]
    assert near(dict(table(page, "Where the model ends"))["Its distance to w*(p_n)"], error)
    page.get_by_label("Name").fill("copied")
    page.get_by_role("button", name="Run it").click()
    page.get_by_role("link", name="copied").click()
    page.locator("tbody tr", has_text=re.compile("^copiedfinished")).wait_for()
    assert ft.load(served[0] / "copied").metrics["error"][-1] == error


def test_claims_and_audit(open_page):
    page = open_page("claims")
    assert page.get_by_text("R1 reproduced").is_visible()
    assert page.get_by_text("5 of 9 claims reproduced.").is_visible()
    page.get_by_role("link", name="Audit", exact=True).click()
    page.get_by_label("Run").select_option("audited")
    page.locator("strong", has_text="1 of 4 clients does not do what it declared.").wait_for()
    assert [row[1] for row in table(page, "Verdicts")][3] == "idle"
    assert page.locator("[data-client]").count() == 3  # of the idle one there is no estimate


def test_an_audit_that_accuses_nobody(open_page):
    page = open_page("claims")
    page.get_by_role("link", name="Audit", exact=True).click()
    page.get_by_label("Run").select_option("one-counts")
    page.locator("strong", has_text=re.compile("Nobody|cannot tell")).wait_for()
    assert "since round" not in page.locator("[aria-label='Verdicts'] thead").text_content()
    for chart in page.locator("[data-client]").all():  # drawn from the first estimate on
        chart.locator(".chart-plot").focus()
        page.keyboard.press("Home")
        said = chart.locator("[aria-live]").text_content()
        assert re.search(r"estimate-?\d", said), said


def test_names_are_not_broken_where_there_is_little_room(open_page):
    page = open_page(width=390)
    choose(page, "equal", "damaged", "seeds", "audited")
    place = page.get_by_label("Last values of the chosen runs")
    place.wait_for()
    lines = """nodes => nodes.map(node => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return [node.textContent, range.getClientRects().length];
    })"""
    found = place.locator("tbody th").evaluate_all(lines)
    assert dict(found) == dict.fromkeys(("equal", "damaged", "seeds", "audited"), 1)


def test_a_slow_audit_does_not_replace_a_later_one(open_page):
    page = open_page("claims")
    page.get_by_role("link", name="Audit", exact=True).click()
    held = []
    page.route("**/api/audit?id=one-counts", lambda route: held.append(route))  # noqa: PLW0108 - no builtin
    page.get_by_label("Run").select_option("one-counts")
    page.wait_for_timeout(100)
    page.get_by_label("Run").select_option("audited")
    words = page.locator("strong", has_text="1 of 4 clients does not do what it declared.")
    words.wait_for()
    with page.expect_response("**/api/audit?id=one-counts"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert words.is_visible()


CUT = """() => [...document.querySelectorAll('main *, header *')].filter(node => {
  const scrolls = '.visually-hidden, .u-wrap, .table, pre, .each, .legend';
  if (!node.checkVisibility() || node.closest(scrolls)) return false;
  const hides = getComputedStyle(node).overflowX !== 'visible';
  const wide = node.scrollWidth > node.clientWidth + 1;
  const field = ['INPUT', 'SELECT'].includes(node.tagName);
  return node.getBoundingClientRect().right > innerWidth + 0.5 || (hides && wide && !field);
}).map(node => node.outerHTML.slice(0, 120))"""
SCROLLED = """() => [...document.querySelectorAll('.table')].filter(node =>
  node.scrollWidth > node.clientWidth + 1).map(node => node.getAttribute('aria-label'))"""
OVERLAP = """() => {
  const kinds = 'button, a:not(.skip), input, select, label, output, summary, .state, '
    + '.chart-title, .chart-unit, h1, h2, h3, p.note';
  const parts = [...document.querySelectorAll(kinds)].filter(node =>
    node.checkVisibility() && !node.closest('.each, .table'));
  const boxes = parts.map(node => [node, node.getBoundingClientRect()])
    .filter(([, b]) => b.width && b.height);
  const out = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([two, b]) => {
    if (one.contains(two) || two.contains(one)) return;
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) out.push([one.outerHTML.slice(0, 90), two.outerHTML.slice(0, 90)]);
  }));
  return out;
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overlaps_or_is_cut(open_page, width):
    page = open_page(width=width)
    for name in PAGES:
        page.get_by_role("link", name=name.title(), exact=True).click()
        ready(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(CUT) == [], name
        assert page.evaluate(OVERLAP) == [], name
        assert page.evaluate(SCROLLED) == [], name  # no table needs to be pushed to and fro


@pytest.mark.parametrize("dark", [False, True])
def test_accessible(open_page, dark):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(dark=dark)
    for name in PAGES:
        page.get_by_role("link", name=name.title(), exact=True).click()
        ready(page, name)
        rules = {"runOnly": ["color-contrast"]} if dark else {}
        found = axe.run(page, options=rules).response["violations"]
        assert [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found] == [], name


def test_keyboard_alone(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

    def tab_to(test, most=60):
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(f"(() => {{ const n = document.activeElement; return {test}; }})()"):
                return
        raise AssertionError(f"Tab does not reach {test}")

    chosen = "document.querySelectorAll('.runs .head').length"
    before = page.evaluate(chosen)
    tab_to("n.dataset.run === 'one-counts'")
    page.keyboard.press("Space")
    page.wait_for_function(f"() => {chosen} !== {before}")
    page.keyboard.press("Space")
    tab_to("n.classList.contains('chart-plot')")
    page.keyboard.press("Home")
    assert page.locator(".chart [aria-live]").first.text_content().startswith("round 1:")
    page.keyboard.press("Control+Home")
    page.evaluate("document.querySelector('nav a').focus()")
    tab_to("n.textContent === 'Studio'")
    page.keyboard.press("Enter")
    ready(page, "studio")
    tab_to("n.id === 'c-0'")
    drawn(page, lambda: page.keyboard.press("ArrowRight"))
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    tab_to("n.textContent === 'Run it'", 80)


def test_ctrl_c_with_an_open_page_is_quiet(browser, tmp_path):
    words = [sys.executable, "-m", "fedtaper", "ui", str(tmp_path), "--port", "0", "--no-browser"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **how) as server:
        context = browser.new_context()
        page = context.new_page()
        with page.expect_response("**/api/events*"):
            page.goto(server.stdout.readline().split()[1])
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0 and server.stderr.read() == ""
        page.get_by_role("alert").get_by_text("still running?").wait_for()
        context.close()


def test_without_the_token_nothing_is_shown(served, browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(served[1].split("#")[0])
    page.get_by_text("This page is locked").wait_for()
    assert page.locator("table").count() == 0
    context.close()


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.timed
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_idle_page_costs_under_one_percent(open_page, served):
    page = open_page()
    page.wait_for_timeout(1500)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy():
        found = session.send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in found if m["name"] == "TaskDuration")

    before = cpu(served[2]), busy()
    page.wait_for_timeout(4000)
    assert cpu(served[2]) - before[0] <= 0.04
    assert busy() - before[1] < 0.04
