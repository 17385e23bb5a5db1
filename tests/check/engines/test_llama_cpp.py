"""llama-server: `-c`, `-np` and the buffer they share, by build; variables; what it refuses."""

import pytest

from kvcli.check.deployment import SETTINGS
from kvcli.check.engines import ollama
from tests.check.engines.helpers import codes, read, values

NEW = "ghcr.io/ggml-org/llama.cpp:server-cuda-b9000"
OLD = "ghcr.io/ggml-org/llama.cpp:server-cuda-b6123"


def value(deployment, key):
    setting = deployment.settings.get(key)
    return None if setting is None else setting.value


@pytest.mark.parametrize(
    ("image", "words", "context", "slots", "unified"),
    [
        # -np auto: four slots share -c, so one sequence may take all of it
        (NEW, "-c 32768", 32768, 4, True),
        # an explicit -np deals -c
        (NEW, "-c 32768 -np 4", 8192, 4, False),
        (NEW, "-c 32768 -np 4 --kv-unified", 32768, 4, True),
        (NEW, "-c 32768 -np 4 -no-kvu", 8192, 4, False),
        (NEW, "-c 32768 -np 1", 32768, 1, False),
        (NEW, "-c 32768 --no-kv-unified", 8192, 4, False),
        # without -c the context is cut until it fits; -c 0 asks for all of the model's
        (NEW, "", "auto", 4, True),
        (NEW, "-c 0", None, 4, True),
        (NEW, "--fit off", None, 4, True),
        (OLD, "-c 32768", 32768, 1, False),
        (OLD, "-c 32768 -np 8", 4096, 8, False),
        (OLD, "", 4096, 1, False),
        ("ghcr.io/ggml-org/llama.cpp:server-b3900", "", None, 1, False),
        # builds where an explicit 1 was taken for "auto"
        ("ghcr.io/ggml-org/llama.cpp:server-b7079", "-c 8000 -np 1", 8000, 4, True),
    ],
)
def test_context_of_one_sequence(image, words, context, slots, unified):
    deployment = read(f"-m /models/x.gguf {words}", image=image)
    assert deployment.engine == "llama.cpp"
    assert (value(deployment, "context_tokens"), value(deployment, "slots"), value(deployment, "kv_unified")) == (context, slots, unified)
    assert set(deployment.settings) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("image", "words", "layers"),
    [
        (NEW, "", "auto"),
        (NEW, "--fit off", 999),
        (NEW, "-ngl 20", 20),
        (NEW, "-ngl all", 999),
        (NEW, "-ngl auto", "auto"),
        (NEW, "-ngl -1", "auto"),
        (NEW, "-ngl -1 --fit off", 999),
        (OLD, "-ngl -1", 0),
        (NEW, "-dev none", 0),
        ("ghcr.io/ggml-org/llama.cpp:server-b7000", "", 999),
        (OLD, "", 0),
        (OLD, "--n-gpu-layers 99", 99),
        (OLD, "--n_gpu_layers 9999", 999),
    ],
)
def test_layers_on_the_device(image, words, layers):
    assert value(read(f"-m x.gguf {words}", image=image), "gpu_layers") == layers


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-ctk q8_0 -ctv q8_0", {"kv_dtype": "q8_0"}),
        ("-ctk q8_0", {"kv_dtype": "q8_0:fp16"}),
        ("-ctk bf16 -ctv q4_0 -fa on", {"kv_dtype": "bf16:q4_0"}),
        ("-ub 2048 -b 1024", {"ubatch": 1024}),
        ("-ub 256", {"ubatch": 256}),
        ("-b 256", {"ubatch": 256}),
        ("--swa-full", {"swa_full": True}),
        ("-ncmoe 12", {"cpu_moe_layers": 12}),
        ("--cpu-moe", {"cpu_moe_layers": 999}),
        ("-md d.gguf --draft-max 8", {"speculation": "8:d.gguf"}),
        ("-md d.gguf", {"speculation": "3:d.gguf"}),
        ("--spec-type draft-mtp --spec-draft-n-max 2", {"speculation": "2"}),
        ("--spec-type ngram-mod", {"speculation": "64:ngram"}),
        ("-ts 1,1", {"pipeline_parallel": 2}),
        ("-sm none", {"pipeline_parallel": 1}),
        ("-dev CUDA0,CUDA1", {"pipeline_parallel": 2}),
        ("--rope-scale 4", {"rope_factor": 4.0}),
        ("--rope-freq-scale 0.25", {"rope_factor": 4.0}),
        ("--lora a.gguf,b.gguf", {"lora_adapters": 2}),
        ("--jinja -fa --metrics --no-webui --host 0.0.0.0 --mlock", {}),
    ],
)
def test_what_an_option_sets(words, expected):
    deployment = read(f"llama-server -m x.gguf {words}")
    assert values(deployment) == expected
    assert not codes(deployment), deployment.problems


@pytest.mark.parametrize("words", ["-ctk q3_k", "-c many", "-ctv q8_0 -fa off", "-ngl some", "-ub many", "-c"])
def test_what_it_refuses(words):
    assert codes(read(f"llama-server -m x.gguf {words}"), matters=True) == ["bad_argument"]


