"""What users may ask an engine to hold besides: adapters, and outputs of an encoder."""

from __future__ import annotations

from kvcli.dtypes import FP16
from kvcli.errors import NotModelled
from kvcli.ledger import Basis, Formula, Line, Unit
from kvcli.model.linears import layer_linears
from kvcli.model.spec import ModelSpec
from kvcli.plan.budget.options import Lora

#: Matrices whose rows tensor ranks share; the others share columns.
BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def lora_line(spec: ModelSpec, lora: Lora, layers: range, ranks: int) -> Line:
    """Slots of adapters on every matrix of these layers, in 16 bits: rank x (inputs + outputs) each.

    Of a matrix whose rows the ranks share, the second factor is divided, of one whose columns they share the first; the other one
    is whole on each rank. Raises NotModelled where the matrices are not known, or are experts.
    """
    sizes: dict[int, int] = {}
    for layer in layers:
        number = spec.order[layer]
        if number not in sizes:
            linears = layer_linears(spec.model_type, spec.hidden_size, spec.groups[number])
            if linears is None or any(linear.expert for linear in linears):
                raise NotModelled(
                    f"kvcli does not know the matrices that adapters of {spec.name} change",
                    hint="leave --lora out, or count it with --reserve",
                    code="no_lora_rule",
                )
            sizes[number] = sum(_inputs_and_outputs(linear.module, linear.rows, linear.columns, ranks) for linear in linears)
    each = sum(sizes[spec.order[layer]] for layer in layers)
    amount = FP16.bytes_for(lora.slots * lora.rank * each)
    terms = (("slots", lora.slots), ("rank", lora.rank), ("inputs_and_outputs", each))
    return Line("lora_slots", amount, Unit.BYTES, Formula("lora_slots", terms), Basis.FORMULA)


def _inputs_and_outputs(module: str, rows: int, columns: int, ranks: int) -> int:
    if module.endswith(BY_ROWS):
        return columns + -(-rows // ranks)
    return -(-columns // ranks) + rows


def encoder_cache_line(spec: ModelSpec, tokens: int) -> Line:
    """Embeddings of images and the like that wait for their prompt, in the model's dtype."""
    amount = spec.dtype.bytes_for(tokens * spec.hidden_size)
    terms = (("tokens", tokens), ("hidden_size", spec.hidden_size), ("bits", spec.dtype.bits_per_element))
    return Line("encoder_cache", amount, Unit.BYTES, Formula("encoder_cache", terms), Basis.FORMULA)
