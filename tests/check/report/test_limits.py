"""What the platforms cap, what a baseline leaves unsaid, and what stays the same when lines move."""

import gzip
import json
import re

import pytest
from report_forms import FORMS, SARIF
from report_readers import github_command, table_cells
from report_samples import baseline, report

from kvcli.check.baseline import against
from kvcli.check.nodes import Place
from kvcli.check.verdict import RULES, Cell, Measures, Outcome, Report, Waiver
from kvcli.report.check import sarif as sarif_module
from kvcli.report.check.github import github
from kvcli.report.check.markdown import markdown
from kvcli.report.check.sarif import sarif
from kvcli.report.check.sarif_rules import HELP
from kvcli.report.check.text import text


def many(errors=0, warnings=0, notes=0, said="x"):
    cells = []
    for level, count in (("note", notes), ("warning", warnings), ("error", errors)):
        for index in range(count):
            place = Place(f"{level}.yaml", count - index)
            cells.append(Cell(f"{level}-{index}", "l4", place, (Outcome("KV001", level, said, place),)))
    return Report(tuple(cells))


@pytest.mark.parametrize(
    ("counts", "shown", "cut"),
    [
        ((25, 12, 11), (10, 10, 10), "15 errors, 2 warnings, 2 notes more"),
        ((10, 10, 10), (10, 10, 10), None),
        ((11, 0, 0), (10, 0, 1), "1 error more"),
        ((0, 0, 11), (0, 0, 10), "2 notes more"),
        ((11, 0, 10), (10, 0, 10), "1 error, 1 note more"),
    ],
)
def test_github_gets_ten_of_each_kind_the_worst_first(counts, shown, cut):
    commands = [each for line in github(many(*counts)).splitlines() if (each := github_command(line))]
    kinds = [each[0] for each in commands]
    assert tuple(kinds.count(kind) for kind in ("error", "warning", "notice")) == shown
    assert kinds == sorted(kinds, key=("error", "warning", "notice").index)
    lines = [int(properties["line"]) for kind, properties, _ in commands if kind == "error"]
    assert lines == sorted(lines)
    last = github(many(*counts)).splitlines()[-1]
    assert (cut in last and last.startswith("::notice ")) if cut else "more" not in last and not last.startswith("::")


def test_sarif_keeps_the_worst_within_the_cap_and_says_what_is_left_out(monkeypatch):
    monkeypatch.setattr(sarif_module, "MOST_RESULTS", 5)
    run = json.loads(sarif(many(3, 4)))["runs"][0]
    assert [each["level"] for each in run["results"]] == ["error"] * 3 + ["warning"] * 2
    assert "2 of 7 results are left out" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_sarif_stays_under_the_size_of_an_upload(monkeypatch):
    monkeypatch.setattr(sarif_module, "MOST_GZIP_BYTES", 4_000)
    output = sarif(many(400))
    SARIF.validate(json.loads(output))
    run = json.loads(output)["runs"][0]
    assert 0 < len(run["results"]) < 400
    assert len(gzip.compress(output.encode())) <= 4_000
    assert f"{400 - len(run['results'])} of 400" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_markdown_stays_under_a_mebibyte_and_says_what_was_cut():
    output = markdown(many(3_000, 3_000, said="ü" * 200))
    assert 900_000 < len(output.encode()) <= 1_000_000
    rows = table_cells(output)[1:]
    found = re.search(r"Cut to stay under 1,000,000 bytes: (\d+) rows, (\d+) findings", output.splitlines()[-1])
    assert len(rows) + int(found[1]) == 6_000
    assert output.count("\n- **KV001") + int(found[2]) == 6_000
    assert "cut" not in markdown(many(2, 2)).lower()
    assert len(markdown(many(1, said="x" * 3_000_000)).encode()) < 1_000_000


def test_fingerprints_outlive_a_shift_of_lines_and_new_numbers():
    def shifted(cell):
        moved = tuple(
            each._replace(place=each.place._replace(line=each.place.line + 7), message=each.message + "!", level="warning")
            for each in cell.outcomes
        )
        return cell._replace(outcomes=moved)

    before, after = report(), Report(tuple(shifted(cell) for cell in report().cells[::-1]))
    names = {
        "sarif.json": lambda output: {each["partialFingerprints"]["kvcliFinding/v1"] for each in output["runs"][0]["results"]},
        "gitlab.json": lambda output: {each["fingerprint"] for each in output},
    }
    for form, of in names.items():
        first, second = (of(json.loads(FORMS[form](each))) for each in (before, after))
        assert first <= second
        assert len(first) == 6


def test_two_findings_of_one_rule_in_one_cell_are_two():
    place = Place("a.yaml", 1)
    twice = Report((Cell("a", "b", place, (Outcome("KV014", "warning", "x", place),) * 2),))
    assert len({each["fingerprint"] for each in json.loads(FORMS["gitlab.json"](twice))}) == 2
    assert FORMS["junit.xml"](twice).count("<testcase") == 1
    held = twice._replace(against="b.json", cells=(twice.cells[0]._replace(known=(("KV014", "warning"),)),))
    assert text(held, False).count("warning KV014") == 1
    assert "1 warning that the baseline b.json already holds is not shown" in text(held, False)


def test_every_rule_has_help_and_every_alert_a_rule():
    assert set(HELP) == set(RULES)
    run = json.loads(sarif(report()))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [each["id"] for each in rules] == sorted(RULES)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert len(result["locations"]) == 1
    assert all(len(each["properties"]["tags"]) <= 20 for each in rules)


