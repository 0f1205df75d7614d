"""Hosts, ports and paths for scripts: checked, and quoted for their place."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError

LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
LARGEST_PORT = 65_535


@dataclass(frozen=True)
class Ports:
    """Where things listen."""

    superlink: int = 8000
    public: int = 9443
    supernode: int = 9094

    def __post_init__(self) -> None:
        for name, value in (("--port", self.superlink), ("--public-port", self.public)):
            checked_port(name, value)
        checked_port("the SuperNode's port", self.supernode)
        if self.superlink == self.public:
            raise FedtaperError(
                f"--port and --public-port are both {self.public}: sites must not reach the "
                "SuperLink's own port"
            )


def checked_port(name: str, port: Any) -> int:
    """The port, or an error that says what is wrong with it."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= LARGEST_PORT:
        raise FedtaperError(f"{name} must be a port from 1 to {LARGEST_PORT}, not {port!r}")
    return port


def checked_host(host: str) -> str:
    """A host name or an address: nothing that a shell or nginx could misread.

    >>> checked_host("federation.example.org")
    'federation.example.org'
    """
    labels = host.split(".")
    named = len(host) <= 253 and all(LABEL.fullmatch(part) for part in labels)
    named = named and not labels[-1].isdigit()  # a name cannot end so: an address with a mistake
    if not named and not is_address(host):
        raise FedtaperError(
            f"{host[:80]!r} is not a host: give a name such as federation.example.org, or an "
            "address"
        )
    return host


def is_address(host: str) -> bool:
    """Whether it is an IP address, without a zone: a zone may hold any text, commands too."""
    if "%" in host:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def with_port(host: str, port: int) -> str:
    """Both together, an IPv6 address in brackets.

    >>> with_port("::1", 9443)
    '[::1]:9443'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def quotable(path: Path) -> str:
    """A path that can be put in double quotes in TOML and nginx."""
    text = str(path)
    if not text.isprintable() or any(sign in text for sign in '"\\$'):
        raise FedtaperError(
            f"{text[:200]!r} has a quote, a backslash, a dollar sign or a control character: "
            "choose another folder"
        )
    return text
