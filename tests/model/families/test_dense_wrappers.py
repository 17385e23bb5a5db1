"""Multimodal files around dense decoders: where the keys are, what their classes add, and the worked numbers of published models."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="the oracle")

from kvcli.dtypes import KvTypes, known  # noqa: E402
from kvcli.model.config import spec_from_config  # noqa: E402
from kvcli.model.families.table import READERS, WRAPPERS  # noqa: E402
from kvcli.model.layers import cache_bytes, read_bytes  # noqa: E402

_spec = importlib.util.spec_from_file_location("dense_oracle", Path(__file__).with_name("dense_oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

BF16 = KvTypes(known("bf16"), known("bf16"))
TINY = {key: value for key, value in oracle.TINY.items() if not key.endswith("token_id")}

#: wrappers whose text layers have a class that builds alone
ALONE = ["aya_vision", "cohere2_vision", "exaone4_5", "fuyu", "gemma3", "shieldgemma2", "granite_speech", "hyperclovax_vision_v2"]
ALONE += ["idefics2", "idefics3", "internvl", "janus", "lighton_ocr", "llava", "llava_next", "llava_onevision", "mistral3", "ovis2"]
ALONE += ["paligemma", "qianfan_ocr", "smolvlm", "video_llama_3", "video_llava", "vipllava", "deepseek_vl", "got_ocr2", "glmasr"]


@pytest.mark.parametrize("wrapper", ALONE)
def test_a_nested_decoder(wrapper):
    """Nothing but a few widths is nested: the rest are defaults of the inner class."""
    inner_type = WRAPPERS[wrapper].model_type
    drop = ("head_dim", "num_key_value_heads") if inner_type == "persimmon" else ()
    inner = {key: value for key, value in TINY.items() if key not in ("vocab_size", *drop)}
    config = {"model_type": wrapper, "text_config": {"model_type": inner_type, **inner}}
    spec = spec_from_config(config, "m", "m")
    assert spec.model_type == inner_type
    assert spec.parameters == oracle.unique_parameters(oracle.build_model(inner_type, inner, "meta"))


#: wrappers whose text layers exist only inside the whole model: the class, and the towers' least sizes
WHOLE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm_ocr", "granite_docling"]


@pytest.mark.parametrize("wrapper", WHOLE)
@pytest.mark.parametrize("head_dim", [8, None])
@pytest.mark.parametrize("tied", [False, True])
def test_text_layers_inside_the_whole_model(wrapper, head_dim, tied):
    inner = {**TINY, "head_dim": head_dim, "vocab_size": 64}
    if head_dim is None:
        del inner["head_dim"]
    if wrapper == "qwen3_vl" and head_dim is None:
        inner["head_dim"] = 16
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = {"text_config": {**inner, "rope_parameters": rope}, "tie_word_embeddings": tied}
    if wrapper == "granite_docling":  # its class compares the towers' width with the layers'
        config["vision_config"] = {"out_hidden_size": 32}
        config["text_config"]["pad_token_id"] = 0
    with torch.device("meta"):
        whole = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(wrapper, **config))
    text = set(whole.get_decoder().parameters()) | {whole.lm_head.weight}
    assert spec_from_config({"model_type": wrapper, **config}, "m", "m").parameters == sum(p.numel() for p in text)


@pytest.mark.parametrize("tied", [False, True])
def test_emu3_text_layers(tied):
    inner = transformers.Emu3TextConfig(**TINY, pad_token_id=0, tie_word_embeddings=tied, attention_bias=True)
    with torch.device("meta"):
        model = transformers.Emu3ForCausalLM(inner)
    nested = {**TINY, "tie_word_embeddings": tied, "attention_bias": True}
    assert spec_from_config({"model_type": "emu3", "text_config": nested}, "m", "m").parameters == oracle.unique_parameters(model)


def test_phi4_multimodal_keeps_its_decoder_at_the_top():
    keys = {key: value for key, value in TINY.items() if key != "head_dim"}
    model = oracle.build_model("phi4_multimodal", {**keys, "pad_token_id": 0}, "meta")
    decoder = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens_extend" not in name)
    assert spec_from_config({"model_type": "phi4_multimodal", **keys}, "m", "m").parameters == decoder


@pytest.mark.parametrize("inner", [{}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("outer", [{}, {"tie_word_embeddings": True}])
def test_qwen2_5_omni_thinker(inner, outer):
    """The decoder lies two objects deep, and its own tie flag has no effect."""
    text = {**TINY, "head_dim": 8, "vocab_size": 64, "model_type": "qwen2_5_omni_text", **inner}
    config = transformers.AutoConfig.for_model("qwen2_5_omni_thinker", text_config=text, **outer)
    with torch.device("meta"):
        whole = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)
    wanted = {p: p.numel() for p in (*whole.get_decoder().parameters(), whole.lm_head.weight)}
    for file in ({"thinker_config": {"text_config": text, **outer}}, {"text_config": text, **outer}):
        wrapper = "qwen2_5_omni" if "thinker_config" in file else "qwen2_5_omni_thinker"
        spec = spec_from_config({"model_type": wrapper, **file}, "m", "m")
        assert spec.parameters == sum(wanted.values())


def test_every_wrapper_leads_to_a_reader():
    assert {wrapper.model_type for wrapper in WRAPPERS.values()} <= set(READERS)


def test_an_older_flat_file():
    """Qwen2-VL's first files have no nested object for the text."""
    nested = spec_from_config({"model_type": "qwen2_vl", "text_config": TINY}, "m", "m")
    flat = spec_from_config({"model_type": "qwen2_vl", "vision_config": {"depth": 2}, **TINY}, "m", "m")
    assert flat.parameters == nested.parameters and flat.num_hidden_layers == 4
    assert flat.model_type == "qwen2_vl_text"


