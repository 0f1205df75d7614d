"""The page's server: a few JSON answers about one folder, and the page itself."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.ui import audits, claims, studio
from fedtaper.ui.detail import detail
from fedtaper.ui.folder import inside
from fedtaper.ui.guard import Guard
from fedtaper.ui.jobs import Jobs
from fedtaper.ui.pages import pages
from fedtaper.ui.runs import Runs, mark

LIVE, IDLE = 1.0, 3.0  # seconds between two looks at the folder
FIRST = 0.15  # seconds that the first list may spend on reading; the rest follows as events
SLICE = 0.03  # seconds of reading between which others may look at the list
PATIENCE = 10.0  # seconds that the studio's compiler waits for the first list
BREATH = 15.0  # seconds after which a silent stream says that it is there
KEPT = 32  # answers about runs that are kept until the run changes


def make_app(
    root: Path, token: str, port: int, warm: bool = False, ending: asyncio.Event | None = None
) -> Any:
    """The ASGI application for one folder; ``ending`` says that the server is about to stop."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    api = Api(root.resolve(), ending or asyncio.Event())
    if warm:
        threading.Thread(target=api.prepare, daemon=True).start()
    routes = [Route("/", page_answer), Route("/static/{name:path}", page_answer)]
    for path, what in api.reads().items():
        routes.append(Route(f"/api/{path}", _read(what), methods=["GET"]))
    for path, what in api.orders().items():
        routes.append(Route(f"/api/{path}", _order(what), methods=["POST"]))
    routes.append(Route("/api/events", api.events, methods=["GET"]))
    return Guard(Starlette(routes=routes), port, token)


class Api:
    """What the page may ask: each is a plain function of the request's arguments."""

    def __init__(self, root: Path, ending: asyncio.Event) -> None:
        self.root, self.ending = root, ending
        self.jobs = Jobs(root)
        self.runs = Runs(root, self.jobs.alive)
        self._kept: dict[Any, Any] = {}
        self._listed = threading.Event()

    def prepare(self) -> None:
        """What the first page would wait for: the rows, and then what the studio compiles."""
        self.runs.scan(SLICE)
        while self.runs.waiting and not self.ending.is_set():
            time.sleep(SLICE / 10)  # for the list, if it is asked for now
            self.runs.scan(SLICE)
        self._listed.wait(PATIENCE)
        studio.warm_up()

    def reads(self) -> dict[str, Callable[[dict[str, str]], Any]]:
        """Queries, by path."""
        return {
            "runs": self.list_runs,
            "run": lambda words: self._about(words, detail),
            "audit": lambda words: self._about(words, audits.audited),
            "claims": lambda words: {"ledgers": claims.ledgers(self.root)},
            "figure": lambda words: claims.figure(self.root, words["folder"], words["name"]),
            "studio": lambda words: _studio_page(),
        }

    def orders(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """Commands, by path."""
        return {
            "draw": studio.draw,
            "goal": studio.goal,
            "start": self.start,
            "stop": lambda words: self._told(self.jobs.stop, words),
            "resume": lambda words: self._told(self.jobs.resume, words),
        }

    def list_runs(self, words: dict[str, str]) -> Any:
        """All rows; those that have not been read yet follow as events."""
        self.runs.scan(FIRST, again=True)
        self._listed.set()
        return {
            "folder": self.root.name,
            "path": str(self.root),
            "version": self.runs.version,
            "runs": [row.plain() for row in self.runs.listed()],
            "failed": self.jobs.failed(),
        }

    def start(self, words: dict[str, Any]) -> Any:
        """Run what the studio shows."""
        settings = words.get("settings")
        if not isinstance(settings, dict) or not isinstance(words.get("name"), str):
            raise FedtaperError("a run needs a name and its settings")
        seeds = words.get("seeds")
        if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int)):
            raise FedtaperError("seeds must be a whole number")
        text = studio.text(settings)
        return {"id": self.jobs.start(words["name"], text, seeds)}

    def _told(self, act: Callable[[str], None], words: dict[str, Any]) -> Any:
        act(str(words.get("id", "")))
        return {"id": words["id"]}

    def _about(self, words: dict[str, str], make: Callable[[Path], Any]) -> Any:
        """The result of ``make`` for a run, computed once for each state of its folder."""
        folder = inside(self.root, words["id"])
        now = mark(str(folder))
        key = (make.__name__, folder)
        if self._kept.get(key, (None,))[0] != now:
            while len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = (now, make(folder))
        said = {"id": words["id"], "log": self.jobs.said(words["id"])}
        return self._kept[key][1] | said

    async def events(self, request: Any) -> Any:
        """A stream of rows that changed (server-sent events)."""
        from starlette.responses import StreamingResponse

        asked = request.query_params.get("since", "")
        plain = asked.isascii() and asked.isdigit() and len(asked) < 19
        since = int(asked) if plain else 0  # anything else: all rows
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(
            self._stream(since), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, since: int) -> AsyncIterator[str]:
        silent = 0.0
        failed: dict[str, str] = {}
        while not self.ending.is_set():
            await asyncio.to_thread(self.runs.scan)
            since, changed = self.runs.changes(since)
            now = self.jobs.failed()
            if changed or now != failed:
                rows = {n: None if row is None else row.plain() for n, row in changed.items()}
                failed, silent = now, 0.0
                yield f"data: {json.dumps({'runs': rows, 'failed': failed})}\n\n"
            elif silent >= BREATH:
                silent = 0.0
                yield ": here\n\n"
            pause = LIVE if self.runs.busy else IDLE
            silent += pause
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), 0.05 if self.runs.waiting else pause)


def _studio_page() -> dict[str, Any]:
    return {
        "presets": studio.presets(),
        "limits": studio.LIMITS,
        "goals": studio.goals(),
    }


def page_answer(request: Any) -> Any:
    """The page, or one of its files, from a fixed list."""
    from starlette.responses import JSONResponse, Response

    found = pages().get(request.path_params.get("name", "index.html"))
    if found is None:
        return JSONResponse({"error": "there is no such page"}, 404)
    return Response(found[0], media_type=found[1])


def _read(what: Callable[[dict[str, str]], Any]) -> Any:
    def answer(request: Any) -> Any:
        return _said(lambda: what(dict(request.query_params)))

    return answer


def _order(what: Callable[[dict[str, Any]], Any]) -> Any:
    from starlette.concurrency import run_in_threadpool

    async def answer(request: Any) -> Any:
        body = await request.body()
        try:
            words = json.loads(body)
        except (ValueError, RecursionError):
            words = None
        return await run_in_threadpool(_said, lambda: what(_table(words)))

    return answer


def _table(words: Any) -> dict[str, Any]:
    if not isinstance(words, dict):
        raise FedtaperError("the request is not a JSON object")
    return words


def _said(make: Callable[[], Any]) -> Any:
    """An answer, with a user's mistake as a one-line error."""
    from starlette.responses import JSONResponse, Response

    try:
        found = make()
    except FedtaperError as trouble:
        return JSONResponse({"error": str(trouble)}, 400)
    except KeyError as missing:
        return JSONResponse({"error": f"the request has no {missing}"}, 400)
    except OSError as trouble:
        return JSONResponse({"error": trouble.strerror or str(trouble)}, 500)
    if isinstance(found, tuple):
        return Response(found[0], media_type=found[1])
    return JSONResponse(found)
