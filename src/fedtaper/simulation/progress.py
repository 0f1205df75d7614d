"""What a long run shows and hears: a progress bar, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A run that a signal stopped, after its last block of rounds was stored."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Hold Ctrl-C and SIGTERM back until a block of rounds is complete: the list then has one.

    SIGTERM is what Slurm, Kubernetes and a shutdown send; a handler that the program set for it
    stays. A second signal interrupts at once. Only the main thread may set signal handlers.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def hold(number: int, frame: FrameType | None) -> None:
        if seen:
            raise Stopped(number)
        seen.append(number)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, hold)}
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, hold)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def bar(total: int, done: int, wanted: bool | None) -> Iterator[Callable[[int], None]]:
    """A function that moves the bar on by so many rounds; nothing is drawn if not wanted."""
    if wanted is False:
        yield lambda rounds: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = console.is_terminal if wanted is None else wanted
    with Progress(
        TextColumn("round {task.completed:.0f} / {task.total:.0f}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not shown,
    ) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda rounds: progress.advance(task, rounds)
