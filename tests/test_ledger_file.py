"""claims.json: one folder for every claim, a stop loses only the claim in hand."""

import json
from dataclasses import replace

import pytest

import fedtaper as ft
from fedtaper.paper.claim import Check, Claim, Outcome, reproduce
from fedtaper.storage import store


def claims(log, stop_at=None):
    def judge(one):
        def found(study):
            if one == stop_at:
                raise KeyboardInterrupt
            log.append(one)
            check = Check("number", float(study.seeds), 0.0, 1.0, "below 1", True)
            return Outcome("reproduced", f"{one} holds", (check,), "its own settings")

        return found

    return [Claim(one, f"statement {one}", "m", "r", judge(one)) for one in ("R1", "R2", "T1")]


def ids(folder):
    page = json.loads((folder / "claims.json").read_text())
    return [row["id"] for row in page["claims"]], page["wanted"]


def test_claims_of_several_studies_share_a_folder(tmp_path):
    log = []
    first, _, third = claims(log)
    reproduce([first], tmp_path, seeds=10)
    reproduce([third], tmp_path, seeds=10)
    assert ids(tmp_path) == (["R1", "T1"], ["R1", "T1"])  # the earlier ones are not dropped
    reproduce([first], tmp_path, seeds=20)  # judged anew, in its place
    page = json.loads((tmp_path / "claims.json").read_text())
    assert [(row["id"], row["made"]["seeds"]) for row in page["claims"]] == [("R1", 20), ("T1", 10)]
    assert log == ["R1", "T1", "R1"]


def test_a_stopped_study_goes_on_and_its_report_says_what_is_missing(tmp_path):
    log = []
    with pytest.raises(KeyboardInterrupt):
        reproduce(claims(log, stop_at="R2"), tmp_path, seeds=10)
    assert ids(tmp_path) == (["R1"], ["R1", "R2", "T1"])
    page = ft.report([tmp_path], tmp_path / "page.html").read_text()
    assert "Not judged yet:</b> R2, T1" in page
    rows = reproduce(claims(log), tmp_path, seeds=10, resume=True)
    assert log == ["R1", "R2", "T1"] and [row["id"] for row in rows] == log
    reproduce(claims(log), tmp_path, seeds=11, resume=True)  # other seeds: judged again
    assert log == ["R1", "R2", "T1"] * 2
    assert "Not judged" not in ft.report([tmp_path], tmp_path / "page.html").read_text()


def test_a_claim_that_cannot_write_its_figure_is_one_line(tmp_path):
    def full(study):
        raise OSError(28, "No space left on device")

    first, second, _ = claims([])
    with pytest.raises(ft.FedtaperError, match="R2 stopped: No space left on device; resume"):
        reproduce([first, replace(second, judge=full)], tmp_path, seeds=10)
    assert ids(tmp_path) == (["R1"], ["R1", "R2"])


def test_a_damaged_file_and_a_second_writer_are_told(tmp_path):
    (tmp_path / "claims.json").write_text('{"claims": [1]}')
    with pytest.raises(ft.FedtaperError, match="damaged"):
        reproduce(claims([]), tmp_path, seeds=10)
    (tmp_path / "claims.json").unlink()
    with store.only_writer(tmp_path), pytest.raises(ft.FedtaperError, match="another"):
        reproduce(claims([]), tmp_path, seeds=10)


DAMAGED = {  # raw errors of the report, of --resume, or of both
    "deep": "[" * 200_000,
    "no table": '{"claims": [1]}',
    "a claim without a verdict": '{"claims": [{"id": "R1", "summary": "s", "seconds": 1}]}',
    "no seconds": '{"claims": [{"id": "R1", "verdict": "v", "summary": "s", "seconds": null}]}',
    "numbers for texts": '{"claims": [{"id": "R1", "verdict": 3, "summary": [], "seconds": 1}]}',
    "wanted is a number": '{"claims": [], "wanted": 5}',
    "wanted holds lists": '{"claims": [], "wanted": [["R1"]]}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=list(DAMAGED))
def test_any_damage_of_the_file_is_one_line(tmp_path, text):
    file = tmp_path / "claims.json"
    for work in (
        lambda: ft.report([tmp_path], tmp_path / "page.html"),
        lambda: reproduce(claims([]), tmp_path, seeds=10, resume=True),
    ):
        file.write_text(text)
        with pytest.raises(ft.FedtaperError, match=r"claims.json is damaged") as found:
            work()
        assert "\n" not in str(found.value)
        assert file.read_text() == text, "what cannot be read is not written over"


def test_half_a_character_in_the_file_is_shown_as_a_question_mark(tmp_path):
    reproduce(claims([])[:1], tmp_path, seeds=10)
    file = tmp_path / "claims.json"
    file.write_text(file.read_text().replace("statement R1", "half \\ud800."))
    assert "half ?." in ft.report([tmp_path], tmp_path / "page.html").read_text()
