"""vLLM's command lines; numbers are those its documentation and source give for the same words."""

import json

import pytest

from kvcli.check.deployment import SETTINGS
from kvcli.check.engines import vllm
from tests.check.engines.helpers import codes, launch, read, values


def problem(deployment, code):
    return next(each for each in deployment.problems if each.code == code)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve a/b --max-model-len 32k", {"context_tokens": 32000}),
        ("vllm serve a/b --max-model-len 32K", {"context_tokens": 32768}),
        ("vllm serve a/b --max-model-len=25.6k", {"context_tokens": 25600}),
        ("vllm serve a/b --max_model_len=8192", {"context_tokens": 8192}),
        ("vllm serve a/b --max-model-len auto", {"context_tokens": "auto"}),
        ("vllm serve a/b --max-model-len -1", {"context_tokens": "auto"}),
        ("vllm serve a/b --max-model-len 1 --max-model-len 4096", {"context_tokens": 4096}),
        ("vllm serve a/b --max-model 4096", {"context_tokens": 4096}),
        ("vllm serve a/b -tp 2 -pp=2 -dp 4", {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4}),
        ("vllm serve a/b -dcp 4 --enable-expert-parallel", {"decode_context_parallel": 4, "expert_parallel": True}),
        ("vllm serve a/b -dp 16 -dpl 8 --nnodes 2", {"data_parallel": 16, "data_parallel_local": 8, "nodes": 2}),
        ("vllm serve a/b -tp 8 --distributed-executor-backend ray", {"tensor_parallel": 8, "ray": True}),
        ("vllm serve a/b --data-parallel-size 4 --data-parallel-rank 1", {"data_parallel": 4, "data_parallel_local": 1}),
        ("vllm serve a/b --no-enable-prefix-caching --enforce-eager", {"prefix_caching": False, "eager": True}),
        ("vllm serve a/b --no-enable-chunked-prefill", {"chunked_prefill": False}),
        ("vllm serve a/b --enable-chunked-prefill", {"chunked_prefill": True}),
        ("vllm serve a/b -O0", {"eager": True}),
        ("""vllm serve a/b --compilation-config '{"cudagraph_mode": "NONE"}'""", {"eager": True}),
        ("vllm serve a/b -cc.cudagraph_mode=NONE", {"eager": True}),
        ("vllm serve a/b -O.cudagraph_mode FULL -cc.mode 3", {}),
        ("vllm serve a/b --gpu-memory-utilization .95", {"memory_fraction": 0.95}),
        ("vllm serve a/b --kv-cache-dtype fp8_e5m2 --dtype half", {"kv_dtype": "fp8", "dtype": "fp16"}),
        ("vllm serve a/b --quantization fp8", {"weights": "fp8"}),
        ("vllm serve a/b --quantization awq_marlin", {"quantization": "awq_marlin"}),
        (
            "vllm serve a/b --cpu-offload-gb 10 --kv-offloading-size 1.5",
            {"weights_offload_bytes": 10 * 2**30, "kv_offload_bytes": 3 * 2**29},
        ),
        ("vllm serve a/b --swap-space 16", {}),
        ("vllm serve a/b --kv-cache-memory-bytes 2G", {"kv_memory_bytes": 2 * 2**30}),
        ("vllm serve a/b --num-gpu-blocks-override 100", {"kv_tokens": 1600}),
        ("vllm serve a/b --num-gpu-blocks-override 100 --block-size 32", {"kv_tokens": 3200, "block_tokens": 32}),
        ("vllm serve a/b --enable-lora --max-loras 4", {"lora_adapters": 4, "lora_rank": 16}),
        ("vllm serve a/b --max-loras 4", {}),
        ("""vllm serve a/b --rope-scaling '{"rope_type":"dynamic","factor":2.0}'""", {"rope_factor": 2.0}),
        (
            """vllm serve a/b --hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0,"""
            """ "original_max_position_embeddings": 32768}}'""",
            {"rope_factor": 4.0, "context_tokens": 131072},
        ),
        (
            """vllm serve a/b --max-model-len 65536 --hf-overrides.rope_parameters.factor=4"""
            """ --hf-overrides.rope_parameters.rope_type yarn --hf-overrides.rope_parameters.original_max_position_embeddings 32k""",
            {"rope_factor": 4.0, "context_tokens": 65536},
        ),
        ("""vllm serve a/b --speculative-config '{"method":"mtp","num_speculative_tokens":2}'""", {"speculation": "2"}),
        ("""vllm serve a/b --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":1}'""", {"speculation": "1"}),
        ("""vllm serve a/b --speculative-config '{"method":"ngram","num_speculative_tokens":5}'""", {"speculation": "5:ngram"}),
        ("""vllm serve a/b --speculative-config '{"model":"c/d","num_speculative_tokens":3}'""", {"speculation": "3:c/d"}),
        ("vllm serve a/b --speculative-config.method mtp --speculative_config.num_speculative_tokens 3", {"speculation": "3"}),
        ("vllm serve a/b --speculative-model c/d --num-speculative-tokens 5", {"speculation": "5:c/d"}),
        ("vllm serve a/b --speculative-model [ngram] --num-speculative-tokens 5", {"speculation": "5:ngram"}),
        ("python3 -m vllm.entrypoints.openai.api_server --model a/b --max-num-seqs 8", {"max_sequences": 8}),
        ("python -u -m vllm.entrypoints.openai.api_server --model a/b --max-num-batched-tokens 8k", {"max_batched_tokens": 8000}),
        ("/usr/local/bin/vllm serve --model a/b --trust-remote-code", {"trust_remote_code": True}),
        ("env HF_HOME=/x exec vllm serve a/b --seed 1 --port 80 --served-model-name x y", {}),
    ],
)
def test_what_a_command_sets(command, expected):
    deployment = read(command)
    assert values(deployment) == expected
    assert (deployment.engine, deployment.model.text) == ("vllm", "a/b")
    assert set(deployment.settings) <= set(SETTINGS)
    assert "bad_argument" not in codes(deployment), deployment.problems