def test_gemma3_nested_without_vocabulary_and_heads():
    """Gemma-3-4B's file, as published: the class supplies vocab 262,208, 8 heads, 4 KV heads of 256."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}
    spec = spec_from_config({"model_type": "gemma3", "text_config": text, "dtype": "bfloat16"}, "m", "m")
    assert spec.parameters == 3_880_263_168 and spec.tied
    # 29 of 34 layers slide: 4,096 B a token and layer (2 x 4 x 256 x 2 B)
    assert cache_bytes(spec.groups, 1024, BF16) == 34 * 4096 * 1024
    assert cache_bytes(spec.groups, 32768, BF16) == 4096 * (5 * 32768 + 29 * 1024)
    assert read_bytes(spec.groups, 32768, BF16) == cache_bytes(spec.groups, 32768, BF16)


def test_the_three_spellings_of_gemma3_agree():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024, "model_type": "gemma3_text"}
    kinds = ["sliding_attention" if (index + 1) % 6 else "full_attention" for index in range(34)]
    specs = [
        spec_from_config({**text, **more}, "m", "m")
        for more in ({}, {"sliding_window_pattern": 6}, {"layer_types": kinds}, {"_sliding_window_pattern": 6})
    ]
    assert len({spec.windows for spec in specs}) == 1 and specs[0].windows.count(None) == 5
    assert {spec.parameters for spec in specs} == {3_880_263_168}


def bytes_at(tokens, **config):
    return cache_bytes(spec_from_config(config, "m", "m").groups, tokens, BF16)


def test_worked_needed_bytes():
    """Bytes a token of published shapes, by hand: layers x 2 x KV heads x head dim x 2 B."""
    falcon = {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8}
    # multi_query is true in Falcon-40B's file and means nothing under the new decoder: 8 heads of 64 needed, not 1 and not 128
    assert bytes_at(1, **falcon, new_decoder_architecture=True, multi_query=True) == 60 * 2 * 8 * 64 * 2 == 122_880
    assert bytes_at(1, model_type="falcon") == 32 * 2 * 64 * 2 == 8_192
    refined = {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8, "vocab_size": 65024}
    assert bytes_at(1, **refined) == 122_880 and spec_from_config(refined, "m", "m").parameters == 41_303_293_952
    small = {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "multi_query": True}
    assert bytes_at(1, **small) == 8_192 and spec_from_config(small, "m", "m").parameters == 6_921_720_704
    # Gemma-2-9B: 21 of 42 layers see 4,096 tokens, 8 x 256 dims
    gemma2 = {"model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 3584}
    assert bytes_at(8192, **gemma2, intermediate_size=14336) == 8192 * 21 * (8192 + 4096)
    # Command-R7B: 24 of 32 layers slide
    r7b = {"model_type": "cohere2", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
    assert bytes_at(32768, **r7b, intermediate_size=14336) == 4096 * (8 * 32768 + 24 * 4096)
    # OLMo-3-7B: 24 of 32 slide, a KV head for each query head
    assert bytes_at(32768, model_type="olmo3", vocab_size=100278) == 2 * 32 * 128 * 2 * (8 * 32768 + 24 * 4096)
    # Granite-SWA's rule starts with a full layer: 6 of 24 full
    assert bytes_at(1000, model_type="granite_swa") == 2 * 4 * 128 * 2 * (6 * 1000 + 18 * 128)
    # GPT-Neo's local layers need 256 tokens, though transformers keeps all
    assert bytes_at(2048, model_type="gpt_neo") == 2 * 16 * 128 * 2 * (12 * 2048 + 12 * 256)
    # a flag that is off: SmolLM3 names a window and uses none
    assert bytes_at(9000, model_type="smollm3", sliding_window=4096) == 9000 * 36 * 2 * 4 * 128 * 2
    # HRM-Text: 16 layers a stack, 2 cycles of 3 low runs and a high one, each with a cache of its own
    assert bytes_at(1, model_type="hrm_text", num_hidden_layers=16) == 16 * 8 * 2 * 12 * 128 * 2


def test_hrm_multiplies_each_run():
    """128 runs of layers compute, 32 layers have weights."""
    from kvcli.plan.floors import forward_flops

    spec = spec_from_config({"model_type": "hrm_text"}, "m", "m")
    layer = 5 * 1536 * 1536 + 3 * 1536 * 4096
    scores = 128 * 2 * 12 * 256
    assert spec.active_parameters == 32 * layer + 1536 + 151808 * 1536 == 1_214_645_760
    assert forward_flops(spec, 0, 1) == 2 * (128 * layer + 151808 * 1536) + scores


def test_opt_narrow_table():
    """OPT-350M: a table of 512 columns, two matrices to the layers' 1,024, no norm at the end: 331,196,416 parameters."""
    config = {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "ffn_dim": 4096, "num_hidden_layers": 24}
    spec = spec_from_config({**config, "num_attention_heads": 16, "do_layer_norm_before": False}, "m", "m")
    assert spec.parameters == 331_196_416
    assert spec.active_parameters == spec.parameters - 2050 * 1024 and spec.head_matrix == 50272 * 512
