"""What a config says beside the numbers that were read: each thing that could make an answer misleading is labelled or refused."""

from __future__ import annotations

from kvcli.errors import Notice, NotModelled
from kvcli.model.fields import Fields
from kvcli.model.spec import ModelSpec

#: Keys of remote code that change layers one by one, in files that call themselves by a plain type.
PER_LAYER_KEYS = ("num_key_value_heads_per_layer", "block_configs")
#: Parts of the names of classes that have an output head.
WITH_HEAD = ("CausalLM", "LMHead", "Conditional", "Seq2Seq", "ForPreTraining", "ForVision2Seq")
WINDOW_KEYS = ("sliding_window", "attention_chunk_size")


def refuse_foreign_keys(fields: Fields, model_type: str) -> None:
    """Raises NotModelled for a file whose own code reads keys that the type it names does not have."""
    for key in PER_LAYER_KEYS:
        if fields.has(key) and model_type != "nemotron-nas":
            text = f"{fields.where} calls itself {model_type!r} but has {key}, which only its own code understands"
            raise NotModelled(text, code="variant_not_modelled")


def notices(fields: Fields, spec: ModelSpec) -> tuple[Notice, ...]:
    """Labels for a file that was read: own code, missing head, unused windows, towers, contradicting tie flags."""
    found = [*_own_code(fields, spec), *_unused_window(fields, spec)]
    if fields.outer is not None:
        found += [*_own_code(fields.outer, spec), *_multimodal(fields.outer, spec), *_tie(fields, fields.outer, spec)]
    return tuple(found)


def _own_code(fields: Fields, spec: ModelSpec) -> list[Notice]:
    found = []
    if fields.has("auto_map"):
        text = f"{fields.where} brings code of its own, which is not run: it is planned as the library's {spec.model_type}"
        found.append(Notice("remote_code", text))
    listed = fields.values.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if names and not any(part in name for name in names for part in WITH_HEAD):
        text = f"{fields.where} is a {names[0][:60]}: the output head of the language model is counted, which it may not have"
        found.append(Notice("head_assumed", text))
    return found


def _unused_window(fields: Fields, spec: ModelSpec) -> list[Notice]:
    """Some files carry a window for other runtimes; transformers' own cache obeys it even where the model does not."""
    if any(record.window_tokens or record.kind == "chunked_attention" for group in spec.groups for record in group.records):
        return []
    if fields.values.get("use_sliding_window") is False:
        return []
    for key in WINDOW_KEYS:
        size = fields.values.get(key)
        if isinstance(size, int) and not isinstance(size, bool) and 0 < size < spec.max_context_tokens:
            text = f"{fields.where} has {key} {size}, which {spec.model_type} attention does not use: all tokens are counted"
            return [Notice("window_unused", text)]
    return []


def _multimodal(outer: Fields, spec: ModelSpec) -> list[Notice]:
    found = []
    if not spec.has_cross_attention:
        found.append(Notice("image_tokens", "image and audio tokens take the same cache as text: count them in the context"))
    if not spec.tower_parameters and any(outer.has(key) for key in ("vision_config", "audio_config")):
        found.append(Notice("towers_not_counted", f"{spec.name} has towers beside its decoder, whose weights are not counted"))
    return found


def _tie(fields: Fields, outer: Fields, spec: ModelSpec) -> list[Notice]:
    inner = outer.values.get("text_config")
    inside = inner.get("tie_word_embeddings") if isinstance(inner, dict) else None
    outside = outer.values.get("tie_word_embeddings")
    if inside is None or outside is None or inside == outside:
        return []
    how = "tied" if spec.tied else "untied"
    return [Notice("tie_flags_differ", f"{outer.where} ties its tables at one level and not at the other: planned as {how}")]
