"""Lists what fedtaper depends on, with licences: docs/development/licences.md.

``python benchmarks/licences.py`` writes the page from what is installed; ``--check`` says whether a
dependency has a licence that is not in the list of those that an Apache-2.0 project can depend on.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/development/licences.md"
KINDS = ("", "torch", "flower", "ui", "ray", "tensorboard", "mlflow")
FREE = re.compile(
    r"apache|mit\b|mit license|bsd|isc|psf|python software foundation|mpl|mozilla|zlib|unlicense"
    r"|public domain|cc0|0bsd|matplotlib|hpnd|ncsa|llvm",
    re.IGNORECASE,
)
NVIDIA = re.compile(r"^(nvidia|cuda|triton)", re.IGNORECASE)  # with PyTorch's CUDA builds only


def requirements(name):
    """What a package needs: (name, extra) pairs."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        head, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        named = re.match(r"[A-Za-z0-9._-]+", head.strip())
        asked = re.search(r"\[([^\]]+)\]", head)
        if named:
            yield named[0], asked[1].split(",") if asked else [], extra[1] if extra else ""


def closure(extra):
    """All packages that fedtaper with an extra brings along, and that are installed here."""
    found, queue = set(), [("fedtaper", {extra})]
    while queue:
        name, extras = queue.pop()
        for needed, asked, marker in requirements(name):
            if marker not in ("", *extras) or NVIDIA.match(needed):
                continue
            key = re.sub(r"[-_.]+", "-", needed).lower()
            if key == "fedtaper" or key in found or not installed(key):
                continue
            found.add(key)
            queue.append((key, {part.strip() for part in asked}))
    return found


def installed(name):
    """Whether a package is here."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def licence(name):
    """A package's licence in a few words, as it says itself."""
    about = metadata.metadata(name)
    said = about.get("License-Expression") or ""
    if not said:
        kinds = [c for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
        said = ", ".join(c.rpartition(" :: ")[2] for c in kinds)
    if not said:
        said = (about.get("License") or "not said").strip().split("\n")[0]
    return " ".join(said.split())[:70]


def main():
    rows, seen = [], set()
    for extra in KINDS:
        for name in sorted(closure(extra) - seen):
            seen.add(name)
            words = licence(name)
            mark = "" if FREE.search(words) else "look"
            rows.append((name, extra or "fedtaper", words, mark))
    lines = [f"| {name} | {extra} | {words} |" for name, extra, words, _ in rows]
    text = "\n".join([
        "# Licences of dependencies",
        "",
        "Made by `python benchmarks/licences.py` from what is installed; each package in its own",
        "words. fedtaper itself is under Apache-2.0; uPlot, which is vendored, under MIT. Packages",
        "that only tests need are not listed, nor NVIDIA's libraries, which come with PyTorch's",
        "CUDA builds.",
        "",
        "| package | comes with | licence |",
        "|---|---|---|",
        *lines,
        "",
    ])  # fmt: skip
    unknown = [row for row in rows if row[3]]
    for name, _, words, _ in unknown:
        print(f"look at {name}: {words}")
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        print(f"{len(rows)} packages in {PAGE.name}, {len(unknown)} to look at")
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
