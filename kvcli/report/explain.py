"""`--explain`: every line of a plan as its equation with numbers, so that a reader can redo it by hand."""

from __future__ import annotations

from collections.abc import Sequence

from kvcli import dtypes
from kvcli.ledger import Formula, Line, Unit
from kvcli.plan.budget.memory import MemoryPlan
from kvcli.plan.lines import cache_line, draft_lines, weights_line
from kvcli.plan.plan import Plan
from kvcli.units import exact_bytes, format_bytes, format_flops, format_seconds, plural

#: equation name -> how it reads
EQUATIONS = {
    "attention_cache": (
        "{layers} layers x {visible_tokens:,} visible tokens x {batch_size} sequences x {bytes_per_token_and_layer:,} B,"
        " where {bytes_per_token_and_layer:,} B = {num_key_value_heads} KV heads x"
        " ({key_dim} x {key_bits:g} + {value_dim} x {value_bits:g}) bits / 8"
    ),
    "attention_index_cache": (
        "{layers} layers x {batch_size} sequences x ({visible_tokens:,} visible tokens x {num_key_value_heads} KV heads x"
        " ({key_dim} x {key_bits:g} + {value_dim} x {value_bits:g}) bits"
        " + {index_keys:,} index keys x {index_dim} x {key_bits:g} bits) / 8"
    ),
    "latent_cache": (
        "{layers} layers x {visible_tokens:,} visible tokens x {batch_size} sequences x ({rank} of the rank + {rope_dim} of the rotary key)"
        " x {key_bits:g} bits / 8"
    ),
    "latent_index_cache": (
        "{layers} layers x {batch_size} sequences x ({visible_tokens:,} visible tokens x"
        " ({rank} of the rank + {rope_dim} of the rotary key) x {key_bits:g} bits"
        " + {index_rows:,} index rows x {index_dim} x {index_bits:g} bits) / 8"
    ),
    "compressed_cache": (
        "{layers} layers x {batch_size} sequences x ({visible_tokens:,} visible tokens x {dim}"
        " + ({entries:,} entries + {open_rows:,} rows of entries not yet closed) x ({dim} + {index_dim} of the indexer))"
        " x {key_bits:g} bits / 8"
    ),
    "recurrent_state": (
        "{layers} layers x {batch_size} sequences x ({conv_channels:,} channels x {conv_columns} columns x {conv_bits:g} bits"
        " + {state_elements:,} of state x {state_bits:g} bits + {plain_elements:,} carried beside x {plain_bits:g} bits) / 8"
    ),
    "cross_cache": (
        "{layers} layers x {encoder_tokens:,} encoder tokens x {batch_size} sequences x {num_key_value_heads} KV heads"
        " x ({key_dim} + {value_dim}) x {bits:g} bits / 8"
    ),
    "weights": "({matrix_parameters:,} x {bits_each:g} bits + {other_parameters:,} x {other_bits_each:g} bits) / 8",
    "weights_read": (
        "({matrix_parameters:,} x {bits_each:g} bits + {other_parameters:,} x {other_bits_each:g} bits) / 8;"
        " tables that are looked up by row are left out"
    ),
    "weights_quantized": (
        "{quantized_parameters:,} x {bits_each:g} bits / 8 + {scale_bytes:,} B of scales, zeros and indices"
        " + {other_parameters:,} x {other_bits_each:g} bits / 8"
    ),
    "weights_quantized_read": (
        "{quantized_parameters:,} x {bits_each:g} bits / 8 + {scale_bytes:,} B of scales, zeros and indices"
        " + {other_parameters:,} x {other_bits_each:g} bits / 8; tables that are looked up by row are left out"
    ),
    "draft_weights": "{parameters:,} parameters that draft {drafted_tokens} tokens before each step",
    "draft_cache": "the drafter's own cache, once, however many tokens it drafts",
    "draft_read": "one pass of the drafter, weights and cache",
    "device_cache": "of the fullest of {devices} devices, which together hold {all_bytes:,} B, copies included",
    "device_weights": "of the fullest of {devices} devices: its layers, its share of their matrices, and what each device holds whole",
    "tensors_of_file": "the tensors of the file, from its header",
    "decode_flops": "{batch_size} x (2 x ({active_matrices:,} + {head_matrix:,} of the head) + {attention_flops:,} of attention)",
    "prefill_flops": (
        "{batch_size} x (2 x ({tokens:,} x {active_matrices:,} + {head_matrix:,} of the head) + {attention_flops:,} of attention"
        " - {spared_flops:,} that the last token does not need)"
    ),
    "graphs_seen": "none with --enforce-eager; others printed 0.04 to 0.96 GiB, and 2,464 MiB on 4 x RTX 4090",
    "context_seen": "non-torch memory of start-up lines on one device; the CUDA context itself is not in the usable memory",
    "links_seen": "non-torch memory of a start-up line with several devices, less what one device has",
    "slack_seen": "reserved by an allocator and unused, as users reported",
    "given": "{bytes:,} B, as given",
    "at_most": "at most {bytes:,} B",
    "activations": (
        "low end: {tokens:,} tokens x ({hidden_size:,} + {widest_row:,} elements of the widest rows) x 16 bits / 8 = {bytes:,} B;"
        " high end: what engines printed, and at least twice that"
    ),
    "logits": "{sequences:,} sequences x {vocab_size:,} words x 4 B = {bytes:,} B; the low end is what activations leave of it",
    "engine_reserve": "{base:,} B x (1 - {share:g})",
    "admission": "{admission:,} B that one request takes to be admitted - {stored:,} B stored",
    "fit_target": "{bytes:,} B that --fit leaves of each device",
    "lora_slots": "{slots} slots x rank {rank} x {inputs_and_outputs:,} inputs and outputs x 2 B",
    "encoder_cache": "{tokens:,} tokens x {hidden_size:,} x {bits:g} bits / 8",
    "pool_free": "pool of {pool:,} B - {stored:,} B stored",
    "pool_short": "what would have to fit beside a pool of {pool:,} B for {stored:,} B",
    "host_part": "of {layers} layers and the tables, {bytes:,} B",
    "cache_read": "{read_bytes:,} B of the {needed_bytes:,} B kept, and {state_bytes:,} B of state",
    "bytes_over_bandwidth": "{bytes:,} B / {bytes_per_s:,.0f} B/s",
    "last_level_cache": "taken off: what may stay in the last-level cache, {bytes:,} B",
    "flops_over_peak": "{flops:,} FLOP / {flops_per_s:,.0f} FLOP/s",
    "prefill_shared_flops": "{first:,} of the first, and {others} x {each:,} of what comes after the shared prefix",
    "cached_read": "what the last token looks at of {cached_tokens:,} cached tokens a sequence, a shared prefix once",
    "link_bytes": "at least what a device receives: a vector a token for each of {layers} layers with tensor parallelism, and each stage",
    "host_read": "{bytes:,} B of the host's memory, beyond the 1,152 MiB that the largest CPU cache could keep",
}


