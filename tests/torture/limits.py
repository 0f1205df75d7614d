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
    """Raise :class:`TooLong` in what takes longer."""

    def late(number, frame):
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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
