"""The site is built without a warning and documents every public name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedtaper as ft

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
from sphinx.util.inventory import InventoryFile

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    where = ["-d", str(out / "pages"), str(ROOT / "docs"), str(out / "html")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *where],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out / "html"


def test_every_public_name_is_in_the_reference(site):
    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    kinds = ("py:class", "py:function", "py:exception", "py:data")
    named = {
        name.removeprefix("fedtaper.")
        for kind in kinds
        for name in found.data.get(kind, {})
        if name.count(".") == 1 and name.startswith("fedtaper.")
    }
    assert named == set(ft.__all__)


def test_every_public_name_says_what_it_is(site):
    """One with no docstring of its own would show an inherited or an empty one."""
    index = (site / "reference/index.html").read_text(encoding="utf-8")
    assert "Other names" not in index
    for name in set(ft.__all__) - {"__version__", "PRESETS"}:
        thing = getattr(ft, name)
        own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
        assert own and not own.startswith(f"{name}("), name


def test_a_button_of_a_page_leads_to_its_source(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"github.com/fedtaper/fedtaper/(?:blob|edit)/main/([^\"?#]+)", text):
            known = not path.startswith(("docs/reference/", "docs/claims/"))
            assert known and (ROOT / path).exists(), f"{page.name}: {path}"


def test_code_in_the_list_of_names_is_as_it_is(site):
    text = re.sub(r"<[^>]*>", "", (site / "reference/index.html").read_text(encoding="utf-8"))
    assert "a_n = c / (n + offset)**delta" in text and "\\*" not in text


def test_the_command_reference_has_no_escapes(site):
    text = re.sub(r"<[^>]*>", "", (site / "reference/commands.html").read_text(encoding="utf-8"))
    assert "[required]" in text and "\\[" not in text
    assert 'fedtaper plan "client 0 counts 10x" --clients' in text.replace("&quot;", '"')


def test_the_gallery_is_sorted_and_says_each_family_once(site):
    text = (site / "claims/index.html").read_text(encoding="utf-8")
    table = text[text.index("<table") : text.index("</table>")]
    ids = re.findall(r">([A-Z]\d+)</span>", table)
    for family in ("A", "O"):
        mine = [one for one in ids if one.startswith(family)]
        assert len(mine) > 2 and mine == sorted(mine)
    assert table.count("Regression, at the paper") == 1
    assert re.search(r"<th[^>]*><p>what it says</p></th>", table)


def test_a_reproduced_claim_has_no_nearest_setting(site):
    text = (site / "claims/challenges.html").read_text(encoding="utf-8")
    assert "earest setting that shows it" not in text and "Note: " in text


def test_every_figure_is_in_the_gallery(site):
    pictures = {path.name for path in (site / "_images").iterdir()}
    ledgers = list((ROOT / "results").glob("*/claims.json"))
    assert len(ledgers) > 5
    for path in ledgers:
        page = (site / "claims" / f"{path.parent.name}.html").read_text(encoding="utf-8")
        for claim in json.loads(path.read_text())["claims"]:
            assert claim["verdict"] in page
            assert set(claim["figures"]) <= pictures
