"""How soon the live page's first view is there, with many runs in its folder."""

import asyncio
import os
import re
import signal
import subprocess
import sys

import pytest
from ui_client import opened

import fedtaper as ft
from fedtaper.ui import server, studio
from fedtaper.ui.pages import pages

ROWS = """
new MutationObserver((_, seen) => {
  if (document.querySelectorAll("tbody tr").length < 500) return;
  seen.disconnect();
  requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));
}).observe(document, { subtree: true, childList: true });
"""
PAINTED = "() => performance.getEntriesByName('painted')[0]?.startTime"


def many(folder, count):
    """One run, under so many names."""
    problem = ft.LinearRegression(num_clients=2, dim=2, samples=40, feature_spread=1.0)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=12, local_steps=2, batch_size=10)
    ft.run(e, out=folder / "run-000", progress=False)
    for k in range(1, count):
        place = folder / f"run-{k:03}"
        place.mkdir()
        for file in (folder / "run-000").iterdir():
            os.link(file, place / file.name)


def test_the_browser_is_told_all_modules_at_once():
    files = {name: text.decode() for name, (text, _) in pages().items() if name.endswith(".js")}
    wanted, left = set(), ["app.js"]
    while left:
        found = re.findall(r'from "\./([\w.]+)"', files[left.pop()])
        left += [name for name in found if name not in wanted]
        wanted |= set(found)
    page = pages()["index.html"][0].decode()
    assert set(re.findall(r'"modulepreload" href="/static/([\w.]+)"', page)) == wanted


def test_runs_are_read_before_the_page_asks_and_the_studio_compiles_later(tmp_path, monkeypatch):
    many(tmp_path, 3)
    order = []
    monkeypatch.setattr(studio, "warm_up", lambda: order.append("studio"))
    api = server.Api(tmp_path, asyncio.Event())
    monkeypatch.setattr(api._listed, "wait", lambda patience: order.append(api.runs.waiting))
    api.prepare()
    assert order == [False, "studio"] and len(api.runs.rows) == 3


def test_a_list_does_not_wait_until_all_rows_are_read(tmp_path):
    many(tmp_path, 200)
    found = opened(tmp_path).get("/api/runs").json()["runs"]
    assert len(found) == 200 and found[0]["read"]


@pytest.mark.timed
def test_the_first_view_of_500_runs_is_there_within_a_second(browser, tmp_path):
    many(tmp_path, 500)
    words = [sys.executable, "-m", "fedtaper", "ui", str(tmp_path), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            context = browser.new_context()
            page = context.new_page()
            page.add_init_script(ROWS)
            page.goto(process.stdout.readline().split()[1], wait_until="commit")
            painted = page.wait_for_function(PAINTED).json_value()
            context.close()
        finally:
            process.send_signal(signal.SIGINT)
    assert painted < 1000
