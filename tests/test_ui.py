"""The live page's server: what it answers, what it refuses, and how quick it is."""

import asyncio
import fcntl
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from ui_client import HOME, JSON, PORT, TOKEN, opened

import fedtaper as ft
from fedtaper.ui import rows, runs, writers
from fedtaper.ui.guard import HEADER, LARGEST, _body
from fedtaper.ui.server import Api, make_app


def stored(folder, **settings):
    problem = ft.LinearRegression(num_clients=2, dim=2, samples=40, feature_spread=1.0)
    how = {"rounds": 12, "local_steps": 2, "batch_size": 10} | settings
    return ft.run(ft.Experiment(problem, ft.Power(0.1, 0.8), **how), out=folder, progress=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a whole run, a run over seeds, claims, and a secret beside it."""
    top = tmp_path_factory.mktemp("ui")
    (top / "secret.txt").write_text("secret")
    folder = top / "runs"
    stored(folder / "one")
    problem = ft.LinearRegression(num_clients=2, dim=2, samples=40, feature_spread=1.0)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=12, local_steps=2, batch_size=10)
    ft.run(e, seeds=range(3), out=folder / "deep/three", progress=False)
    (folder / "claims").mkdir()
    row = {"id": "R1", "statement": "<b>x</b>", "verdict": "reproduced", "figures": ["a.png"]}
    row["numbers"] = [{"name": "x", "value": 1.0, "threshold": "above 0", "passed": True}]
    (folder / "claims/claims.json").write_text(json.dumps({"claims": [row]}))
    (folder / "claims/a.png").write_bytes(b"\x89PNG")
    (folder / "claims/b.png").write_bytes(b"\x89PNG")
    (folder / "claims/leads-out.png").symlink_to(top / "secret.txt")
    (folder / "leads-out").symlink_to(top)
    return folder


@pytest.fixture
def page(root):
    return opened(root)


# what is refused


def test_the_page_itself_needs_no_token_and_says_what_may_run(root):
    answer = opened(root, token="").get("/")
    assert answer.status_code == 200 and "<title>fedtaper" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "\xff"])
def test_no_token(root, token):
    made = opened(root, token="")
    headers = {HEADER: token.encode("latin-1")}
    for path in ("runs", "run?id=one", "audit?id=one", "claims", "studio", "events"):
        assert made.get(f"/api/{path}", headers=headers).status_code == 401
    for path in ("draw", "goal", "start", "stop", "resume"):
        assert made.post(f"/api/{path}", json={}, headers=headers).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil:8765"]
)
def test_foreign_host(page, host):
    for path in ("/", "/static/app.js", "/api/runs"):
        assert page.get(path, headers={"host": host}).status_code == 403


def test_own_names(page):
    for host in (f"localhost:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}"):
        assert page.get("/api/runs", headers={"host": host}).status_code == 200


def test_foreign_origin(page):
    for origin in (
        "http://evil.example",
        "null",
        f"https://127.0.0.1:{PORT}",
        "http://127.0.0.1:1",
    ):
        assert page.get("/api/runs", headers={"origin": origin}).status_code == 403
        assert page.post("/api/stop", json={}, headers={"origin": origin}).status_code == 403
    for site in ("cross-site", "same-site"):
        assert page.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
    assert page.get("/api/runs", headers={"origin": HOME}).status_code == 200


def test_other_machines(root):
    for address in ("192.168.1.9", "10.0.0.1", "::ffff:8.8.8.8", "nonsense"):
        assert opened(root, client=address).get("/").status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_post_that_is_not_json(page, kind):
    headers = {"content-type": kind}
    assert page.post("/api/draw", content=b"{}", headers=headers).status_code == 415


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", b"\xff", b"[" * 50_000])
def test_json_that_is_no_object(page, body):
    answer = page.post("/api/draw", content=body, headers=JSON)
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]


def test_sizes_and_methods(page):
    assert page.post("/api/draw", content=b" " * (LARGEST + 1), headers=JSON).status_code == 413
    endless = page.post("/api/draw", content=iter([b"{}"]), headers=JSON)  # no length given
    assert endless.status_code == 413
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        assert page.request(method, "/api/runs").status_code == 405
    assert page.post("/", json={}).status_code == 405
    assert page.get("/api/draw").status_code == 405


OUT = ["../secret.txt", "..", "one/..", "one/../..", "/etc", "//etc", "one//x", "./one", "a\\b"]
OUT += ["leads-out", "one\0", "", "C:\\x"]


@pytest.mark.parametrize("name", OUT)
def test_path_traversal(page, root, name):
    for path in ("run", "audit"):
        answer = page.get(f"/api/{path}", params={"id": name})
        assert answer.status_code == 400
    for path in ("stop", "resume"):
        assert page.post(f"/api/{path}", json={"id": name}).status_code == 400
    assert page.get("/api/figure", params={"folder": name, "name": "a.png"}).status_code == 400
    assert page.get("/api/figure", params={"folder": "claims", "name": name}).status_code == 400
    if name != "leads-out":  # a name that is taken: the run gets a free one beside it
        asked = {"name": name, "settings": {"clients": [{"c": 0.1, "delta": 1}]}}
        assert page.post("/api/start", json=asked).status_code == 400


@pytest.mark.parametrize("name", ["../server.py", "%2e%2e/server.py", "..%2fserver.py", "x", ""])
def test_only_the_pages_own_files(page, name):
    assert page.get(f"/static/{name}").status_code in (404, 405)


# runs


def _ran(coroutine):
    """In a thread of its own: a browser of another test may keep this one's loop running."""
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(asyncio.run, coroutine).result()


@pytest.mark.parametrize("since", ["abc", "-1e9", "9" * 5000, "\xb2", "", "%00", "1.5"])
def test_a_stream_from_nowhere_begins_with_all(root, since):
    """What is no number was a traceback in the terminal."""
    ending = asyncio.Event()
    made = Api(root, ending)
    request = SimpleNamespace(query_params={"since": since})

    async def first():
        answer = await made.events(request)
        return await anext(aiter(answer.body_iterator))

    assert '"one"' in _ran(first())


def test_sockets_are_closed_and_lengths_are_numbers(root):
    guard = make_app(root, TOKEN, PORT)
    sent = []

    async def send(message):
        sent.append(message)

    _ran(guard({"type": "websocket", "path": "/api/events", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    headers = {"content-type": "application/json"}
    for length in ("\xb2", "-1", "", "9" * 5000, "1e3"):
        assert _body(headers | {"content-length": length})[0] == 413


def test_list_and_detail_are_what_is_stored(page, root):
    found = {row["id"]: row for row in page.get("/api/runs").json()["runs"]}
    assert set(found) == {"one", "deep/three"}  # links are not followed
    run = ft.load(root / "one")
    row = found["one"]
    assert (row["state"], row["round"], row["rounds"], row["clients"]) == ("finished", 12, 12, 2)
    assert row["metric"] == "error" and row["title"] == "Distance to w*(p_n)"
    assert row["value"] == pytest.approx(run.metrics["error"][-1], rel=1e-6)
    shown = page.get("/api/run", params={"id": "one"}).json()
    assert shown["round"] == list(range(1, 13)) and shown["trouble"] == ""
    assert shown["metrics"]["error"]["values"] == pytest.approx(run.metrics["error"], rel=1e-6)
    assert "rounds = 12" in shown["settings"] and shown["provenance"]["engine"] == run.engine
    influence = shown["influence"]
    assert influence["groups"][0]["values"] == pytest.approx([1.0] * len(influence["round"]))


def test_many_seeds_are_a_median_and_a_band(page, root):
    run = ft.load(root / "deep/three")
    shown = page.get("/api/run", params={"id": "deep/three"}).json()["metrics"]["error"]
    for name, q in (("low", 0.1), ("values", 0.5), ("high", 0.9)):
        wanted = np.quantile(run.metrics["error"], q, axis=0)
        assert shown[name] == pytest.approx(wanted, rel=1e-6)


def test_long_runs_are_thinned_for_the_page():
    from fedtaper.ui.plain import POINTS, picked

    places = picked(1_000_000)
    assert len(places) <= POINTS and places[0] == 0 and places[-1] == 999_999
    assert np.all(np.diff(places) > 0) and 1 in places and 10 in places


DAMAGE = {
    "empty": lambda f: (f / "run.npz").write_bytes(b""),
    "cut": lambda f: (f / "run.npz").write_bytes((f / "run.npz").read_bytes()[:300]),
    "nonsense": lambda f: (f / "run.npz").write_bytes(b"nonsense"),
    "no-provenance": lambda f: (f / "provenance.json").unlink(),
    "bad-provenance": lambda f: (f / "provenance.json").write_text("[" * 10_000),
    "bad-config": lambda f: (f / "config.toml").write_text("rounds = = 3"),
    "other-config": lambda f: (f / "config.toml").write_text("[experiment]\nrounds = 3"),
    "half-checkpoint": lambda f: (
        (f / "run.npz").unlink(),
        (f / "checkpoint.npz").write_bytes(b"PK\3\4"),
    ),
    "half-written": lambda f: (
        (f / "run.npz").rename(f / ".run.npz.part"),
        (f / "config.toml").unlink(),
    ),
}


def test_damaged_folders_are_shown_as_such_and_the_rest_works(root, tmp_path):
    shutil.copytree(root / "one", tmp_path / "good")
    for name, harm in DAMAGE.items():
        shutil.copytree(root / "one", tmp_path / name)
        harm(tmp_path / name)
    made = opened(tmp_path)
    found = {row["id"]: row for row in made.get("/api/runs").json()["runs"]}
    assert found["good"]["state"] == "finished"
    for name in set(DAMAGE) - {"half-written"}:
        assert found[name]["state"] == "damaged" and found[name]["trouble"], name
    for name in found:
        answer = made.get("/api/run", params={"id": name})
        assert answer.status_code == 200
        assert bool(answer.json()["trouble"]) == (name != "good"), name
        assert made.get("/api/audit", params={"id": name}).status_code == (
            200 if name == "good" else 400
        )


def test_rows_are_read_once_and_again_when_they_change(root, tmp_path, monkeypatch):
    shutil.copytree(root / "one", tmp_path / "a")
    shutil.copytree(root / "one", tmp_path / "b")
    reads = []

    def counted(name, *more):
        reads.append(name)
        return rows.read_row(name, *more)

    monkeypatch.setattr(runs, "read_row", counted)
    seen = runs.Runs(tmp_path)
    seen.scan(again=True)
    seen.scan(again=True)
    assert sorted(reads) == ["a", "b"]
    version, changed = seen.changes(0)
    assert set(changed) == {"a", "b"} and seen.changes(version) == (version, {})
    (tmp_path / "a/run.npz").write_bytes(b"")
    shutil.rmtree(tmp_path / "b")
    seen.scan(again=True)
    assert reads[2:] == ["a"]
    _, changed = seen.changes(version)
    assert changed["a"].state == "damaged" and changed["b"] is None


def test_who_writes_is_seen_by_the_lock(root, tmp_path):
    folder = tmp_path / "going"
    folder.mkdir()
    (folder / "provenance.json").write_text("{}")
    with (folder / writers.LOCK).open("w") as file:
        seen = runs.Runs(tmp_path)
        seen.scan(again=True)
        assert seen.rows["going"].state == "unfinished"
        fcntl.flock(file, fcntl.LOCK_EX)
        seen.scan(again=True)
        assert seen.rows["going"].state == "running" and seen.busy
        assert writers.holder(folder, writers.held()) in (os.getpid(), 0)
    seen.scan(again=True)
    assert seen.rows["going"].state == "unfinished"


@pytest.fixture(scope="module")
def five_hundred(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for k in range(500):
        place = folder / f"run-{k:03}"
        place.mkdir()
        for file in (root / "one").iterdir():
            os.link(file, place / file.name)
    return folder


@pytest.mark.timed
def test_500_runs_are_listed_within_a_second(five_hundred):
    made = opened(five_hundred)
    began = time.process_time()
    found = made.get("/api/runs").json()["runs"]
    assert time.process_time() - began < 1.0
    assert len(found) == 500 and sum(row["read"] for row in found) > 20


@pytest.mark.timed
def test_idle_scans_cost_under_one_percent(five_hundred):
    seen = runs.Runs(five_hundred)
    seen.scan(again=True)
    while seen.waiting:
        seen.scan()
    assert seen.changes(0)[1].keys() == {f"run-{k:03}" for k in range(500)}
    began = time.process_time()
    for _ in range(5):
        seen.scan(again=True)
    from fedtaper.ui.server import IDLE

    assert (time.process_time() - began) / 5 / IDLE < 0.01


# claims and audit


def test_claims_and_figures(page):
    (ledger,) = page.get("/api/claims").json()["ledgers"]
    assert ledger["folder"] == "claims" and ledger["claims"][0]["verdict"] == "reproduced"
    good = page.get("/api/figure", params={"folder": "claims", "name": "a.png"})
    assert good.status_code == 200 and good.headers["content-type"] == "image/png"
    for name in ("b.png", "leads-out.png", "claims.json"):  # only what a claim lists
        answer = page.get("/api/figure", params={"folder": "claims", "name": name})
        assert answer.status_code == 400


def test_a_run_in_words(tmp_path):
    problem = ft.LinearRegression(num_clients=4, dim=2, samples=40, feature_spread=1.0)
    names = ("north", "south", "east", "west")
    slow, fast = ft.Power(0.01, 0.8), ft.Power(1.0, 0.9)
    e = ft.Experiment(
        problem, [slow, *[fast] * 3], rounds=20, local_steps=2, batch_size=5, names=names
    )
    ft.run(e, out=tmp_path / "a", progress=False)
    found = opened(tmp_path).get("/api/run", params={"id": "a"}).json()
    drawn = found["influence"]
    assert drawn["reference"] == names[e.reference] == "north" and drawn["drawn"] == [0, 1]
    assert [g["who"] for g in drawn["groups"]] == ["north", "south, east, west"]
    assert drawn["groups"][1]["now"] > 1  # so it is not the client with the most influence
    assert (
        found["titles"]["error"] == "Distance to w*(p_n)" and list(found["metrics"])[-1] == "change"
    )
    lost = [{"seed": 0, "round": 7, "client": 2, "reason": "why", "name": "east"}]
    assert rows._divergence(lost, 1) == "Diverged in round 7 at east: why"
    assert rows._divergence(lost, 3) == "1 of 3 seeds diverged in round 7 at east: why"
    assert rows._main({"train_loss": 0.3, "auc": 0.9})["metric"] == "auc"


def test_damaged_claims(tmp_path):
    for k, text in enumerate(["{", "[]", '{"claims": [3]}']):
        (tmp_path / f"c{k}").mkdir()
        (tmp_path / f"c{k}/claims.json").write_text(text)
    found = opened(tmp_path).get("/api/claims").json()["ledgers"]
    assert len(found) == 3 and all(one["trouble"] for one in found)


def test_audit_is_the_librarys(tmp_path):
    problem = ft.LinearRegression(num_clients=4, seed=1)
    honest = ft.Power(0.1, 0.76, offset=4)
    e = ft.Experiment(problem, honest, rounds=30, local_steps=5, behaviours={3: ft.Idle()})
    run = ft.run(e, updates=True, out=tmp_path / "a", progress=False)
    found = opened(tmp_path).get("/api/audit", params={"id": "a"}).json()
    wanted = ft.audit(run)
    assert found["rows"] == [[f"client {row[0]}", *row[1:]] for row in wanted.rows()[1:]]
    assert found["accused"] == [3] and len(set(found["head"])) == len(found["head"])
    assert found["unknown"] == sum(c.verdict.startswith("cannot") for c in wanted.clients)
    for one, client in zip(found["evidence"][:3], wanted.clients[:3], strict=True):
        assert one["who"] == f"client {client.client}" and one["verdict"] == client.verdict
        last = [one[name][-1] for name in ("delta", "low", "high")]
        assert last == pytest.approx([client.delta, client.delta_low, client.delta_high], rel=1e-5)
    middle = found["evidence"][0]["round"][5]
    half = ft.audit(ft.run(replaced(e, middle), updates=True))
    assert found["evidence"][0]["delta"][5] == pytest.approx(half.clients[0].delta, rel=1e-5)


def replaced(e, rounds):
    from dataclasses import replace

    return replace(e, rounds=rounds)
