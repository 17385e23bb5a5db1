"""Whether a model can be shared as asked: degrees that contradict each other, and splits that do not divide the model."""

from __future__ import annotations

from collections.abc import Callable

from kvcli.errors import BadInput, NotModelled
from kvcli.model.cache_records import Attention, CacheRecord
from kvcli.model.latent_records import Latent
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Cross
from kvcli.plan.sharing.rules import SharingRule
from kvcli.plan.sharing.split import Split

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
        raise BadInput(text, hint=_nearest(experts, lambda count: _experts_fit(count, tensor, data), "--ep"), code="split_contradicts")
    return Split(tensor, pipeline, data, experts, attention, context)


def _experts_fit(experts: int, tensor: int, data: int) -> bool:
    return tensor % experts == 0 or (experts % tensor == 0 and tensor * data % experts == 0)


def _nearest(asked: int, fits: Callable[[int], bool], option: str) -> str:
    """The nearest values below and above that fit."""
    below = next((count for count in range(min(asked, MOST_DEVICES), 0, -1) if fits(count)), None)
    above = next((count for count in range(asked + 1, min(16 * asked, MOST_DEVICES) + 1) if fits(count)), None)
    found = [str(count) for count in (below, above) if count is not None]
    return f"the nearest that does: {option} " + " or ".join(found) if found else ""


def check_split(spec: ModelSpec, split: Split, rule: SharingRule, engine: str) -> None:
    """Raises BadInput for a split that does not divide the model, naming the nearest that does, and NotModelled for one that the
    engine has no rule for.
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
        _check_experts(spec, split)
    _check_tensor(spec, split, rule, engine)
    if split.context > 1:
        _check_context(spec, split, engine)


def _check_rule(split: Split, rule: SharingRule, engine: str) -> None:
    wanted = (
        ("--tp", split.tensor > 1, rule.tensor),
        ("--pp", split.pipeline > 1, rule.stages is not None),
        ("--ep", split.experts > 1, rule.experts),
        ("--dp-attention", split.attention_data > 1, rule.data_attention),
        ("--dcp", split.context > 1, rule.context),
    )
    for option, asked, known in wanted:
        if asked and not known:
            text = f"kvcli has no rule how {engine} shares a model by {option}"
            hint = "vllm's way is --tp 1 --devices N --ep N" if option == "--dp-attention" and engine == "vllm" else "use --engine ideal"
            raise NotModelled(text, hint=hint, code="no_sharing_rule")


def _kinds(spec: ModelSpec) -> set[tuple[str, int | None]]:
    return {(record.kind, record.window_tokens) for group in spec.groups for record in group.records}


def _check_experts(spec: ModelSpec, split: Split) -> None:
    counts = {group.parameters.num_experts for group in spec.groups if group.parameters.num_experts}
    if not counts:
        raise BadInput(f"--ep {split.experts}: {spec.name} has no routed experts", hint="leave --ep out", code="split_does_not_divide")
    if split.experts > min(counts):
        text = f"--ep {split.experts} is more than the {min(counts)} experts of {spec.name}"
        raise BadInput(text, hint=f"--ep {min(counts)}", code="split_does_not_divide")


def _check_tensor(spec: ModelSpec, split: Split, rule: SharingRule, engine: str) -> None:
    """Heads, columns of MLPs, and the rows of padded tables must divide."""
    for group in spec.groups:
        for record in group.records:
            if split.attention_ranks > 1 and getattr(record, "heads", 1) == 0:
                text = f"kvcli does not know how devices share the {record.kind} state of {spec.model_type}"
                raise NotModelled(text, hint="plan it on one device", code="no_sharing_rule")

    def why_not(tensor: int) -> str:
        return _undivided(spec, rule, split, tensor)

    if reason := why_not(split.tensor):
        text = f"--tp {split.tensor} does not divide {reason} of {spec.name}"
        text += f", as {engine} pads them" if reason.endswith("words") and rule.vocab_multiple > 1 else ""
        raise BadInput(text, hint=_nearest(split.tensor, lambda count: not why_not(count), "--tp"), code="split_does_not_divide")


def _undivided(spec: ModelSpec, rule: SharingRule, split: Split, tensor: int) -> str:
    """What so many tensor ranks cannot share evenly, empty where they can."""
    if tensor % split.attention_data:
        return f"the {split.attention_data} groups of ranks"
    ranks, columns = tensor // split.attention_data, max(1, tensor // split.experts)
    for group in spec.groups:
        for record in group.records:
            if not record.divides(ranks):
                return _heads(record)
        for matrices, by, what in ((group.parameters.mlp, tensor, "an MLP"), (group.parameters.expert, columns, "an expert")):
            if matrices // spec.hidden_size % by:
                return f"the columns of {what}"
    padded = -(-spec.vocab_size // rule.vocab_multiple) * rule.vocab_multiple
    return f"the {spec.vocab_size:,} words" if rule.vocab_multiple > 1 and padded % tensor else ""


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
