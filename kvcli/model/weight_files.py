"""Exact bytes of a folder's safetensors files, sorted by what a decode step does with each tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from kvcli.errors import Notice
from kvcli.model.layers import LayerGroup
from kvcli.model.part_files import INDEX, join_parts, missing_part, parse_index, part_names, read_index
from kvcli.model.safetensors_header import StoredTensor, read_safetensors_header
from kvcli.model.spec import ModelSpec, TensorFile
from kvcli.model.tensor_uses import block_parts, block_use, layer_use, layers_by_use
from kvcli.model.weight_parts import WeightParts

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


def read_folder_tensors(folder: Path) -> list[StoredTensor]:
    """All tensors of the folder's files, [] where it has none. Raises BadInput where files and index disagree."""
    index = folder / INDEX
    raw = read_index(index) if index.exists() else None
    mapped = {} if raw is None else parse_index(raw, str(index))
    names = sorted(set(mapped.values())) or part_names([path.name for path in folder.glob("*.safetensors")], str(folder))

    def read(name: str) -> list[StoredTensor]:
        path = folder / name
        if not path.exists():
            raise missing_part(str(path))
        return read_safetensors_header(path)

    return join_parts(names, read, mapped, str(folder))


def with_weight_files(spec: ModelSpec, folder: Path) -> ModelSpec:
    """The model with exact bytes from the headers of its safetensors files; unchanged where the folder has none.

    Raises BadInput for files that are damaged, missing, or not one model's.
    """
    tensors = read_folder_tensors(folder)
    return with_tensors(spec, tensors, str(folder)) if tensors else spec


def with_tensors(spec: ModelSpec, tensors: list[StoredTensor], where: str) -> ModelSpec:
    """The model with exact bytes of these tensors, which `where` holds; a notice where they are not those of its config."""
    file, elements, quantised = sum_tensors(spec, tensors)
    # a router's correction bias, and the one of old encoder-decoders' logits, is a parameter in some classes and a buffer in others
    biases = sum(tensor.elements for tensor in tensors if tensor.name.endswith(_BALANCE))
    notices = tuple(notice for notice in spec.notices if notice.code != "quantized_weights")
    if not quantised and not elements - biases <= spec.parameters <= elements:
        text = f"{where} holds {elements:,} weights of the decoder, its config describes {spec.parameters:,}: bytes are those of its files"
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
    blocks: dict[int, Counter[str]] = {}
    beside: Counter[str] = Counter()
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
            if found is None:
                beside["rest"] += size_bytes
            else:
                use = "experts" if _is_routed(tensor, segments) else "whole" if tensor.elements == 1 else block_use(name[found.end() :])
                blocks.setdefault(layer, Counter())[use] += size_bytes
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
    parts = WeightParts(layers_by_use(layers, (spec.groups[number] for number in spec.order), spec.hidden_size), **around)
    mtp_parts = block_parts(blocks, beside, LayerGroup(0, 1, *spec.mtp.layer) if spec.mtp else None)
    file = TensorFile(_main_type(stored, kept), resident_bytes, resident_bytes - unread_bytes, mtp_bytes, tower_bytes, parts, mtp_parts)
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