def test_older_builds_have_no_flash_attention_of_their_own_accord():
    assert codes(read("-m x.gguf -ctk q8_0 -ctv q8_0", image=OLD), matters=True) == ["bad_argument"]
    assert not codes(read("-m x.gguf -ctk q8_0 -ctv q8_0 -fa", image=OLD))


def test_it_takes_no_equals_sign():
    deployment = read("llama-server -m x.gguf --ctx-size=4096")
    assert codes(deployment) == ["misspelled_option"]
    assert value(deployment, "context_tokens") == "auto"


@pytest.mark.parametrize("words", ["--no-kv-offload", "-ot exps=CPU", "-ts 3,1", "-sm row", "--rpc host:1", "--gpt-oss-20b-default"])
def test_what_matters_and_has_no_rule(words):
    model = "" if "default" in words else "-m x.gguf"
    assert codes(read(f"llama-server {model} {words}"), matters=True)[0] in ("option_not_modelled", "kv_on_host")


def test_variables_and_words_over_them():
    env = {
        "LLAMA_ARG_MODEL": "/models/x.gguf",
        "LLAMA_ARG_CTX_SIZE": "4096",
        "LLAMA_ARG_N_PARALLEL": "2",
        "LLAMA_ARG_N_GPU_LAYERS": "30",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "LLAMA_ARG_KV_UNIFIED": "true",
        "LLAMA_ARG_PORT": "8080",
    }
    deployment = read("", image="ghcr.io/ggml-org/llama.cpp:server-cuda", env=env)
    assert values(deployment) == {"context_tokens": 4096, "slots": 2, "gpu_layers": 30, "kv_unified": True}
    assert deployment.model.text == "/models/x.gguf"
    assert deployment.settings["context_tokens"].place.line == 101
    assert not codes(deployment)
    over = read("-c 8192 --no-kv-unified", image="ghcr.io/ggml-org/llama.cpp:server-cuda", env=env)
    assert values(over)["context_tokens"] == 4096  # 8,192 over two slots


def test_variables_it_does_not_read():
    deployment = read("llama-server -m x.gguf", env={"LLAMA_ARG_CONTEXT": "4096", "LLAMA_CTX_SIZE": "4096"})
    assert codes(deployment, matters=True) == ["variable_not_read", "variable_not_read"]
    assert not codes(read("llama-server -m x.gguf", env={"LLAMA_ARG_KV_OFFLOAD": "on"}))
    assert codes(read("llama-server -m x.gguf", env={"LLAMA_ARG_KV_OFFLOAD": "off"})) == ["kv_on_host"]
    assert codes(read("llama-server -m x.gguf", env={"LLAMA_ARG_SWA_FULL": "perhaps"})) == ["odd_argument"]  # some builds pass over it
    assert codes(read("llama-server -m x.gguf -ub 0")) == ["odd_argument"]
    assert codes(read("llama-server -m x.gguf -ub $(UB)")) == ["not_literal"]  # and is not refused


def test_models():
    assert read("llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M").model.text == "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
    assert read("llama-server -hf a/b-GGUF:Q8_0 -hff b-q4_k_m.gguf").model.text == "a/b-GGUF/b-q4_k_m.gguf"
    assert read("/app/llama-server --model /m/x.gguf").model.text == "/m/x.gguf"
    assert read("./server -m x.gguf -c 2048").engine == "llama.cpp"
    assert read("--run -m x.gguf", image="ghcr.io/ggml-org/llama.cpp:full-cuda") is None


def test_every_device_is_used():
    deployment = read("llama-server -m x.gguf", gpus=2)
    assert value(deployment, "pipeline_parallel") == 2
    assert deployment.settings["pipeline_parallel"].place is None


def test_ollama():
    env = {"OLLAMA_CONTEXT_LENGTH": "16384", "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_KV_CACHE_TYPE": "q8_0", "OLLAMA_FLASH_ATTENTION": "1"}
    deployment = read("ollama serve", env=env, model="llama3.1:8b")
    assert values(deployment) == {"context_tokens": 16384, "slots": 4, "kv_dtype": "q8_0"}
    assert (deployment.engine, deployment.model.text) == ("ollama", "llama3.1:8b")
    assert value(deployment, "gpu_layers") == "auto"
    assert read("ollama run --verbose qwen3:8b").model.text == "qwen3:8b"
    assert codes(read("", image="ollama/ollama"), matters=True) == ["no_model"]
    assert codes(read("ollama run x", env={"OLLAMA_KV_CACHE_TYPE": "q5_0"}), matters=True) == ["bad_argument"]
    assert codes(read("ollama run x", env={"OLLAMA_NUM_CTX": "1"})) == ["variable_not_read"]
    assert value(read("ollama run x", image="ollama/ollama:0.12.3"), "context_tokens") == 4096
    assert value(read("ollama run x"), "context_tokens") is None
    assert [ollama.card_defaults(gib * 2**30)["context_tokens"].value for gib in (16, 24, 80)] == [4096, 32768, 262144]
