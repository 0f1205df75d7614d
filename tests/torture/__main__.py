"""``python -m torture [SHARE] [PART...]``: everything, or some parts, at full size times SHARE."""

import os
import subprocess
import sys
import time
from pathlib import Path

PARTS = {  # name of the module: how many at full size
    "kills": 500, "faults": None, "machine": 200, "files": 10_000, "folders": 2_000,
    "calls": 10_000, "commands": 1_000,
}  # fmt: skip
DEPLOYED = "flower"  # the deployed server's kills, where that part is there


def main(share="1", *chosen):
    """Run the parts one after another, each as a process of its own; the last line of each."""
    here = Path(__file__).parent
    sizes = dict(PARTS)
    if (here / f"{DEPLOYED}.py").is_file():
        sizes[DEPLOYED] = 20
    lines, failed = [], False
    for name, size in sizes.items():
        if chosen and name not in chosen:
            continue
        words = [] if size is None else [str(max(1, round(size * float(share))))]
        if size is None and float(share) < 1:
            words = [str(round(1 / float(share)))]  # every so many-th
        began = time.perf_counter()
        command = [sys.executable, "-m", f"torture.{name}", *words]
        found = subprocess.run(command, cwd=here.parent, env=os.environ, check=False,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
        print(found.stdout, end="", flush=True)
        last = found.stdout.strip().rpartition("\n")[2]
        word = "ok" if found.returncode == 0 else "FAILED"
        lines.append(f"{word} {name} ({time.perf_counter() - began:.0f} s): {last}")
        failed |= found.returncode != 0
    print("\n".join(["", *lines]))
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
