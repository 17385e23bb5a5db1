"""Quantities as people write and read them.

Memory is binary and says so (GiB); bandwidth is decimal, as vendors state it (GB/s). `32k` tokens is 32,768.
"""

from __future__ import annotations

import re

from kvcli.errors import BadInput

#: More tokens than any cache will hold; past it a typing mistake is likelier than a question.
MAX_COUNT = 10**12
#: More sweep points than anyone reads; a wrong range would otherwise run for hours.
MAX_POINTS = 20_000

_SUFFIX = {"": 1, "k": 1024, "m": 1024**2}
_COUNT = re.compile(r"([0-9]{1,300})(?:\.([0-9]{1,6}))?([kKmM]?)")
_RANGE = re.compile(r"([^.]+(?:\.[0-9]+)?[kKmM]?)\.\.([^*+]+)(?:([*+])(.+))?")


def parse_count(text: str, option: str) -> int:
    """A positive whole number, `k` = 1,024 and `M` = 1,048,576. Raises BadInput."""
    match = _COUNT.fullmatch(text.strip().replace("_", ""))
    if match:
        whole, fraction, suffix = match.groups()
        factor = _SUFFIX[suffix.lower()]
        scale: int = 10 ** len(fraction or "")
        value, rest = divmod((int(whole) * scale + int(fraction or 0)) * factor, scale)
        if not rest and 1 <= value <= MAX_COUNT:
            return value
        if not rest and value > MAX_COUNT:
            raise BadInput(f"{option} {text[:40]!r} is more than {MAX_COUNT:,}, the largest count kvcli takes", code="count_too_large")
    raise BadInput(
        f"{option} {text[:40]!r} is not a positive whole number",
        hint=f"plain digits, or k and M for multiples of 1,024, as in {option} 128 or {option} 32k",
        code="bad_count",
    )


def parse_counts(text: str, option: str) -> list[int]:
    """A sweep: `4k`, `4k,32k`, `1..8` (step 1), `4k..32k+4k` (step 4k), `4k..128k*2` (doubling). Raises BadInput."""
    values: list[int] = []
    for part in text.split(","):
        values.extend(_parse_range(part, option) if ".." in part else [parse_count(part, option)])
        if len(values) > MAX_POINTS:
            raise _too_many(text, option)
    return list(dict.fromkeys(values))


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_seconds(text: str, option: str) -> float:
    """Seconds of `20ms`, `1.5s`. Raises BadInput, also for a number without a unit."""
    whole, fraction, unit = _with_unit(text)
    if unit not in _SECONDS:
        raise BadInput(f"{option} {text[:40]!r} is not a time with its unit", hint=f"{option} 20ms", code="bad_time")
    return float(f"{whole}.{fraction or 0}") * _SECONDS[unit]


def _with_unit(text: str) -> tuple[str, str, str]:
    """Digits before and after the point, and the unit in lower case; empty where the text is no such thing."""
    found = re.fullmatch(r"\s*(\d{1,15})(?:\.(\d{1,12}))?\s*([A-Za-z]{1,4})\s*", text)
    return (found[1], found[2] or "", found[3].lower()) if found else ("", "", "")


def check_points(count: int) -> None:
    """Raises BadInput for a sweep of several options whose product is too large."""
    if count > MAX_POINTS:
        raise BadInput(
            f"the sweep has {count:,} points, and {MAX_POINTS:,} are the most", hint="sweep fewer values", code="sweep_too_large"
        )


def _parse_range(part: str, option: str) -> list[int]:
    match = _RANGE.fullmatch(part.strip())
    if not match:
        raise BadInput(f"{option} {part[:40]!r} is not a range", hint=f"write {option} 4k..128k*2 or {option} 1..16+5", code="bad_range")
    first, last = parse_count(match[1], option), parse_count(match[2], option)
    step = parse_count(match[4], option) if match[3] else 1
    if first > last:
        raise BadInput(f"{option} {part[:40]!r} runs backwards", hint="put the smaller number first", code="bad_range")
    if match[3] == "*":
        if step < 2:
            raise BadInput(f"{option} {part[:40]!r} multiplies by {step} and never ends", hint="multiply by 2 or more", code="bad_range")
        values = []
        while first <= last:
            values.append(first)
            first *= step
        return values
    if (last - first) // step >= MAX_POINTS:
        raise _too_many(part, option)
    return list(range(first, last + 1, step))


