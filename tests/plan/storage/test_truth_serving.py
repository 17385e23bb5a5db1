"""What serving engines printed about their caches, in public logs that nobody of this project wrote, at the printed digits.

Rows are of one rank: with tensor parallelism its share of the heads is taken, latent rows stay whole. `given` is the other
number of the log: GiB for blocks and lengths, tokens for concurrency, blocks for tokens.
"""

import csv
import math
from fractions import Fraction
from pathlib import Path

import pytest

from kvcli.dtypes import parse_kv
from kvcli.model import presets
from kvcli.model.config import spec_from_config
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

TABLE = (Path(__file__).parents[2] / "data" / "truth_serving.csv").read_text(encoding="utf-8")
ROWS = {row["id"]: row for row in csv.DictReader(TABLE.splitlines())}
GIB = 2**30

#: rows that say nothing about storage, and why
LEFT_OUT = {
    "K217": "tokens are printed as concurrency x longest length, so the row holds without any rule of storage",
    "K238": "a placeholder manager with head_dim 0",
    **dict.fromkeys(("K245", "K247", "K248", "K253"), "a sum of the memory budget, not a cache"),
}
#: rows of models with layers that plain heads do not describe
MODELS = {"K180": "llama4-scout", "K191": "llama4-scout", "K186": "gemma2-9b", "K227": "qwen3.5-27b", "K231": "kimi-k2.5"}
OPTIONS = {
    # chunked layers were priced whole in that version
    "K180": EngineOptions(version="0.9"),
    "K191": EngineOptions(version="0.9.1"),
    "K231": EngineOptions(page_size=128),
}


def spec_of(row):
    heads = int(row["n_head_kv"] or 8) // int(row["tp"])
    name = MODELS.get(row["id"])
    if name:
        config = dict(presets.load(name).config)
        if int(row["tp"]) > 1:
            config = config.get("text_config", config) | {"num_key_value_heads": heads}
        return spec_from_config(config, name, "a log")
    config = {
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 64,
        "max_position_embeddings": 1 << 24,
        "num_hidden_layers": int(row["n_kv_layers"] or 1),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": int(row["d_head_k"] or 128),
    }
    return spec_from_config(config, row["model"], "a log")


def engine_of(row):
    options = OPTIONS.get(row["id"], EngineOptions())
    name = "sglang" if row["engine"].startswith("SGLang") else "trtllm" if row["engine"].startswith("TensorRT") else "vllm"
    if name == "vllm" and row["block"]:
        options = options._replace(block_size=int(row["block"]))
    return policy(name, options)


def stored(row, tokens):
    kv = parse_kv(row["kv_dtype"] or "bf16")
    return engine_of(row).store(spec_of(row), Workload(tokens), kv)


def agrees(value, printed):
    """Half a unit of the last printed digit; an exact tie rounds either way."""
    digits = len(printed.partition(".")[2])
    return abs(Fraction(value) - Fraction(printed)) <= Fraction(1, 2 * 10**digits)


def block_bytes(row):
    return stored(row, 1).total_bytes


def expected(row):
    """The printed quantity, computed."""
    quantity, given = row["quantity"], row["given"]
    tokens = int(row["tokens"] or 0)
    if quantity == "cpu_blocks":
        return Fraction(int(given) * GIB // block_bytes(row))
    if quantity == "needed":  # to admit a request of that length
        return Fraction(engine_of(row).admission_bytes(spec_of(row), Workload(tokens), parse_kv(row["kv_dtype"])), GIB)
    if quantity == "concurrency":
        return Fraction(stored(row, tokens).blocks, stored(row, int(given)).blocks)
    if quantity == "tokens_of_blocks":
        answer = stored(row, tokens)
        assert answer.blocks == int(given)
        return Fraction(answer.blocks * answer.block_tokens)
    answer = stored(row, tokens)
    if quantity == "k_size":
        attention = [size for size, record in zip(answer.rows, records(row), strict=True) if record.kind == "full_attention"]
        return Fraction(sum(attention), 2 * GIB)
    assert quantity in ("kv_size", "pool")
    return Fraction(answer.total_bytes, GIB)


def records(row):
    return [record for group in spec_of(row).groups for record in group.records]


def test_every_row_is_used_or_named():
    assert len(ROWS) == 46
    assert len(ROWS.keys() - LEFT_OUT.keys()) == 40
    assert all(row["grade"] in ("A", "B") for row in ROWS.values())


@pytest.mark.parametrize("number", [number for number in ROWS if number not in LEFT_OUT])
def test_the_printed_number(number):
    row = ROWS[number]
    if row["quantity"] == "gpu_blocks":  # blocks = floor(GiB / block bytes)
        assert math.floor(Fraction(row["printed"]) * GIB / block_bytes(row)) * 16 == int(row["tokens"])
    elif row["quantity"] == "longest":  # memory is printed with two decimals
        low, high = (math.floor((Fraction(row["given"]) + Fraction(way, 200)) * GIB / block_bytes(row)) * 16 for way in (-1, 1))
        assert low <= int(row["printed"]) <= high < low + low // 100
        assert int(row["printed"]) % 16 == 0
    else:
        assert agrees(expected(row), row["printed"]), float(expected(row))


def test_the_extra_block_of_window_layers_shows_in_print():
    """Gemma-2-9B at 8,192 tokens: 42 x 512 blocks alone would print 2.62; 21 blocks more print 2.63."""
    row = ROWS["K186"]
    assert expected(row) * GIB == (42 * 512 + 21) * 16 * 8 * 512 * 2
