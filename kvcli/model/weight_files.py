"""Exact bytes of a folder's safetensors files, sorted by what a decode step does with each tensor."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvcli.errors import BadInput, Notice
from kvcli.model.safetensors_header import StoredTensor, read_safetensors_header
from kvcli.model.spec import ModelSpec, TensorFile
from kvcli.model.tensor_uses import layer_use, layers_by_use
from kvcli.model.weight_parts import WeightParts

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000
MAX_PARTS = 10_000

#: Names of modules that hold a table of which a step reads rows: of words, and of anything else.
_WORD_TABLES = frozenset(
    ("embed_tokens", "wte", "word_embeddings", "embeddings", "embed_in", "tok_embeddings", "tokens_embed", "embed_tokens_extend")
)
_OTHER_TABLES = frozenset(
    (
        "wpe",
        "embed_positions",
        "position_embeddings",
        "position_embedding",
        "embed_tokens_per_layer",
        "positions_embed",
        "relative_attention_bias",
    )
)
_HEADS = frozenset(("lm_head", "embed_out", "output"))
#: Projections of the encoder's output, which run once a source.
_CROSS = re.compile(r"\.(?:encoder_attn|cross_attn|EncDecAttention|crossattention)\.(?:k_proj|v_proj|k_norm|k|v)\.")
#: Modules beside the decoder, by their own names in transformers and in vendors' files.
_TOWERS = frozenset(
    (
        "visual",
        "vision",
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "vision_embed_tokens",
        "vision_embedder",
        "vision_adapter",
        "vision_language_adapter",
        "vision_projection",
        "image_newline",
        "image_encoder",
        "img_projection",
        "multi_modal_projector",
        "mm_projector",
        "multimodal_projector",
        "modality_projection",
        "connector",
        "aligner",
        "audio",
        "audio_tower",
        "audio_model",
        "audio_encoder",
        "audio_adapter",
        "audio_projector",
        "audio_embed",
        "embed_vision",
        "embed_audio",
        "qformer",
        "language_projection",
        "patch_merger",
        "pre_mm_projector_norm",
        "talker",
        "token2wav",
        "code2wav",
        "speech_projector",
    )
)
_MTP = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|mtp_block|nextn|model_mtp)(?:\.|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d{1,6})\.")
_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
#: Stacked by expert without saying so in a module's name.
_STACKED = re.compile(r"(?:^|\.)(?:block_sparse_moe|moe|mlp)\.(?:input_linear|output_linear)\.")
#: Causal masks and rotary frequencies that old files store: rebuilt on load, no weights.
_BUFFER = re.compile(r"(?:\.attn\.(?:bias|masked_bias)|\.attention\.(?:bias|masked_bias)|rotary_emb\.inv_freq|\.position_ids)$")
_BALANCE = ("e_score_correction_bias", ".expert_bias", "final_logits_bias")
_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")

_FLOATS = frozenset(("F64", "F32", "F16", "BF16"))
_TYPE_NAMES = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "I8": "int8",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "F8_E4M3FNUZ": "fp8",
    "F8_E5M2FNUZ": "fp8",
}


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights of a model without an index, () where the folder has none.

    They are `model.safetensors`, else a full set of numbered parts, else the only file. Raises BadInput for a part that is
    missing, and where more files stand there than one model's.
    """
    if (folder / "model.safetensors").exists():
        return (folder / "model.safetensors",)
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_"))
    if len(files) == 1 and not _PART.match(files[0].name):
        return (files[0],)
    if not files:
        return ()
    parts = {(match[1], match[3]) for path in files if (match := _PART.match(path.name))}
    if len(parts) != 1 or not all(_PART.match(path.name) for path in files):
        raise BadInput(
            f"{folder} holds {len(files)} safetensors files and no {INDEX} that says which are the model's",
            hint="pass its config.json to plan without them",
            code="ambiguous_weights",
        )
    ((stem, count),) = parts
    if not 0 < int(count) <= MAX_PARTS:
        raise BadInput(f"{files[0]} says it is one of {int(count):,} parts, which no model has", code="ambiguous_weights")
    wanted = [folder / f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    for path in wanted:
        _must_exist(path)
    if len(wanted) != len(files):
        raise BadInput(f"{folder} holds more parts than the {int(count)} that their names promise", code="ambiguous_weights")
    return tuple(wanted)


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path} is missing, a part of the model's weights", hint="download it", code="missing_part")


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, {} without an index. Raises BadInput for an index that is none, or that leaves its folder."""
    from kvcli.model.config import load_json

    index = folder / INDEX
    if not index.exists():
        return {}
    found = load_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise BadInput(f"{index} has no weight_map from tensors to files", code="bad_index")
    for name in set(found.values()):
        if not name.endswith(".safetensors") or not name.isprintable() or "/" in name or "\\" in name or len(name) > 255:
            raise BadInput(f"{index} names {name[:80]!r}, which is no safetensors file of this folder", code="bad_index")
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Headers are a million small objects without cycles, which the cycle collector would look through again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_folder_tensors(folder: Path) -> list[StoredTensor]:
    """All tensors of the folder's files, [] where it has none. Raises BadInput where files and index disagree."""
    tensors: list[StoredTensor] = []
    with _no_collection():
        mapped = _weight_map(folder)
        files = [folder / name for name in sorted(set(mapped.values()))] if mapped else weight_files(folder)
        for path in files:
            _must_exist(path)
            tensors += read_safetensors_header(path)
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        twice = next(name for name, times in Counter(tensor.name for tensor in tensors).items() if times > 1)
        raise BadInput(f"{folder} holds {twice[:80]!r} in two files", code="duplicate_tensor")
    if missing := mapped.keys() - names:
        name = min(missing)
        raise BadInput(f"{folder / mapped[name]} lacks {name[:80]!r}, which the index puts there", code="missing_tensor")
    return tensors


