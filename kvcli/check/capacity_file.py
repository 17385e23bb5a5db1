"""Reads kvcli.yaml: text with places to a Capacity. Every key that nothing reads is an error, so that no limit is silently ignored."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from collections.abc import Mapping as Lookup

from kvcli.check import values
from kvcli.check.capacity import Capacity, Limit, Load, Pool, Target, WaiverRule
from kvcli.check.deployment import Setting
from kvcli.check.nodes import Mapping, Node, Scalar, Word
from kvcli.check.verdict import RULES

#: key of a target -> (setting of a deployment, reader)
_SETTINGS: dict[str, tuple[str, Callable[[Node, str], int | float | str | bool]]] = {
    "ctx": ("context_tokens", lambda node, what: "auto" if values.word(node, what).text == "auto" else values.count(node, what)),
    "weights": ("weights", lambda node, what: values.word(node, what).text),
    "kv_dtype": ("kv_dtype", lambda node, what: values.word(node, what).text),
    "tp": ("tensor_parallel", values.count),
    "pp": ("pipeline_parallel", values.count),
    "dp": ("data_parallel", values.count),
    "ep": ("expert_parallel", values.count),
    "dp_attention": ("dp_attention", values.flag),
    "dcp": ("decode_context_parallel", values.count),
    "memory_fraction": ("memory_fraction", values.share),
    "kv_memory": ("kv_memory_bytes", values.size),
    "max_sequences": ("max_sequences", values.count),
    "max_batched_tokens": ("max_batched_tokens", values.count),
    "block_size": ("block_tokens", values.count),
    "parallel": ("slots", values.count),
    "kv_unified": ("kv_unified", values.flag),
    "swa_full": ("swa_full", values.flag),
    "ubatch": ("ubatch", values.count),
    "ngl": ("gpu_layers", values.count_or_zero),
    "n_cpu_moe": ("cpu_moe_layers", values.count_or_zero),
    "speculative": ("speculation", lambda node, what: values.word(node, what).text),
}
_LIMITS = ("memory", "headroom", "ttft", "tpot", "cost_per_mtok", "regression")
_LOAD = ("users", "ctx_p50", "ctx_p99", "ctx", "prompt", "osl", "cached_prefix")
_POOL = ("device", "devices", "gpus", "mig", "price_hour")
_WAIVER = ("rule", "reason", "expires", "on")
_DEFAULTS = (*_SETTINGS, "engine", "engine_version", "on", "load", "limits", "headroom")
_TARGET = ("name", "from", "command", "model", "waive", *_DEFAULTS)
_TOP = ("version", "defaults", "fleet", "targets", "models", "files", "baseline")


#: the names under which a folder's capacity file is found
NAMES = ("kvcli.yaml", "kvcli.yml")


def is_capacity_file(document: Node, path: str = "") -> bool:
    """Whether a YAML document is one of ours, and not a manifest: by its keys, a misspelt one too, or by the file's name."""
    if not isinstance(document, Mapping) or any(document.get(key) is not None for key in ("kind", "apiVersion", "services")):
        return False
    keys = [key.text for key, _ in document.pairs]
    return path.rpartition("/")[2] in NAMES or "targets" in keys or ("version" in keys and values.near("targets", keys) != "")


def read_capacity(document: Node, path: str) -> Capacity:
    """Raises BadInput, with the file and line, for anything that is not as the schema says."""
    top = values.mapping(document, "a capacity file")
    values.only(top, _TOP, "a capacity file")
    version = top.get("version")
    if version is None or values.word(version, "version").text != "1":
        place = version.place if version is not None else top.place
        raise values.bad(place, "the file's version must be 1", "begin it with version: 1")
    defaults = _mapping(top, "defaults")
    values.only(defaults, _DEFAULTS, "defaults")
    pools = {key.text: _pool(key, value) for key, value in _mapping(top, "fleet").pairs}
    targets = top.get("targets")
    if targets is None:
        raise values.bad(top.place, "the file has no targets")
    read = tuple(_target(values.mapping(each, "a target"), defaults, pools) for each in values.items(targets, "targets"))
    names: dict[str, int] = {}
    for each in read:
        if each.name in names:
            raise values.bad(each.place, f"the target {each.name!r} stands twice, first in line {names[each.name]}")
        names[each.name] = each.place.line
    if not read:
        raise values.bad(targets.place, "targets is empty: nothing would be checked")
    models = {key.text: values.word(value, f"models.{key.text}") for key, value in _mapping(top, "models").pairs}
    files, baseline = top.get("files"), top.get("baseline")
    return Capacity(
        path,
        read,
        pools,
        models,
        values.words(files, "files") if files is not None else (),
        values.word(baseline, "baseline") if baseline is not None else None,
    )


def _mapping(node: Mapping, key: str) -> Mapping:
    value = node.get(key)
    return Mapping((), node.place) if value is None else values.mapping(value, key)


def _pool(key: Scalar, node: Node) -> Pool:
    if isinstance(node, Scalar):  # `l4-pool: l4`
        return Pool(key.text, key.place, values.word(node, f"fleet.{key.text}"))
    pool = values.mapping(node, f"fleet.{key.text}")
    values.only(pool, _POOL, f"fleet.{key.text}")
    device = pool.get("device")
    if device is None:
        raise values.bad(key.place, f"the pool {key.text!r} names no device", "device: h100-sxm5-80")
    devices = pool.get("devices") or pool.get("gpus")
    price = pool.get("price_hour")
    return Pool(
        key.text,
        key.place,
        values.word(device, "device"),
        values.count(devices, "devices") if devices is not None else None,
        values.number(price, "price_hour") if price is not None else None,
        _word(pool, "mig"),
    )


