"""The documentation site: ``make docs`` builds it, and warnings are errors."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent  # what is imported below lies in these two
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "src"))  # the tree that is documented, installed or not

from _site import claims, commands, names

from fedtaper import __version__

project = "fedtaper"
author = "the fedtaper developers"
copyright = f"2025, {author}"
release = version = __version__
SOURCE = "https://github.com/fedtaper/fedtaper/blob/main"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
smartquotes_action = "qe"  # quotes and ellipses: a dash made of "--" would change an option
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nitpicky = False  # types of NumPy, torch and Flower are not links here

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Array": "Array"}
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "fedtaper"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_theme_options = {"source_repository": "https://github.com/fedtaper/fedtaper/",
                      "source_branch": "main", "source_directory": "docs/"}  # fmt: skip


def outside_links(app, page, source):
    """Links that leave docs/ lead to the repository; pictures are taken from where they are."""
    up = r"\.\./" * (page.count("/") + 1)
    plain = rf"(?<!!)(\[[^\]]*\])\({up}(?!docs/)([^)\s]*)\)"
    text = re.sub(rf"\({up}CONTRIBUTING\.md\)", f"({'../' * page.count('/')}contributing.md)",
                  source[0])  # fmt: skip
    source[0] = re.sub(plain, rf"\1({SOURCE}/\2)", text)


def stars(app, what, name, thing, options, lines):
    """A star in a docstring is part of a symbol, as in w*, and no emphasis."""
    lines[:] = [
        line if line.lstrip().startswith((">>>", "...")) else re.sub(r"(``.*?``)|\*", escaped, line)
        for line in lines
    ]


def escaped(found):
    """A literal as it is, a star with a backslash."""
    return found[1] or r"\*"


def buttons(app, page, template, context, tree):
    """Pages made at build time have no source to view or edit: a button would lead nowhere."""
    if page.startswith(("reference/", "claims/")):
        context["theme_top_of_page_buttons"] = []


def setup(app):
    """Pages made at build time, then the links."""
    app.connect("builder-inited", lambda _: names.write(HERE / "reference"))
    app.connect("builder-inited", lambda _: commands.write(HERE / "reference"))
    app.connect("builder-inited", lambda _: claims.write(HERE / "claims", HERE.parent / "results"))
    app.connect("source-read", outside_links)
    app.connect("html-page-context", buttons)
    app.connect("autodoc-process-docstring", stars, priority=400)  # before Google's style is read
    return {"parallel_read_safe": True}