def equation(formula: Formula) -> str:
    """The equation in words and numbers; sums of layers list their terms."""
    if formula.name == "sum_of_layers":
        return "sum over layer groups: " + " + ".join(f"{value:,}" for _, value in formula.terms)
    if formula.name == "larger_of":
        times = [f"{seconds:.6g} s" for _, seconds in formula.terms]
        text = f"{', '.join(times[:-1])} and {times[-1]}"
        return f"the {'larger' if len(times) == 2 else 'largest'} of {text}, since memory and arithmetic overlap"
    if formula.name == "sum_of_stages":
        text = " + ".join(f"{value:,}" for _, value in formula.terms)
        return f"of the busiest device of each stage: {text}" if len(formula.terms) > 1 else f"of the busiest device: {text}"
    if formula.name in ("weights_mixed", "weights_mixed_read"):
        kinds = dtypes.PLAIN | dtypes.FILE_ONLY
        parts = " + ".join(f"{elements:,} x {kinds[name].bits_per_element:g} bits ({name})" for name, elements in formula.terms)
        return f"({parts}) / 8" + ("; tables that are looked up by row are left out" if formula.name.endswith("read") else "")
    text = " " + EQUATIONS[formula.name].format(**dict(formula.terms))
    return text.replace(" 1 sequences", " 1 sequence")[1:]


