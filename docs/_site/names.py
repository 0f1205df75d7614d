"""The reference: every public name, by what it is for, from its docstring."""

import re
from pathlib import Path

import fedtaper
from _site import put

# page: its title, what is on it, and the modules whose public names it shows
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "schedules": (
        "Step sizes and influence",
        "What a client's steps are, and how much it counts because of them.",
        ("core.schedules", "core.tapers", "core.shapes", "core.scaled", "core.influence"),
    ),
    "experiments": (
        "Experiments and runs",
        "What is to be run, running it, and what came of it.",
        ("experiment", "results", "simulation", "storage"),
    ),
    "problems": (
        "Problems, data and splits",
        "What the clients minimise, and who holds what.",
        ("problems",),
    ),
    "rules": (
        "Local and server rules",
        "What clients do with a gradient, and the server with their updates.",
        (
            "rules.local", "rules.momentum", "rules.control", "rules.server", "rules.robust",
            "rules.presets", "core.rules",
        ),
    ),
    "arrivals": (
        "Absent, late and asynchronous clients",
        "Who takes part in a round, and when its update arrives.",
        (
            "core.participation", "core.patterns", "rules.delays", "rules.asynchronous",
            "rules.staleness",
        ),
    ),
    "planning": ("Planning", "From the influence you want to step sizes.", ("planning",)),
    "auditing": (
        "Auditing",
        "Who contributes as declared, and clients to test that against.",
        ("auditing", "rules.challenges", "rules.behaviours"),
    ),
    "outcomes": (
        "Outcomes",
        "Fair shares, prices, contributions, error bars.",
        ("outcomes", "rules.steering"),
    ),
    "theory": (
        "Theory",
        "The limit ODE, forecasts, tracking, bounds, stability, assumptions.",
        ("theory",),
    ),
    "reports": ("Reports", "A page about runs and claims.", ("show",)),
    "federations": ("Many machines", "A federation over Flower.", ("engines.flower", "deploy")),
    "errors": ("Errors and warnings", "What fedtaper raises and warns of.", ("core.errors",)),
}  # fmt: skip
OTHER = ("Other names", "What belongs to none of the other pages.", ())
DATA = {  # names that are values, which have no docstring of their own
    "PRESETS": "The published methods by name, each a local and a server rule to put into an "
    "experiment: `ft.Experiment(problem, schedules, rounds=100, **ft.PRESETS['fedprox'])`.",
    "__version__": "The version, as text.",
}


def grouped() -> dict[str, list[str]]:
    """The public names on each page, in the order of ``fedtaper.__all__``."""
    found: dict[str, list[str]] = {page: [] for page in PAGES}
    for name in fedtaper.__all__:
        module = fedtaper._WHERE.get(name, "fedtaper.experiment").removeprefix("fedtaper.")
        places = (
            page
            for page, (_, _, modules) in PAGES.items()
            if any(module == m or module.startswith(f"{m}.") for m in modules)
        )
        found.setdefault(next(places, "other"), []).append(name)
    return {page: names for page, names in found.items() if names}


def entry(name: str) -> str:
    """The directive that documents one name."""
    thing = getattr(fedtaper, name)
    if name in DATA:
        return f"```{{py:data}} fedtaper.{name}\n\n{DATA[name]}\n```\n"
    if isinstance(thing, type):
        kind = "autoexception" if issubclass(thing, Exception) else "autoclass"
    else:
        kind = "autofunction"
    return f"```{{eval-rst}}\n.. {kind}:: fedtaper.{name}\n```\n"


def write(folder: Path) -> None:
    """One page per group, and an index with one line for every name."""
    index = ["# Reference\n", "Every public name. `import fedtaper as ft` first.\n"]
    pages = grouped()
    if "other" not in pages:
        (folder / "other.md").unlink(missing_ok=True)  # of an earlier build
    for page, names in pages.items():
        title, about, _ = PAGES.get(page, OTHER)
        body = [f"# {title}\n", f"{about}\n", *map(entry, names)]
        put(folder / f"{page}.md", "\n".join(body))
        index += [f"## [{title}]({page}.md)\n", "| name | |", "|---|---|"]
        index += [
            f"| {{py:obj}}`ft.{name} <fedtaper.{name}>` | {summary(name)} |" for name in names
        ]
        index.append("")
    order = "\n".join(["commands", *pages, "contract"])
    index.append(f"```{{toctree}}\n:hidden:\n\n{order}\n```\n")
    put(folder / "index.md", "\n".join(index))
    put(folder / "contract.md", CONTRACT)


def summary(name: str) -> str:
    """The first sentence of a name's docstring, for a table."""
    text = DATA.get(name) or getattr(fedtaper, name).__doc__ or ""
    first = text.strip().split("\n\n")[0].replace("\n", " ")
    plain = " ".join(first.split()).replace("|", "\\|").replace("``", "`")
    plain = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", plain)  # as it is in code
    return plain.replace(":class:", "").replace(":func:", "").replace(":meth:", "")


CONTRACT = """# The contract, for authors of plug-ins

Everything that can be exchanged, as protocols in `fedtaper.core.protocols`, and the checks of
`fedtaper.testing` for an implementation of your own. [How to add things](../contributing.md) has
an example of each.

```{eval-rst}
.. automodule:: fedtaper.core.protocols.problems

.. automodule:: fedtaper.core.protocols.rules

.. automodule:: fedtaper.core.protocols.schedules

.. automodule:: fedtaper.core.protocols.engines

.. automodule:: fedtaper.testing
   :imported-members:
```
"""