def test_an_annotation_points_at_the_value():
    deployment = read("vllm serve a/b --max-model-len 32k --max-num-seqs=8")
    assert deployment.settings["context_tokens"].place.line == 14
    assert deployment.settings["context_tokens"].said == "--max-model-len 32k"
    assert deployment.settings["max_sequences"].place.line == 15
    assert deployment.settings["max_sequences"].said == "--max-num-seqs 8"


def test_words_after_an_image_whose_entry_point_serves():
    for command in ("--model a/b --max-num-seqs 8", "a/b --max-num-seqs 8", "serve a/b --max-num-seqs 8", "/models/llama --max-num-seqs 8"):
        deployment = read(command, image="vllm/vllm-openai:v0.11.0")
        assert values(deployment) == {"max_sequences": 8}, command
        assert deployment.model.text in ("a/b", "/models/llama")


@pytest.mark.parametrize(
    "option",
    [
        *(
            "--max-model-len abc",
            "--max-model-len 1.5K",
            "--gpu-memory-utilization 1.2",
            "--gpu-memory-utilization 90%",
        ),
        *("-tp two", "--dtype fp12", "--speculative-config 3", "--max-model-len", "--hf-overrides '{'"),
    ],
)
def test_what_vllm_refuses(option):
    deployment = read(f"vllm serve a/b {option}")
    assert codes(deployment, matters=True) == ["bad_argument"]
    assert problem(deployment, "bad_argument").place.line >= 13
    assert not values(deployment)


@pytest.mark.parametrize(
    ("tag", "option", "expected"),
    [
        ("v0.7.3", "--enable-chunked-prefill=False", {"chunked_prefill": False}),
        ("v0.7.3", "--enable-chunked-prefill False", {"chunked_prefill": False}),
        ("v0.11.0", "--enable-chunked-prefill False", None),
        ("v0.11.0", "--max-model-len auto", None),
        ("v0.14.0", "--max-model-len auto", {"context_tokens": "auto"}),
        ("v0.7.3", "--max-model-len 32k", None),
        ("v0.7.3", "--max-model-len 32000", {"context_tokens": 32000}),
    ],
)
def test_what_a_version_takes(tag, option, expected):
    deployment = read(f"vllm serve a/b {option}", image=f"vllm/vllm-openai:{tag}")
    assert values(deployment) == (expected or {})
    assert codes(deployment, matters=True) == ([] if expected else ["bad_argument"])


