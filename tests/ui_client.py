"""A client of the live page's server, for its tests."""

from starlette.testclient import TestClient

from fedtaper.ui.guard import HEADER
from fedtaper.ui.server import make_app

TOKEN, PORT = "secret", 8765
HOME = f"http://127.0.0.1:{PORT}"
JSON = {"content-type": "application/json"}


def opened(root, token=TOKEN, host=HOME, client="127.0.0.1"):
    made = TestClient(make_app(root, TOKEN, PORT), base_url=host, client=(client, 1234))
    made.headers[HEADER] = token
    return made


def small(**more):
    """The studio's settings for two clients and few rounds."""
    return {"rounds": 60, "clients": [{"c": 0.1, "delta": 0.76}, {"c": 0.1, "delta": 1.0}]} | more