def _too_many(text: str, option: str) -> BadInput:
    return BadInput(
        f"{option} {text[:40]!r} has more than {MAX_POINTS:,} points",
        hint="give a step, as in 4k..128k+4k, or a factor, as in 4k..128k*2",
        code="sweep_too_large",
    )


_AMOUNT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?\s*([A-Za-z]+)")
_SIZES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGTPE", 1)},
}
#: `KB` and all-lower-case spellings are common and say the same; `Gb` would be bits and is refused.
_SIZES |= {"KB": 1000, "kiB": 1024} | {unit.lower(): size for unit, size in _SIZES.items()}


def parse_size(text: str, option: str, zero: bool = False) -> int:
    """Bytes of a size with its unit, rounded down: `80GiB` is 80 x 2^30 and `80GB` 80 x 10^9; `0`, where `zero` may be, needs none.

    Raises BadInput, also for a bare number.
    """
    if zero and text.strip() == "0":
        return 0
    match = _AMOUNT.fullmatch(text.strip().replace("_", ""))
    unit = match and _SIZES.get(match[3])
    if match and unit:
        scale: int = 10 ** len(match[2] or "")
        size: int = (int(match[1]) * scale + int(match[2] or 0)) * unit // scale
        if 0 < size < 2**63:
            return size
    raise BadInput(
        f"{option} {text[:40]!r} is not a size with a unit",
        hint="as in 80GiB (binary) or 80GB (decimal)",
        code="bad_size",
    )


def parse_rate(text: str, option: str) -> float:
    """Bytes/s with their unit: `3.35TB/s`, `936 GB/s`, `87GiB/s`. Raises BadInput, also for a bare number or for bits."""
    amount, slash, per = text.strip().rpartition("/")
    if slash and per.strip() == "s":
        try:
            return float(parse_size(amount, option))
        except BadInput:
            pass
    raise BadInput(f"{option} {text[:40]!r} is not a rate with a unit", hint=f"as in {option} 80GB/s", code="bad_rate")


_BYTE_UNITS = (("EiB", 2**60), ("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(amount: int) -> str:
    """Bytes in the largest binary unit that keeps four significant digits: `4.000 GiB`, `576 B`."""
    sign = "-" if amount < 0 else ""
    amount = abs(amount)
    for unit, size in _BYTE_UNITS:
        if amount >= size:
            value = amount / size
            return f"{sign}{value:,.{3 if value < 100 else 1}f} {unit}"
    return f"{sign}{amount} B"


def exact_bytes(amount: int) -> str:
    return f"{amount:,} B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Decimal, as data sheets have it: `3,350 GB/s`."""
    value = bytes_per_s / 1e9
    return f"{value:,.0f} GB/s" if value >= 100 else f"{value:,.1f} GB/s"


def format_seconds(seconds: float) -> str:
    """`5.763 ms`, `1.204 s`, `37.00 us`: four digits, so that columns align."""
    unit, size = next((pair for pair in (("s", 1.0), ("ms", 1e-3)) if seconds >= pair[1]), ("us", 1e-6))
    return f"{four_digits(seconds / size)} {unit}"


def four_digits(value: float) -> str:
    """1.234, 12.34, 123.4, 1,234."""
    digits = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def format_flops(amount: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if amount >= size:
            return f"{four_digits(amount / size)} {unit}"
    return f"{amount:,.0f} FLOP"


def plural(count: int, word: str) -> str:
    """`1 token`, `8,192 tokens`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def format_tokens(count: int) -> str:
    """Plain digits with separators; whole binary thousands that read as such also in `k`: `32,768 (32k)`."""
    if 1024 <= count < 100_000 * 1024 and count % 1024 == 0:
        return f"{count:,} ({count // 1024}k)"
    return f"{count:,}"


def format_parameters(count: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:,}"
