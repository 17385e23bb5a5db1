"""The built-in transformer against transformers' own: same weights through a GGUF file, same logits."""

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs torch")
pytest.importorskip("transformers", reason="the oracle")
from gguf import GGMLQuantizationType  # noqa: E402

from kvcli.errors import BadInput, NotModelled  # noqa: E402
from kvcli.model.gguf.config import spec_from_header  # noqa: E402
from kvcli.model.gguf.header import read_header  # noqa: E402
from kvcli.model.resolve import resolve  # noqa: E402
from kvcli.model.spec import Rope, RopeScaling  # noqa: E402
from kvcli.runtime.caches import NoCache  # noqa: E402
from kvcli.runtime.gguf_weights import load_gguf  # noqa: E402
from kvcli.runtime.linear import linear  # noqa: E402
from kvcli.runtime.rope import frequencies  # noqa: E402
from kvcli.runtime.source import open_source  # noqa: E402
from kvcli.runtime.transformer import Transformer  # noqa: E402

_spec = importlib.util.spec_from_file_location("tiny_models", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
sys.modules["tiny_models"] = tiny
_spec.loader.exec_module(tiny)

CPU = torch.device("cpu")


def load(path, dtype=torch.float32, positions=96):
    header = read_header(path)
    spec = spec_from_header(header)
    return Transformer(spec, load_gguf(header, spec, spec.decoder, dtype, CPU), positions)


def tokens(count, seed=3):
    return torch.randint(128, (1, count), generator=torch.Generator().manual_seed(seed))


FAMILIES = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("llama", {"head_dim": 24}),
    ("llama", {"rope_theta": 500.0}),
    ("mistral", {"sliding_window": 12}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 32}),
    ("phi3", {}),
    ("phi3", {"sliding_window": 12}),
    ("gpt2", {}),
]


@pytest.mark.parametrize(("model_type", "changes"), FAMILIES)
def test_logits_equal_those_of_transformers(tmp_path, model_type, changes):
    oracle = tiny.build(model_type, **changes)
    ours = load(tiny.write_gguf(oracle, tmp_path / "tiny.gguf"))
    ids = tokens(40)
    with torch.no_grad():
        wanted = oracle(ids, use_cache=False).logits[0]
    found = ours.forward(ids, NoCache(), all_logits=True)[0]
    assert wanted.abs().max() > 1  # logits large enough to tell models apart
    torch.testing.assert_close(found, wanted, atol=2e-4 * float(wanted.abs().max()), rtol=1e-4)


@pytest.mark.parametrize(("model_type", "changes"), FAMILIES)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_greedy_tokens_equal_those_of_transformers(tmp_path, model_type, changes, kind):
    oracle = tiny.build(model_type, **changes)
    ours = load(tiny.write_gguf(oracle, tmp_path / "tiny.gguf"))
    ids = tokens(20)
    with torch.no_grad():
        wanted = oracle.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=None)[0, 20:]
    cache = ours.new_cache(kind, 1, 44)
    logits = ours.forward(ids, cache)
    found = []
    for _ in range(24):
        found.append(int(logits[0].argmax()))
        logits = ours.forward(torch.tensor([found[-1:]]), cache)
    assert found == wanted.tolist()


@pytest.mark.parametrize("kind", [k for k in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16") if hasattr(GGMLQuantizationType, k)])
def test_quantised_weights_are_what_the_gguf_package_says(tmp_path, kind):
    """The oracle: the same numbers, dequantised by the package and set into transformers' model."""
    from gguf.quants import dequantize, quantize

    quantised = getattr(GGMLQuantizationType, kind)
    oracle = tiny.build("qwen2", intermediate_size=128)
    path = tiny.write_gguf(oracle, tmp_path / "tiny.gguf", quantised)
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), quantised), quantised)))
        wanted = oracle(tokens(12), use_cache=False).logits[0]
    found = load(path).forward(tokens(12), NoCache(), all_logits=True)[0]
    torch.testing.assert_close(found, wanted, atol=2e-4 * float(wanted.abs().max()), rtol=1e-4)


def test_batches_are_independent(tmp_path):
    ours = load(tiny.write_gguf(tiny.build("llama"), tmp_path / "tiny.gguf"))
    one, two = tokens(10, 1), tokens(10, 2)
    both = torch.cat((one, two))
    for kind in ("static", "dynamic"):
        cache = ours.new_cache(kind, 2, 12)
        ours.forward(both[:, :8], cache)
        stepped = [ours.forward(both[:, i : i + 1], cache) for i in (8, 9)][-1]
        for row, alone in enumerate((one, two)):
            torch.testing.assert_close(stepped[row], ours.forward(alone, NoCache())[0], atol=1e-4, rtol=1e-4)


