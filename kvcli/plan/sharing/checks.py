"""Whether a model can be shared as asked: degrees that contradict each other, and splits that do not divide the model."""

from __future__ import annotations

from collections.abc import Callable

from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.layers import LayerGroup
from kvcli.model.linears import layer_linears
from kvcli.model.scheme import Scheme
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Cross
from kvcli.model.tensor_uses import layer_use
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.sharing.split import Split
from kvcli.plan.weights import WeightBytes

#: More than any machine that serves one model.
MOST_DEVICES = 4096


def read_split(devices: int | None, tp: int | None, pp: int | None, ep: int | None, dp_attention: int | None, dcp: int | None) -> Split:
    """The split of `--devices`, `--tp`, `--pp`, `--ep`, `--dp-attention` and `--dcp`; None is not given, `dp_attention` 0 all ranks.

    devices = tp x pp x dp; devices alone are tensor ranks. Raises BadInput for degrees that contradict each other.
    """
    if devices is not None and tp is None and pp is None:
        tp = devices
    tensor, pipeline = tp or 1, pp or 1
    each = tensor * pipeline
    if devices is not None and devices % each:
        text = f"--devices {devices} is no multiple of --tp {tensor} x --pp {pipeline} = {each}"
        raise BadInput(text, hint=_nearest(devices, lambda count: count % each == 0, "--devices"), code="split_contradicts")
    data = 1 if devices is None else devices // each
    experts, context = ep or 1, dcp or 1
    attention = tensor if dp_attention == 0 else dp_attention or 1
    if each * data > MOST_DEVICES:
        raise BadInput(f"{each * data:,} devices are more than kvcli plans for, {MOST_DEVICES:,}", code="too_many_devices")
    if tensor % attention:
        divides: Callable[[int], bool] = lambda count: tensor % count == 0  # noqa: E731
        text = f"--dp-attention {attention} does not divide --tp {tensor}"
        raise BadInput(text, hint=_nearest(attention, divides, "--dp-attention"), code="split_contradicts")
    if not _experts_fit(experts, tensor, data):
        text = f"--ep {experts} neither divides --tp {tensor} nor is a multiple of it that divides its {tensor * data} ranks"
        nearest = _nearest(experts, lambda count: _experts_fit(count, tensor, data), "--ep")
        hint = f"--tp {experts} --ep {experts}" if tp is None else nearest
        raise BadInput(text, hint=hint, code="split_contradicts")
    return Split(tensor, pipeline, data, experts, attention, context)


def _experts_fit(experts: int, tensor: int, data: int) -> bool:
    return tensor % experts == 0 or (experts % tensor == 0 and tensor * data % experts == 0)


def _nearest(asked: int, fits: Callable[[int], bool], option: str) -> str:
    """The nearest values below and above that fit."""
    below = next((count for count in range(min(asked, MOST_DEVICES), 0, -1) if fits(count)), None)
    above = next((count for count in range(asked + 1, min(16 * asked, MOST_DEVICES) + 1) if fits(count)), None)
    found = [str(count) for count in (below, above) if count is not None]
    return f"the nearest that does: {option} " + " or ".join(found) if found else ""


def check_split(spec: ModelSpec, split: Split, rule: SharingRule, engine: str, weights: WeightBytes | None = None) -> None:
    """Raises BadInput for a split that does not divide the model, naming the nearest that does, and NotModelled for one that the
    engine has no rule for. `weights` are those that are divided.
    """
    if split.alone:
        return
    if rule.gap:
        raise NotModelled(rule.gap, hint="use --engine ideal", code="no_sharing_rule")
    _check_rule(split, rule, engine)
    if spec.encoder_parameters:
        text = f"kvcli does not know how devices share the encoder of {spec.name}"
        raise NotModelled(text, hint="plan it on one device", code="no_sharing_rule")
    if split.pipeline > len(spec.order):
        text = f"--pp {split.pipeline} is more than the {len(spec.order)} layers of {spec.name}"
        raise BadInput(text, hint=f"--pp {len(spec.order)}", code="split_does_not_divide")
    if split.pipeline > 1 and not rule.mixed_stages and len(_kinds(spec)) > 1:
        text = f"kvcli has no rule how {engine} lays out layers of several kinds over pipeline stages"
        raise NotModelled(text, hint="use --tp, or --engine ideal", code="no_sharing_rule")
    if split.experts > 1:
        _check_experts(spec, split, rule, engine)
    _check_tensor(spec, split, rule, engine, weights)
    if split.context > 1:
        _check_context(spec, split, engine)


