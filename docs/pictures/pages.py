"""Takes the pictures of the report and of the live page: python docs/pictures/pages.py."""

import io
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import fedtaper as ft
from fedtaper.auditing.history import histories
from fedtaper.show import evidence

HERE = Path(__file__).parent
SITES = ("north", "south", "west", "east", "coast")
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 780}
COLOURS = 96  # of a picture: a page has few
FADING = range(1, 7)  # the clients whose sliders the animation moves
COMPARED = ("equal", "north-counts-10x", "others-fade")


def main() -> None:
    """All pictures, from runs in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as started:
        folder = Path(place) / "runs"
        runs(folder)
        tutorial(Path(place))
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = ft.report([folder / name for name in COMPARED], Path(place) / "report.html")
        for name, size, dark in (
            ("", WIDE, False),
            ("-dark", WIDE, True),
            ("-narrow", NARROW, False),
        ):
            view = opened(browser, size, dark)
            view.goto(page.as_uri())
            view.wait_for_selector(".chart canvas, [data-chart]", state="attached")
            shoot(view, f"report{name}")
        with served(folder) as address:
            for size in (WIDE, NARROW):
                for dark in (False, True):
                    live(
                        opened(browser, size, dark), address, ("", "-narrow")[size is NARROW], dark
                    )
            animation(opened(browser, {"width": 1280, "height": 824}, False), address)
        browser.close()


def runs(folder: Path) -> None:
    """Three runs to compare, one with many seeds, one with two sites that cheat, and claims."""
    problem = ft.LinearRegression(num_clients=5, seed=1)
    slow, fast = ft.Power(0.05, 0.76, 4), ft.Power(0.05, 1.0, 4)
    tenth = ft.Power(0.005, 0.76, 4)
    for name, others in zip(COMPARED, (slow, tenth, fast), strict=True):
        e = ft.Experiment(problem, [slow] + [others] * 4, rounds=600, local_steps=5, names=SITES)
        ft.run(e, out=folder / name, progress=False)
    e = ft.Experiment(problem, slow, rounds=300, local_steps=5, names=SITES)
    ft.run(e, seeds=range(20), out=folder / "twenty-seeds", progress=False)
    cheats = {1: ft.OtherSchedule(fast), 4: ft.Idle()}
    e = replace(e, batch_size=20, challenges=ft.Challenges(), behaviours=cheats)
    ft.run(e, out=folder / "two-cheat", progress=False)
    results = HERE.parents[1] / "results/regression"
    shutil.copytree(results, folder / "claims")


def tutorial(folder: Path) -> None:
    """The two figures of the tutorial, by the code that it shows."""
    problem = ft.LinearRegression(num_clients=3, seed=4)
    plan = ft.plan(
        target=[10, 1, 1], rounds=400, local_steps=5, problem=problem, offset=None, names=SITES[:3]
    )
    run = ft.run(plan.experiment, progress=False)
    ft.report(run, folder / "first.html", figures=folder / "figures")
    small(folder / "figures/run-influence.png", HERE / "tutorial-influence.png")
    tired = ft.OtherSchedule(ft.Power(c=0.01, delta=1.0, offset=3))
    e = replace(plan.experiment, challenges=ft.Challenges(), behaviours={2: tired})
    evidence.draw(histories(ft.run(e, progress=False)), folder / "evidence.png")
    small(folder / "evidence.png", HERE / "tutorial-evidence.png")


def small(drawn: Path, path: Path) -> None:
    """The figure in few colours."""
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


@contextmanager
def served(folder: Path):
    """The live page's address."""
    words = [sys.executable, "-m", "fedtaper", "ui", str(folder), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().split()[1]
        finally:
            server.send_signal(signal.SIGINT)


def opened(browser, size, dark):
    """A page of that size."""
    scheme = "dark" if dark else "light"
    return browser.new_context(viewport=size, color_scheme=scheme).new_page()


def live(view, address: str, suffix: str, dark: bool) -> None:
    """The four parts of the live page."""
    name = suffix + "-dark" * dark
    view.goto(address)
    view.wait_for_selector("tbody input")
    for box in view.locator("tbody input").all():
        box.set_checked(box.get_attribute("data-run") in COMPARED)
    view.wait_for_function("() => document.querySelectorAll('.runs .head').length === 3")
    shoot(view, f"ui-runs{name}")
    go(view, "Studio")
    view.get_by_label("Paper’s case").select_option(label="Case 3: one client counts")
    settled(view)
    shoot(view, f"ui-studio{name}")
    go(view, "Claims")
    view.locator("summary").first.click()
    shown = "() => document.images.length && [...document.images].every((one) => one.complete)"
    view.wait_for_function(shown)
    shoot(view, f"ui-claims{name}")
    go(view, "Audit")
    view.get_by_label("Run").select_option("two-cheat")
    view.wait_for_selector("[data-client] canvas")
    shoot(view, f"ui-audit{name}")


def animation(view, address: str) -> None:
    """Clients' sliders move from delta 0.76 to 1, one step a frame."""
    view.goto(address)
    go(view, "Studio")
    settled(view)
    frames = []
    for delta in (0.76, 0.81, 0.86, 0.91, 0.96, 1.0):
        for i in FADING:
            view.get_by_label(f"delta of client {i}").fill(str(delta))
        settled(view)
        frames.append(picture(view).resize((885, 570), Image.Resampling.LANCZOS))
    first, *rest = [frame.quantize(COLOURS, Image.Quantize.MAXCOVERAGE) for frame in frames]
    times = [900] * len(rest) + [1800]
    first.save(
        HERE / "studio.gif",
        save_all=True,
        append_images=rest,
        duration=times,
        loop=0,
        optimize=True,
    )


def go(view, part: str) -> None:
    """To another part of the page."""
    view.get_by_role("link", name=part, exact=True).click()
    view.wait_for_selector(f"h1:text-is('{part}')")


def settled(view) -> None:
    """Wait until the studio has drawn what its sliders say."""
    view.wait_for_timeout(100)
    view.locator(".drawn[aria-busy=false]").wait_for()


def picture(view) -> Image.Image:
    """What the window shows, with nothing in focus."""
    view.evaluate("document.activeElement.blur()")
    view.evaluate("scrollTo(0, 0)")
    view.mouse.move(0, 0)
    view.wait_for_timeout(400)
    return Image.open(io.BytesIO(view.screenshot())).convert("RGB")


def shoot(view, name: str) -> None:
    """Write a picture, in few colours."""
    picture(view).quantize(COLOURS).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
