"""Buffer sizes that llama.cpp, its forks and ollama printed in public logs, replayed at the printed precision.

Every row has all inputs printed beside the number (grade A), or its head counts from the published config (grade B). Rows of
a model that has a preset go through `kvcli plan`; of the others the layers are built from the row's own columns.
"""

import csv
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from kvcli import dtypes
from kvcli.model.cache_records import Attention
from kvcli.model.layers import LayerGroup, LayerParameters
from kvcli.model.resolve import resolve
from kvcli.model.state_records import Recurrent
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.llama_cpp import LlamaCpp
from kvcli.plan.workload import Workload

with (Path(__file__).resolve().parents[2] / "data" / "truth_llama_cpp.csv").open() as file:
    ROWS = {row["id"]: row for row in csv.DictReader(file)}

LLAMA = "--engine llama.cpp"
#: before window caches, and with values beside latent rows
OLDER = f"{LLAMA} --engine-version 2025-05"

#: row -> arguments of `kvcli plan`, and which layers the printed number is of
BY_PRESET = {
    "K001": (f"llama2-13b --ctx 512 {OLDER}", "all"),
    # ten slots of 8,192 tokens are the 81,920 cells it printed
    "K005": ("llama3.1-8b --ctx 8192 --batch 10 --engine ollama", "all"),
    "K007": (f"qwen3-32b --ctx 40960 {LLAMA}", "all"),
    "K008": (f"qwen3-32b --ctx 8192 {LLAMA}", "all"),
    "K009": (f"qwen3-30b-a3b --ctx 4096 {LLAMA}", "all"),
    "K011": (f"qwen3-235b-a22b --ctx 32768 {LLAMA}", "all"),
    "K020": (f"gemma3-12b --ctx 512 {OLDER}", "all"),
    "K022": (f"gemma3-27b --ctx 32768 {OLDER}", "all"),
    "K026": (f"llama3.2-1b --ctx 4096 {LLAMA}", "all"),
    "K030": (f"phi-3-mini-4k --ctx 4096 {LLAMA}", "all"),
    "K032": (f"gemma-2b --ctx 8192 {LLAMA}", "all"),
    "K035": (f"qwen2.5-1.5b --ctx 32768 {LLAMA}", "all"),
    "K036": (f"qwen3-32b --ctx 16896 --kv-dtype q8_0 {LLAMA}", "all"),
    "K037": (f"qwen3-235b-a22b --ctx 16384 --kv-dtype q8_0 {LLAMA}", "all"),
    "K038": (f"qwen3-235b-a22b --ctx 32768 --kv-dtype q8_0 {LLAMA}", "all"),
    "K041": (f"qwen3-235b-a22b --ctx 4096 --kv-dtype q8_0 {LLAMA}", "all"),
    "K043": (f"qwen3-235b-a22b --ctx 8192 --kv-dtype q8_0:fp16 {LLAMA}", "all"),
    "K045": (f"llama3.1-8b --ctx 1024 --kv-dtype iq4_nl:f16 {LLAMA}", "all"),
    "K059": (f"deepseek-v3 --ctx 16384 {LLAMA}", "all"),
    "K060": (f"deepseek-v3 --ctx 32768 {LLAMA}", "all"),
    "K067": (f"deepseek-v3 --ctx 131072 --kv-dtype q8_0 {LLAMA}", "all"),
    "K068": (f"deepseek-r1 --ctx 163840 --kv-dtype q8_0 {LLAMA}", "all"),
    "K069": (f"deepseek-r1 --ctx 16896 --kv-dtype q8_0 {LLAMA}", "all"),
    "K071": (f"deepseek-v3 --ctx 16384 {OLDER}", "all"),
    "K073": (f"deepseek-v2 --ctx 32768 {LLAMA}", "all"),
    "K074": (f"deepseek-v2 --ctx 32768 --kv-dtype q8_0 {LLAMA}", "all"),
    "K075": (f"kimi-k2 --ctx 2048 --kv-dtype q8_0 {LLAMA}", "all"),
    "K076": (f"kimi-k2 --ctx 512 {OLDER}", "all"),
    "K082": (f"deepseek-v3 --ctx 16384 {OLDER}", "all"),
    # four slots share 8,192 cells: more windows than that do not fit, so window layers get all cells too
    "K094": (f"gemma2-2b --ctx 2048 --batch 4 --kv-unified {LLAMA}", "without window"),
    "K095": (f"gemma2-2b --ctx 2048 --batch 4 --kv-unified {LLAMA}", "window"),
    "K098": (f"gpt-oss-20b --ctx 131072 {LLAMA}", "without window"),
    "K099": (f"gpt-oss-20b --ctx 131072 {LLAMA}", "window"),
    "K101": (f"gpt-oss-20b --ctx 131072 --ubatch 2048 {LLAMA}", "window"),
    "K108": (f"qwen3.5-27b --ctx 8192 {LLAMA}", "attention"),
    "K109": (f"qwen3.5-27b --ctx 262144 {LLAMA}", "attention"),
    "K113": (f"qwen3.5-27b --ctx 200704 --kv-dtype q4_0 {LLAMA}", "attention"),
}