def with_weight_files(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model with exact bytes from the headers of its safetensors files; unchanged where the folder has none.

    Raises BadInput for files that are damaged, missing, or not one model's.
    """
    tensors = read_folder_tensors(folder)
    if not tensors:
        return spec
    file, elements, quantised = sum_tensors(spec, tensors)
    # a router's correction bias, and the one of old encoder-decoders' logits, is a parameter in some classes and a buffer in others
    biases = sum(tensor.elements for tensor in tensors if tensor.name.endswith(_BALANCE))
    notices = tuple(notice for notice in spec.notices if notice.code != "quantized_weights")
    if not quantised and not elements - biases <= spec.parameters <= elements:
        text = f"{folder} holds {elements:,} weights of the decoder, its config describes {spec.parameters:,}: bytes are those of its files"
        notices = (*notices, Notice("tensor_count_differs", text))
    return replace(spec, tensors=file, notices=notices)


def sum_tensors(spec: ModelSpec, tensors: Iterable[StoredTensor]) -> tuple[TensorFile, int, bool]:
    """Bytes by use, how many elements the decoder's own tensors hold, and whether any are quantised: then those are no weights' count.

    Read in a step: all but the input and position tables, the encoder and what projects its output, of routed experts k of E.
    A table that is stored again although the config ties it counts once. MTP blocks and towers are apart.
    """
    kept = list(tensors)
    copies = _tied_copies(spec, kept)
    read_share = _expert_share(spec)
    stored: Counter[str] = Counter()
    layers: list[Counter[str]] = [Counter() for _ in spec.order]
    around: Counter[str] = Counter()
    elements = unread_bytes = mtp_bytes = tower_bytes = 0
    for tensor in kept:
        name, size_bytes = tensor.name, tensor.size_bytes
        if name in copies or _BUFFER.search(name):
            continue
        segments = name.split(".")
        found = _LAYER.search(name)
        layer = int(found[1]) if found else 0
        if not spec.encoder_parameters and not _TOWERS.isdisjoint(segments[:3]):
            tower_bytes += size_bytes
            continue
        if _MTP.search(name) or (layer >= len(spec.order) and not spec.encoder_parameters):
            mtp_bytes += size_bytes
            continue
        stored[tensor.dtype] += size_bytes
        elements += tensor.elements
        if _is_table(segments):
            unread_bytes += 0 if spec.tied and _is_word_table(segments) else size_bytes
            around["table" if _is_word_table(segments) else _other_table(spec)] += size_bytes
        elif _is_routed(tensor, segments):
            unread_bytes += size_bytes - read_share(layer, size_bytes)
            layers[layer]["experts"] += size_bytes
        elif spec.encoder_parameters and ("encoder" in segments or _CROSS.search(name)):
            unread_bytes += size_bytes
            around["encoder"] += size_bytes
        elif found and layer < len(layers):
            layers[layer]["whole" if tensor.elements == 1 else layer_use(name[found.end() :])] += size_bytes
        else:
            around["head" if len(segments) > 1 and segments[-2] in _HEADS else "rest"] += size_bytes
    resident_bytes = sum(stored.values())
    parts = WeightParts(layers_by_use(layers, (spec.groups[number] for number in spec.order)), **around)
    file = TensorFile(_main_type(stored, kept), resident_bytes, resident_bytes - unread_bytes, mtp_bytes, tower_bytes, parts)
    return file, elements, not stored.keys() <= _FLOATS


def _main_type(stored: Counter[str], tensors: list[StoredTensor]) -> str:
    """What most bytes are stored as. Formats of four bits lie packed in bytes and show by the names of their scales."""
    most = stored.most_common(1)[0][0] if stored else "F32"
    if most in ("U8", "F4"):
        if any(tensor.name.endswith((".weight_scale_2", ".weight_global_scale")) for tensor in tensors):
            return "nvfp4"
        if any(tensor.name.endswith("_blocks") for tensor in tensors):
            return "mxfp4"
    return _TYPE_NAMES.get(most, f"packed {most.lower()}")


def _is_routed(tensor: StoredTensor, segments: list[str]) -> bool:
    """Of one expert, or stacked by expert, which vectors that all experts share are not."""
    if "experts" not in segments:
        return _STACKED.search(tensor.name) is not None
    return len(tensor.shape) > 1 or _ONE_EXPERT.search(tensor.name) is not None


def _is_table(segments: list[str]) -> bool:
    """`x.embed_tokens.weight`, its scales too; `shared.weight` is the table of an encoder-decoder."""
    module = segments[-2] if len(segments) > 1 else ""
    return module in _WORD_TABLES or module in _OTHER_TABLES or (segments[-2:] == ["shared", "weight"] and len(segments) <= 3)


def _other_table(spec: ModelSpec) -> str:
    """Whether the tables beside the input table have a row a word."""
    return "word_tables" if spec.lookups and spec.lookups % spec.vocab_size == 0 else "lookups"


def _is_word_table(segments: list[str]) -> bool:
    return segments[-2] not in _OTHER_TABLES


def _tied_copies(spec: ModelSpec, tensors: list[StoredTensor]) -> frozenset[str]:
    """Names of matrices that the file stores again: the output head of a tied model, the tables of an encoder-decoder's halves."""
    split = {tensor.name: tensor.name.split(".") for tensor in tensors if _LAYER.search(tensor.name) is None}
    tables = [name for name, segments in split.items() if _is_table(segments) and _is_word_table(segments)]
    shared = [name for name in tables if split[name][-2] == "shared"]
    copies = [name for name in tables if shared and name not in shared]
    if spec.tied and tables:
        copies += [name for name, segments in split.items() if len(segments) > 1 and segments[-2] in _HEADS]
    return frozenset(copies)


def _expert_share(spec: ModelSpec) -> Callable[[int, int], int]:
    """(layer, bytes of its routed experts) -> bytes that one token reads, k of E."""
    pairs = {(group.parameters.num_experts, group.parameters.experts_per_token) for group in spec.groups if group.parameters.num_experts}
    if len(pairs) == 1:
        ((experts, per_token),) = pairs
        return lambda layer, size_bytes: size_bytes * per_token // experts

    def by_layer(layer: int, size_bytes: int) -> int:
        parameters = spec.groups[spec.order[layer]].parameters if layer < len(spec.order) else None
        if parameters is None or not parameters.num_experts:
            return size_bytes
        return size_bytes * parameters.experts_per_token // parameters.num_experts

    return by_layer
