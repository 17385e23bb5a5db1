"""Answers that were wrong once, held to what is right."""

import json

import pytest


def document(kvcli, line, code=0):
    answer = kvcli("plan", *line.split(), "--json")
    assert answer.code == code, answer.err
    return json.loads(answer.out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--engine vllm --utilization 0.8", "--gpu-memory-utilization 0.8"),
        ("--engine vllm --kv-memory 20GiB", "--kv-cache-memory-bytes 21474836480"),
        ("--engine vllm --max-num-seqs 16", "--max-num-seqs 16"),
        ("--engine vllm --lora 4:16", "--enable-lora --max-loras 4 --max-lora-rank 16"),
        ("--engine sglang --utilization 0.7", "--mem-fraction-static 0.7"),
        ("--engine llama.cpp --weights q4_k_m", "-m Llama-3.1-8B-Q4_K_M.gguf"),
    ],
)
def test_launch_lines_leave_nothing_out(kvcli, options, words):
    engine = options.split()[1]
    answer = kvcli("plan", "llama3.1-8b", "--ctx", "8k", "--device", "h100-sxm5-80", *options.split(), "--emit", engine)
    assert answer.code == 0, answer.err
    assert words in answer.out


def test_a_type_that_is_not_the_engines_own_is_said(kvcli):
    answer = kvcli("plan", "deepseek-v3.2", *["--engine", "vllm", "--tp", "8", "--ctx", "8k", "--kv-dtype", "bf16", "--emit", "vllm"])
    assert "--kv-cache-dtype bfloat16" in answer.out


def test_the_least_cost_is_that_of_the_ceiling(kvcli):
    """Replicas with one and two sequences: 2 / 3,600 / tokens a second."""
    found = document(kvcli, "llama3.1-8b --ctx 128k --batch 3 --devices 2 --tp 1 --device h100-sxm5-80 --price-hour 2")
    rate = found["latency"]["decode_tokens_per_s_ceiling"]
    assert found["cost"]["output_per_million_at_least"] == pytest.approx(2 / 3600 / rate * 1e6)


def test_unified_memory_holds_the_hosts_part_too(kvcli):
    """GLM-4.5 in q4_k_m is some 200 GB, which no split between device and host fits into 128 GB that both share."""
    answer = kvcli(
        "plan", "glm-4.5", *["--weights", "q4_k_m", "--engine", "llama.cpp", "--ctx", "8k", "--device", "gb10", "--solve", "n-cpu-moe"]
    )
    assert answer.code == 1


@pytest.mark.parametrize("line", ["qwen3-8b --device rtxa5500 --engine llama.cpp --ctx 100k --batch 16"])
def test_no_fewer_devices_pass(kvcli, line):
    found = document(kvcli, f"{line} --solve devices")["solve"]["min_devices"]
    assert found == 13
    assert kvcli("plan", *line.split(), "--tp", "1", "--pp", "12", "--require", "fits").code == 1


def test_a_part_known_by_two_figures_may_have_a_large_cache(kvcli):
    named = document(kvcli, "smollm2-135m --ctx 128 --device h100-sxm5-80")["latency"]["decode_step_floor_s"]
    figures = document(kvcli, "smollm2-135m --ctx 128 --bandwidth 3.35TB/s --memory 80GiB")["latency"]["decode_step_floor_s"]
    assert figures <= named


def test_parts_without_a_known_peak_do_not_pass_a_limit_on_prompts(kvcli):
    found = document(kvcli, "llama3.1-8b --prompt-tokens 8k --require ttft<=500ms --solve device")["solve"]
    assert "cpu-grace" not in found["devices"]
    assert "cpu-grace" in found["reason"]


def test_parts_of_the_user_are_ranked(kvcli, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("id,name,memory,bandwidth\nmine,My part,80GiB,3.35TB/s\n")
    assert "mine" in document(kvcli, f"llama3.1-8b --ctx 8k --device-file {path} --solve device")["solve"]["devices"]


def test_lines_sum_where_a_pool_is_too_small(kvcli):
    memory = document(kvcli, "llama3.1-8b --ctx 32k --engine vllm --device l4 --kv-memory 3GiB")["memory"]
    assert not memory["fits"]
    assert sum(line["bytes"] for line in memory["lines"]) == memory["total_bytes"]


def test_the_scheduler_bounds_what_passes(kvcli):
    line = "llama3.1-8b --ctx 1k --max-num-seqs 4 --device h100-sxm5-80 --engine vllm"
    assert kvcli("plan", *line.split(), "--require", "batch>=100").code == 1
    solved = document(kvcli, f"{line} --solve batch")["solve"]
    assert (solved["max_batch_size"], solved["binding"]) == (4, "max sequences")


def test_lengths_beyond_training_are_answered_where_they_are_asked_for(kvcli):
    answer = kvcli("plan", "llama3.1-8b", "--require", "ctx>=200k", "--ctx", "8k", "--device", "h100-sxm5-80")
    assert answer.code == 0
    assert "at most 204,800 tokens pass" in answer.out
    shorter = kvcli("plan", "llama3-8b", *["--ctx", "32k", "--batch", "8", "--device", "rtx4090", "--require", "fits"])
    # (25,243,670,282 - 16,060,522,496) B / 8 / 131,072 B
    assert "--ctx 8757" in shorter.out


def test_questions_that_could_not_be_asked(kvcli):
    assert kvcli("plan", "llama3.1-8b", *["--solve", "ctx", "--shared-prefix", "2k", "--batch", "4", "--device", "l4"]).code == 0
    assert kvcli("plan", "llama3.1-8b", *["--solve", "ctx", "--prompt-tokens", "2k", "--new-tokens", "512", "--device", "l4"]).code == 0
    found = document(kvcli, "deepseek-v3 --ctx 8k --solve devices --ep 8 --device h200-sxm")
    assert found["solve"]["min_devices"] == 8
    twice = kvcli("plan", "llama3.1-8b", *["--solve", "ctx", "--solve", "batch", "--device", "l4"])
    assert (twice.code, "one thing" in twice.err) == (2, True)


def test_the_first_token_of_a_batch_is_not_later_than_all(kvcli):
    found = document(kvcli, "llama3.1-8b --ctx 8192 --shared-prefix 8000 --batch 4 --device m2-ultra")["latency"]
    assert found["ttft_floor_s"] <= found["prefill_floor_s"]
