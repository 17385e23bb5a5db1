"""Presets for people and documents: the list of models, and one model's layer groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvcli.errors import BadInput
from kvcli.model import presets
from kvcli.model.spec import ModelSpec
from kvcli.report.table import Column, print_terminal, say
from kvcli.units import format_parameters

#: A JSON document, and the function that prints the same for people.
Answer = tuple[dict[str, Any], Callable[[], None]]

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([KMBT]?)", re.IGNORECASE)
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_parameters(text: str) -> int:
    """`8B` is 8,000,000,000: parameter counts are decimal. Raises BadInput."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadInput(f"--max-params {text[:40]!r} is not a size", hint="--max-params 8B", code="bad_count")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def listing(family: str | None, max_params: str | None) -> Answer:
    """All presets, or those of a family and up to a size."""
    most = parse_parameters(max_params) if max_params is not None else None
    specs = [presets.load(name).spec() for name in presets.names()]
    specs = [s for s in specs if s.model_type.startswith(family or "") and (most is None or s.parameters <= most)]

    def show() -> None:
        columns = [
            Column("name", right=False),
            Column("type", right=False),
            Column("parameters"),
            Column("active"),
            Column("trained context"),
        ]
        rows = [
            [
                s.name,
                s.model_type,
                format_parameters(s.parameters),
                format_parameters(s.active_parameters),
                f"{s.max_context_tokens:,}",
            ]
            for s in specs
        ]
        print_terminal(columns, rows)

    return {"schema_version": 1, "presets": [_summary(s) for s in specs]}, show


def one(name: str) -> Answer:
    """One preset: layer groups with what each layer remembers and how many parameters it has, and where it all comes from."""
    preset = presets.find(name)
    if preset is None:
        raise presets.unknown(name)
    spec = preset.spec()
    groups = [
        {
            "first_layer": group.first,
            "count": group.count,
            "records": [{"kind": record.kind, **_fields(record)} for record in group.records],
            "parameters": {**_fields(group.parameters), "total": group.parameters.total, "active": group.parameters.active},
        }
        for group in spec.groups
    ]
    document = {"schema_version": 1, **_summary(spec), "groups": groups, "around_the_layers": _around(spec), "kvcli": preset.block}

    def show() -> None:
        say(f"{spec.name} ({spec.model_type}): {spec.parameters:,} parameters, {spec.active_parameters:,} read for one token")
        columns = [Column("layers", right=False), Column("count"), Column("remembers", right=False), Column("parameters each")]
        rows = [
            [f"from {group.first}", str(group.count), "; ".join(map(_describe, group.records)) or "nothing", f"{group.parameters.total:,}"]
            for group in spec.groups
        ]
        print_terminal(columns, rows)
        print_terminal(
            [Column("around the layers", right=False), Column("parameters")], [[k, f"{v:,}"] for k, v in _around(spec).items() if v]
        )
        for key in ("source", "parameters_source", "note"):
            if key in preset.block:
                say(f"{key.replace('_', ' ')}: {preset.block[key]}")
        say("also called: " + ", ".join(preset.hub_ids))

    return document, show


def _summary(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "model_type": spec.model_type,
        "parameters": spec.parameters,
        "active_parameters": spec.active_parameters,
        "tower_parameters": spec.tower_parameters,
        "mtp_parameters": spec.mtp_parameters,
        "max_context_tokens": spec.max_context_tokens,
    }


def _around(spec: ModelSpec) -> dict[str, int]:
    return {
        "input table": spec.embedding,
        "other looked-up tables": spec.lookups,
        "shared by layers": spec.shared,
        "final norm": spec.final,
        "output head": spec.head,
        "towers, not counted above": spec.tower_parameters,
        "multi-token prediction, not counted above": spec.mtp_parameters,
    }


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record or of parameters that say something."""
    values = record._asdict()
    return {key: getattr(value, "name", value) for key, value in values.items() if value not in (0, None, "", -1)}


def _describe(record: Any) -> str:
    """`full_attention, 8 KV heads x (128 + 128)`, other records by their fields."""
    values = {key: value for key, value in _fields(record).items() if key not in ("kind", "num_attention_heads", "owns_cache")}
    if {"num_key_value_heads", "key_dim", "value_dim"} <= set(values):
        heads, key, value = (values.pop(name) for name in ("num_key_value_heads", "key_dim", "value_dim"))
        return ", ".join([f"{record.kind}, {heads} KV heads x ({key} + {value})", *(f"{k} {v}" for k, v in values.items())])
    return ", ".join([str(record.kind), *(f"{key} {value}" for key, value in values.items())])