def _bytes(value: int) -> str:
    return f"{format_bytes(value)} = {exact_bytes(value)}"


def amount(line: Line) -> str:
    if line.unit is Unit.BYTES:
        return _bytes(int(line.amount))
    if line.unit is Unit.FLOPS:
        return f"{format_flops(line.amount)} = {line.amount:,} FLOP"
    return f"{format_seconds(line.amount)} = {line.amount:.9f} s"


def lines(plan: Plan) -> list[tuple[str, str, str, str]]:
    """(item, amount, equation, basis) of every line, in the order in which each builds on the ones before."""
    rows = []
    for row in plan.cache.rows:
        name = f"{row.kind} x {row.count}"
        rows.append((name, _bytes(row.needed_bytes + row.state_bytes), equation(row.formula), "formula"))
    ledger = [
        cache_line(plan.cache, "kv_cache", plan.shared.fullest.stored_bytes if plan.shared else plan.cache.stored_bytes, plan.shared),
        weights_line(plan.spec, plan.weights, "weights", plan.shared),
    ]
    if plan.draft:
        ledger += draft_lines(plan.draft, plan.shared)
    if plan.latency:
        ledger += plan.latency.ledger.lines
    else:
        ledger.append(weights_line(plan.spec, plan.weights, "weights_read", plan.shared))
    if plan.memory:
        memory = plan.memory
        rows += _budget(memory)
        rows.append(("usable", _bytes(memory.usable_bytes), memory.usable_basis, plan.device.id if plan.device else ""))
        rows.append(("headroom", _bytes(memory.headroom_bytes), f"{memory.usable_bytes:,} - {memory.total_bytes:,}", "usable - total"))
    for line in ledger:
        basis = line.basis.value + (f" ({line.source})" if line.source else "")
        low = plan.weights.resident_low_bytes
        if low is not None and line.item == "weights":
            rows.append((line.item, f"{_bytes(low)} to {amount(line)}", f"at most {equation(line.formula)}", basis))
        else:
            rows.append((line.item, amount(line), equation(line.formula), basis))
    return rows


def _budget(memory: MemoryPlan) -> list[tuple[str, str, str, str]]:
    """What stands beside weights and cache, and the sum of what is certain."""
    rows = []
    for line in memory.ledger:
        if line.item in ("lora_slots", "encoder_cache", "kv_pool_free", "kv_pool_short", "host_part"):
            rows.append((line.item, amount(line), equation(line.formula), line.basis.value))
    for each in memory.needs:
        line = each.line
        size = amount(line) if each.high_bytes == line.amount else f"{_bytes(each.low_bytes)} to {_bytes(each.high_bytes)}"
        basis = line.basis.value + (f" ({line.source})" if line.source else "")
        rows.append((line.item, size, equation(line.formula), basis))
    parts = [int(line.amount) for line in memory.ledger] + [each.low_bytes for each in memory.needs]
    total = " + ".join(f"{size:,}" for size in parts if size)
    return [*rows, ("total", _bytes(memory.total_bytes), total, "what is certain")]


def print_equations(plans: Sequence[Plan]) -> None:
    for plan in plans:
        work = plan.workload
        print(f"{plan.spec.name}: {work.batch_size:,} x {plural(work.context_tokens, 'token')}, {plan.cache.kv.label} cache")
        for item, value, text, basis in lines(plan):
            print(f"  {item}\n      {value}\n      = {text}\n      from {basis}")
        if plan.latency is None:
            print("  floors need a --device" if plan.device is None else "  no floors: no rate is known that the device cannot exceed")
