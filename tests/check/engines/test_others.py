"""SGLang, text-generation-inference and TensorRT-LLM; and what starts no engine."""

import pytest

from kvcli.check.deployment import SETTINGS
from tests.check.engines.helpers import codes, read, values

SGLANG = "python3 -m sglang.launch_server --model-path a/b"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--tp 2", {"tensor_parallel": 2}),
        ("--tp-size 4 --dp-size 4 --enable-dp-attention", {"tensor_parallel": 4, "data_parallel": 4, "dp_attention": True}),
        ("--tensor-parallel-size 4 --ep 4", {"tensor_parallel": 4, "expert_parallel": 4}),
        ("--tp 8 --moe-a2a-backend deepep", {"tensor_parallel": 8, "expert_parallel": 8}),
        ("--tp 8 --enable-ep-moe", {"tensor_parallel": 8, "expert_parallel": 8}),
        ("--tp 16 --nnodes 2 --node-rank 0 --dist-init-addr a:1", {"tensor_parallel": 16, "nodes": 2}),
        ("--context-length 32768 --mem-fraction-static 0.85", {"context_tokens": 32768, "memory_fraction": 0.85}),
        ("--mem-frac 0.85", {"memory_fraction": 0.85}),
        ("--max-total-tokens 100000 --max-running-requests 64", {"kv_tokens": 100000, "max_sequences": 64}),
        ("--chunked-prefill-size 4096", {"max_batched_tokens": 4096}),
        ("--chunked-prefill-size -1", {"chunked_prefill": False}),
        ("--kv-cache-dtype fp8_e5m2 --page-size 64", {"kv_dtype": "fp8", "block_tokens": 64}),
        ("--kv-cache-dtype fp4_e2m1", {"kv_dtype": "mxfp4"}),
        ("--quantization fp8", {"weights": "fp8"}),
        ("--quantization awq", {"quantization": "awq"}),
        ("--cpu-offload-gb 8", {"weights_offload_bytes": 8 * 2**30}),
        ("--enable-hierarchical-cache --hicache-size 30", {"kv_offload_bytes": 30 * 10**9}),
        ("--disable-radix-cache --disable-cuda-graph", {"prefix_caching": False, "eager": True}),
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            {"speculation": "3"},
        ),
        ("--speculative-algorithm NEXTN --speculative-num-steps 2", {"speculation": "2"}),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 16", {"speculation": "16:ngram"}),
        ("--speculative-algo STANDALONE --speculative-draft-model-path c/d --speculative-num-steps 4", {"speculation": "4:c/d"}),
        ("--enable-lora --max-lora-rank 64", {"lora_adapters": 8, "lora_rank": 64}),
        (
            """--json-model-override-args '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0,"""
            """ "original_max_position_embeddings": 32768}}'""",
            {"rope_factor": 4.0, "context_tokens": 131072},
        ),
    ],
)
def test_sglang(words, expected):
    deployment = read(f"{SGLANG} {words}")
    assert values(deployment) == expected
    assert (deployment.engine, deployment.model.text) == ("sglang", "a/b")
    assert not codes(deployment, matters=True), deployment.problems
    assert set(deployment.settings) <= set(SETTINGS)


