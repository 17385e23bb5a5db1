"""What serving engines printed about their caches, in public logs that nobody of this project wrote, at the printed digits.

Rows are of one rank: with tensor parallelism its share of the heads is taken (`--tp`), latent rows stay whole. `given` is the other
number of the log: GiB for blocks and lengths, tokens for concurrency, blocks for tokens.
"""

import csv
import json
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


#: rows of models that kvcli has by name, as a user would type them
BY_PRESET = {
    "K136": "opt-125m",
    "K142": "llama2-70b --tp 8",
    "K150": "mixtral-8x7b --tp 2",
    "K152": "mistral-7b-v0.2 --tp 2",
    "K153": "llama2-7b",
    "K158": "llama3-8b",
    "K162": "opt-1.3b",
    "K163": "qwen3-4b",
    "K177": "qwen2.5-32b --tp 4",
    "K180": "llama4-scout --tp 8 --engine-version 0.9",
    "K181": "qwen3-0.6b",
    "K191": "llama4-scout --tp 8 --engine-version 0.9.1",
    "K196": "qwen2.5-7b",
    "K208": "qwen3-32b --tp 2",
    "K210": "qwen3-0.6b",
    "K219": "opt-125m",
    "K222": "qwen3-235b-a22b --tp 4",
    "K227": "qwen3.5-27b",
    "K231": "kimi-k2.5 --page-size 128",
    "K236": "qwen3-0.6b",
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


@pytest.mark.parametrize("number", BY_PRESET)
def test_the_printed_number_of_a_named_model(number, kvcli):
    """The same rows through the command line: what one device of the split stores is what its log counts in."""
    row = ROWS[number]
    engine = "sglang" if row["engine"].startswith("SGLang") else "trtllm" if row["engine"].startswith("TensorRT") else "vllm"
    options = [*BY_PRESET[number].split(), "--engine", engine, "--kv-dtype", row["kv_dtype"] or "bf16"]
    options += ["--block-size", row["block"]] if row["block"] and engine == "vllm" else []

    def cache(tokens):
        answer = kvcli("plan", *options, "--ctx", str(tokens), "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)["kv_cache"]

    quantity, given, printed = row["quantity"], row["given"], row["printed"]
    if quantity == "cpu_blocks":
        assert int(given) * GIB // cache(1)["stored_bytes_per_device"] == int(printed)
    elif quantity == "gpu_blocks":
        assert math.floor(Fraction(printed) * GIB / cache(1)["stored_bytes_per_device"]) * 16 == int(row["tokens"])
    elif quantity == "longest":
        block = cache(1)["stored_bytes_per_device"]
        low, high = (math.floor((Fraction(given) + Fraction(way, 200)) * GIB / block) * 16 for way in (-1, 1))
        assert low <= int(printed) <= high
    elif quantity == "concurrency":
        assert agrees(Fraction(cache(row["tokens"])["blocks"], cache(given)["blocks"]), printed)
    elif quantity == "tokens_of_blocks":
        assert cache(row["tokens"])["blocks"] * cache(row["tokens"])["block_tokens"] == int(printed)
    elif quantity == "k_size":
        layers = cache(row["tokens"])["layers"]
        size = sum(layer["stored_bytes"] for layer in layers if layer["kind"] == "full_attention")
        assert agrees(Fraction(size, 2 * int(row["tp"]) * GIB), printed)
    else:
        assert quantity in ("needed", "kv_size", "pool")
        assert agrees(Fraction(cache(row["tokens"])["stored_bytes_per_device"], GIB), printed)
