"""Shared settings: warnings of the library are errors unless a test expects them."""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests share the cores among themselves
# Numba's cache looks at the file of the compiled function only, so it would go on with the old
# rules after a change in another file. Here it is kept apart for every state of the sources.
_SOURCES = Path(__file__).parents[1] / "src/fedtaper"
_COMPILED = ["core/draws.py", "engines/compiled.py", "theory/replayed.py"]
_COMPILED += [f"rules/{name}.py" for name in ("behaviours", "local", "server")]
_STATE = hashlib.sha256(b"".join((_SOURCES / name).read_bytes() for name in _COMPILED)).hexdigest()
os.environ.setdefault(
    "NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache/numba" / _STATE[:16])
)

import pytest  # noqa: E402

import fedtaper as ft  # noqa: E402

with suppress(ImportError):  # a machine with a GPU may have pytest alone (make test-gpu)
    from hypothesis import settings

    # a busy machine stops for half a second now and then: that is no failure
    settings.register_profile("patient", parent=settings(), deadline=None)
    settings.load_profile("patient")


@pytest.fixture
def tiny():
    """A problem small enough for the reference engine, with gentle curvature."""
    return ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium: Debian's package where it is installed, else Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
        yield opened
        opened.close()


@pytest.fixture
def watched(browser):
    """Open pages that must not complain or ask for anything from outside: ``watched(width)``."""
    complaints, contexts = [], []

    def start(width=1280, dark=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda trouble: complaints.append(str(trouble)))
        page.on("request", lambda r: None if _local(r.url) else complaints.append(r.url))
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []


def _local(url):
    return url.startswith(("file:", "data:", "blob:", "http://127.0.0.1", "http://localhost"))
