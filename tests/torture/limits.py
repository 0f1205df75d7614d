"""What a call may take: time and memory. A fuzzer's own process is the one that is watched."""

import resource
import signal
from contextlib import contextmanager
from pathlib import Path

SECONDS = 30
MOST = 2 * 2**30  # bytes that no process may take


class TooLong(BaseException):
    """A call that does not come back."""


@contextmanager
def watch(seconds=SECONDS):
    """Raise :class:`TooLong` in what takes more CPU time, or hangs ten times as long."""

    def late(number, frame):
        raise TooLong(f"more than {seconds} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds),
              signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds)}  # fmt: skip
    before = {number: signal.signal(number, late) for number in timers}
    for which, limit in timers.values():
        signal.setitimer(which, limit)
    try:
        yield
    finally:
        for which, _ in timers.values():
            signal.setitimer(which, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def cap(more=MOST):
    """Let this process take no more than ``more`` bytes beyond what it has: then MemoryError."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))


def peak():
    """The most memory that this process, or a child that ended, has held, in bytes."""
    own, children = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return 1024 * max(own, children)
