"""Kill at random instants, go on, compare bits.

``python -m torture.kills COUNT [SEED]`` makes so many kills, shared among all cases: SIGKILL and
SIGTERM in turn, of processes forked from this one, and of freshly started ones now and then.
After each kill the folder must be readable, and hold every checkpoint that was reported as saved;
in the end it must hold the bits of a run that nobody disturbed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import fedtaper as ft
from fedtaper.storage import checkpoints, store
from torture import cases, limits

FRESH = 8  # one of so many kills meets a freshly started process


def reporting(told):
    """Let this process write to ``told`` which round it has just saved."""
    real = checkpoints.save_checkpoint

    def save(out, values, *more, **how):
        real(out, values, *more, **how)
        os.write(told, b"%d " % int(values["state_round"]))

    checkpoints.save_checkpoint = save


def forked(case, out):
    """A process that works on a case: its number, and the end of a pipe to read from."""
    read, told = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(told)
        return process, read
    os.close(read)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work(case, out, told)


def started(case, out):
    """The same as a process of its own: imports are killed too."""
    read, told = os.pipe()
    words = [sys.executable, "-m", "torture.kills", "--work", case, str(out), str(told)]
    folder = Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    process = subprocess.Popen(words, pass_fds=[told], env=env, stderr=subprocess.DEVNULL)
    os.close(told)
    return process.pid, read


def work(case, out, told):
    """All that a process does: it ends with 0, with 3 where it was stopped, with 4 in trouble."""
    code = 4
    try:
        reporting(int(told))
        cases.CASES[case](out)
        code = 0
    except KeyboardInterrupt:
        code = 3
    except BaseException as trouble:
        os.write(int(told), f"! {type(trouble).__name__} {trouble}"[:500].encode())
    finally:
        os._exit(code)


def ended(process, read):
    """How a process ended, and the last round that it reported as saved, 0 if none."""
    _, status = os.waitpid(process, 0)
    said = b""
    while piece := os.read(read, 65_536):
        said += piece
    os.close(read)
    head, _, trouble = said.partition(b"!")
    rounds = head.split()
    return os.waitstatus_to_exitcode(status), int(rounds[-1]) if rounds else 0, trouble.decode()


def troubles(out, saved):
    """What is wrong with the folders of a case that was killed."""
    found = []
    for folder in [p for p in Path(out).glob("**/") if p.is_dir()]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                last = checkpoints.load_checkpoint(folder)
        except (ft.FedtaperError, ft.FedtaperWarning) as trouble:
            found.append(f"unreadable: {trouble}")
            continue
        finished = store.is_complete(folder)
        if finished:
            try:
                ft.load(folder)
            except ft.FedtaperError as trouble:
                found.append(f"unreadable: {trouble}")
        elif folder.name == "run" and saved > (0 if last is None else int(last["state_round"])):
            found.append(f"lost: round {saved} was reported as saved")
    return found


def undisturbed(case, base):
    """The bits of a case that nobody kills, and how long it takes."""
    if not case.startswith(("cpu", "network")):
        cases.CASES[case](base / "here")  # what is compiled here need not be in every fork
    out = base / "undisturbed"
    began = time.perf_counter()
    code, _, trouble = ended(*forked(case, out))
    if code:
        raise SystemExit(f"{case} fails by itself: {trouble}")
    seconds = time.perf_counter() - began
    return cases.bits(out), seconds


def trial(case, base, rng, wanted, fresh=FRESH):
    """Kill one case until it is done: kills by signal, and lines about what went wrong."""
    right, seconds = undisturbed(case, base)
    wrong, kills = [], {signal.SIGKILL: 0, signal.SIGTERM: 0}
    while sum(kills.values()) < wanted:
        out = base / "disturbed"
        shutil.rmtree(out, ignore_errors=True)
        for attempt in range(40):
            number = (signal.SIGKILL, signal.SIGTERM)[int(rng.integers(2))]
            new = fresh and rng.integers(fresh) == 0
            process, read = (started if new else forked)(case, out)
            time.sleep(float(rng.uniform(0, 1.1 * seconds + (2.0 if new else 0.0))))
            if sum(kills.values()) < wanted and attempt < 39:
                os.kill(process, number)
            code, saved, trouble = ended(process, read)
            if code in (-signal.SIGKILL, -signal.SIGTERM, 3):
                kills[number] += 1
                wrong += [f"{case}: {line}" for line in troubles(out, saved)]
            elif code:
                wrong.append(f"{case}: ended with {code} {trouble}")
                break
            else:
                break
        if not wrong:
            now = cases.bits(out)
            differ = [name for name in sorted({*right, *now}) if right.get(name) != now.get(name)]
            if differ:
                wrong.append(f"{case}: differs in {', '.join(differ[:5])}")
        if wrong:
            break
    return kills, wrong


def main(count=500, seed=0, chosen=None, fresh=FRESH):
    """So many kills over all cases, or over those chosen."""
    cases.hasten()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    names = chosen or list(cases.CASES)
    wrong, total = [], {signal.SIGKILL: 0, signal.SIGTERM: 0}
    for k, case in enumerate(names):
        wanted = (count * (k + 1)) // len(names) - (count * k) // len(names)
        with tempfile.TemporaryDirectory(prefix="fedtaper-kills-") as base:
            kills, found = trial(case, Path(base), rng, wanted, fresh)
        wrong += found
        for number, made in kills.items():
            total[number] += made
        print(f"{case}: {sum(kills.values())} kills, {len(found)} wrong", flush=True)
    print("\n".join(wrong))
    by = ", ".join(f"{made} {number.name}" for number, made in total.items())
    print(f"{sum(total.values())} kills ({by}) of {len(names)} cases: {len(wrong)} wrong")
    return bool(wrong) or limits.peak() > limits.MOST


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        cases.hasten()
        work(*sys.argv[2:])
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
