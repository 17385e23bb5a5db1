"""The model a deployment names, found without a network: in the capacity file's own names, in files beside it, or among the presets."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from kvcli.check.nodes import Word
from kvcli.errors import BadInput, KvcliError
from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.model.resolve import is_path, resolve
from kvcli.model.spec import ModelSpec
from kvcli.plan.weights import parse_weights

#: what stands before a hub id, or before a path of which the last part is the model's name
_SCHEMES = re.compile(r"^(hf|s3|gs|gcs|pvc|oci|https?|file|model|models)://", re.IGNORECASE)
_GGUF = re.compile(r"[-_.]?gguf$", re.IGNORECASE)
#: llama.cpp's names of mixes at the end of a file's name, or behind a repository's
#: a folder of the hub's cache
_CACHED = re.compile(r"(?:^|.*/)models--([^/]+?)--([^/]+)/snapshots/[^/]+$")
#: how others call their quantised copies of a model -> the least that its matrices take
_COPIES = (
    (re.compile(r"[-_.](?:fp8(?:[-_](?:dynamic|block|kv))?|quantized\.w8a8|w8a8)$", re.IGNORECASE), "fp8"),
    (re.compile(r"[-_.](?:gptq[-_]int8|int8|8bit|bnb[-_]8bit)$", re.IGNORECASE), "int8"),
    (
        re.compile(
            r"[-_.](?:quantized\.w4a16|w4a16(?:[-_]g\d+)?|(?:int4[-_])?awq(?:[-_]int4|[-_]4bit)?|gptq(?:[-_]int4|[-_]4bit)?|int4"
            r"|(?:unsloth[-_])?bnb[-_]4bit|4bit|nvfp4|fp4)$",
            re.IGNORECASE,
        ),
        "int4",
    ),
)
_MIX = re.compile(r"[-._:](?:UD-)?((?:I?Q[2-8]_[0-9A-Z_]+)|BF16|F16|FP16|F32|MXFP4(?:_MOE)?)(?:-0*1-of-\d+)?(?:\.gguf)?$", re.IGNORECASE)

T = TypeVar("T")
#: how publishers call files of their own models that are quantised -> the least that the matrices take in them
_QUANTISED = {"-FP8": "fp8", "-AWQ": "int4-g128", "-GPTQ-Int4": "int4-g128", "-GPTQ-Int8": "int8"}
#: Qwen's own fp8 files of Qwen3 have blocks of 128 x 128 (their model cards; Qwen/Qwen3-30B-A3B-FP8's config.json), which a split must not
#: cut: 2,560 / 8 = 320 rows were refused (vllm-project/vllm#17569).
QWEN_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
_IN_BLOCKS = ("qwen3", "qwen3_moe")
#: publishers whose quantised files also say what type the cache has
_CACHE_IN_FILE = ("nvidia/", "amd/")


class Found(NamedTuple):
    """`spec` None: not found, and `why` and `fix` say what to do. `label` says how a name was read that no preset has; `weights` is the
    type that a file's name tells; `doubt` why the type of the weights is not known, though the model is, and `copy` whether a name says at
    least that it is no less than 4 bits."""

    spec: ModelSpec | None
    why: str = ""
    fix: str = ""
    label: str = ""
    weights: str = ""
    doubt: str = ""
    copy: bool = False


class Models:
    """Looks each name up once. `names` are the capacity file's: what a manifest says -> what kvcli finds it by; `base` its folder."""

    def __init__(self, names: Mapping[str, Word], base: Path) -> None:
        self.names, self.base = names, base
        self._known: dict[tuple[str, bool], Found] = {}
        self._answers: dict[Hashable, object] = {}

    def once(self, question: Hashable, answer: Callable[[], T]) -> T:
        """The answer to a question, found once for all deployments that ask it; equal questions must have equal answers."""
        if question not in self._answers:
            self._answers[question] = answer()
        return cast(T, self._answers[question])

    def find(self, word: Word | None, own: bool = False) -> Found:
        """`own`: the capacity file itself says so, and its paths are files here; paths of manifests are files where they run."""
        if word is None:
            return Found(None, "the deployment does not say which model it serves", "model: in the target, a preset or a config.json")
        text = word.text.strip()
        if (text, own) not in self._known:
            self._known[text, own] = self._read(text) if own else self._find(text, word.literal)
        return self._known[text, own]

    def _find(self, text: str, literal: bool) -> Found:
        named = self.names.get(text)
        if named is not None:
            return self._read(named.text)
        fix = f"in the capacity file, models: {{ {text!r}: config.json }} with the model's own file beside it, or the preset that it is"
        if not literal:
            return Found(None, f"the model {text[:120]!r} is only known where it runs", fix)
        preset = presets.find(text)
        if preset is not None:
            return Found(preset.spec())
        for name, weights, label in _shorter(text):
            preset = presets.find(name)
            if preset is not None and _own_blocks(text, preset, weights):
                config = {**preset.config, "quantization_config": QWEN_FP8}
                spec = spec_from_config(config, name=preset.name, source=f"preset {preset.name}")
                return Found(spec, label=label.format(text[:120], preset.name))
            if preset is not None:
                doubt = f"{text[:120]} names GGUF files and not their type, and kvcli counts {preset.name} as it was published"
                bare = "gguf" in text.lower() and not weights
                closest = _closest(weights)
                if closest != weights:
                    doubt = f"{text[:120]} names a mix, {weights}, that kvcli has no rule for, and counts {closest or preset.name}"
                    label = label.format(text[:120], preset.name)
                    return Found(preset.spec(), label=label, weights=closest, doubt=doubt, copy=closest >= "q4")
                return Found(preset.spec(), label=label.format(text[:120], preset.name), weights=weights, doubt=doubt if bare else "")
        for name, kind in _copied(text):
            preset = presets.find(name)
            if preset is not None:
                label = f"the model is taken to be {preset.name}, from the name {text[:120]!r}"
                doubt = f"{text[:120]} names a quantised copy of {preset.name}, which kvcli counts in {kind}"
                return Found(preset.spec(), label=label, weights=kind, doubt=doubt, copy=True)
        return Found(None, f"no preset is {text[:120]!r}", fix)

    def _read(self, text: str) -> Found:
        """A path from the capacity file's folder, or a preset."""
        try:
            here = self.base / text
            relative = not text.startswith(("/", "~")) and (is_path(text) or here.is_file())
            return Found(resolve(str(here) if relative else text))
        except BadInput as error:
            return Found(None, error.message, error.hint)
        except (KvcliError, OSError, ValueError) as error:
            return Found(None, str(getattr(error, "message", error))[:300], getattr(error, "hint", ""))


