"""The baseline: what is written is read back, what is worse is said with both numbers, and a bad file is named."""

import json
import os
import stat

import pytest

from kvcli import __version__
from kvcli.check import baseline as module
from kvcli.check.baseline import Baseline, Entry, against, document, read, refusal, regressions, write
from kvcli.check.nodes import Place
from kvcli.check.verdict import Cell, Measures, Outcome, Report
from kvcli.errors import BadInput

PLACE = Place("a.yaml", 1)
GIB = 2**30
BEFORE = Measures(100 * GIB, 120 * GIB, 10, 0.5, 0.02, 0.4)


def cell(measures=BEFORE, target="chat", device="l4", outcomes=()):
    return Cell(target, device, PLACE, outcomes, measures)


def said(rule, level):
    return Outcome(rule, level, "x", PLACE)


@pytest.mark.parametrize(
    ("changed", "level", "message", "formula"),
    [
        (
            {"memory_bytes": 110 * GIB},
            "warning",
            "the memory of the fullest device went from 100.0 GiB in the baseline to 110.0 GiB (+10.0%)",
            "(118,111,600,640 B - 107,374,182,400 B) / 107,374,182,400 B = +10.0%",
        ),
        (
            {"ttft_floor_s": 0.6},
            "warning",
            "the floor of the prefill went from 500.0 ms in the baseline to 600.0 ms (+20.0%)",
            "(0.6 s - 0.5 s) / 0.5 s = +20.0%",
        ),
        (
            {"tpot_floor_s": 0.03},
            "warning",
            "the floor of a decode step went from 20.00 ms in the baseline to 30.00 ms (+50.0%)",
            "(0.03 s - 0.02 s) / 0.02 s = +50.0%",
        ),
        ({"sequences": 9}, "warning", "the number of sequences went from 10 in the baseline to 9 (-10.0%)", "(9 - 10) / 10 = -10.0%"),
        (
            {"cost_per_mtok": 0.5},
            "warning",
            "the least cost per million tokens went from 0.400 in the baseline to 0.500 (+25.0%)",
            "(0.5 - 0.4) / 0.4 = +25.0%",
        ),
    ],
)
def test_each_number_that_got_worse_is_said(changed, level, message, formula):
    (outcome,) = regressions(cell(BEFORE._replace(**changed)), BEFORE, {})
    assert (outcome.rule, outcome.level, outcome.message, outcome.formula) == ("KV012", level, message, formula)
    assert "--update-baseline" in outcome.fix


@pytest.mark.parametrize(
    "after",
    [
        BEFORE,
        Measures(99 * GIB, 120 * GIB, 11, 0.4, 0.01, 0.3),
        Measures(),
        # another order of additions, and other memory that can be used, are no regression
        BEFORE._replace(tpot_floor_s=0.02 * (1 + 1e-12), usable_bytes=GIB),
        BEFORE._replace(cost_per_mtok=float("nan")),
    ],
)
def test_equal_better_and_unknown_say_nothing(after):
    assert regressions(cell(after), BEFORE, {"memory": 0.0}) == ()


def test_one_byte_more_is_more():
    (outcome,) = regressions(cell(BEFORE._replace(memory_bytes=100 * GIB + 1)), BEFORE, {})
    assert "+<0.1%" in outcome.message
    assert "107,374,182,401 B" in outcome.formula


def test_an_allowed_share_makes_an_error_of_what_exceeds_it():
    after = BEFORE._replace(memory_bytes=110 * GIB, sequences=8)
    levels = {each.message.split(" went")[0]: each.level for each in regressions(cell(after), BEFORE, {"memory": 0.1, "sequences": 0.1})}
    assert levels == {"the memory of the fullest device": "warning", "the number of sequences": "error"}
    error = regressions(cell(after), BEFORE, {"sequences": 0.1})[1]
    assert error.message.endswith("(-20.0%), more than the 10% that is allowed")
    assert error.fix == "undo the change, or allow 20% for sequences"
    assert regressions(cell(after), BEFORE, {"sequences": 0.2})[1].level == "warning"
    after = BEFORE._replace(memory_bytes=110 * GIB + 1)
    assert regressions(cell(after), BEFORE, {"memory": 0.1})[0].fix == "undo the change, or allow 11% for memory"


def test_the_fix_that_is_named_passes():
    for more in range(1, 4000, 37):
        after = cell(BEFORE._replace(memory_bytes=100 * GIB + more * 12_345_678, ttft_floor_s=0.5 + more / 7e3))
        for outcome, key in zip(regressions(after, BEFORE, {"memory": 0.0, "ttft": 0.0}), ("memory", "ttft"), strict=True):
            percent = int(outcome.fix.split("allow ")[1].split("%")[0])
            assert regressions(after, BEFORE, {key: percent / 100})[("memory", "ttft").index(key)].level == "warning"


def test_nothing_before_has_no_share():
    (outcome,) = regressions(cell(Measures(sequences=0, memory_bytes=5)), Measures(memory_bytes=0), {"memory": 10.0})
    assert (outcome.level, outcome.formula, outcome.fix) == ("error", "0 B -> 5 B", "undo the change")


@pytest.mark.parametrize("allowed", [{"speed": 0.1}, {"memory": -0.1}, {"memory": float("nan")}, {"memory": float("inf")}])
def test_a_share_that_means_nothing_is_refused(allowed):
    with pytest.raises(BadInput) as caught:
        regressions(cell(), BEFORE, allowed)
    assert caught.value.hint


