"""A long sweep counts on a terminal, leaves nothing behind, and says nothing in a log."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest

from kvcli.report.progress import counting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def screen(written):
    """Lines as a terminal shows them: a return goes back to the line's start, and what comes then is written over the old."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        cells, at = [], 0
        for char in line:
            if char == "\r":
                at = 0
                continue
            cells[at : at + 1] = [char]
            at += 1
        lines.append("".join(cells).rstrip())
    return [line for line in lines if line]


def test_a_count_shows_after_a_second_and_then_ten_times_a_second():
    out, now = Terminal(), 100.0
    states = []
    with counting(2000, "planned", out, lambda: now) as step:
        for _ in range(2000):
            now += 0.01
            before = out.getvalue()
            step()
            if out.getvalue() != before:
                states.append(screen(out.getvalue()))
    # 20 seconds of work, of which the first is quiet
    assert states[0][0] in ("planned 100 of 2,000", "planned 101 of 2,000")
    assert 170 <= len(states) <= 191
    assert screen(out.getvalue()) == []
    assert screen("planned 1 of 2\r  \rx") == ["x anned 1 of 2"]  # only blanks erase


@pytest.mark.parametrize(("total", "each_s", "out"), [(5000, 0.0001, Terminal()), (1, 5, Terminal()), (50, 1, io.StringIO())])
def test_nothing_shows_of_quick_work_of_one_step_or_in_a_log(total, each_s, out):
    now = 0.0
    with counting(total, "planned", out, lambda: now) as step:
        for _ in range(total):
            now += each_s
            step()
    assert out.getvalue() == ""


def test_an_interrupt_leaves_a_clean_line():
    out, now = Terminal(), 0.0
    with pytest.raises(KeyboardInterrupt), counting(9, "planned", out, lambda: now) as step:
        now = 2.0
        step()
        out.write("^C")  # the terminal's echo
        raise KeyboardInterrupt
    assert "planned 1 of 9" in out.getvalue()
    assert screen(out.getvalue()) == []


SLOW = ["plan", "llama3-8b", "--sweep", "ctx=1..9000", "--device", "l4", "--engine", "vllm"]


def start(view):
    """The program with its stderr on a terminal and its stdout in a pipe."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcli", *SLOW, view], stdout=subprocess.PIPE, stderr=child, stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(child)
    return process, parent


def read_all(parent, until=None):
    said = b""
    while until is None or not re.search(until, said):
        if not select.select([parent], [], [], 30)[0]:
            break
        try:
            more = os.read(parent, 65536)
        except OSError:
            break
        if not more:
            break
        said += more
    return said.decode()


def test_a_sweep_in_a_terminal_counts_and_erases():
    process, parent = start("--csv")
    first = read_all(parent, rb"planned [\d,]+ of 9,000")
    assert screen(first)[-1].startswith("planned ")
    out, _ = process.communicate(timeout=120)
    said = first + read_all(parent)
    os.close(parent)
    assert process.returncode == 0
    assert out.count(b"\n") == 9001
    assert b"planned" not in out
    assert not [line for line in screen(said) if "planned" in line]
    assert "\x1b" not in said


def test_ctrl_c_leaves_a_clean_line_and_130():
    process, parent = start("--json")
    said = read_all(parent, rb"planned [\d,]+ of 9,000")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    said += read_all(parent)
    os.close(parent)
    assert process.returncode == 130
    assert screen(said) == []
    assert out.count(b"\n") == 1
    assert b'"code":"interrupted"' in out


def test_a_log_has_no_progress(kvcli):
    answer = kvcli(*[word.replace("1..9000", "1..3000") for word in SLOW], "--csv")
    assert answer.code == 0
    assert "planned" not in answer.out + answer.err
    assert "\r" not in answer.out + answer.err
