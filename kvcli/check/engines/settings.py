"""What an engine reader fills in: settings with their places, and Problems for what it cannot read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvcli.check.deployment import Setting
from kvcli.check.engines.table import Given
from kvcli.check.launch import GpuRequest, Problem
from kvcli.check.nodes import Place, Word

Value = int | float | str | bool
GIB = 2**30
#: kvcli's names of types as engines write them
TYPES = {
    **dict.fromkeys(("half", "float16", "fp16", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float", "float32", "fp32", "f32"), "fp32"),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fn", "fp8_inc", "fp8_ds_mla", "fp8_e4m3fnuz"), "fp8"),
    "auto": "auto",
}
#: values of `--device` that mean the accelerators that are there
ACCELERATED = ("auto", "cuda", "gpu")
#: settings on which the weights do not depend
OF_CACHE = ("context_tokens", "max_sequences", "max_batched_tokens", "kv_dtype", "block_tokens", "kv_tokens", "kv_offload_bytes")


class Rule(NamedTuple):
    """An option that sets one thing: the key of SETTINGS, and what makes its value of text (ValueError: the engine refuses it)."""

    key: str
    read: Callable[[str], Value]


class Draft:
    """A deployment's settings while its command line is read. What comes later in the reading wins."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.settings: dict[str, Setting] = {}
        self.problems: list[Problem] = []
        #: keys that the command sets to something that was not understood
        self.unread: set[str] = set()

    def set(self, key: str, value: Value, said: str, place: Place | None = None) -> None:
        self.settings[key] = Setting(value, said, place)

    def default(self, key: str, value: Value, version: str, why: str = "") -> None:
        """What an omitted option stands at; nothing where the key is set. `why`: what else decides, after the version."""
        self.settings.setdefault(key, Setting(value, f"{version} default{', ' if why else ''}{why}"))

    def value(self, key: str) -> Value | None:
        setting = self.settings.get(key)
        return None if setting is None else setting.value

    def problem(self, code: str, message: str, place: Place, matters: bool = True) -> None:
        self.problems.append(Problem(code, " ".join(message.split()), place, matters))

    def not_modelled(self, given: Given, *kinds: Mapping[str, str]) -> None:
        """A Problem for an option of one of `kinds`, options and what they do: any change, one of the cache alone, smaller weights of the
        same model, more of anything."""
        for code, options in zip(NOT_MODELLED, kinds, strict=True):
            if given.option in options:
                self.problem(code, f"kvcli has no rule for {given.said[:60]}: {options[given.option]}", given.place)

    def literal(self, given: Given, key: str = "") -> str | None:
        """The option's value, None with a Problem where it has none or it is only known where it runs. `key`: what it sets."""
        if not given.values:
            self.problem("bad_argument", f"{given.word.text} lacks its value", given.word.place)
            return None
        value = given.values[0]
        if unfilled(value):
            code = "cache_not_literal" if key in OF_CACHE else "not_literal"
            self.problem(code, f"{given.said} is only known where it runs, so kvcli cannot take it into account", value.place)
            return None
        return value.text

    def apply(self, given: Given, rule: Rule) -> None:
        """One option that sets one thing."""
        text = self.literal(given, rule.key)
        if text is not None:
            self.read(rule, text, given.said, given.place)
        if rule.key not in self.settings:
            self.unread.add(rule.key)

    def read(self, rule: Rule, text: str, said: str, place: Place) -> None:
        try:
            self.set(rule.key, rule.read(text), said, place)
        except NotImplementedError as what:
            code = "cache_not_modelled" if rule.key in OF_CACHE else "option_not_modelled"
            self.problem(code, f"kvcli has no rule for {said}: {what}", place)
        except (ValueError, OverflowError):
            # of zeros and negative numbers some versions make something
            code = "odd_argument" if _NONE_OR_LESS.fullmatch(text.strip()) else "bad_argument"
            self.problem(code, f"{self.engine} refuses {said}: {text[:40]!r} is not a value it takes", place)

    def switch(self, key: str, name: str, environment: Mapping[str, Word]) -> None:
        """A variable that switches something on with 1 or true; one that is only known where it runs may."""
        word = environment.get(name)
        if word is not None:
            on = not word.literal or word.text.strip().lower() in ("1", "true")
            self.set(key, on, f"{name}={word.text[:40]}", word.place)

    def every_device(self, key: str, gpus: GpuRequest | None, version: str) -> None:
        """The default of an engine that spreads over every device it sees, a Problem where nobody says how many those are."""
        if gpus is not None and gpus.amount is not None and not (gpus.fewer and gpus.amount > 1):
            if gpus.amount:
                self.default(key, gpus.amount, version, "every device it sees")
        elif gpus is not None and key not in self.settings:
            text = f"{self.engine} takes every device it sees, and how many those are is not known here: kvcli takes one"
            self.problem("devices_not_counted", text, gpus.place)

    def json(self, given: Given) -> dict[str, Any] | None:
        """An option whose value is a JSON object; None with a Problem where it is none."""
        text = self.literal(given)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.problem("bad_argument", f"{self.engine} refuses {given.word.text.partition('=')[0]}: it is not a JSON object", given.place)
            return None
        return found


