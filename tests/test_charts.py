"""The chart module, in a real browser; what is vendored is what was published."""

import hashlib
import math
from itertools import pairwise
from pathlib import Path

import pytest

import fedtaper.show

STATIC = Path(fedtaper.show.__file__).parent / "static"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="vendor/uPlot.min.css"><link rel="stylesheet" href="style.css">
<link rel="icon" href="data:,"><script src="vendor/uPlot.iife.min.js"></script></head><body><main>
<button id="theme"></button><div id="here"></div></main>
<script type="module">import * as charts from "./charts.js"; window.charts = charts;
charts.themeButton(document.getElementById("theme"));</script></body></html>"""
KINDS = {".js": "text/javascript", ".css": "text/css"}
SPEC = {
    "title": "Distances",
    "xlabel": "round",
    "ylabel": "distance",
    "logX": True,
    "logY": True,
    "x": [1, 10, 100, 1000],
    "series": [
        {"name": "error", "values": [8, 4, 2, 1], "low": [7, 3, 1, 0.5], "high": [9, 5, 3, 2]},
        {"name": "limit", "values": [5, 5, None, 0], "style": "dashed"},
        {"name": "north", "x": [1, 1000], "values": [3, 6]},
    ],
}


def test_vendored_files_are_as_published():
    vendor = STATIC / "vendor"
    listed = dict(
        reversed(line.split()) for line in (vendor / "SHA256SUMS").read_text().splitlines()
    )
    found = {f.name: f for f in vendor.iterdir() if f.name != "SHA256SUMS"}
    assert set(listed) == set(found) == {"uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css"}
    for name, file in found.items():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == listed[name]


def serve(route):
    path = route.request.url.split("/", 3)[3]
    if not path:
        return route.fulfill(body=PAGE, content_type="text/html")
    file = STATIC / path
    return route.fulfill(body=file.read_bytes(), content_type=KINDS[file.suffix])


@pytest.fixture
def drawn(watched):
    def draw(width=1280, spec=SPEC):
        page = watched(width)
        page.route("http://127.0.0.1/**", serve)
        page.goto("http://127.0.0.1/")
        page.wait_for_function("window.charts !== undefined")
        page.evaluate("s => window.made = charts.chart(document.getElementById('here'), s)", spec)
        return page

    return draw


def values(page):
    return page.locator(".legend .value").all_text_contents()


def test_numbers_and_ticks(drawn):
    page = drawn()
    shown = page.evaluate("[0, 0.088, 12345, 1e-9, 3.2e38, 1e12, null, -1].map(charts.format)")
    assert shown == ["0", "0.088", "12,345", "10⁻⁹", "3.2·10³⁸", "10¹²", "–", "-1"]
    assert page.evaluate("charts.logTicks(1, 5)") == [1, 2, 3, 4, 5]
    assert page.evaluate("charts.logTicks(1, 20)") == [1, 2, 5, 10, 20]
    assert page.evaluate("charts.logTicks(1e-3, 1e6)") == [10.0**k for k in (-2, 0, 2, 4, 6)]
    assert page.evaluate("charts.logTicks(22, 74)") == [30, 40, 50, 60, 70]
    close = page.evaluate("charts.logTicks(2, 7)")
    steps = [b - a for a, b in pairwise(close)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_one_round_on_a_log_axis_has_no_tick_but_its_own(drawn):
    one = {"xlabel": "round", "logX": True, "x": [1], "series": [{"name": "a", "values": [3]}]}
    page = drawn(spec=one)
    assert scale(page, "x") == [0.5, 2]
    ticks = page.evaluate("made.u.axes[0]._splits")
    assert [tick for tick in ticks if tick is not None] == [1, 2]


def test_hover_and_keys_read_values(drawn):
    page = drawn()
    assert values(page) == ["1", "–", "6"]  # the last ones; 0 has no place on a log axis
    page.locator(".chart-plot").focus()
    page.keyboard.press("Home")
    assert values(page) == ["8", "5", "3"]
    assert "round 1: error8" in page.locator("[aria-live]").text_content()
    page.keyboard.press("ArrowRight")
    assert values(page) == ["4", "5", "3"]  # north has no point at 10: the one before it
    over = page.locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] * 2 / 3, over["y"] + 20)
    assert values(page)[0] == "2"
    assert "round 100" in page.locator(".chart-unit").text_content()


@pytest.mark.parametrize("width", [390, 1280])
def test_values_in_the_legend_are_whole(drawn, width):
    """Also beside names that are too long for a line."""
    names = ["w*(p_n)", "Hospital of the Municipal Area, Department of Neonatology " * 3]
    series = [{"name": name, "values": [1, 0.003508]} for name in names]
    page = drawn(width, {"xlabel": "round", "x": [1, 2], "series": series})
    assert values(page) == ["0.003508"] * 2
    cut = """() => [...document.querySelectorAll(".legend .value")].map((one) => {
      const text = document.createRange(); text.selectNodeContents(one);
      const [inner, outer, list] = [text, one, one.closest(".legend")].map(
        (part) => part.getBoundingClientRect().right);
      return inner - Math.min(outer, list);
    })"""
    assert max(page.evaluate(cut)) <= 0.5


def test_a_single_estimate_among_gaps_is_a_point(drawn):
    some = [{"name": "estimate", "values": [0.8, *[None] * 19]}]
    page = drawn(spec={"xlabel": "round", "x": list(range(1, 21)), "series": some})
    assert page.evaluate("made.u.series[1].points.show()") is True


def scale(page, axis):
    return page.evaluate(f"[made.u.scales.{axis}.min, made.u.scales.{axis}.max]")


def test_zoom_by_drag_and_back(drawn):
    page = drawn()
    over = page.locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] / 3, over["y"] + 30)
    page.mouse.down()
    page.mouse.move(over["x"] + over["width"] * 2 / 3, over["y"] + 120, steps=4)
    page.mouse.up()
    low, high = scale(page, "x")
    assert math.isclose(low, 10, rel_tol=0.1) and math.isclose(high, 100, rel_tol=0.1)
    page.evaluate("made.update({series: made.spec.series})")  # new data leaves the zoom alone
    assert scale(page, "x") == [low, high]
    page.locator(".chart-plot").focus()
    page.keyboard.press("Escape")
    assert scale(page, "x") == [1, 1000]


def test_hide_log_and_grow(drawn):
    page = drawn()
    page.get_by_role("button", name="error").click()
    assert page.evaluate("made.u.series.slice(1, 4).map(s => s.show)") == [False] * 3
    assert page.get_by_role("button", name="error").get_attribute("aria-pressed") == "false"
    assert page.evaluate("made.u.scales.y.distr") == 3
    page.get_by_role("button", name="log y").click()
    assert page.evaluate("made.u.scales.y.distr") == 1
    assert page.evaluate("made.u.series[1].show") is False  # what was hidden stays hidden
    grown = [{"name": "error", "values": [8, 4, 2, 1, 0.25]}]
    page.evaluate("s => made.update({x: [1, 10, 100, 1000, 2000], series: s})", grown)
    assert values(page) == ["0.25"]


@pytest.mark.parametrize("top", [5e-2, 40, 1e40, 1e299])  # a run that diverges has no end
def test_a_log_axis_has_ticks_however_far_it_goes(drawn, top):
    values_ = [top / 100, top / 30, top / 10, top] if top < 1e3 else [1, top**0.3, top**0.6, top]
    page = drawn(spec=SPEC | {"logY": True, "series": [{"name": "lost", "values": values_}]})
    ticks = page.evaluate("made.u.axes[1]._splits")
    assert 3 <= len(ticks) <= 10 and min(values_) * 0.5 <= ticks[0] < ticks[-1] <= 1.2 * top * 10
    powers = page.evaluate("charts.logTicks(1e-3, 1e149).map(Math.log10)")
    assert powers == pytest.approx([0, 20, 40, 60, 80, 100, 120, 140])


def test_narrow_dark_and_named(drawn):
    page = drawn(390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    label = page.locator(".chart-plot").get_attribute("aria-label")
    assert "Distances" in label and "error ends at 1" in label


def test_a_curve_without_numbers_and_no_curve(drawn):
    page = drawn(spec=SPEC | {"series": [{"name": "lost", "values": [None] * 4}]})
    assert values(page) == ["–"]
    page.evaluate("made.update({series: []})")
    page.evaluate("made.destroy()")
    assert page.locator(".chart").count() == 0