def test_what_is_only_known_where_it_runs():
    deployment = read("vllm serve a/b --max-model-len=$(LEN) --port $(PORT) $(EXTRA)")
    assert codes(deployment, matters=True) == ["cache_not_literal", "not_literal"]
    assert not values(deployment)
    assert codes(read("vllm serve $(MODEL)"), matters=True) == ["not_literal"]
    assert codes(read("vllm serve"), matters=True) == ["no_model"]


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("--max-model-len 0", "odd_argument"),
        ("-dp -1", "odd_argument"),
        ("--speculative-config '{}'", "drafter_not_said"),
        ("--max-num 8", "ambiguous_option"),
    ],
)
def test_what_some_versions_may_take(option, code):
    assert codes(read(f"vllm serve a/b {option}"), matters=True) == [code]


def test_unknown_options_are_a_note_and_keep_their_value():
    deployment = read("vllm serve a/b --brand-new thing --max-num-seqs 4")
    assert [(each.code, each.matters, each.place.line) for each in deployment.problems] == [("unknown_option", False, 13)]
    assert values(deployment) == {"max_sequences": 4}


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("--kv-cache-dtype turboquant_4bit_nc", "cache_not_modelled"),
        ("--prefill-context-parallel-size 2", "option_not_modelled"),
        ("--disable-hybrid-kv-cache-manager", "cache_not_modelled"),
        ("--mamba-ssm-cache-dtype float16", "cache_not_modelled"),
        ("--hf-overrides.num_hidden_layers 2", "option_not_modelled"),
        ("--performance-mode throughput", "cache_not_modelled"),
        ("--qlora-adapter-name-or-path c/d", "types_not_modelled"),
        ("--enable-eplb", "more_not_modelled"),
        ("--device cpu", "option_not_modelled"),
    ],
)
def test_what_matters_and_has_no_rule(option, code):
    assert codes(read(f"vllm serve a/b {option}"), matters=True) == [code]


@pytest.mark.parametrize("option", ["--device cuda", "--device auto", "--device=gpu"])
def test_the_devices_that_are_there(option):
    assert codes(read(f"vllm serve a/b {option}"), matters=True) == []


def test_eagle_counts_as_a_draft_model_and_says_so():
    config = json.dumps({"method": "eagle3", "model": "c/d", "num_speculative_tokens": 3})
    deployment = read(f"vllm serve a/b --speculative-config '{config}'")
    assert values(deployment) == {"speculation": "3:c/d"}
    assert codes(deployment, matters=True) == ["speculation_not_modelled"]


def test_tiers_outside_the_device():
    config = json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})
    command = f"vllm serve a/b --kv-transfer-config '{config}'"
    sized = read(command, env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "20"})
    assert values(sized) == {"kv_offload_bytes": 20 * 2**30}
    assert codes(read(command), matters=False) == ["kv_tier_unknown"]
    split = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_producer"})
    assert not codes(read(f"vllm serve a/b --kv-transfer-config '{split}'"))


CONFIG = """model: a/b
max-model-len: 16k
tensor-parallel-size: 2
enable-prefix-caching: false
enforce-eager: true
speculative-config:
  method: ngram
  num_speculative_tokens: 4
served-model-name: [x, y]
"""


def test_a_config_file_stands_before_the_command_line():
    files = {"/etc/vllm/config.yaml": CONFIG}
    deployment = read("vllm serve --config /etc/vllm/config.yaml --max-model-len 8192", files=files)
    expected = {"context_tokens": 8192, "tensor_parallel": 2, "prefix_caching": False, "eager": True, "speculation": "4:ngram"}
    assert values(deployment) == expected
    assert deployment.model.text == "a/b"
    assert deployment.settings["tensor_parallel"].place.label == "config.yaml:202"
    assert deployment.settings["context_tokens"].place.label == "deploy.yaml:15"
    assert not deployment.problems


def test_a_config_file_behind_an_equals_sign_is_not_read():
    deployment = read("vllm serve a/b --config=/c.yaml", files={"/c.yaml": "max-model-len: 100"})
    assert not values(deployment)
    assert codes(deployment, matters=True) == ["config_file_not_read"]


def test_kaito():
    command = "python3 /workspace/vllm/inference_api.py --model /w --tensor-parallel-size=2 --kaito-max-probe-steps=6"
    deployment = read(command)
    assert (deployment.engine, deployment.model.text, values(deployment)) == ("vllm", "/w", {"tensor_parallel": 2})
    assert deployment.settings["context_tokens"].value == "auto"
    files = {"/mnt/config/c.yaml": "vllm:\n  max-model-len: 4096\n  cpu-offload-gb: 0\nmax_probe_steps: 6\n"}
    filed = read(command + " --kaito-config-file=/mnt/config/c.yaml", files=files)
    assert values(filed) == {"tensor_parallel": 2, "context_tokens": 4096, "weights_offload_bytes": 0}
    assert filed.settings["context_tokens"].place.label == "config.yaml:201"
    assert not codes(filed)


