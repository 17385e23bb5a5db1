"""What one device holds, or reads in a step, of the weights."""

from __future__ import annotations

from collections import Counter

from kvcli.model.cache_records import Attention
from kvcli.model.layers import LayerGroup
from kvcli.model.spec import ModelSpec
from kvcli.model.state_records import Recurrent
from kvcli.model.weight_parts import ByUse, WeightParts
from kvcli.plan.sharing.rules import SharingRule, ceil_div
from kvcli.plan.sharing.split import Split

#: how copies of each part are called
COPIES = {
    "whole": "norms, routers, latent projections",
    "heads": "attention, once a group of sequences",
    "groups": "projections of state groups",
    "key_value": "KV projections",
    "mlp": "columns that do not divide",
    "experts": "experts that do not divide",
    "table": "input table, padding and copies",
    "head": "output head, padding and copies",
    "word_tables": "tables by word, padding and copies",
    "lookups": "position tables",
    "rest": "last norms",
}


class Shares:
    """One device's part of `parts`, for a split. `read` where the experts counted are those of one token."""

    def __init__(self, spec: ModelSpec, parts: WeightParts, split: Split, rule: SharingRule, read: bool = False) -> None:
        self.spec, self.parts, self.split, self.rule, self.read = spec, parts, split, rule, read
        self._known: dict[tuple[int, ByUse], ByUse] = {}

    def of(self, layers: range, first: bool, last: bool) -> Counter[str]:
        """Bytes by part of a device of the stage with these layers; `first` and `last` have what stands around them."""
        total = ByUse()
        for layer in layers:
            total = total.plus(self._layer(self.spec.order[layer], self.parts.layers[layer]))
        found = Counter(total._asdict())
        found.update(self._around(first, last))
        return found

    def _layer(self, number: int, use: ByUse) -> ByUse:
        key = (number, use)
        if key not in self._known:
            group, ranks = self.spec.groups[number], self.split.attention_ranks
            kv_heads = max((r.num_key_value_heads for r in group.records if isinstance(r, Attention)), default=1)
            groups = max((r.groups for r in group.records if isinstance(r, Recurrent)), default=1) or 1
            self._known[key] = ByUse(
                whole=use.whole,
                heads=ceil_div(use.heads, ranks),
                # ranks beyond the groups or the KV heads hold copies
                groups=ceil_div(use.groups, ranks if groups % ranks == 0 else groups),
                key_value=ceil_div(use.key_value, min(kv_heads, ranks)),
                mlp=ceil_div(use.mlp, self.split.tensor),
                experts=self._experts(group, use.experts),
            )
        return self._known[key]

    def _experts(self, group: LayerGroup, experts: int) -> int:
        """The fullest expert rank has ceil(E / ep) experts, and reads at least ceil(k / ep) of a token's."""
        p = group.parameters
        count = p.experts_per_token if self.read else p.num_experts
        if not count or not experts:
            return 0
        return ceil_div(ceil_div(experts * ceil_div(count, self.split.experts), count), self.split.expert_ranks)

    def _around(self, first: bool, last: bool) -> Counter[str]:
        parts, split, tied = self.parts, self.split, self.spec.tied
        found: Counter[str] = Counter()
        # SGLang divides the input table as it divides heads: each group of ranks with sequences of its own has all words
        table = self._rows(parts.table, split.attention_ranks if self.rule.words_by_attention else split.tensor)
        if first and not self.rule.tables_on_host:
            found["table"] += 0 if self.read and not tied else table
            found["word_tables"] += self._rows(parts.word_tables, split.tensor)
            found["lookups"] += parts.lookups
        if last:
            # the last stage multiplies with a tied table, which the first one looks up
            elsewhere = tied and (not first or self.rule.tables_on_host)
            found["head"] += self._rows(parts.head, split.tensor) + (self._rows(parts.table, split.tensor) if elsewhere else 0)
            found["rest"] += parts.rest
        if self.read and tied and first and not last:
            found["table"] = 0
        return found

    def _rows(self, table: int, ranks: int) -> int:
        """Rows of words, padded to what the engine pads to, and dealt among the ranks."""
        words, multiple = self.spec.vocab_size, self.rule.vocab_multiple
        rows = ceil_div(ceil_div(words, multiple) * multiple, ranks)
        return ceil_div(table * rows, words)


def weight_copies(parts: WeightParts, split: Split, totals: Counter[str]) -> tuple[tuple[str, int], ...]:
    """(cause, bytes) of what devices hold beyond one model, from their totals by part. Replicas of it come first."""
    once = ByUse()
    for layer in parts.layers:
        once = once.plus(layer)
    base = Counter({**once._asdict(), **{name: getattr(parts, name) for name in WeightParts._fields[1:]}})
    # experts spread over replicas are not repeated in each
    times = {"experts": split.tensor * split.data // max(split.tensor, split.experts)}
    replicas = sum(size * (times.get(name, split.data) - 1) for name, size in base.items())
    found = [(f"the model in each of {split.data} replicas", replicas)] if replicas else []
    for name, cause in COPIES.items():
        extra = totals[name] - base[name] * times.get(name, split.data)
        if extra:
            found.append((cause, extra))
    return tuple(found)
