"""vLLM's pages and groups: how layers of several kinds share one pool of equal block ids.

The rule (vLLM's `kv_cache_utils`): layers of one kind keep their own pages. Several kinds get pages of one size, and are cut
into groups of equally many layers, the last group of a kind filled up with padding layers; a block id is a page of every
layer of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from kvcli.errors import NotModelled
from kvcli.plan.sharing.rules import ceil_div

#: Hybrids' blocks are multiples of it, in tokens: on GPUs, and for latent rows (FlashMLA's kernel; the source is the platform's
#: `_align_hybrid_block_size`, and logs of Kimi-Linear).
ALIGNMENT, LATENT_ALIGNMENT = 16, 64


class Kind(NamedTuple):
    """Layers that vLLM treats alike. `limit` is a window or chunk in tokens; `row_bytes` are of one token, or a whole state."""

    rule: Literal["full", "window", "chunk", "cross", "state"]
    limit: int
    row_bytes: int
    latent: bool = False


class Pages(NamedTuple):
    """Of the layers of one kind: `groups` groups, and `page_bytes` a layer for each block of `block_tokens` tokens.

    `block_tokens` is 0 for states. `page_bytes` may be more than its tokens fill.
    """

    block_tokens: int
    page_bytes: int
    groups: int


class Layout(NamedTuple):
    """`group_size` layers share a block id; 0: all layers do, each with its own page."""

    group_size: int
    pages: Mapping[Kind, Pages]

    def padding_layers(self, kind: Kind, count: int) -> int:
        return self.pages[kind].groups * self.group_size - count if self.group_size else 0

    @property
    def block_tokens(self) -> int | None:
        """Tokens of the smallest block, None where there are only states."""
        return min((pages.block_tokens for pages in self.pages.values() if pages.block_tokens), default=None)


class PoolUnit(NamedTuple):
    """`block_bytes` of one block id, the `request_ids` of one request, and what older versions print tokens by: `groups` and the
    smallest block."""

    block_bytes: int
    request_ids: int
    groups: int
    block_tokens: int | None

    @property
    def request_bytes(self) -> int:
        return self.block_bytes * self.request_ids


def blocks_held(kind: Kind, block: int, tokens: int, encoder_tokens: int, drafted: int = 0) -> int:
    """Blocks of one sequence in one group between decode steps.

    A window of w tokens lies in at most ceil((w - 1) / block) + 1 blocks, as many as it needs when it starts in a block's last
    token; vLLM frees a block once all its tokens have left the window. Each of `drafted` tokens has a slot, and a state.
    """
    if kind.rule == "state":
        return 1 + drafted
    if kind.rule == "cross":
        return ceil_div(encoder_tokens, block)
    held = ceil_div(tokens + drafted, block)
    if kind.rule == "window":
        return min(held, ceil_div(kind.limit - 1 + drafted, block) + 1)
    if kind.rule == "chunk":  # starts at a multiple of the chunk, which blocks may straddle
        return min(held, ceil_div(kind.limit + drafted, block) + (1 if kind.limit % block else 0))
    return held


def blocks_admitted(kind: Kind, block: int, tokens: int, encoder_tokens: int, in_flight: int, drafted: int = 0) -> int:
    """Blocks that must be free before a request is admitted: a window layer holds a prefill chunk beside its window, and a
    prefix-cached state a second copy ("align" mode)."""
    if kind.rule == "state":
        return 2 + drafted
    if kind.rule == "window":
        return ceil_div(min(kind.limit - 1 + in_flight, tokens), block) + 1
    if kind.rule == "chunk":
        return ceil_div(min(kind.limit + in_flight, tokens), block)
    return blocks_held(kind, block, tokens, encoder_tokens, drafted)


def lay_out(counts: Mapping[Kind, int], block: int) -> Layout:
    """Pages and groups of layers: `counts` of each kind, attention blocks of `block` tokens unless a state needs longer ones.

    Raises NotModelled for mixtures without a known rule.
    """
    if len({(kind.rule, kind.limit) for kind in counts}) <= 1:
        return Layout(0, {kind: Pages(*_page(kind, block), 1) for kind in counts})
    block = _raised(counts, block)
    natural = {kind: _page(kind, block) for kind in counts}
    largest = max(page for _, page in natural.values())
    # larger only where max < 1.5 min, to spare padding layers
    fewest, most = min(counts.values()), max(counts.values())
    size = most if 2 * most < 3 * fewest else fewest
    pages = {}
    for kind, (tokens, page) in natural.items():
        if tokens and largest % page == 0:
            tokens *= largest // page  # smaller rows: more tokens in a block
        elif page != largest and kind.latent:
            raise NotModelled("kvcli has no rule of vllm for latent layers beside others", hint="use --engine ideal")
        pages[kind] = Pages(tokens, largest, ceil_div(counts[kind], size))
    return Layout(size, pages)


def _page(kind: Kind, block: int) -> tuple[int, int]:
    return (0, kind.row_bytes) if kind.rule == "state" else (block, block * kind.row_bytes)


def _raised(counts: Mapping[Kind, int], block: int) -> int:
    """Hybrids: the attention block is raised in steps of what its kernels take until its page holds a state."""
    state = max((kind.row_bytes for kind in counts if kind.rule == "state"), default=0)
    if not state:
        return block
    rows = {kind.row_bytes for kind in counts if kind.rule != "state"}
    if len(rows) != 1:
        raise NotModelled("kvcli has no rule of vllm for states beside these attention layers", hint="use --engine ideal")
    step = max(block, LATENT_ALIGNMENT if any(kind.latent for kind in counts) else ALIGNMENT)
    return step * ceil_div(state, step * rows.pop())
