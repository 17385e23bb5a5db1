"""Every table for people reads at 80 columns: in a pipe, and in a terminal of that width."""

import re

import pytest

#: commands whose tables are wide: several models, devices, engines, contexts, types, sweeps, answers, budgets and pools
COMMANDS = """
plan llama3-8b --ctx 32k
plan llama3-8b
plan llama3-8b llama3.1-70b --ctx 8k --device h100-sxm5-80 --tp 8
plan llama3-8b --ctx 32k --device h100-sxm5-80 --device rtxpro6000-server --device l4
plan llama3.3-nemotron-super-49b deepseek-v3 --ctx 4k,128k --device h100-sxm5-80 --engine vllm --engine sglang --devices 8
plan gemma3-27b --ctx 4k..128k*2 --batch 1,64 --kv-dtype bf16,fp8 --device h200-sxm --engine vllm --engine ideal
plan llama3.1-8b --ctx 8k,32k --kv-dtype bf16,q8_0:q4_0 --device rtx4090 --engine llama.cpp
plan llama3.1-8b --ctx 8k,128k --device h100-sxm5-80 --device rtx4090 --engine vllm --kv-memory 10GiB
plan llama3.1-70b --sweep ctx=8k,32k,128k --sweep tp=1,2,4,8 --device h100-sxm5-80
plan llama3.1-70b --sweep ctx=8k..128k*2 --sweep device=h100-sxm5-80,h200-sxm,b200,mi300x,rtxpro6000-server,l40s,a100-sxm4-80
plan llama3.1-8b --sweep kv-dtype=bf16,fp8,int4 --sweep batch=1..128*2 --device h100-sxm5-80 --ctx 8k
plan llama3.1-8b --sweep ctx=1k..128k*2 --device l4
plan llama3.1-8b --sweep tp=1,3,32 --sweep ctx=8k,16k --device l4
plan llama3.1-70b --solve device --ctx 8k --tp 2
plan llama3.1-8b --solve ctx --device l4 --device h100-sxm5-80 --batch 1,8 --engine vllm --engine sglang
plan llama3-8b deepseek-v3 --ctx 8k,64k --require fits --require tpot<=20ms --require headroom>=10% --device h100-sxm5-80 --device b200
plan llama3.1-70b --solve ctx --batch 6 --tp 4 --engine vllm --device h100-sxm5-80
plan llama3.1-70b --require fits --device h100-sxm5-80 --ctx 8k
plan deepseek-v3 --ctx 32k --device h200-sxm --tp 8 --ep 8 --engine vllm --speculative 1
plan qwen3.5-27b --ctx 32k --device h100-sxm5-80 --engine vllm --speculative 3
plan llama3.1-70b --device rtx4090 --ctx 8k --ngl 40 --engine llama.cpp --host-memory 64GiB --cache-ram 8192MiB
plan llama3.1-8b --batch 4 --prompt-tokens 2k --new-tokens 512 --device l4 --slo mlperf:llama3.1-8b-interactive --price-hour 0.70
plan llama3.1-8b --ctx 8k --pp 4 --tp 2 --device l4 --engine vllm
plan llama3-8b --ctx 32k --device a100-sxm4-80 --mig 3g.40gb
devices
devices show rtxpro6000-server
presets
presets show gemma3-27b
""".strip().splitlines()


def too_wide(text, width=80):
    return [line for line in map(str.rstrip, text.splitlines()) if len(line) > width]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_80_columns(kvcli, command):
    answer = kvcli(*command.split(), env={"COLUMNS": ""})
    assert answer.code in (0, 1), answer.err
    assert answer.out.count("\n") > 2
    assert not too_wide(answer.out)
    assert "\x1b" not in answer.out


def test_a_wide_terminal_gets_one_block_and_a_narrow_one_loses_no_number(kvcli):
    command = ["plan", "llama3-8b", "llama3.1-70b", "--ctx", "8k", "--device", "h100-sxm5-80", "--tp", "8"]
    wide, usual, narrow = (kvcli(*command, env={"COLUMNS": str(width)}).out for width in (200, 80, 50))
    assert [text.count("\u2500\n") for text in (wide, usual)] == [1, 1]
    assert wide.splitlines()[1].split("   ")[-1] == "prefill floor"
    assert not too_wide(narrow, 50)
    assert narrow.count("llama3.1-70b") > 1
    for number in re.findall(r"\d[\d.,]*", wide):
        assert number in usual
        assert number in narrow


def test_the_title_says_what_has_no_column(kvcli):
    out = kvcli("plan", "llama3-8b", "--ctx", "32k", "--device", "h100-sxm5-80", "--device", "l4").out
    title, *_ = out.splitlines()
    assert title == "llama3-8b, 32,768 tokens, 1 sequence, bf16 cache, bf16 weights, stored by ideal"
    assert "context" not in out


def test_a_name_is_never_cut_and_is_the_only_exception(kvcli, tmp_path):
    name = "a-model-whose-name-is-as-long-as-names-of-files-may-well-be-and-then-some-more-of-it"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,'
        '"num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}'
    )
    answer = kvcli("plan", f"{folder}", "gpt2", "--ctx", "1k", "--device", "l4")
    assert answer.code == 0, answer.err
    assert answer.out.count(name) == 1
    assert all(name in line or set(line) <= set("\u2500") for line in too_wide(answer.out))
    # rows are numbered, so that the name need not be repeated
    assert re.search(r"^2 .*GiB|^2 .*ms|^2 .* us", answer.out, re.MULTILINE)


def test_check_reads_at_80_columns(kvcli, manual_files):
    answer = kvcli("check", "kvcli.yaml", cwd=manual_files, env={"COLUMNS": "300"})
    assert answer.code == 1
    assert answer.out.count("\n") > 10
    assert not too_wide(answer.out)
    assert "what passes: --max-model-len 8752 (up to 38464 with a warning, if overheads stay low), or --kv-cache-dtype fp8" in " ".join(
        answer.out.split()
    )


@pytest.mark.parametrize("width", [40, 50, 60])
@pytest.mark.parametrize(
    "command",
    [
        "plan llama3.1-8b --ctx 32k --engine vllm --device rtx4090",
        "plan llama3.1-8b --batch 4 --prompt-tokens 2k --new-tokens 512 --device l4 --price-hour 0.70",
        "plan llama3.1-70b --device rtx4090 --ctx 8k --ngl 40 --engine llama.cpp --host-memory 64GiB",
        "plan llama3-8b --ctx 32k",
    ],
)
def test_every_number_of_a_ledger_stands_beside_a_name(kvcli, command, width):
    wide, narrow = (kvcli(*command.split(), env={"COLUMNS": str(each)}).out for each in (200, width))
    lines = narrow.splitlines()
    assert not [line for line in lines if re.match(r" *#? *\d+ {2,}\S", line) or (line.strip().startswith("# ") and "GiB" not in line)]
    for number in re.findall(r"\d[\d.,]* (?:[KMG]iB|ms)", wide):
        assert number.split()[0] in narrow
    for name in re.findall(r"^ *([A-Za-z]\w+)", wide, re.M):
        assert name in narrow