#: references that Kubernetes does not know, and placeholders: something fills them in before the engine sees them
_UNFILLED = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_]\w*|\{\{.*\}\}")


#: codes of Draft.not_modelled, in its order
NOT_MODELLED = ("option_not_modelled", "cache_not_modelled", "types_not_modelled", "more_not_modelled")
_NONE_OR_LESS = re.compile(r"-\d+(?:\.\d*)?|0+(?:\.0*)?")


def unfilled(value: Word) -> bool:
    """Whether a value is only known where it runs, or is still to be filled in, as by envsubst."""
    return not value.literal or _UNFILLED.fullmatch(value.text.strip()) is not None


def counts(text: str) -> bool:
    """Whether it is a whole number of a length that any engine takes; Python refuses to convert very long ones."""
    return text.isascii() and text.isdecimal() and len(text) <= 15


def whole(least: int = 1, most: int = 10**15) -> Callable[[str], int]:
    """Digits, as Python and most engines read them."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return read


_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWERS = "kmgt"


def human(text: str) -> int:
    """vLLM's and SGLang's whole numbers: `32k` is 32,000 and `32K` 32,768; fractions with small letters only (25.6k).

    Source: human_readable_int of vllm-project/vllm, vllm/utils/argparse_utils.py (0.11 to 0.33).
    """
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return whole()(text)
    number, suffix = match.groups()
    power = _POWERS.index(suffix.lower()) + 1
    value = int(float(number) * 1000**power) if suffix.islower() else int(number) * 1024**power
    return whole()(str(value))


def fraction(text: str) -> float:
    """A share of memory, above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError
    return value


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def gib(text: str) -> int:
    """GiB as a decimal number -> bytes."""
    value = float(text)
    if not 0 <= value < 2**20:
        raise ValueError
    return int(value * GIB)


def boolean(text: str) -> bool:
    """Raises ValueError for what is neither."""
    found = {"true": True, "1": True, "on": True, "enabled": True, "false": False, "0": False, "off": False, "disabled": False}
    return found[text.strip().lower()] if text.strip().lower() in found else _refuse()


def _refuse() -> bool:
    raise ValueError


def one_of(names: Mapping[str, Value], others: str = "") -> Callable[[str], Value]:
    """`others`: names that the engine takes and kvcli has no rule for."""

    def read(text: str) -> Value:
        if text in names:
            return names[text]
        if text in others.split():
            raise NotImplementedError("it is a choice kvcli does not know")
        raise ValueError

    return read


def any_of(names: Mapping[str, Value]) -> Callable[[str], Value]:
    """For choices whose list grows with every version: what kvcli does not know may still be the engine's."""

    def read(text: str) -> Value:
        if text in names:
            return names[text]
        raise NotImplementedError("it is a choice kvcli does not know")

    return read