def test_what_is_written_is_read_back(tmp_path):
    report = Report(
        (
            cell(outcomes=(said("KV014", "warning"), said("KV002", "note"), said("KV001", "passed"), said("KV006", "skipped"))),
            cell(Measures(), "a \u00e9\ud800", "b", (said("KV012", "warning"),)),
        )
    )
    path = tmp_path / "new" / "baseline.json"
    write(report, str(path))
    found = read(str(path))
    assert found == Baseline(
        str(path),
        (
            Entry("a \u00e9\ud800", "b", "pass", Measures(), ()),
            Entry("chat", "l4", "warn", BEFORE, (("KV002", "note"), ("KV014", "warning"))),
        ),
        __version__,
    )
    assert path.read_bytes() == (json.dumps(document(report), indent=2) + "\n").encode()
    again = against(report, found)
    assert [each.before for each in again.cells] == [BEFORE, Measures()]
    assert again.cells[0].known == (("KV002", "note"), ("KV014", "warning"))
    assert again.against == str(path)
    assert not again.vanished
    # the same state in another order is the same file
    assert document(Report(report.cells[::-1])) == document(report)


def test_new_and_vanished_targets_are_told_apart():
    known = Baseline("b.json", (Entry("old", "l4", "pass", BEFORE, ()), Entry("chat", "t4", "pass", BEFORE, ())))
    report = against(Report((cell(),)), known)
    assert report.cells[0].before is None
    assert report.vanished == (("chat", "t4"), ("old", "l4"))


def test_a_failing_report_is_refused():
    failing = Report(tuple(cell(target=name, outcomes=(said("KV001", "error"),)) for name in "abcde"))
    assert refusal(failing) == "the baseline is not updated, because a on l4, b on l4, c on l4 and 2 more fail"
    assert refusal(Report(failing.cells[:1])) == "the baseline is not updated, because a on l4 fails"
    assert refusal(Report((cell(outcomes=(said("KV002", "warning"),)),))) is None
    with pytest.raises(BadInput, match="not updated"):
        write(failing, "never.json")
    assert not os.path.exists("never.json")


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "baseline.json"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", fail)
    with pytest.raises(BadInput, match="No space left"):
        write(Report((cell(),)), str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["baseline.json"]
    assert path.read_text() == "old"


def test_a_link_stays_a_link_and_the_file_can_be_read_by_others(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    before = os.umask(0o022)
    try:
        write(Report((cell(),)), str(link))
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644


GOOD = document(Report((cell(outcomes=(said("KV014", "warning"),)),)))


def broken(*path, value):
    copy = json.loads(json.dumps(GOOD))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(copy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON at line 1"),
        ('{\n "a": 1,\n}', "not valid JSON at line 3"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 5_000, "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("[]", "no list of targets"),
        ('{"schema_version":1}', "no list of targets"),
        (broken("schema_version", value=2), "schema_version '2'"),
        (broken("schema_version", value=True), "schema_version 'True'"),
        (broken("targets", 0, value=3), "target 1 that is no object"),
        (broken("targets", 0, "name", value=3), "without a text as its name"),
        (broken("targets", 0, "verdict", value="great"), "verdict 'great'"),
        (broken("targets", 0, "rules", value=None), "without a list of rules"),
        (broken("targets", 0, "rules", 0, value={"id": "KV001"}), "not an id and a level"),
        (broken("targets", 0, "rules", 0, "level", value=[]), "not an id and a level"),
        (broken("targets", 0, "measures", value=[]), "without measures"),
        (broken("targets", 0, "measures", "memory_bytes", value=1.5), "memory_bytes is not a whole number"),
        (broken("targets", 0, "measures", "memory_bytes", value=True), "memory_bytes is not a whole number"),
        (broken("targets", 0, "measures", "memory_bytes", value=-1), "memory_bytes is not a whole number"),
        (broken("targets", 0, "measures", "memory_bytes", value=10**300), "memory_bytes is not a whole number"),
        (broken("targets", 0, "measures", "cost_per_mtok", value="1"), "cost_per_mtok is not a number"),
        (broken("targets", 0, "measures", "cost_per_mtok", value=float("nan")), "not valid JSON"),
        (
            broken("targets", 0, "measures", "cost_per_mtok", value=1).replace('"cost_per_mtok": 1', '"cost_per_mtok": 1e999'),
            "not a number",
        ),
        (broken("targets", value=GOOD["targets"] * 2), "'chat' on device 'l4' 2 times"),
    ],
)
def test_a_bad_file_is_named_with_the_way_out(tmp_path, text, words):
    path = tmp_path / "baseline.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=words.replace("(", r"\(")) as caught:
        read(str(path))
    assert str(path) in caught.value.message
    assert "--update-baseline" in caught.value.hint


def test_a_missing_and_a_huge_file(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="No such file"):
        read(str(tmp_path / "none.json"))
    with pytest.raises(BadInput, match="Is a directory"):
        read(str(tmp_path))
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(BadInput, match="larger than"):
        read(str(path))


def test_what_fails_is_not_told_to_be_accepted():
    """--update-baseline refuses while a rule fails."""
    worse = BEFORE._replace(memory_bytes=BEFORE.memory_bytes + 2**30)
    (alone,) = regressions(cell(worse), BEFORE, {})
    assert alone.fix == "undo the change, or accept it with --update-baseline"
    (beside,) = regressions(cell(worse, outcomes=(said("KV001", "error"),)), BEFORE, {})
    assert beside.fix == "undo the change"
    one, other = regressions(cell(worse._replace(tpot_floor_s=1.0)), BEFORE, {"tpot": 0.1})
    assert (one.fix, other.level) == ("undo the change", "error")
