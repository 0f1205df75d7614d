"""The gallery: every judged claim with its verdict, its numbers and its figures."""

import json
from pathlib import Path
from typing import Any

from _site import put
from fedtaper.core.tables import capital
from fedtaper.show.report_claims import beside

TITLES = {
    "regression": "Regression, at the paper's size",
    "theory": "The theorem",
    "digits": "Images: digits",
    "cifar10": "Images: CIFAR-10",
    "bloodmnist": "Images: BloodMNIST",
    "organamnist": "Images: OrganAMNIST, a subset",
    "audit": "The audit",
    "audit-digits": "The audit on digits",
    "challenges": "The audit by challenges",
    "outcomes": "Outcomes",
    "moving": "Late, rare and moving clients",
    "eeg": "Seizure detection",
}
INTRODUCTION = """# Claims and figures

What the paper claims, and what this library claims about itself, each run over many seeds and
judged by thresholds that are fixed before the run. `fedtaper reproduce CLAIM` judges one again.
The verdicts:

- **reproduced**: the data shows it;
- **not-at-this-horizon**: it is true in the limit, but not yet after so many rounds;
- **not-with-these-settings**: the data does not show it; the nearest setting that does is named.

| claim | what it says | verdict |
|---|---|---|
"""


# Only a GPU can draw these again (`fedtaper reproduce` stores verdicts, not curves).
OLD_STYLE = (
    "The curves on this page were drawn in an older style than those on the other pages: the rare "
    "class is dashed, legends lie inside the axes, and where FedNova does the same as FedAvg, its "
    "dotted line lies on the line of FedAvg.\n"
)
IN_OLD_STYLE = ("cifar10", "bloodmnist", "organamnist")


def write(folder: Path, results: Path) -> None:
    """One page for each folder of results, and an index with all verdicts."""
    index, pages = [INTRODUCTION.rstrip()], []
    found = {path.parent.name: path for path in results.glob("*/claims.json")}
    for name in sorted(found, key=lambda name: (*TITLES, name).index(name)):
        page = json.loads(found[name].read_text(encoding="utf-8"))
        title = TITLES.get(name, name)
        pages.append(name)
        rows = sorted(page["claims"], key=lambda row: row["id"])
        good = sum(row["verdict"] == "reproduced" for row in rows)
        index.append(f"| | **[{title}]({name}.md)** | {good} of {len(rows)} reproduced |")
        for row in rows:
            where = f"[{row['id']}]({name}.md#{row['id'].lower()})"
            index.append(f"| {where} | {safe(row['statement'])} | {row['verdict']} |")
        body = [f"# {title}\n", made(page["provenance"], name), *map(claim(name), rows)]
        if name in IN_OLD_STYLE:
            body.insert(2, OLD_STYLE)
        put(folder / f"{name}.md", "\n".join(body))
    order = "\n".join(pages)
    index.append(f"\n```{{toctree}}\n:hidden:\n\n{order}\n```\n")
    put(folder / "index.md", "\n".join(index))
    for old in {*folder.glob("*.md")} - {folder / f"{name}.md" for name in ("index", *pages)}:
        old.unlink()  # of results that are gone


def made(provenance: dict[str, Any], name: str) -> str:
    """How these results came about."""
    command, when = provenance.get("command", ""), str(provenance.get("time", ""))[:10]
    return (
        f"Made by `{command}` on {provenance.get('machine')}, {when}. All numbers are in "
        f"[claims.json](../../results/{name}/claims.json).\n"
    )


def claim(folder: str) -> Any:
    """A function that writes one claim of a folder."""

    def one(row: dict[str, Any]) -> str:
        numbers = [
            f"| {safe(n['name'])} | {shown(n['value'])} | {shown(n['low'])} to {shown(n['high'])} "
            f"| {safe(n['threshold'])} | {'yes' if n['passed'] else 'no'} |"
            for n in row["numbers"]
        ]
        pictures = [
            f"![{safe(row['id'])}: {safe(Path(name).stem)}](../../results/{folder}/{name})\n"
            for name in row["figures"]
        ]
        return "\n".join(
            [
                f"({folder}-{row['id'].lower()})=\n",
                f"## {row['id']}\n",
                f"*{safe(row['statement'])}*\n",
                f"**{row['verdict']}.** {safe(capital(row['summary']))}\n",
                *pictures,
                f"- Measured: {safe(row['measure'])}",
                f"- It would be refuted by: {safe(row['refuted_by'])}",
                *(f"- {what}: {safe(text)}" for what, text in [beside(row)] if text),
                "",
                "| number | value | interval | threshold | passed |",
                "|---|---:|---:|---|---|",
                *numbers,
                "",
            ]
        )

    return one


def shown(value: Any) -> str:
    """A number in a table."""
    return "" if value is None else f"{value:.3g}"


def safe(text: Any) -> str:
    """Text from a file, for Markdown."""
    out = str(text)
    for mark in ("\\", "*", "_", "|", "<", "[", "$", "^"):
        out = out.replace(mark, f"\\{mark}")
    return out
