"""Start the page's server on this machine and, if wanted, a browser."""

from __future__ import annotations

import asyncio
import errno
import html
import logging
import os
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.ui.server import make_app

HOST = "127.0.0.1"


def serve(root: Path, port: int, browser: bool, say: Callable[[str], None]) -> None:
    """Serve the folder until interrupted."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise FedtaperError('the page needs two packages: pip install "fedtaper[ui]"') from None
    if not root.is_dir():
        raise FedtaperError(f"there is no folder {root}")
    token = secrets.token_urlsafe(32)
    with bound(port) as place:
        port = place.getsockname()[1]
        address = f"http://{HOST}:{port}/#token={token}"
        ending = asyncio.Event()
        app = make_app(root, token, port, warm=True, ending=ending)
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="off"
        )
        say(address)
        door = _door(address) if browser else None
        try:
            if door is not None:
                webbrowser.open(door.as_uri())
            _server(settings, ending).run(sockets=[place])
        except KeyboardInterrupt:
            pass  # the usual way to end it
        finally:
            if door is not None:
                door.unlink(missing_ok=True)


def _server(settings: Any, ending: asyncio.Event) -> Any:
    """A server that ends with open pages without a word: their streams end first."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending.set()
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of answers cut short
            await super().shutdown(sockets)

    return Server(settings)


def bound(port: int) -> socket.socket:
    """A listening socket on this machine only, or an error that says why not."""
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with suppress(OSError):
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((HOST, port))
        place.listen(64)
    except (OSError, OverflowError) as trouble:
        place.close()
        if isinstance(trouble, OSError) and trouble.errno == errno.EADDRINUSE:
            raise FedtaperError(
                f"port {port} is in use, perhaps by another fedtaper ui: choose another with "
                "--port, or --port 0 for any free one"
            ) from None
        said = trouble.strerror if isinstance(trouble, OSError) else "ports go up to 65535"
        raise FedtaperError(f"port {port} cannot be used: {said}") from None
    return place


def _door(address: str) -> Path:
    """A private file that links to the address: a command line would show the token to others."""
    handle, name = tempfile.mkstemp(prefix="fedtaper-", suffix=".html")  # mode 600
    with os.fdopen(handle, "w") as file:
        leads = html.escape(address, quote=True)
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={leads}">')
    return Path(name)
