"""docker compose: each service that starts something is a launch."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from kvcli.check.launch import OPEN, GpuRequest, Launch, Problem
from kvcli.check.manifests.fileset import Document, FileSet, integer, joined, lines_of, load, mappings, text_word
from kvcli.check.manifests.interpolation import interpolate, read_env_file
from kvcli.check.manifests.pods import with_programs
from kvcli.check.manifests.rewrite import overlay
from kvcli.check.nodes import Mapping, Node, Scalar, Sequence, Word
from kvcli.check.shell.container_run import read_gpus as read_gpus_option
from kvcli.check.shell.container_run import visible
from kvcli.check.shell.program import find_programs
from kvcli.check.shell.script import split_words
from kvcli.check.yaml_reader import read_text
from kvcli.errors import BadInput

_MAX_EXTENDS = 10
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "amd.com": "amd.com/gpu", "cdi": "nvidia.com/gpu"}


def read_compose(document: Document, files: FileSet) -> list[Launch]:
    """The services of a compose file, interpolated with the `.env` beside it. Variables of the caller's shell are not known here."""
    services = document.node.get("services")
    if not isinstance(services, Mapping):
        return []
    folder = Path(document.file).parent
    dotenv = folder / ".env"
    variables = read_env_file(dotenv, {}) if dotenv.is_file() else {}
    result: list[Launch] = []
    for name, service in services.pairs:
        if isinstance(service, Mapping):
            result += _Service(document, folder, variables).launches(name, service)
    return result


