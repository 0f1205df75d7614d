"""No link of the README or of a page leads nowhere."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/development/*.md")])
MADE = ("docs/claims/", "docs/reference/")  # written when the site is built, and checked there


def anchors(text):
    """The headings as links name them."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def links(text):
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield str(target)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    text = page.read_text(encoding="utf-8")
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if str(target.relative_to(ROOT)).startswith(MADE):
            continue
        assert target.exists(), link
        if place:
            assert place in anchors(target.read_text(encoding="utf-8")), link


def test_the_page_of_findings_names_tests_that_exist():
    """And no two rows say the same."""
    text = (ROOT / "docs/development/findings.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)(?:::(test_\w+))?`", text)
    assert len(named) > 80
    for file, test in named:
        found = (ROOT / f"tests/{file}.py").read_text(encoding="utf-8")
        assert not test or f"\ndef {test}(" in found, f"{file}::{test}"
    rows = re.findall(r"^\| (?!what|---)(.+?) \|", text, flags=re.M)
    assert len(set(rows)) == len(rows) > 60
