"""Measured records: their schema, their writer and their reader, in the standard library alone.

A record is one JSON object on one line. It contains its plan, raw samples in nanoseconds, and the definitions of its
numbers, so that every view can be made again from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvcli.errors import BadInput

SCHEMA_VERSION = 1


@dataclass
class Record:
    """One measured point. Times in seconds are derived from `samples`; None means that it was not measured.

    `measured_over_floor` needs a part whose bandwidth is known, `measured_over_reference` holds the same ratio against a
    read rate measured in the same process. `error` is set on a point that failed or was interrupted.
    """

    kind: str
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    samples: dict[str, list[Any]] = field(default_factory=dict)
    ttft_s: float | None = None
    tpot_s: float | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    mean_read_bytes_per_step: float | None = None
    tpot_floor_s: float | None = None
    measured_over_floor: float | None = None
    reference: Mapping[str, Any] | None = None
    measured_over_reference: float | None = None
    memory: Mapping[str, int | None] = field(default_factory=dict)
    prompt_token_count: int = 0
    output_token_count: int = 0
    stopped: str | None = None
    text: str | None = None
    output_token_ids_sha256: str | None = None
    weights: str = ""
    definitions: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, str] | None = None
    schema_version: int = SCHEMA_VERSION

    def document(self) -> dict[str, Any]:
        values = asdict(self)
        version = values.pop("schema_version")
        if values["error"] is None:
            del values["error"]
        return {"schema_version": version, **values}


def dumps(document: Mapping[str, Any]) -> str:
    """One compact line, without NaN."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def append(path: Path, record: Record) -> None:
    """Adds one line and makes it durable: what was measured survives a crash right after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(dumps(record.document()) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file. Raises BadInput that names the file and line of a damaged one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {str(error)[:120]}", code="unreadable_file") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError:
            raise BadInput(f"{path}, line {number} is not a record", code="bad_record") from None
        if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
            raise BadInput(f"{path}, line {number} has another schema_version than {SCHEMA_VERSION}", code="bad_record")
        records.append(document)
    return records