class _Service:
    def __init__(self, document: Document, folder: Path, variables: dict[str, Word]) -> None:
        self.document, self.folder, self.variables = document, folder, variables
        self.problems: list[Problem] = []

    def launches(self, name: Scalar, service: Mapping) -> list[Launch]:
        service = self._extended(service, self.document.node, 0)
        environment = self._environment(service)
        mounted = self._files(service)
        words = [*self._command(service.get("entrypoint")), *self._command(service.get("command"))]

        def find(path: str) -> Word | None:
            lines = mounted.get(path)
            return joined(lines) if lines is not None else None

        programs, found = find_programs(words, environment, find)
        image = service.text("image")
        launch = Launch(
            name=f"service/{name.text}",
            container=name.text,
            place=name.place,
            image=interpolate(image, self.variables) if image is not None else None,
            environment=environment,
            files=mounted,
            gpus=self._gpus(service, environment),
            replicas=self._replicas(service),
            problems=(*self.problems, *found),
        )
        return with_programs(launch, programs)

    def _text(self, node: Node | None) -> Word | None:
        return interpolate(node.word, self.variables) if isinstance(node, Scalar) else None

    def _command(self, node: Node | None) -> list[Word]:
        if isinstance(node, Scalar) and node.type != "null":
            return list(split_words(interpolate(node.word, self.variables)))
        items = node.items if isinstance(node, Sequence) else ()
        words: list[Word] = []
        for item in items:
            word = self._text(item)
            if word is None or (isinstance(item, Scalar) and item.type != "str"):
                place = item.place
                self.problems.append(Problem("not_a_string", "an entry of a command is no string, which compose refuses: quote it", place))
            if word is not None:
                words.append(word)
        return words

    def _extended(self, service: Mapping, root: Mapping, depth: int) -> Mapping:
        """The service laid over the one it extends, of the same file or another one beside it."""
        extends = service.get("extends")
        if extends is None:
            return service
        name = extends.word if isinstance(extends, Scalar) else extends.text("service") if isinstance(extends, Mapping) else None
        file = extends.text("file") if isinstance(extends, Mapping) else None
        if file is not None:
            try:
                found = [each for each in load(Path(os.path.normpath(self.folder / file.text))) if isinstance(each, Document)]
            except BadInput as error:
                self.problems.append(
                    Problem("base_not_found", f"{file.text}, which is extended, cannot be read ({error.message})", file.place)
                )
                return service
            root = found[0].node if found else Mapping((), file.place)
        base = root.at("services", name.text) if name is not None else None
        if not isinstance(base, Mapping) or depth > _MAX_EXTENDS:
            label = name.text if name is not None else "it"
            self.problems.append(Problem("base_not_found", f"the service {label} that is extended is not found", extends.place))
            return service
        base = self._extended(base, root, depth + 1)
        own = Mapping(tuple(pair for pair in service.pairs if pair[0].text != "extends"), service.place)
        if isinstance(base.get("environment"), Sequence) or isinstance(own.get("environment"), Sequence):
            merged = overlay(base, own, joined=("environment", "volumes"), deep=("deploy",))
        else:
            merged = overlay(base, own, joined=("volumes",), deep=("deploy", "environment"))
        return Mapping(tuple(pair for pair in merged.pairs if pair[0].text != "extends"), merged.place)

    def _environment(self, service: Mapping) -> dict[str, Word]:
        result: dict[str, Word] = {}
        files = service.get("env_file")
        for item in files.items if isinstance(files, Sequence) else (files,) if files is not None else ():
            path = item.text("path") if isinstance(item, Mapping) else self._text(item)
            required = item.text("required") if isinstance(item, Mapping) else None
            if path is None:
                continue
            try:
                result.update(read_env_file(self.folder / path.text, self.variables))
            except BadInput:
                matters = required is None or required.text.lower() != "false"
                message = f"the env file {path.text} cannot be read, so what it sets is not known"
                self.problems.append(Problem("environment_not_in_files", message, path.place, matters))
                result[OPEN] = Word("", path.place, False)
        node = service.get("environment")
        if isinstance(node, Mapping):
            for name, value in node.pairs:
                passed = not isinstance(value, Scalar) or value.type == "null"
                result[name.text] = self._passed(name.word) if passed else self._text(value) or name.word
        elif isinstance(node, Sequence):
            for item in node.items:
                word = self._text(item)
                if word is None:
                    continue
                key, equals, text = word.text.partition("=")
                result[key] = word._replace(text=text, spots=()) if equals else self._passed(word)
        return result

    def _passed(self, name: Word) -> Word:
        """A variable that is handed through from the caller's shell."""
        return self.variables.get(name.text) or Word(f"${name.text}", name.place, False)

    def _replicas(self, service: Mapping) -> int:
        for node in (service.at("deploy", "replicas"), service.get("scale")):
            word = self._text(node)
            if word is not None and word.text.isdigit() and len(word.text) < 9:
                return int(word.text)
        return 1

    # devices

    def _gpus(self, service: Mapping, environment: dict[str, Word]) -> GpuRequest | None:
        gpus = service.get("gpus")
        if isinstance(gpus, Scalar):
            return read_gpus_option(interpolate(gpus.word, self.variables))._replace(said="gpus: {}")
        reserved = service.at("deploy", "resources", "reservations", "devices")
        for device in (*mappings(gpus), *mappings(reserved)):
            kinds = device.get("capabilities")
            driver = self._text(device.get("driver"))
            names = [item.text for item in kinds.items if isinstance(item, Scalar)] if isinstance(kinds, Sequence) else []
            if gpus is None and "gpu" not in names and "nvidia" not in names and driver is None:
                continue
            resource = _RESOURCES.get(driver.text if driver is not None else "nvidia")
            return self._device(device, resource)
        for entry in mappings(service.at("deploy", "resources", "reservations", "generic_resources")):
            amount = entry.at("discrete_resource_spec", "value")
            if amount is not None:
                return GpuRequest(integer(amount), amount.place, "nvidia.com/gpu", said="value: {}")
        devices = service.get("devices")
        for item in devices.items if isinstance(devices, Sequence) else ():
            word = self._text(item)
            if word is not None and word.text.startswith("/dev/kfd"):
                return visible(environment) or GpuRequest(None, word.place, "amd.com/gpu")
            if word is not None and word.text.startswith(("nvidia.com/gpu=", "amd.com/gpu=")):
                name, _, chosen = word.text.partition("=")
                return GpuRequest(None if chosen == "all" else 1, word.place, name)
        return visible(environment)

    def _device(self, device: Mapping, resource: str | None) -> GpuRequest:
        ids, count = device.get("device_ids"), self._text(device.get("count"))
        if isinstance(ids, Sequence):
            return GpuRequest(len(ids.items), ids.place, resource, said="device_ids of {} devices")
        if count is None or count.text == "all" or not count.literal:
            return GpuRequest(None, count.place if count is not None else device.place, resource)
        amount = int(count.text) if count.text.isdigit() and len(count.text) < 9 else None
        return GpuRequest(amount, count.place, resource, said="count: {}")

    # files

    def _files(self, service: Mapping) -> dict[str, tuple[Word, ...]]:
        """Text files that are mounted from beside the compose file, and its `configs`."""
        result: dict[str, tuple[Word, ...]] = {}
        volumes = service.get("volumes")
        for item in volumes.items if isinstance(volumes, Sequence) else ():
            if isinstance(item, Mapping):
                source, target = self._text(item.get("source")), self._text(item.get("target"))
            else:
                word = self._text(item)
                pieces = word.text.split(":") if word is not None else []
                if word is None or len(pieces) < 2:
                    continue
                source, target = word._replace(text=pieces[0]), word._replace(text=pieces[1])
            if source is not None and target is not None and source.text.startswith("."):
                self._add(result, target.text, self.folder / source.text)
        configs = service.get("configs")
        for item in configs.items if isinstance(configs, Sequence) else ():
            name = item.text("source") if isinstance(item, Mapping) else self._text(item)
            if name is None:
                continue
            target = (item.text("target") if isinstance(item, Mapping) else None) or Word(f"/{name.text}", name.place)
            config = self.document.node.at("configs", name.text)
            if not isinstance(config, Mapping):
                continue
            content, file = config.text("content"), config.text("file")
            if content is not None:
                result[target.text] = lines_of(interpolate(content, self.variables))
            elif file is not None:
                self._add(result, target.text, self.folder / file.text)
        return result

    def _add(self, result: dict[str, tuple[Word, ...]], target: str, path: Path) -> None:
        if not path.is_file() or path.stat().st_size > 1_000_000:
            if path.is_dir() and path.suffix == "":
                for inner in sorted(path.glob("*.[sy]*"))[:50]:
                    if inner.is_file() and inner.suffix in (".sh", ".yaml", ".yml"):
                        self._add(result, posixpath.join(target, inner.name), inner)
            return
        try:
            file = Path(os.path.normpath(path))
            result[target] = lines_of(text_word(read_text(file), file.as_posix()))
        except BadInput:
            return
