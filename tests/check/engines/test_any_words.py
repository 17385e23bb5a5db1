"""Whatever stands in a manifest, reading it ends in a deployment or none, never in an error; and fifty of them take no time."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcli.check.deployment import SETTINGS, Deployment
from kvcli.check.engines import llama_cpp_options, sglang_options, tgi, trtllm, vllm_options
from kvcli.check.engines.read import deployment_of
from tests.check.engines.helpers import launch, word

PROGRAMS = {
    "vllm serve": vllm_options.options(),
    "python -m sglang.launch_server": sglang_options.options(),
    "llama-server": llama_cpp_options.options(),
    "text-generation-launcher": tgi.options(),
    "trtllm-serve": trtllm.options(False),
    "trtllm-build": trtllm.options(True),
    "ollama run": {},
}
VALUES = [
    *(
        "1",
        "0",
        "-1",
        "auto",
        "32k",
        "0.9",
        "nan",
        "inf",
        "1e999",
        "fp8",
        "",
        "=",
        "--",
        "-",
        "a/b",
        "$(X)",
        "${X:-1}",
        "9" * 5000,
        "null",
        "[]",
    ),
    *('{"method": 1}', '{"factor": true, "rope_type": "yarn"}', '{"rope_scaling": {"rope_type": "yarn", "factor": 1e300}}', "[" * 3000),
    *(
        '{"kv_connector_extra_config": []}',
        '{"kv_connector_extra_config": {"connectors": [1, {}]}}',
        '{"num_speculative_tokens": true, "model": []}',
    ),
    *('{"text_config": {"text_config": {"max_position_embeddings": -1}}}', '{"level": null, "mode": {}}', "/c.yaml", "٣", "1_000", "1\n2"),
]
FILES = [
    *(
        "",
        "a",
        "a: b",
        "kv_cache_config: 3",
        "kv_cache_config: {dtype: 1, max_tokens: x}",
        "speculative_config: {decoding_type: []}",
        "? [a]\n: b",
    ),
    *(
        "max-model-len: 0x10",
        "max-model-len: 1_000",
        "max-model-len: 2001-01-01",
        "tp: .inf",
        "x: !!binary a",
        "a: 1\na: 2",
        "\ta: 1",
        "lora_config: {max_loras: [1]}",
    ),
]


@st.composite
def launches(draw):
    program = draw(st.sampled_from(sorted(PROGRAMS)))
    names = st.sampled_from([*PROGRAMS[program], "--config", "--hf-overrides.a.b", "--speculative-config.x+", "--x.", "--.y"])
    value = st.one_of(st.sampled_from(VALUES), st.text(max_size=5))
    pieces = draw(st.lists(st.one_of(names, value, st.tuples(names, value).map("=".join)), max_size=8))
    start = launch(program, image=draw(st.sampled_from([None, "", ":", "vllm/vllm-openai:v0.11.0", "a:b:c", "x/llama.cpp:server-b1"])))
    variables = st.sampled_from([*llama_cpp_options.variables(), "OLLAMA_NUM_PARALLEL", "MAX_TOTAL_TOKENS", "SHARDED", "VLLM_MLA_DISABLE"])
    environment = draw(st.dictionaries(variables, value.map(word), max_size=3))
    files = {"/c.yaml": tuple(word(line) for line in draw(st.sampled_from(FILES)).splitlines())}
    return start._replace(words=(*start.words, *(word(text) for text in pieces)), environment=environment, files=files)


@settings(max_examples=800, deadline=None)
@given(launches())
def test_no_words_are_an_error(start):
    deployment = deployment_of(start)
    assert deployment is None or isinstance(deployment, Deployment)
    for key, setting in deployment.settings.items() if deployment else ():
        assert key in SETTINGS
        assert isinstance(setting.value, int | float | str)
        assert "\n" not in setting.said


def test_fifty_take_no_time():
    start = launch("vllm serve a/b --max-model-len 32k --tensor-parallel-size 2 --kv-cache-dtype fp8 --gpu-memory-utilization 0.9")
    deployment_of(start)
    began = time.perf_counter()
    for _ in range(50):
        deployment_of(start)
    assert time.perf_counter() - began < 0.5