def _shorter(text: str) -> list[tuple[str, str, str]]:
    """(name, weights, label) that what was written may mean: without a scheme, a folder, a mix of types."""
    plain = _plain(text)
    found = [(plain, "", "")] if plain != text else []
    mix = _MIX.search(plain)
    weights = _type(mix[1]) if mix else ""
    short = _GGUF.sub("", plain[: mix.start()] if mix else plain)
    short = _GGUF.sub("", short.removesuffix(".gguf"))
    last = short.rpartition("/")[2]
    said = "the model is taken to be {1}, from the name {0!r}"
    return [*found, *_of_publisher(plain), (short, weights, said), (last, weights, said)]


def _of_publisher(plain: str) -> list[tuple[str, str, str]]:
    """`OWNER/MODEL-FP8` where `OWNER/MODEL` is known: another's files of the name might hold anything."""
    ending = next((each for each in _QUANTISED if plain.lower().endswith(each.lower())), "")
    owner, slash, name = plain.removesuffix(plain[-len(ending) :]).rpartition("/") if ending else ("", "", "")
    if not slash or "/" in owner or f"{owner}/".lower().startswith(_CACHE_IN_FILE):
        return []
    kind = _QUANTISED[ending]
    return [(f"{owner}/{name}", kind, f"the model is taken to be {{1}} with weights in {kind}, from the name {{0!r}}")]


def _plain(text: str) -> str:
    """Without a scheme; a folder of the hub's cache as the id that it holds."""
    plain = _SCHEMES.sub("", text).rstrip("/")
    cached = _CACHED.fullmatch(plain)
    return f"{cached[1]}/{cached[2]}" if cached else plain


def _copied(text: str) -> list[tuple[str, str]]:
    """(name, kind) of the models that others' quantised copies of this name may be of."""
    last = _plain(text).rpartition("/")[2]
    for ending, kind in _COPIES:
        found = ending.search(last)
        if found is not None and found.start():
            base = last[: found.start()]
            return [(name, kind) for name in (base, f"{base}-hf", f"Meta-{base}")]
    return []


def _own_blocks(text: str, preset: presets.Preset, weights: str) -> bool:
    owner = _plain(text).partition("/")[0]
    return owner.lower() == "qwen" and weights == "fp8" and preset.config.get("model_type") in _IN_BLOCKS


def _closest(weights: str) -> str:
    """The type itself where it is known; of other mixes, as unsloth's and bartowski's `_XL` and `_L`, the smallest of as many bits."""
    if not weights:
        return weights
    digits = re.match(r"q\d(?=_)", weights)
    options = tuple(f"{digits[0]}{ending}" for ending in ("_k_s", "_k", "_0")) if digits else ()
    for name in (weights, *options):
        try:
            parse_weights(name)
        except BadInput:
            continue
        return name
    return ""


def _type(mix: str) -> str:
    name = mix.lower()
    return {"f16": "fp16", "f32": "fp32"}.get(name, name)
