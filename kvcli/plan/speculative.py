"""Speculative decoding: tokens drafted before each step, by the model's own prediction blocks, by a smaller model, or from the text.

The drafter is planned as a model of its own: its weights stand beside the model's, its cache is kept once for each sequence
however many tokens it drafts. What the model's own cache needs more (states to go back to, slots of drafted tokens) is the
engine's rule, which knows the number of drafted tokens (`EngineOptions.drafted`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvcli.errors import BadInput
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec, TensorFile

#: More than any engine drafts for one sequence.
MOST_DRAFTED = 1024


class Speculation(NamedTuple):
    """`drafted` tokens a step by `drafter`, None where they are looked up in the text (n-grams)."""

    drafted: int
    drafter: ModelSpec | None = None
    own_blocks: bool = False


def prediction_model(spec: ModelSpec, blocks: int | None) -> ModelSpec:
    """The model's prediction blocks as a model of their own, `blocks` of them (None: all).

    Its tables are the copies that files hold with each block, else the model's, which are then not counted again. Raises BadInput
    where the model has none, or fewer.
    """
    mtp = spec.mtp
    if mtp is None:
        raise BadInput(
            f"{spec.name} has no prediction blocks that kvcli knows",
            hint="name a draft model, as in --speculative 4:llama3.2-1b, or --speculative 4:ngram",
            code="no_prediction_blocks",
        )
    used = mtp.blocks if blocks is None else blocks
    if used > mtp.blocks:
        has = f"{mtp.blocks} prediction block{'s' if mtp.blocks > 1 else ''}"
        raise BadInput(f"{spec.name} has {has}, not {used}", hint=f"--speculative N:{mtp.blocks}", code="no_prediction_blocks")
    records, parameters = mtp.layer
    half = used * mtp.tables // 2
    return replace(
        spec,
        name=f"{spec.name} prediction",
        groups=(LayerGroup(0, used, records, parameters),),
        order=(0,) * used,
        embedding=half,
        head=half,
        head_matrix=half,
        lookups=0,
        shared=used * mtp.joins,
        final=used * mtp.norms,
        encoder_parameters=0,
        tower_parameters=0,
        mtp=None,
        decoder=None,
        tensors=_tensors(spec, used, mtp.blocks),
        notices=(),
    )


def _tensors(spec: ModelSpec, used: int, blocks: int) -> TensorFile | None:
    """The bytes of the blocks in the model's file, where all of them are used and the file has them."""
    if spec.tensors is None or not spec.tensors.mtp_bytes or used != blocks:
        return None
    return TensorFile(spec.tensors.dtype, spec.tensors.mtp_bytes, 0)