_OTHER_WAYS = {
    ("--dp-attention", "vllm"): "vllm's way is --tp 1 --devices N --ep N",
    ("--tp", "llama.cpp"): "--pp N is its layer split",
}


def _check_rule(split: Split, rule: SharingRule, engine: str) -> None:
    wanted = (
        ("--tp", split.tensor > 1, rule.tensor),
        ("--pp", split.pipeline > 1, rule.stages is not None),
        ("--ep", split.experts > 1, bool(rule.experts)),
        ("--dp-attention", split.attention_data > 1, rule.data_attention),
        ("--dcp", split.context > 1, rule.context),
    )
    for option, asked, known in wanted:
        if asked and not known:
            text = f"kvcli has no rule how {engine} shares a model by {option}"
            raise NotModelled(text, hint=_OTHER_WAYS.get((option, engine), "use --engine ideal"), code="no_sharing_rule")
    if split.data > 1 and not rule.replicas:
        text = f"{engine} runs one copy of a model, not {split.data}"
        raise BadInput(text, hint="leave --devices out, or plan one copy", code="split_contradicts")


def _kinds(spec: ModelSpec) -> set[tuple[str, int | None]]:
    return {(record.kind, record.window_tokens) for group in spec.groups for record in group.records}


def _check_experts(spec: ModelSpec, split: Split, rule: SharingRule, engine: str) -> None:
    counts = {group.parameters.num_experts for group in spec.groups if group.parameters.num_experts}
    if not counts:
        raise BadInput(f"--ep {split.experts}: {spec.name} has no routed experts", hint="leave --ep out", code="split_does_not_divide")
    wrong = {"all": split.experts != split.tensor * split.data, "inside": split.experts > split.tensor}.get(rule.experts, False)
    if wrong:
        right = split.tensor * split.data if rule.experts == "all" else split.tensor
        text = f"{engine} spreads experts over {'all' if rule.experts == 'all' else 'at most the'} {right} ranks, not over {split.experts}"
        raise BadInput(text, hint=f"--ep {right}" if right > 1 else "leave --ep out", code="split_contradicts")
    if split.experts > min(counts):
        text = f"--ep {split.experts} is more than the {min(counts)} experts of {spec.name}"
        raise BadInput(text, hint=f"--ep {min(counts)}", code="split_does_not_divide")


def _check_tensor(spec: ModelSpec, split: Split, rule: SharingRule, engine: str, weights: WeightBytes | None) -> None:
    """Heads, columns of MLPs, and the rows of padded tables must divide."""
    for group in spec.groups:
        for record in group.records:
            if split.attention_ranks > 1 and getattr(record, "heads", 1) == 0:
                text = f"kvcli does not know how devices share the {record.kind} state of {spec.model_type}"
                raise NotModelled(text, hint="plan it on one device", code="no_sharing_rule")

    scheme = spec.quantization.scheme if weights is not None and weights.quantized is not None and spec.quantization else None

    def why_not(tensor: int) -> str:
        # data-parallel attention over all ranks stays so
        groups = tensor if split.attention_data == split.tensor else split.attention_data
        experts = tensor * split.data if rule.experts == "all" and split.experts > 1 else split.experts
        tried = split._replace(tensor=tensor, attention_data=groups, experts=experts)
        return _undivided(spec, rule, tried) or (_cut_block(spec, tried, scheme) if scheme is not None and rule.whole_blocks else "")

    if reason := why_not(split.tensor):
        text = f"--tp {split.tensor} does not divide {reason} of {spec.name}"
        text += f", as {engine} pads them" if reason.endswith("words") and rule.vocab_multiple > 1 else ""
        raise BadInput(text, hint=_nearest(split.tensor, lambda count: not why_not(count), "--tp"), code="split_does_not_divide")


