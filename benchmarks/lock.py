"""Writes requirements-lock.txt: every package that CI installs, with its hash.

``python -m pip install --dry-run --ignore-installed --report report.json --constraint
constraints.txt '.[all]' --group dev`` resolves; ``python benchmarks/lock.py report.json`` writes.
Hashes are those of the wheels for the platform that resolved (Linux x86-64, Python 3.11). PyTorch
is pinned without a hash, since its CPU builds come from more than one index.
"""

import json
import re
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements-lock.txt"
HEAD = """# Made by benchmarks/lock.py: what make setup resolves to on Linux x86-64, Python 3.11.
# pip install --require-hashes --no-deps -r requirements-lock.txt, then torch=={torch} (its CPU
# builds come from more than one index, with hashes of their own) and fedtaper itself.
"""


def main(report):
    found, torch = [], ""
    for one in json.loads(Path(report).read_text())["install"]:
        name = re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()
        version = one["metadata"]["version"]
        sums = one["download_info"].get("archive_info", {}).get("hashes", {})
        if name == "torch":
            torch = version.partition("+")[0]
        elif name != "fedtaper":
            found.append((name, version, sums["sha256"]))
    lines = [f"{name}=={version} --hash=sha256:{sum_}" for name, version, sum_ in sorted(found)]
    LOCK.write_text(HEAD.format(torch=torch) + "\n".join(lines) + "\n")
    print(f"{len(lines)} packages in {LOCK.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
