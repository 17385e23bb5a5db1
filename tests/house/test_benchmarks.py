"""Benchmark scripts run: on the CPU with tiny shapes, so that they are known to work before a GPU is at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_gpu_check_runs_dry():
    pytest.importorskip("torch", reason="the check runs the transformer")
    command = ["bash", "benchmarks/gpu_check.sh", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("ok,") == 8
    for word in ("verify.jsonl: 3 lines", "runs.jsonl: 4 lines", "read_rate.jsonl: 1 lines", "all match", "TPOT"):
        assert word in done.stdout, done.stdout


def test_the_start_up_gate():
    """At most ten bare interpreters of CPU time; the set of loaded modules is the hard gate, in test_import_graph."""
    done = subprocess.run([sys.executable, "benchmarks/plan_startup.py", "10", "10"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
