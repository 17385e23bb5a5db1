"""Shared by all tests: running the program as a user does, and the default model's weights where they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:
    # each worker has a core: threads of several would wait for each other, spinning; children of tests inherit it
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# how long an example takes says how busy the machine is
hypothesis.settings.register_profile("kvcli", deadline=None)
hypothesis.settings.load_profile("kvcli")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


NO_GPU = "class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError\n"


@pytest.fixture
def kvcli(tmp_path_factory):
    """Runs `kvcli …` as a child process and returns exit code, stdout and stderr.

    NVML is replaced by one that finds no GPU, so that answers do not depend on the machine; tests bring their own.
    """
    stub = tmp_path_factory.mktemp("nvml")
    here = Path(__file__).resolve().parent.parent  # so that a test may run it from any folder
    (stub / "pynvml.py").write_text(NO_GPU)

    def call(*arguments: str, stdin: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 300):
        done = subprocess.run(
            [sys.executable, "-m", "kvcli", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "80", "PYTHONPATH": f"{stub}{os.pathsep}{here}", **(env or {})},
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def manual_files(tmp_path) -> Path:
    """A folder with the files that the README shows under a name, as in ```yaml kvcli.yaml."""
    folder = tmp_path / "manual"
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's file; without it the test says why it did not run."""
    from kvcli.model import presets, store

    source = store.WeightsSource.from_json(presets.load("smollm2-135m").block["weights"], "preset smollm2-135m")
    path = store.present(source)
    if path is None:
        pytest.skip(f"the default model is not in {store.models_folder()}: run `kvcli pull smollm2-135m` (needs the network once)")
    return path