@pytest.mark.parametrize("text", [None, "- a\n- b", "a: [", "zz: &a [*a]", "zz: !!python/object:os.system x", "x" * 300_000])
def test_a_config_file_that_cannot_be_read(text):
    files = {} if text is None else {"/c.yaml": text}
    deployment = read("vllm serve a/b --config /c.yaml --max-num-seqs 3", files=files)
    assert values(deployment) == {"max_sequences": 3}
    assert set(codes(deployment, matters=True)) <= {"config_file_not_read"}
    assert codes(deployment)


def test_an_alias_bomb_ends():
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True))
    assert codes(read("vllm serve a/b --config /c.yaml", files={"/c.yaml": bomb})) == ["config_file_not_read"]


def test_variables_it_does_not_read():
    deployment = read(
        "vllm serve a/b", env={"VLLM_MAX_MODEL_LEN": "8192", "MAX_MODEL_LEN": "8192", "HF_TOKEN": "x", "VLLM_LOGGING_LEVEL": "INFO"}
    )
    assert codes(deployment, matters=True) == ["variable_not_read", "variable_not_read"]
    assert "VLLM_MAX_MODEL_LEN=8192" in deployment.problems[0].message
    assert deployment.problems[0].place.line == 100
    assert not codes(read("vllm serve a/b --max-model-len 8192", env={"MAX_MODEL_LEN": "8192"}))


def test_variables_it_reads():
    assert codes(read("vllm serve a/b", env={"VLLM_MLA_DISABLE": "1"}), matters=True) == ["cache_variable_not_modelled"]
    assert not codes(read("vllm serve a/b", env={"VLLM_MLA_DISABLE": "0", "VLLM_USE_V1": "1"}))
    assert codes(read("vllm serve a/b", env={"VLLM_USE_V1": "0"}), matters=True) == ["cache_variable_not_modelled"]


@pytest.mark.parametrize(
    ("image", "fraction", "prefix", "chunked", "sequences"),
    [
        ("v0.33.0", 0.92, True, True, None),
        ("v0.20.0", 0.92, True, True, None),
        ("v0.19.1", 0.9, True, True, None),
        ("v0.7.3", 0.9, False, None, 256),
    ],
)
def test_defaults_by_version(image, fraction, prefix, chunked, sequences):
    settings = read("vllm serve a/b", image=f"vllm/vllm-openai:{image}").settings
    assert settings["memory_fraction"].value == fraction
    assert settings["prefix_caching"].value is prefix
    assert (settings["chunked_prefill"].value if "chunked_prefill" in settings else None) is chunked
    assert (settings["max_sequences"].value if "max_sequences" in settings else None) == sequences
    assert all(each.place is None and "default" in each.said for each in settings.values())
    assert "context_tokens" not in settings
    assert "block_tokens" not in settings


def test_defaults_by_card():
    def at(gib, name):
        found = vllm.card_defaults("0.11", gib * 2**30, name)
        return found["max_sequences"].value, found["max_batched_tokens"].value

    assert at(80, "NVIDIA H100 80GB HBM3") == (1024, 8192)
    assert at(80, "NVIDIA A100-SXM4-80GB") == (256, 2048)
    assert at(24, "NVIDIA L4") == (256, 2048)
    assert vllm.card_defaults("0.7", 80 * 2**30, "H100") == {}


def test_wrappers():
    kserve = read("python -m huggingfaceserver --model_name=chat --model_id=a/b --backend=vllm --max-model-len 4096")
    assert (kserve.model.text, values(kserve)) == ("a/b", {"context_tokens": 4096})
    beside = read("--max-model-len 4096", engine="huggingface", model="hf://a/b")
    assert (beside.engine, beside.model.text) == ("vllm", "hf://a/b")
    dynamo = read("python3 -m dynamo.vllm --model a/b --gpu-memory-utilization 0.8")
    assert values(dynamo) == {"memory_fraction": 0.8}


def test_the_launch_is_carried_over():
    start = launch("vllm serve a/b", gpus=4)
    from kvcli.check.engines.read import deployment_of

    deployment = deployment_of(start._replace(replicas=3))
    assert (deployment.name, deployment.container, deployment.replicas, deployment.gpus.amount) == ("chat", "server", 3, 4)