def _undivided(spec: ModelSpec, rule: SharingRule, split: Split) -> str:
    """What its tensor ranks cannot share evenly, empty where they can."""
    tensor = split.tensor
    if tensor % split.attention_data:
        return f"the {split.attention_data} groups of ranks"
    for group in spec.groups:
        for record in group.records:
            if not record.divides(split.attention_ranks):
                return _heads(record)
        for width, by, what in _widths(spec, group, split):
            if width % by:
                return f"the {width:,} columns of {what}"
    padded = -(-spec.vocab_size // rule.vocab_multiple) * rule.vocab_multiple
    return f"the {spec.vocab_size:,} words" if rule.vocab_multiple > 1 and padded % tensor else ""


def _widths(spec: ModelSpec, group: LayerGroup, split: Split) -> list[tuple[int, int, str]]:
    """(columns, ranks that share them, what they are of); of families whose matrices are not known the sum of all matrices'."""
    linears = layer_linears(spec.model_type, spec.hidden_size, group)
    if linears is None:
        p = group.parameters
        whole = [(p.mlp, split.tensor, "MLPs"), (p.expert, split.expert_ranks, "experts")]
        return [(count // spec.hidden_size, by, what) for count, by, what in whole if count]
    gates = [linear for linear in linears if linear.module.endswith(("gate_proj", "w1"))]
    return [(each.rows, split.expert_ranks if each.expert else split.tensor, "an expert" if each.expert else "an MLP") for each in gates]


def _cut_block(spec: ModelSpec, split: Split, scheme: Scheme) -> str:
    """The first matrix of which a rank's share would cut a block of the file's quantisation, empty where there is none."""
    for group in spec.groups:
        kv_heads = max((r.num_key_value_heads for r in group.records if isinstance(r, Attention)), default=1)
        shares = {"mlp": split.tensor, "heads": split.attention_ranks, "key_value": min(kv_heads, split.attention_ranks)}
        for linear in layer_linears(spec.model_type, spec.hidden_size, group) or ():
            by = split.expert_ranks if linear.expert else shares.get(layer_use(f"{linear.module}.weight"), 1)
            inward = linear.module.endswith(("o_proj", "down_proj", "w2"))
            size, block = (linear.columns, scheme.block_columns) if inward else (linear.rows, scheme.block_rows)
            if block and size // by % block and size % block == 0:
                return f"the blocks of {block} of {linear.module.rpartition('.')[2]} ({size:,} / {by} = {size // by:,} a rank)"
    return ""


def _heads(record: CacheRecord) -> str:
    if isinstance(record, Attention | Cross):
        return f"the {record.num_attention_heads} heads over {record.num_key_value_heads} KV heads"
    return f"the {getattr(record, 'num_attention_heads', 0) or getattr(record, 'heads', 0):,} heads of the {record.kind} layers"


def _check_context(spec: ModelSpec, split: Split, engine: str) -> None:
    """Tokens are dealt among ranks that would else hold copies: those beyond the KV heads, or all of a latent row's."""
    for group in spec.groups:
        for record in group.records:
            plain = isinstance(record, Attention) and record.window_tokens is None and record.chunk_tokens is None and not record.index_dim
            if not plain and not (isinstance(record, Latent) and record.window_tokens is None and record.index_pool == 1):
                text = f"kvcli has no rule how {engine} deals the tokens of {record.kind} layers among ranks (--dcp)"
                raise NotModelled(text, hint="leave --dcp out", code="no_sharing_rule")
    copies = min(_copies(record, split.attention_ranks) for group in spec.groups for record in group.records)
    if copies % split.context:
        text = f"--dcp {split.context} does not divide the {copies} copies that --tp {split.tensor} makes of the cache of {spec.name}"
        hint = _nearest(split.context, lambda count: copies % count == 0, "--dcp")
        raise BadInput(text, hint=hint, code="split_does_not_divide")


def _copies(record: object, ranks: int) -> int:
    return max(1, ranks // record.num_key_value_heads) if isinstance(record, Attention) else ranks