def test_sglang_problems():
    assert codes(read(f"{SGLANG} --mem-fraction-static 85%")) == ["bad_argument"]
    assert codes(read(f"{SGLANG} --mem_fraction_static 0.8")) == ["misspelled_option"]
    assert codes(read(f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-num-steps 3"), matters=True) == ["drafter_not_said"]
    eagle = read(f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-draft-model-path c/d --speculative-num-steps 3")
    assert (values(eagle), codes(eagle)) == ({"speculation": "3:c/d"}, ["speculation_not_modelled"])
    assert codes(read(f"{SGLANG} --swa-full-tokens-ratio 0.5"), matters=True) == ["cache_not_modelled"]
    assert [codes(read(f"{SGLANG} --device {each}"), matters=True) for each in ("cuda", "cpu")] == [[], ["option_not_modelled"]]
    assert codes(read(SGLANG, env={"SGLANG_MAX_RUNNING_REQUESTS": "4"}), matters=True) == ["variable_not_read"]


def test_sglang_config_file():
    files = {"/c.yaml": "model-path: a/b\ntensor-parallel-size: 2\nenable-metrics: true\nlog-requests: false\ncontext-length: 100\n"}
    deployment = read("sglang serve --config /c.yaml --context-length 200", files=files)
    assert (values(deployment), deployment.model.text) == ({"tensor_parallel": 2, "context_tokens": 200}, "a/b")
    assert not codes(deployment)


TGI = "ghcr.io/huggingface/text-generation-inference:"


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ("--max-total-tokens 4096 --max-input-tokens 3072", {}, {"context_tokens": 4096}),
        ("", {"MAX_TOTAL_TOKENS": "4096", "MAX_INPUT_LENGTH": "3072", "NUM_SHARD": "2"}, {"context_tokens": 4096, "tensor_parallel": 2}),
        ("--max-total-tokens=8192", {"MAX_TOTAL_TOKENS": "4096"}, {"context_tokens": 8192}),
        ("--max-batch-total-tokens 65536 --cuda-memory-fraction 0.8", {}, {"kv_tokens": 65536, "memory_fraction": 0.8}),
        ("--quantize eetq --max-batch-prefill-tokens 4096", {}, {"weights": "int8", "max_batched_tokens": 4096}),
        ("--quantize awq --speculate 3", {}, {"quantization": "awq", "speculation": "3:ngram"}),
        ("--sharded false", {}, {"tensor_parallel": 1}),
        ("--kv-cache-dtype fp8_e5m2 --dtype bfloat16", {}, {"kv_dtype": "fp8", "dtype": "bf16"}),
        ("--max-concurrent-requests 512", {}, {"max_sequences": 512}),
        ("--max-concurrent-requests 512 --max-batch-size 8", {}, {"max_sequences": 8}),
        ("--rope-scaling dynamic --rope-factor 2.0", {}, {"rope_factor": 2.0}),
        (
            "",
            {"CUDA_GRAPHS": "0", "TRUST_REMOTE_CODE": "true", "USE_PREFIX_CACHING": "0"},
            {"eager": True, "trust_remote_code": True, "prefix_caching": False},
        ),
    ],
)
def test_tgi(words, env, expected):
    deployment = read(words, image=TGI + "3.0.1", env={"MODEL_ID": "a/b", **env})
    assert values(deployment) == expected
    assert (deployment.engine, deployment.model.text, deployment.version.text) == ("tgi", "a/b", "3.0.1")
    assert not codes(deployment), deployment.problems


def test_tgi_by_version_and_what_it_refuses():
    def context(tag):
        return read("text-generation-launcher --model-id a/b", image=TGI + tag).settings["context_tokens"].value

    assert (context("3.3.4"), context("2.4.1"), context("1.4"), context("latest")) == ("auto", 4096, 2048, "auto")
    assert read("--model-id a/b", image=TGI + "3.0.1", gpus=4).settings["tensor_parallel"].value == 4
    for words in (
        "--max-input-tokens 4096 --max-total-tokens 4096",
        "--max-total-tokens 1k",
        "--num-shard 1 --num-shard 2",
        "--dtype float32",
    ):
        assert codes(read(f"text-generation-launcher --model-id a/b {words}"), matters=True) == ["bad_argument"], words


YAML = """kv_cache_config:
  free_gpu_memory_fraction: 0.8
  dtype: fp8
  enable_block_reuse: false
  host_cache_size: 1073741824
enable_attention_dp: true
cuda_graph_config: null
tensor_parallel_size: 8
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
max_batch_size: 64
"""


def test_trtllm_file_overrides_the_command_line():
    words = "trtllm-serve a/b --tp_size 4 --max_seq_len 8192 --kv_cache_free_gpu_memory_fraction=0.9 --extra_llm_api_options /c.yaml"
    deployment = read(words, files={"/c.yaml": YAML})
    assert values(deployment) == {
        "tensor_parallel": 8,
        "context_tokens": 8192,
        "memory_fraction": 0.8,
        "kv_dtype": "fp8",
        "prefix_caching": False,
        "kv_offload_bytes": 2**30,
        "dp_attention": True,
        "eager": True,
        "speculation": "3",
        "max_sequences": 64,
    }
    assert deployment.settings["memory_fraction"].place.label == "config.yaml:201"
    assert (deployment.engine, deployment.model.text) == ("trtllm", "a/b")
    assert not codes(deployment)
    assert deployment.settings["max_batched_tokens"].value == 8192


def test_trtllm_others():
    build = read("trtllm-build --checkpoint_dir /ckpt --max_seq_len 4096 --max_batch_size 8 --output_dir /engine")
    assert (values(build), build.model.text) == ({"context_tokens": 4096, "max_sequences": 8}, "/ckpt")
    launched = read("mpirun -n 8 --allow-run-as-root trtllm-llmapi-launch trtllm-serve serve a/b --tp_size 8")
    assert (values(launched), launched.model.text) == ({"tensor_parallel": 8}, "a/b")
    assert codes(read("trtllm-serve a/b --config /nowhere.yaml"), matters=True) == ["config_file_not_read"]
    assert codes(read("trtllm-serve a/b --cp_size 2"), matters=True) == ["option_not_modelled"]
    windows = {"/c.yaml": "kv_cache_config: {max_attention_window: [4096], mamba_ssm_cache_dtype: float16}"}
    assert codes(read("trtllm-serve a/b --config /c.yaml", files=windows), matters=True) == ["option_not_modelled"] * 2


@pytest.mark.parametrize(
    ("command", "image"),
    [
        ("nginx -g 'daemon off;'", "nginx:1.27"),
        ("", "redis:7"),
        ("sleep infinity", "vllm/vllm-openai:v0.11.0"),
        ("ray start --address=head:6379 --block", "vllm/vllm-openai:v0.11.0"),
        ("vllm bench serve --model a/b", "vllm/vllm-openai:v0.11.0"),
        ("/bin/prepare --fetch", "vllm/vllm-openai:v0.11.0"),
        ("python3 -m sglang_router.launch_router --worker-urls http://x", "lmsysorg/sglang:v0.5.3"),
        ("python download.py --model a/b", "python:3.12"),
        ("ollama pull qwen3:8b", "ollama/ollama"),
        ("huggingface-cli download a/b", "vllm/vllm-openai:v0.11.0"),
        ("--port 8080", "ghcr.io/example/proxy:1"),
        ("", None),
    ],
)
def test_what_starts_no_engine(command, image):
    assert read(command, image=image) is None


@pytest.mark.parametrize(
    ("command", "image", "engine"),
    [
        ("tritonserver --model-repository=/m", None, "tritonserver"),
        ("lmdeploy serve api_server a/b --tp 2", None, "lmdeploy"),
        ("python -m mlc_llm.serve.server", None, "mlc-llm"),
        ("", "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.3.3", "nim"),
        ("", "ghcr.io/huggingface/text-embeddings-inference:1.7", "text-embeddings-inference"),
        ("python3 -m llama_cpp.server --model x.gguf", None, "llama-cpp-python"),
    ],
)
def test_engines_known_by_name_alone(command, image, engine):
    deployment = read(command, image=image)
    assert deployment.engine == engine
    assert codes(deployment, matters=True) == ["engine_not_modelled"]
    assert not deployment.settings
