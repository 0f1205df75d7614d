"""What a long run shows (how far it is, how fast, its newest numbers), and Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LOOK = 0.3  # seconds between two looks at the numbers
ROOM = 72  # columns of a terminal below which the bar and the rate make way for the time left


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal, after its last block of rounds was stored."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Hold Ctrl-C and SIGTERM back until a block of rounds is complete: the list then has it.

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


Newest = Callable[[], str]  # the newest round's numbers, in words
Moved = Callable[[int, Newest], None]


@contextmanager
def bar(total: int, done: int, wanted: bool | None) -> Iterator[Moved]:
    """A function that advances the progress bar by a number of rounds; without ``wanted``, no bar.

    It shows the round, the rate, the time left and the newest numbers, which are updated only
    a few times a second.
    """
    if wanted is False:
        yield lambda rounds, newest: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    shown = console.is_terminal if wanted is None else wanted
    whole = Column(no_wrap=True, min_width=len(f"round {total:,}/{total:,}"))
    columns: list[ProgressColumn] = [
        TextColumn("round {task.completed:,.0f}/{task.total:,.0f}", table_column=whole)
    ]
    if console.width >= ROOM:
        columns += [BarColumn(bar_width=24), TextColumn("{task.fields[rate]}")]
    with Progress(
        *columns,
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
        TextColumn("{task.fields[newest]}", markup=False),
        console=console,
        transient=True,
        disable=not shown,
    ) as progress:
        task = progress.add_task("", total=total, completed=done, rate="", newest="")
        looked = -LOOK

        def moved(rounds: int, newest: Newest) -> None:
            nonlocal looked
            progress.advance(task, rounds)
            if shown and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                progress.update(task, rate=rate(progress.tasks[0].speed), newest=newest())

        yield moved


def rate(speed: float | None) -> str:
    """Rounds per second as text, or seconds per round if they are slow.

    >>> rate(1234.5), rate(0.04), rate(None)
    ('1,234 rounds/s', '25 s/round', '')
    """
    if not speed:
        return ""
    return f"{speed:,.3g} rounds/s" if 1 <= speed < 1000 else _far(speed)


def _far(speed: float) -> str:
    return f"{speed:,.0f} rounds/s" if speed >= 1000 else f"{1 / speed:,.3g} s/round"
