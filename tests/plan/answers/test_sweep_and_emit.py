"""Sweeps over two axes, and launch lines."""

import json
import shlex

import pytest


def test_a_sweep_over_two_axes(kvcli):
    words = ["llama3.1-70b", "--sweep", "ctx=8k,32k", "--sweep", "tp=2,3,4", "--device", "h100-sxm5-80"]
    human = kvcli("plan", *words)
    assert human.code == 0, human.err
    assert "ctx \\ tp" in human.out
    assert "-: --tp 3 does not divide" in human.out
    found = json.loads(kvcli("plan", *words, "--json").out)
    assert [(each["workload"]["context_tokens"], each["parallel"]["tp"]) for each in found["plans"]] == [
        (8192, 2),
        (8192, 4),
        (32768, 2),
        (32768, 4),
    ]
    assert [each["tp"] for each in found["failed"]] == [3, 3]
    lines = kvcli("plan", *words, "--csv").out.splitlines()
    assert len(lines) == 5


def test_types_and_devices_sweep(kvcli):
    answer = kvcli("plan", "llama3-8b", "--sweep", "kv-dtype=bf16,fp8,int4", "--sweep", "device=l4,rtx4090", "--ctx", "8k", "--json")
    plans = json.loads(answer.out)["plans"]
    assert {(each["kv_cache"]["dtype_key"], each["device"]["name"]) for each in plans} == {
        (kind, device) for kind in ("bf16", "fp8", "int4") for device in ("l4", "rtx4090")
    }


def test_a_sweep_in_which_nothing_can_be_planned_is_an_error(kvcli):
    answer = kvcli("plan", "llama3.1-8b", "--ctx", "4k", "--sweep", "tp=3,5")
    assert answer.code == 2
    assert "does not divide" in answer.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "deepseek-v3 --tp 8 --ep 8 --ctx 64k --batch 4 --engine vllm --speculative 1",
            "vllm serve deepseek-ai/DeepSeek-V3 --max-model-len 65536 --max-num-seqs 4 --tensor-parallel-size 8 --enable-expert-parallel"
            ' --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'',
        ),
        (
            "llama3.1-70b --tp 4 --pp 2 --ctx 32k --batch 16 --engine vllm --kv-dtype fp8 --block-size 32",
            "vllm serve meta-llama/Llama-3.1-70B --max-model-len 32768 --max-num-seqs 16 --kv-cache-dtype fp8"
            " --tensor-parallel-size 4 --pipeline-parallel-size 2 --block-size=32",
        ),
        (
            "deepseek-v3 --tp 8 --dp-attention --ctx 64k --batch 8 --engine sglang",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --context-length 65536 --max-running-requests 8"
            " --tp-size 8 --enable-dp-attention --dp-size 8",
        ),
        (
            "gemma3-27b --ctx 32k --batch 4 --engine llama.cpp --kv-dtype q8_0 --swa-full --ubatch 1024 --ngl 40",
            "llama-server -m gemma-3-27b-it-BF16.gguf -c 131072 -np 4 --fit off --swa-full -ub 1024 -ctk q8_0 -ctv q8_0 -fa on -ngl 40",
        ),
    ],
)
def test_launch_lines(kvcli, words, line):
    engine = words.split("--engine ")[1].split()[0]
    answer = kvcli("plan", *words.split(), "--emit", engine)
    assert answer.code == 0, answer.err
    found, wanted = shlex.split(answer.out.strip()), shlex.split(line)
    # hub ids may move to an instruct variant of the same model
    names = {"serve", "--model-path", "-m"}
    drop = [index + 1 for index, word in enumerate(wanted) if word in names]
    assert [word for index, word in enumerate(found) if index not in drop] == [
        word for index, word in enumerate(wanted) if index not in drop
    ]
    assert found[drop[0]].split("/")[0] == wanted[drop[0]].split("/")[0]


def test_what_no_option_says_is_refused(kvcli):
    for words, said in (("--weights int4-g128", "checkpoint"), ("--weights q4_k_m", "checkpoint")):
        answer = kvcli("plan", "llama3.1-8b", "--ctx", "4k", "--engine", "vllm", *words.split(), "--emit", "vllm")
        assert answer.code == 4
        assert said in answer.err


def test_a_launch_line_of_a_solved_plan(kvcli):
    answer = kvcli(
        "plan", "qwen3-32b", "--solve", "ctx", "--engine", "vllm", "--device", "h100-sxm5-80", "--emit", "vllm", "--require", "fits"
    )
    assert answer.code == 0, answer.err
    words = shlex.split(answer.out)
    assert int(words[words.index("--max-model-len") + 1]) <= 40960
