"""The two Flower apps, for an app's pyproject.toml.

[tool.flwr.app.components]
serverapp = "fedtaper.deploy.apps:server_app"
clientapp = "fedtaper.deploy.apps:client_app"

[tool.flwr.app.config]
federation = "my_federation:federation.toml"
out = "runs/my-federation"
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy.server import make_server_app
from fedtaper.deploy.source import FileSource
from fedtaper.engines.flower.app import make_client_app


@lru_cache(maxsize=1)
def _file(name: str) -> FileSource:
    return FileSource(name)


def _from_run_config(context: Context) -> FileSource:
    if "federation" not in context.run_config:
        raise FedtaperError('the app\'s config needs federation = "package:file.toml"')
    return _file(str(context.run_config["federation"]))


def _settings(context: Context) -> dict[str, Any]:
    name = str(context.run_config.get("out", ""))
    out = Path(name).expanduser() if name else None
    return {"out": out, "nodes": _nodes(context), "log": _from_run_config(context).log}


def _nodes(context: Context) -> dict[str, str]:
    """Sites' node ids, written as site=id,site=id."""
    text = str(context.run_config.get("nodes", ""))
    pairs = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    return {site.strip(): node.strip() for site, _, node in pairs}


server_app = make_server_app(_from_run_config, _settings)
client_app = make_client_app(_from_run_config)
