"""vLLM's options in JSON: speculation, overrides of the model's config, tiers of the cache outside the device."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvcli.check.engines.settings import GIB, Draft, human
from kvcli.check.nodes import Place, Word

#: most tokens that drafters without a model of their own draft where nothing is said (vllm/config/speculative.py, 0.11 to 0.33)
_SUFFIX_TOKENS = 24
#: keys of --hf-overrides that change no byte
_HARMLESS = frozenset(("architectures", "rope_theta", "tie_word_embeddings_checked", "torch_dtype", "dtype", "is_matryoshka"))
#: rope types that stretch the default length by their factor: all but these (vllm/config/model.py, _get_and_verify_max_len)
_NO_STRETCH = frozenset(("su", "longrope", "llama3", "default", "mrope", "proportional"))


_DOTTED = re.compile(r"--?[A-Za-z][\w-]*\.")


def undotted(words: Sequence[Word]) -> list[Word]:
    """`--option.key.inner value` as one `--option {"key": {"inner": value}}` behind the other words, as vLLM reads it."""
    kept: list[Word] = []
    found: dict[str, tuple[Word, dict[str, Any], bool]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.text.partition("=")
        if not _DOTTED.match(name):
            kept.append(word)
            continue
        literal = word.literal
        if not equals:
            value, literal = (words[at].text, literal and words[at].literal) if at < len(words) else ("", literal)
            at += 1
        option, *path = name.split(".")
        option = "--" + option[2:].replace("_", "-") if option.startswith("--") else option
        many = path[-1].endswith("+")
        path[-1] = path[-1].rstrip("+")
        first, tree, all_literal = found.setdefault(option, (word, {}, True))
        _put(tree, path, value.split(",") if many else _plain(value))
        found[option] = (first, tree, all_literal and literal)
    for option, (first, tree, literal) in found.items():
        kept += [Word(option, first.place), Word(json.dumps(tree), first.place, literal)]
    return kept


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        inner = tree.get(key)
        tree[key] = inner if isinstance(inner, dict) else {}
        tree = tree[key]
    tree[path[-1]] = value


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return human(text)
    except ValueError:
        return text


def speculation(draft: Draft, config: Mapping[str, Any], said: str, place: Place) -> None:
    """`--speculative-config`: the method, or what the model's name says, and the tokens a step."""
    method, model, tokens = (config.get(key) for key in ("method", "model", "num_speculative_tokens"))
    method = str(method).lower() if method else None
    name = str(model) if model else None
    if method is None and name in ("ngram", "[ngram]"):
        method = "ngram"
    if method == "suffix":
        tokens = tokens or config.get("suffix_decoding_max_tree_depth") or _SUFFIX_TOKENS
        method = "ngram"
    own = method is not None and (method == "mtp" or method.endswith("_mtp"))
    if tokens is None and own:
        tokens = 1
        text = f"{said[:60]} leaves the number of drafted tokens to the model, which kvcli takes as 1"
        draft.problem("drafted_tokens_assumed", text, place)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        draft.problem("drafter_not_said", f"{draft.engine} refuses {said[:60]}: num_speculative_tokens is missing or no number", place)
        return
    if method in ("ngram", "ngram_gpu"):
        draft.set("speculation", f"{tokens}:ngram", said, place)
    elif own:
        draft.set("speculation", str(tokens), said, place)
    elif name is None:
        draft.problem("drafter_not_said", f"{draft.engine} refuses {said[:60]}: it names neither a method kvcli knows nor a model", place)
    else:
        draft.set("speculation", f"{tokens}:{name}", said, place)
        if method not in (None, "draft_model"):
            text = f"kvcli has no rule for {method} heads, and counts {name[:60]} as a draft model where it knows it"
            draft.problem("speculation_not_modelled", text, place)


def overrides(draft: Draft, config: Mapping[str, Any], said: str, place: Place) -> None:
    """`--hf-overrides`: a rope factor and a length are read; other keys make another model, which is reported."""
    for key, value in config.items():
        if key in ("rope_scaling", "rope_parameters") and isinstance(value, dict):
            rope(draft, value, said, place)
        elif key == "max_position_embeddings" and isinstance(value, int) and not isinstance(value, bool):
            if "context_tokens" in draft.settings and value > 0:
                text = f"--hf-overrides gives the model {value:,} positions"
                draft.problem("positions_overridden", text, place)
            _length(draft, value, said, place)
        elif key == "text_config" and isinstance(value, dict):
            overrides(draft, value, said, place)
        elif key not in _HARMLESS:
            text = f"--hf-overrides sets {str(key)[:40]}, which may change the model kvcli computes with"
            draft.problem("option_not_modelled", text, place)


def rope(draft: Draft, scaling: Mapping[str, Any], said: str, place: Place) -> None:
    """A factor beside the model's config. Types but longrope and llama3 stretch the length that an absent --max-model-len means:
    linear and dynamic the model's own, yarn the one it names as the original."""
    kind = str(scaling.get("rope_type") or scaling.get("type") or "")
    factor = scaling.get("factor")
    if kind in _NO_STRETCH or factor is None:
        return
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 10**6:
        draft.problem("bad_argument", f"{draft.engine} refuses {said[:60]}: the factor is no number", place)
        return
    original = scaling.get("original_max_position_embeddings")
    draft.set("rope_factor", float(factor), said, place)
    if kind == "yarn" and isinstance(original, int) and not isinstance(original, bool):
        _length(draft, int(original * factor), said, place)


def _length(draft: Draft, tokens: int, said: str, place: Place) -> None:
    """The length that stands where --max-model-len does not: what was set by that option stays."""
    if "context_tokens" not in draft.settings and tokens > 0:
        draft.set("context_tokens", tokens, said, place)


def tiers(draft: Draft, config: Mapping[str, Any], environment: Mapping[str, Word], said: str, place: Place) -> None:
    """`--kv-transfer-config`: a tier in the host's memory never lets a longer request in, so an unknown size only is a note."""
    if isinstance(many := (config.get("kv_connector_extra_config") or {}).get("connectors"), list):
        for each in many:
            if isinstance(each, dict):
                tiers(draft, each, environment, said, place)
        return
    name = str(config.get("kv_connector", ""))
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    size: int | None = None
    if name.startswith("LMCache"):
        size = _lmcache(environment)
    elif name == "OffloadingConnector":
        found = extra.get("cpu_bytes_to_use")
        size = found if isinstance(found, int) and not isinstance(found, bool) else None
    elif name.startswith(("Nixl", "P2p", "Mooncake", "MultiConnector", "PyNccl", "SharedStorage", "Decode")):
        return  # it moves the cache between servers; each still holds its own
    if size:
        draft.set("kv_offload_bytes", size, said, place)
    else:
        draft.problem(
            "kv_tier_unknown", f"how much {name[:40] or 'the connector'} keeps outside the device is not said", place, matters=False
        )


def _lmcache(environment: Mapping[str, Word]) -> int | None:
    """LMCACHE_MAX_LOCAL_CPU_SIZE, GB as it calls GiB (5 by default); none where LMCACHE_LOCAL_CPU is false."""
    off = environment.get("LMCACHE_LOCAL_CPU")
    if off is not None and off.text.strip().lower() in ("false", "0"):
        return None
    size = environment.get("LMCACHE_MAX_LOCAL_CPU_SIZE")
    try:
        return int(float(size.text) * GIB) if size and size.literal else None
    except (ValueError, OverflowError):
        return None
