"""Byte-exact outputs of one realistic report, with and without a baseline. KVCLI_UPDATE_GOLDEN=1 writes them anew."""

import os
from pathlib import Path

import pytest
from report_forms import FORMS, steady, validate
from report_samples import baseline, report

from kvcli.check.baseline import against
from kvcli.check.verdict import Report

GOLDEN = Path(__file__).parent / "golden"
REPORTS = {"plain": report(), "against": against(report(), baseline()), "empty": Report(())}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REPORTS)
def test_an_output(name, form):
    output = FORMS[form](REPORTS[name])
    assert output == FORMS[form](REPORTS[name])
    assert output.endswith("\n")
    assert not output.endswith("\n\n")
    validate(form, output)
    path = GOLDEN / f"{name}.{form}"
    if os.environ.get("KVCLI_UPDATE_GOLDEN"):
        path.write_text(steady(output), encoding="utf-8", newline="\n")
    assert path.read_bytes() == steady(output).encode()


def test_no_golden_file_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{form}" for name in REPORTS for form in FORMS}


@pytest.mark.parametrize("form", ["txt", "github.txt", "md"])
def test_each_text_alone_says_what_changed_why_it_fails_and_what_to_do(form):
    output = FORMS[form](REPORTS["against"])
    for words in (
        "was 66.129 GiB" if form == "md" else "66.129 GiB -> 97.061 GiB",
        "+46.8%",
        "does not fit",
        "104,217,968,640 B",
        "24576",
        "chat.yaml",
        "31",
        "h100-pool",
    ):
        assert words in output.replace("%25", "%"), words
