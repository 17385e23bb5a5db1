"""Types that transformers does not build: published parameter totals are the oracle."""

import pytest

from kvcli.dtypes import BF16, KvTypes
from kvcli.errors import BadInput
from kvcli.model.config import spec_from_config
from kvcli.model.layers import cache_bytes

MIMO = {
    "model_type": "mimo",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151680,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "num_nextn_predict_layers": 1,
}


def test_mimo_with_its_prediction_block():
    """MiMo-7B-Base: 7,833,409,536 parameters in its published files."""
    spec = spec_from_config(MIMO, "mimo", "f")
    assert spec.parameters + spec.mtp_parameters == 7_833_409_536
    assert spec.groups[0].attention.window_tokens is None


def block(heads_in_group=8, mult=5.25, attention=None, ffn=None):
    return {"attention": {"n_heads_in_group": heads_in_group, **(attention or {})}, "ffn": {"ffn_mult": mult, **(ffn or {})}}


NAS = {"model_type": "nemotron-nas", "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 100, "max_position_embeddings": 64}


def test_nemotron_nas_layer_by_layer():
    """Widths: 2 x 5.25 x 512 / 3 = 1,792; 2 x 0.5 x 512 / 3 = 170, rounded up to 256."""
    blocks = [
        block(),
        block(attention={"no_op": True}, mult=0.5),
        block(4, ffn={"no_op": True}),
        block(attention={"replace_with_linear": True}),
    ]
    spec = spec_from_config({**NAS, "num_hidden_layers": 4, "block_configs": blocks}, "nas", "f")
    h, d = 512, 64
    full = 2 * h * h + 2 * h * d + 3 * h * 1792 + 2 * h
    narrow = 3 * h * 256 + h
    attention = 2 * h * h + 2 * h * 2 * d + h
    linear = h * h + 3 * h * 1792 + 2 * h
    assert spec.parameters == 2 * 100 * h + h + full + narrow + attention + linear
    # 1 and 2 KV heads; the other layers have no attention
    assert cache_bytes(spec.groups, 10, KvTypes(BF16, BF16)) == 10 * 2 * 2 * d * (1 + 2)


@pytest.mark.parametrize("blocks", [None, [], [block()], "x", [1, 2], [block(3), block()], [block(mult=0.0), block()]])
def test_nemotron_nas_refuses_what_does_not_fit(blocks):
    with pytest.raises(BadInput):
        spec_from_config({**NAS, "num_hidden_layers": 2, "block_configs": blocks}, "nas", "f")
