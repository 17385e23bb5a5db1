"""Nine models on which planners disagree by up to 85 times, at 32,768 tokens in bf16: the bytes attention must keep, by hand."""

import json
from pathlib import Path

import pytest

from kvcli import dtypes
from kvcli.model.config import spec_from_config
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import policy
from kvcli.plan.workload import Workload

BF16 = dtypes.KvTypes(dtypes.BF16, dtypes.BF16)
DATA = Path(__file__).resolve().parents[1] / "data"

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
CONFIGS = {
    "llama3-8b": {**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "llama2-7b": {**LLAMA, "intermediate_size": 11008},
    "mistral-7b-v0.1": {**LLAMA, "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1024,
        },
    },
    "deepseek-v3": next(
        {"model_type": row["model_type"], **row["config"]}
        for row in map(json.loads, (DATA / "transformers_cache.jsonl").read_text().splitlines())
        if row["model"] == "deepseek-ai/DeepSeek-V3"
    ),
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "sliding_window": 128},
    "qwen3-next-80b": {"model_type": "qwen3_next"},
    "granite-4.0-h-small": {
        "model_type": "granitemoehybrid",
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_n_heads": 128,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    },
    "jamba-v0.1": {"model_type": "jamba", "num_key_value_heads": 8},
}

#: name -> (bytes, working)
NEEDED = {
    "llama3-8b": (4_294_967_296, "2 x 32 x 8 x 128 x 2 B x 32,768"),
    "llama2-7b": (17_179_869_184, "2 x 32 x 32 x 128 x 2 B x 32,768"),
    "mistral-7b-v0.1": (536_870_912, "2 x 32 x 8 x 128 x 2 B x 4,096"),
    "gemma-3-27b": (3_120_562_176, "2 x 16 x 128 x 2 B x (10 x 32,768 + 52 x 1,024)"),
    "deepseek-v3": (2_302_672_896, "61 x (512 + 64) x 2 B x 32,768"),
    "gpt-oss-20b": (808_452_096, "2 x 8 x 64 x 2 B x (12 x 32,768 + 12 x 128)"),
    "qwen3-next-80b": (805_306_368, "2 x 2 x 256 x 2 B x 12 x 32,768"),
    "granite-4.0-h-small": (536_870_912, "2 x 8 x 128 x 2 B x 4 x 32,768"),
    "jamba-v0.1": (536_870_912, "2 x 8 x 128 x 2 B x 4 x 32,768"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_nine_of_nine(name):
    spec = spec_from_config(CONFIGS[name], name, name)
    cache = build(PlanRequest(spec, Workload(32768), policy("ideal"), kv=BF16)).cache
    assert cache.needed_bytes == NEEDED[name][0], NEEDED[name][1]


def test_the_state_of_qwen3_next():
    """36 layers: 32 x 128 x 128 float32 state elements, and 8,192 convolution channels of kernel 4 in bf16.

    Ideal keeps 3 columns: 36 x (2,097,152 + 8,192 x 3 x 2) = 77,266,944 B; the transformers library keeps 4: 77,856,768 B.
    """
    spec = spec_from_config(CONFIGS["qwen3-next-80b"], "q", "q")
    ideal = build(PlanRequest(spec, Workload(32768), policy("ideal"), kv=BF16)).cache
    assert ideal.state_bytes == 77_266_944
    assert ideal.stored_bytes == ideal.needed_bytes + ideal.state_bytes
    kept = build(PlanRequest(spec, Workload(32768), policy("transformers"), kv=BF16)).cache
    assert kept.stored_bytes == 805_306_368 + 77_856_768