def test_half_precision_runs(tmp_path):
    path = tiny.write_gguf(tiny.build("llama"), tmp_path / "tiny.gguf")
    exact = load(path).forward(tokens(12), NoCache())
    rough = load(path, torch.bfloat16).forward(tokens(12), NoCache())
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_missing_or_misshapen_tensors_are_named(tmp_path):
    path = tiny.write_gguf(tiny.build("llama"), tmp_path / "tiny.gguf")
    header = read_header(path)
    spec = spec_from_header(header)
    from dataclasses import replace

    fewer = replace(header, tensors=tuple(t for t in header.tensors if t.name != "blk.1.ffn_up.weight"))
    with pytest.raises(BadInput, match=r"blk\.1\.ffn_up"):
        load_gguf(fewer, spec, spec.decoder, torch.float32, CPU)
    with pytest.raises(BadInput, match="shape"):
        load_gguf(header, spec, spec.decoder._replace(hidden_size=32), torch.float32, CPU)


def test_rope_scaling_against_transformers():
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=4096, num_attention_heads=32, max_position_embeddings=131072, rope_parameters=scaling)
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    rope = resolve("llama3.1-8b").decoder.rope
    assert rope.scaling.kind == "llama3"
    torch.testing.assert_close(frequencies(rope).float(), wanted, rtol=1e-5, atol=0)
    linear_rope = Rope(10000.0, 64, scaling=RopeScaling("linear", factor=4.0))
    torch.testing.assert_close(frequencies(linear_rope) * 4, frequencies(Rope(10000.0, 64)))
    with pytest.raises(NotModelled, match="longrope"):
        frequencies(Rope(10000.0, 64, scaling=RopeScaling("longrope")))


def test_rope_factors_of_a_file_divide_the_frequencies():
    factors = torch.tensor([1.0, 2.0, 4.0, 8.0])
    torch.testing.assert_close(frequencies(Rope(100.0, 8), factors) * factors.double(), frequencies(Rope(100.0, 8)))
    spec = resolve("llama3.1-8b")
    from dataclasses import replace

    rope = spec.decoder.rope._replace(scaling=RopeScaling("factors"))
    with pytest.raises(NotModelled, match="factors"):
        open_source(replace(spec, decoder=spec.decoder._replace(rope=rope)), None, random=True)


def test_partial_rotation_leaves_the_rest(tmp_path):
    oracle = tiny.build("phi3", head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})
    from dataclasses import replace

    ours = load(tiny.write_gguf(oracle, tmp_path / "tiny.gguf"))
    rope = ours.spec.decoder.rope._replace(rotary_dim=8)
    spec = replace(ours.spec, decoder=ours.spec.decoder._replace(rope=rope))
    with torch.no_grad():
        wanted = oracle(tokens(20), use_cache=False).logits[0]
    found = Transformer(spec, ours.weights, 96).forward(tokens(20), NoCache(), all_logits=True)[0]
    torch.testing.assert_close(found, wanted, atol=2e-4 * float(wanted.abs().max()), rtol=1e-4)


def test_linear_is_torchs_linear():
    for rows in (1, 5):
        x, weight, bias = torch.randn(2, rows, 48), torch.randn(32, 48), torch.randn(32)
        for b in (None, bias):
            torch.testing.assert_close(linear(x, weight, b), torch.nn.functional.linear(x, weight, b), atol=1e-4, rtol=1e-4)
    half = torch.randn(1, 48, dtype=torch.bfloat16)
    assert linear(half, torch.randn(4, 48, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_random_weights_have_the_models_size():
    from kvcli.model.cut import cut_layers

    for name in ("gpt2", "qwen3-8b", "llama2-7b"):
        spec = cut_layers(resolve(name), 1)
        model = open_source(spec, None, random=True).load(torch.bfloat16, CPU, 8)
        w = model.weights
        parts = [w.embedding, w.positions, w.final_norm.weight, w.final_norm.bias, None if w.head is w.embedding else w.head]
        for layer in w.layers:
            norms = (layer.attention_norm.weight, layer.attention_norm.bias, layer.mlp_norm.weight, layer.mlp_norm.bias)
            parts += [*norms, layer.qkv, layer.qkv_bias, layer.query_norm, layer.key_norm, layer.output, layer.output_bias]
            parts += [layer.up, layer.up_bias, layer.down, layer.down_bias]
        assert sum(part.numel() for part in parts if part is not None) == spec.parameters
        assert torch.isfinite(model.forward(torch.tensor([[1, 2, 3]]), NoCache())).all()
