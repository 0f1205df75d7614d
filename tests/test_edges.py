"""The edge: odd names, extreme numbers, wrong types. Each of these failed before it was mended."""

import json
import struct
import zlib

import pytest
from small_file import FILE
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.cli.terminal import show_error, show_warning
from fedtaper.deploy.scaffold import new_app


def test_brackets_in_paths_are_not_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "[red]x[").mkdir()
    file = tmp_path / "[red]x[" / "e.toml"
    file.write_text(FILE)
    found = CliRunner().invoke(app, ["run", str(file), "--out", "[/red]"])
    assert found.exit_code == 0, found.output
    assert "[/red]" in found.output


def test_brackets_in_errors_and_warnings_are_not_markup(capsys):
    show_error("[/red] is not a folder\nsecond line")
    show_warning("[/nothing] [bold]", ft.FedtaperWarning)
    told = capsys.readouterr().err
    assert told == "error: [/red] is not a folder second line\nwarning: [/nothing] [bold]\n"


@pytest.mark.parametrize("name", ["torch", "numpy", "json", "class", "Flwr", "fedtaper"])
def test_a_new_app_does_not_hide_a_package(tmp_path, name):
    with pytest.raises(ft.FedtaperError, match="choose another"):
        new_app(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def png():
    def chunk(kind, data):
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    )


def test_reports_take_figures_from_their_folder_only(tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png())
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "link.png").symlink_to(secret)
    (folder / "text.png").write_text("not a picture")
    (folder / "own.png").write_bytes(png())
    words = ("statement", "summary", "measure", "refuted_by", "nearest")
    claim = {word: word for word in words} | {"id": "R1", "verdict": "reproduced", "numbers": []}
    claim["figures"] = ["link.png", "text.png", "own.png", "../secret.png", 3]
    (folder / "claims.json").write_text(json.dumps({"claims": [claim]}))
    page = ft.report([folder], tmp_path / "page.html").read_text()
    assert page.count("data:image/png") == 1 and 'alt="own.png"' in page


def test_control_characters_are_written_as_toml(tiny):
    import tomllib

    from fedtaper.storage.written import value

    for text in ("a\x00b", "tab\tnew\nline\r\x1b[0m", '"\\', "\x7f\u2028é", "\ud800"):
        back = tomllib.loads(f"x = {value(text)}")["x"]
        assert back == text.encode("utf-8", "replace").decode()


def test_a_million_million_schedules_take_no_memory():
    with pytest.raises(ft.FedtaperError, match="1000000000000 schedules for 3 clients"):
        ft.from_toml(FILE.replace("\nclients = 3\n", "\nclients = 1000000000000\n"))
