"""What `kvcli plan`'s options about time mean; loaded where one was given."""

from __future__ import annotations

import re
from pathlib import Path

from kvcli.errors import BadInput
from kvcli.plan.time.options import Timing
from kvcli.units import parse_rate


def timing_of(
    host_bandwidth: str | None,
    efficiency: str | None,
    calibrate: str | None,
    slo: str | None,
    price_hour: str | None,
    max_sequences: int | None,
    max_batched_tokens: int | None,
    needs_device: bool = False,
) -> Timing:
    """Raises BadInput that names the option and what it takes, or that it says nothing without a device."""
    asked = {
        "--host-bandwidth": host_bandwidth,
        "--efficiency": efficiency,
        "--calibrate": calibrate,
        "--slo": slo,
        "--price-hour": price_hour,
    }
    for option, value in asked.items():
        if needs_device and value is not None and option != "--host-bandwidth":
            text = f"{option} says something about floors, which need a device"
            raise BadInput(text, hint="name a part, as in --device h100-sxm5-80", code="needs_device")
    from kvcli.plan.time.estimates import calibrations_of
    from kvcli.plan.time.slo import find_slo

    return Timing(
        host_bytes_per_s=parse_rate(host_bandwidth, "--host-bandwidth") if host_bandwidth else 0.0,
        efficiency=_share(efficiency) if efficiency else None,
        calibrations=calibrations_of(Path(calibrate)) if calibrate else (),
        slo=find_slo(slo) if slo else None,
        price_per_hour=_price(price_hour) if price_hour else None,
        max_sequences=max_sequences,
        max_batched_tokens=max_batched_tokens,
    )


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 0.0


def _share(text: str) -> float:
    text = text.strip()
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise BadInput(f"--efficiency {text[:40]!r} is not a share of 1", hint="as in --efficiency 0.7 or 70%", code="bad_share")
    return value


def _price(text: str) -> float:
    value = _number(text.strip())
    if not value:
        hint = "what all devices cost together in an hour, as in --price-hour 12.0"
        raise BadInput(f"--price-hour {text[:40]!r} is not a positive number", hint=hint, code="bad_price")
    return value
