"""Files written for one test, and where a piece of them stands."""

from pathlib import Path

import pytest

from kvcli.check.manifests.read import read_launches


class Files:
    """Writes files into a folder and reads them back as launches. Lines are asked for by a needle, so no test counts lines."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.texts = {}

    def write(self, text, name="m.yaml"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if isinstance(text, str):
            self.texts[path.as_posix()] = text
        return path

    def launches(self, text, name="m.yaml", **options):
        return read_launches([self.write(text, name)], **options)

    def line(self, needle, name="m.yaml"):
        """The number of the one line that holds `needle`."""
        lines = [n for n, line in enumerate(self.texts[(self.folder / name).as_posix()].split("\n"), 1) if needle in line]
        assert len(lines) == 1, f"{needle!r} stands in lines {lines}"
        return lines[0]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def texts(launch):
    return [word.text for word in launch.words]


def word(launch, text):
    found = [each for each in launch.words if each.text == text]
    assert len(found) == 1, f"{text!r} not once in {texts(launch)}"
    return found[0]


@pytest.fixture
def helpers():
    return texts, word