def test_a_waiver_is_a_suppression_with_its_reason():
    results = json.loads(sarif(report()))["runs"][0]["results"]
    waived = [each for each in results if each["suppressions"]]
    assert [(each["ruleId"], each["level"]) for each in waived] == [("KV001", "note")]
    assert waived[0]["suppressions"][0]["justification"].startswith("waived until 2026-12-31: moves to h100-pool")
    # all results have the list or none has
    assert all("suppressions" in each for each in results)


def test_a_baseline_never_hides_an_error():
    place = Place("a.yaml", 1)
    cell = Cell("a", "b", place, (Outcome("KV001", "error", "does not fit", place),), known=(("KV001", "error"), ("KV001", "warning")))
    for form in ("txt", "github.txt", "azure.txt", "md"):
        assert "does not fit" in FORMS[form](Report((cell,), "b.json")), form


def test_formats_with_a_memory_of_their_own_keep_what_the_baseline_holds():
    held = against(report(), baseline())
    known = [each for target in json.loads(FORMS["json"](held))["targets"] for each in target["rules"] if each["known"]]
    assert sorted(each["id"] for each in known) == ["KV001", "KV014"]
    assert len(json.loads(FORMS["gitlab.json"](held))) == 6
    states = [each["baselineState"] for each in json.loads(FORMS["sarif.json"](held))["runs"][0]["results"]]
    assert (states.count("unchanged"), states.count("new")) == (2, 4)
    for form in ("txt", "github.txt", "azure.txt", "md"):
        assert "2 GPUs are requested" in FORMS[form](report()), form
        assert "2 GPUs are requested" not in FORMS[form](held), form
        assert "1 warning and 1 note that the baseline .kvcli/baseline.json already holds are not shown" in FORMS[form](held), form
        assert "gone since the baseline: retired on l4-pool" in FORMS[form](held), form


@pytest.mark.parametrize("form", ["txt", "github.txt", "azure.txt", "md", "junit.xml", "json", "sarif.json"])
def test_no_rule_is_skipped_without_a_word(form):
    output = FORMS[form](report())
    assert "KV006" in output
    assert "the deployment does not fit, so no step of it has a floor" in output


def test_an_assumption_of_many_is_said_once():
    cells = tuple(Cell(f"t{index}", "l4", Place("a.yaml", 1), (), assumed=("vLLM 0.11.0",)) for index in range(50))
    for form in ("github.txt", "azure.txt", "md"):
        assert "assumed for t0 on l4, t1 on l4, t2 on l4 and 47 more: vLLM 0.11.0\n" in FORMS[form](Report(cells)), form


def test_colors_are_only_added():
    assert re.sub("\x1b\\[[0-9]*m", "", text(report(), True)) == text(report(), False)


def test_a_waiver_shows_in_the_table():
    place = Place("a.yaml", 1)
    cell = Cell("a", "b", place, (Outcome("KV001", "note", "x", place, waiver=Waiver("soon", "2027-01-01")),))
    assert table_cells(markdown(Report((cell,))))[1][0] == "pass (waived)"


def test_the_table_says_why_where_nothing_is_new():
    place = Place("a.yaml", 1)
    waived = Outcome("KV001", "note", "x", place, waiver=Waiver("soon", "2027-01-01"))
    held = Outcome("KV002", "warning", "y", place)
    cells = (Cell("a", "b", place, (waived,)), Cell("c", "d", place, (held,), before=Measures(), known=(("KV002", "warning"),)))
    titles, *rows = table_cells(markdown(Report(cells, "base.json")))
    assert sorted(row[titles.index("why")] for row in rows) == ["KV001 waived until 2027-01-01: soon", "KV002: as in the baseline"]


@pytest.mark.parametrize("form", ["md", "github.txt", "azure.txt", "txt"])
def test_of_what_is_unchanged_nothing_is_listed(form):
    place, measures = Place("a.yaml", 1), Measures(2**30, 2**31)
    skipped = Outcome("KV005", "skipped", "no limit is set", place)
    same = Cell("same", "l4", place, (skipped,), measures, measures, assumed=("a default",))
    moved = same._replace(target="moved", before=Measures(2**29, 2**31))
    text = FORMS[form](Report((same, moved), "base.json"))
    assert "moved on l4" in text and "no limit is set" in text and "a default" in text
    assert "same on l4" not in text
    assert "1 of 2 unchanged since the baseline base.json" in text
    # without a baseline all is said
    assert "same on l4" in FORMS[form](Report((same._replace(before=None), moved._replace(before=None))))


def test_text_is_folded_at_blanks_and_says_the_same():
    whole, folded = text(report(), False), text(report(), False, 80)
    assert max(map(len, whole.splitlines())) > 150
    assert [line for line in folded.splitlines() if len(line) > 80 and " " in line.strip()] == []
    assert folded.split() == whole.split()
    assert re.sub("\x1b\\[[0-9]*m", "", text(report(), True, 80)) == folded


def test_no_folded_line_begins_as_a_command():
    said = "x" * 60 + " ::error file=a::stop ##[error]no ::set-output name=a::b " + "y" * 60 + " ::warning::z"
    one = report()
    bad = one.cells[0].outcomes[0]._replace(level="error", message=said, formula=said, fix=said)
    folded = text(one._replace(cells=(one.cells[0]._replace(outcomes=(bad,)),)), False, 80)
    assert "::error" in folded
    assert folded.count("\n") > 8
    assert not [line for line in folded.splitlines() if line.strip().startswith(("::", "##"))]
