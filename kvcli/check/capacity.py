"""The capacity file: pools of devices, targets with their load and limits, and what is waived. `capacity_file.py` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcli.check.deployment import Setting
from kvcli.check.nodes import Place, Word


class Pool(NamedTuple):
    """Devices of one kind, or slices of one: `mig` is their profile. `devices` None: not said.

    `price_per_hour` of all of them together, or of one where `devices` is None.
    """

    name: str
    place: Place
    device: Word
    devices: int | None = None
    price_per_hour: float | None = None
    mig: Word | None = None


class Load(NamedTuple):
    """Who uses a target, in sequences and tokens; None: not said. `cached_prefix` None: all of a prompt but its last token may be
    found in a cache, so that only one token must be computed before the first answer."""

    users: int | None = None
    context_p50: int | None = None
    context_p99: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_prefix: int | None = None
    place: Place | None = None


class Limit(NamedTuple):
    """`value`: a share of 1, bytes, seconds, or money, by its name."""

    value: float
    place: Place
    said: str


class WaiverRule(NamedTuple):
    """`on` empty: on every device. It holds up to and with the day `expires`, an ISO date."""

    rule: str
    reason: str
    expires: str
    on: tuple[str, ...]
    place: Place


class Target(NamedTuple):
    """What is deployed: a reference into manifests (`source`), a command line, or a model with settings of its own.

    `settings` are keys of deployment.SETTINGS and win over what the manifest says. `limits`: memory, headroom, headroom_bytes,
    ttft, tpot, cost_per_mtok, regression.
    """

    name: str
    place: Place
    source: Word | None = None
    command: Word | None = None
    model: Word | None = None
    engine: Word | None = None
    engine_version: Word | None = None
    settings: Mapping[str, Setting] = {}
    on: tuple[Word, ...] = ()
    load: Load = Load()
    limits: Mapping[str, Limit] = {}
    waivers: tuple[WaiverRule, ...] = ()


class Capacity(NamedTuple):
    """A whole capacity file. `models`: what manifests call a model -> what kvcli finds it by; `files`: manifests beside the referenced
    ones (ConfigMaps, runtimes); paths are as written, from the folder of the file."""

    path: str
    targets: tuple[Target, ...]
    pools: Mapping[str, Pool] = {}
    models: Mapping[str, Word] = {}
    files: tuple[Word, ...] = ()
    baseline: Word | None = None
