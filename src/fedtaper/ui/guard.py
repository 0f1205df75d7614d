"""Who may use the page's server: only this machine and this page, with its token."""

from __future__ import annotations

import hmac
import ipaddress
import json
from typing import Any

HEADER = "x-fedtaper-token"
LARGEST = 64 * 1024  # bytes of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that refuses whatever does not come from the page that this server served.

    The token is in the address's fragment, which a browser never sends; the page sends it
    as a header, which no other site's page can. The Host header is checked because a name that
    leads to 127.0.0.1 would make another site's page look like ours (DNS rebinding).
    """

    def __init__(self, app: Any, port: int, token: str) -> None:
        self.app, self.token = app, token
        names = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {f"{name}:{port}" for name in names}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it with a reason."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:  # the page opens no sockets
                await send({"type": "websocket.close", "code": 1008})
            return
        refused = self.refused(scope)
        if refused is not None:
            await _answer(send, *refused)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = [(k.encode(), v.encode()) for k, v in ALWAYS.items()]
                message = {**message, "headers": [*message["headers"], *given]}
            await send(message)

        await self.app(scope, receive, guarded)

    def refused(self, scope: Any) -> tuple[int, str] | None:
        """The status and the reason; None where the request is fine."""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        api = scope["path"].startswith("/api/")
        origin = headers.get("origin", next(iter(self.origins)))
        site = headers.get("sec-fetch-site", "same-origin") if api else "same-origin"
        if not _loopback(scope.get("client")):
            return 403, "only this machine may connect"
        if headers.get("host") not in self.hosts:
            return 403, "the Host header names another server"
        if origin not in self.origins or site not in ("same-origin", "none"):
            return 403, "the request comes from another site"
        if scope["method"] not in (("GET", "POST") if api else ("GET",)):
            return 405, "this method is not supported"
        return self._asked(scope["method"], headers) if api else None

    def _asked(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        if not hmac.compare_digest(headers.get(HEADER, "").encode(), self.token.encode()):
            return 401, "the token is missing or wrong: open the address that the terminal shows"
        return _body(headers) if method == "POST" else None


def _body(headers: dict[str, str]) -> tuple[int, str] | None:
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return 415, "only JSON is accepted"
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 19) or int(length) > LARGEST:
        return 413, f"a request must state its length, at most {LARGEST} bytes"
    return None


def _loopback(client: Any) -> bool:
    try:
        return bool(client) and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _answer(send: Any, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = ALWAYS | {"content-type": "application/json", "content-length": str(len(body))}
    plain = [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": plain})
    await send({"type": "http.response.body", "body": body})