#: row -> what its settings column says of the engine; no preset has the model
BY_COLUMNS = {
    **dict.fromkeys(["K014", "K016", "K023", "K033", "K048", "K077", "K079", "K081"], LlamaCpp(version="2025-05")),
    **dict.fromkeys(["K118", "K120", "K122", "K126", "K130"], LlamaCpp()),
    "K088": LlamaCpp(),
    "K089": LlamaCpp(),
    "K091": LlamaCpp(),
    "K125": LlamaCpp(rollback=7),
    "K127": LlamaCpp(),
    "K129": LlamaCpp(),
}

#: row -> state record that the log describes: shapes are not columns
STATES = {
    # qwen35moe: d_inner 4096, 16 groups of 128, conv 4
    "K125": ("qwen3_5_moe_text", Recurrent("linear_attention", 4096 + 2 * 16 * 128, 4, 4096 * 128, dtypes.FP32)),
    "K127": ("lfm2", Recurrent("conv", 2048, 3)),
    "K129": ("lfm2", Recurrent("conv", 2048, 3)),
}

#: rows that cannot be said to kvcli, with the reason
UNSAID: dict[str, str] = {}

TYPES = {"f32": "fp32", "f16": "fp16"}


def prints(size: int, row) -> bool:
    """Whether bytes would be printed so. Both neighbours of a tie count: printf rounds the binary value."""
    printed = Fraction(row["printed"])
    digits = len(row["printed"].partition(".")[2])
    return abs(Fraction(size, 2**20) - printed) <= Fraction(1, 2 * 10**digits)


def test_every_row_is_replayed_or_has_a_reason():
    assert BY_PRESET.keys() | BY_COLUMNS.keys() | UNSAID.keys() == ROWS.keys()
    assert (len(BY_PRESET), len(BY_COLUMNS), len(UNSAID)) == (37, 19, 0)
    assert {row["grade"] for row in ROWS.values()} == {"A", "B"}
    assert {row["unit"] for row in ROWS.values()} == {"MiB"}


def test_the_precision_is_that_of_the_print():
    assert prints(100 * 2**20 + 5000, {"printed": "100.00"})
    assert not prints(100 * 2**20 + 5400, {"printed": "100.00"})  # 100.00515 MiB
    for tie in ("5833.12", "5833.13"):
        assert prints(int(5833.125 * 2**20), {"printed": tie})


@pytest.mark.parametrize("name", BY_PRESET)
def test_a_row_of_a_preset(name, kvcli):
    arguments, which = BY_PRESET[name]
    answer = kvcli("plan", *arguments.split(), "--json")
    assert answer.code == 0, answer.out
    cache = json.loads(answer.out)["kv_cache"]
    wanted = {
        "all": lambda layer: True,
        "window": lambda layer: layer["window_tokens"] is not None,
        "without window": lambda layer: layer["window_tokens"] is None,
        "attention": lambda layer: layer["kind"] == "full_attention",
    }[which]
    assert prints(sum(layer["stored_bytes"] for layer in cache["layers"] if wanted(layer)), ROWS[name])


@pytest.mark.parametrize("name", BY_COLUMNS)
def test_a_row_of_its_columns(name):
    row = ROWS[name]
    layers, heads = int(row["n_kv_layers"]), int(row["n_head_kv"])
    model_type, record, kv = "llama", None, None
    if name in STATES:
        model_type, record = STATES[name]
    else:
        record = Attention(heads, heads, int(row["d_head_k"]), int(row["d_head_v"]))
        kv = dtypes.parse_kv(":".join(TYPES.get(row[column], row[column]) for column in ("kv_dtype_k", "kv_dtype_v")))
    sequences, context = int(row["n_seq"]), row["n_ctx_or_tokens"]
    if name in ("K089", "K091"):  # Gemma-4: the column holds the cells; the log's context is in the settings
        model_type, record = "gemma4_text", record._replace(window_tokens=1024)
        context = {"K089": 8192 // 2, "K091": 16384}[name]
    spec = replace(
        resolve("llama3-8b"), model_type=model_type, groups=(LayerGroup(0, layers, (record,), LayerParameters()),), order=(0,) * layers
    )
    tokens = 4096 if context == "any" else int(context)
    plan = build(PlanRequest(spec, Workload(tokens, sequences), BY_COLUMNS[name], kv=kv))
    assert prints(plan.cache.stored_bytes, row)