def _target(node: Mapping, defaults: Mapping, pools: Lookup[str, Pool]) -> Target:
    name = values.word(node.get("name") or _missing(node, "a target has no name"), "name").text
    what = f"target {name}"
    values.only(node, _TARGET, what)
    sources = [key for key in ("from", "command", "model") if node.get(key) is not None]
    if not sources:
        raise values.bad(node.place, f"{what} says not what is deployed", "give it from:, command: or model:")
    if "from" in sources and "command" in sources:
        raise values.bad(node.place, f"{what} has both from: and command:", "leave one out")
    # a manifest says for itself what defaults would say; only what stands in the target overrides it
    shared = defaults if sources == ["model"] else Mapping((), defaults.place)
    read = {key: _word(node, key) or _word(shared, key) for key in ("engine", "engine_version")}
    on = node.get("on") or defaults.get("on")
    settings = {}
    for source in (shared, node):
        for key, (setting, reader) in _SETTINGS.items():
            value = source.get(key)
            if value is not None:
                settings[setting] = Setting(reader(value, f"{what}: {key}"), f"{key}: {values.word(value, key).text}", value.place)
    return Target(
        name=name,
        place=node.place,
        source=_word(node, "from"),
        command=_word(node, "command"),
        model=_word(node, "model"),
        engine=read["engine"],
        engine_version=read["engine_version"],
        settings=settings,
        on=values.words(on, f"{what}: on") if on is not None else (),
        load=_load(node, defaults, what),
        limits=_limits(node, defaults, what),
        waivers=_waivers(node, what, pools),
    )


def _missing(node: Mapping, message: str) -> Node:
    raise values.bad(node.place, message)


def _word(node: Mapping, key: str) -> Word | None:
    value = node.get(key)
    return values.word(value, key) if value is not None else None


def _load(node: Mapping, defaults: Mapping, what: str) -> Load:
    own = _mapping(node, "load")
    pairs: dict[str, Node] = {}
    for source in (_mapping(defaults, "load"), own):
        values.only(source, _LOAD, f"{what}: load")
        pairs |= {key.text: value for key, value in source.pairs}
    read = {key: values.count_or_zero(value, f"{what}: load.{key}") for key, value in pairs.items()}
    both = read.get("ctx")
    for key in ("users", "ctx", "ctx_p50", "ctx_p99", "prompt", "osl"):
        if read.get(key) == 0:
            raise values.bad(pairs[key].place, f"{what}: load.{key} must be at least 1")
    return Load(
        users=read.get("users"),
        context_p50=read.get("ctx_p50", both),
        context_p99=read.get("ctx_p99", both),
        prompt_tokens=read.get("prompt"),
        output_tokens=read.get("osl"),
        cached_prefix=read.get("cached_prefix"),
        place=own.place if own.pairs else None,
    )


def _limits(node: Mapping, defaults: Mapping, what: str) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for source in (defaults, node):
        limits = _mapping(source, "limits")
        values.only(limits, _LIMITS, f"{what}: limits")
        pairs = [(key.text, value) for key, value in limits.pairs]
        headroom = source.get("headroom")
        if headroom is not None:
            pairs.append(("headroom", headroom))
        for key, value in pairs:
            name, amount = _limit(key, value, f"{what}: {key}")
            if name.startswith("headroom"):  # a share and an amount say the same thing twice
                found.pop("headroom", None)
                found.pop("headroom_bytes", None)
            found[name] = Limit(amount, value.place, f"{key}: {values.word(value, key).text}")
    return found


def _limit(key: str, value: Node, what: str) -> tuple[str, float]:
    if key in ("ttft", "tpot"):
        return key, values.seconds(value, what)
    if key == "cost_per_mtok":
        return key, values.number(value, what)
    if key == "headroom" and re.search(r"[A-Za-z]", values.word(value, what).text):
        return "headroom_bytes", values.size(value, what)
    return key, values.share(value, what)


def _waivers(node: Mapping, what: str, pools: Lookup[str, Pool]) -> tuple[WaiverRule, ...]:
    waive = node.get("waive")
    return () if waive is None else tuple(_waiver(values.mapping(each, f"{what}: a waiver"), what) for each in values.items(waive, "waive"))


def _waiver(node: Mapping, what: str) -> WaiverRule:
    values.only(node, _WAIVER, f"{what}: a waiver")
    rule, reason, expires = (
        values.word(node.get(key) or _missing(node, f"{what}: a waiver needs its {key}"), key).text for key in ("rule", "reason", "expires")
    )
    if rule not in RULES:
        raise values.bad(node.place, f"{what}: there is no rule {rule[:40]!r}", "one of " + ", ".join(RULES))
    try:
        datetime.date.fromisoformat(expires)
    except ValueError:
        raise values.bad(node.place, f"{what}: {expires[:40]!r} is no date", "as in expires: 2027-03-31") from None
    on = node.get("on")
    return WaiverRule(rule, reason, expires, tuple(each.text for each in values.words(on, "on")) if on is not None else (), node.place)
