"""`kvcli plan` as a user types it: documents, tables, errors and their exit codes."""

import csv
import io
import json
import subprocess
import sys

import pytest


def test_the_documented_answer(kvcli):
    answer = kvcli("plan", "llama2-7b", "--ctx", "32k", "--kv-dtype", "fp16", "--json")
    assert answer.code == 0
    assert answer.err == ""
    assert answer.out.count("\n") == 1
    document = json.loads(answer.out)
    assert document["kv_cache"]["needed_bytes"] == 17_179_869_184
    assert document["kv_cache"]["stored_bytes"] == 17_179_869_184
    assert document["device"] is document["memory"] is document["latency"] is document["solve"] is None
    assert [warning["code"] for warning in document["warnings"]] == ["context_beyond_positions"]


CONTRACT = {
    "": {
        "schema_version",
        "kvcli_version",
        "model",
        "workload",
        "kv_cache",
        "weights",
        "device",
        "memory",
        "latency",
        "solve",
        "requirements",
        "warnings",
    },
    "model": {
        "name",
        "source",
        "model_type",
        "max_context_tokens",
        "parameters",
        "active_parameters",
        "tower_parameters",
        "mtp_parameters",
    },
    "workload": {"context_tokens", "batch_size", "prompt_tokens"},
    "kv_cache": {
        "dtype_key",
        "dtype_value",
        "bytes_per_token",
        "needed_bytes",
        "state_bytes",
        "read_bytes_per_step",
        "written_bytes_per_step",
        "layers",
        "engine",
        "stored_bytes",
        "stored_bytes_per_device",
        "blocks",
        "block_tokens",
    },
    "weights": {"dtype", "resident_bytes", "resident_bytes_per_device", "read_bytes_per_step"},
    "device": {"name", "count", "memory_bytes", "memory_bandwidth_bytes_per_s", "basis"},
    "memory": {"lines", "total_bytes", "usable_bytes", "headroom_bytes", "fits", "kv_pool"},
    "latency": {
        "decode_step_floor_s",
        "decode_tokens_per_s_ceiling",
        "prefill_floor_s",
        "bound",
        "arithmetic_intensity",
        "ridge",
        "lines",
    },
}


def test_every_key_of_the_contract(kvcli):
    document = json.loads(kvcli("plan", "mistral-7b-v0.1", "--ctx", "32k", "--device", "h100-sxm5-80", "--json").out)
    for key, wanted in CONTRACT.items():
        assert wanted <= set(document[key] if key else document), key
    (row,) = document["kv_cache"]["layers"]
    assert row == {
        "kind": "sliding_attention",
        "count": 32,
        "window_tokens": 4096,
        "bytes_per_token": 0,
        "needed_bytes": 2**29,
        "state_bytes": 0,
        "stored_bytes": 2**29,
    }
    assert set(document["memory"]["lines"][0]) == {"item", "bytes", "low_bytes", "high_bytes", "basis", "formula"}


def test_a_sweep_is_plans_and_several_models_too(kvcli):
    document = json.loads(kvcli("plan", "gpt2", "llama3-8b", "--ctx", "4k,32k", "--batch", "1..2", "--json").out)
    assert set(document) == {"schema_version", "plans"}
    assert len(document["plans"]) == 8


def test_without_a_context(kvcli):
    assert json.loads(kvcli("plan", "llama3-8b", "--json").out)["workload"]["context_tokens"] == 8192
    human = kvcli("plan", "llama3-8b")
    assert [line.split()[0] for line in human.out.splitlines() if "GiB" in line] == ["1,024", "2,048", "4,096", "8,192"]
    assert "bf16 cache, bf16 weights" in human.out


def test_the_human_view_reads_at_80_columns_without_colour(kvcli):
    answer = kvcli("plan", "llama3-8b", "--ctx", "32k")
    assert answer.code == 0
    assert "4,294,967,296 B" in answer.out
    assert "h100-sxm5-80" in answer.out
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "8,192 positions" in answer.err
    with_device = kvcli("plan", "llama3-8b", "--ctx", "32k", "--device", "h100-sxm5-80").out
    assert "5.747 ms" in with_device
    assert max(map(len, with_device.splitlines())) <= 80


def test_explain_shows_every_equation_with_its_numbers(kvcli):
    out = kvcli("plan", "llama3-8b", "--ctx", "32k", "--device", "h100-sxm5-80", "--explain").out
    assert "32 layers x 32,768 visible tokens x 1 sequence x 4,096 B, where 4,096 B = 8 KV heads x (128 x 16 + 128 x 16) bits / 8" in out
    assert "19,304,816,640 B / 3,350,000,000,000 B/s" in out
    assert "0.005762632 s" in out


def test_every_formula_name_has_an_equation():
    from kvcli.hardware.match import find
    from kvcli.model.resolve import resolve
    from kvcli.plan.build import build
    from kvcli.plan.request import PlanRequest
    from kvcli.plan.storage.policy import policy
    from kvcli.plan.workload import Workload
    from kvcli.report.explain import lines

    for engine in ("ideal", "kvcli"):
        for model in ("gpt2", "mistral-7b-v0.1"):
            plan = build(PlanRequest(resolve(model), Workload(8192, 4), policy(engine), device=find("h100-sxm5-80")))
            assert len(lines(plan)) >= 14


def test_csv_and_markdown(kvcli):
    rows = list(csv.DictReader(io.StringIO(kvcli("plan", "llama3-8b", "--ctx", "4k..32k*2", "--csv").out)))
    assert [int(row["needed_bytes"]) for row in rows] == [2**29, 2**30, 2**31, 2**32]
    assert rows[0]["decode_step_floor_s"] == ""
    markdown = kvcli("plan", "llama3-8b", "--ctx", "4k..32k*2", "--md").out.splitlines()
    assert markdown[0] == "llama3-8b, 1 sequence, bf16 cache, bf16 weights, stored by ideal"
    assert markdown[2].startswith("| context | cache needed |")
    assert len(markdown) == 8


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["lama3-8b"], 2, "llama3-8b"),
        (["llama3-8b", "--ctx", "0"], 2, "--ctx"),
        (["llama3-8b", "--ctx", "9" * 400], 2, "--ctx"),
        (["llama3-8b", "--ctx", "1..1000000000"], 2, "points"),
        (["llama3-8b", "--batch", "-2"], 2, "--batch"),
        (["llama3-8b", "--kv-dtype", "fp17"], 2, "fp17"),
        (["llama3-8b", "--weights", "q4_0:q4_0"], 2, "q4_0:q4_0"),
        (["llama3-8b", "--device", "h100"], 2, "h100-sxm5-80"),
        (["llama3-8b", "--engine", "vlm"], 2, "vlm"),
        (["llama3-8b", "--engine", "kvcli", "--cache", "ring"], 2, "ring"),
        (["llama3-8b", "--engine", "kvcli", "--kv-dtype", "int8"], 2, "int8"),
        (["llama3-8b", "--csv", "--md"], 2, "exclude"),
        (["llama3-8b", "--cache", "bogus"], 2, "bogus"),
        (["llama3-8b", "--ctx", "1k", "--prompt-tokens", "64k"], 2, "65,536"),
        (["llama3-8b", "--prompt-tokens", ""], 2, "--prompt-tokens"),
        (["llama3-8b", "--ctx", "1..20000", "--batch", "1..20000"], 2, "400,000,000"),
        (["llama3-8b", "--weights", "q4_k_x"], 2, "q4_k_x"),
        (["llama3-8b", "--assume", "mla"], 2, "mla"),
        (["x" * 300], 2, "300 characters"),
        (["/" + "x" * 300], 2, "cannot be a path"),
        (["~nobody-of-that-name/x.json"], 2, "cannot be a path"),
        (["a\udcff"], 2, "no model"),
        (["llama3-8b", "--nope"], 2, "--nope"),
        ([], 2, "MODEL"),
        (["./nowhere/config.json"], 2, "does not exist"),
        (["nobody/nothing", "--offline"], 3, "hub"),
        ([""], 2, "empty"),
    ],
)
def test_every_mistake_is_one_sentence_with_its_code(kvcli, arguments, code, words):
    plain = kvcli("plan", *arguments)
    assert plain.code == code
    assert plain.out == ""
    assert words in plain.err
    if "--csv" not in arguments:
        document = json.loads(kvcli("plan", *arguments, "--json").out)
        assert document["schema_version"] == 1
        assert set(document["error"]) == {"code", "message", "hint"}
        assert words in document["error"]["message"] + document["error"]["hint"]


def test_no_gpu_here_is_exit_3(kvcli):
    answer = kvcli("plan", "llama3-8b", "--device", "local", "--json")
    assert answer.code == 3
    assert json.loads(answer.out)["error"]["code"] == "no_local_device"


FAKE_GPU = """
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return {name!r}
def nvmlDeviceGetMemoryInfo(handle):
    class Info: total = 81559 * 2**20
    return Info
"""


def test_the_local_gpu_is_taken_for_people_and_not_for_documents(kvcli, tmp_path):
    (tmp_path / "pynvml.py").write_text(FAKE_GPU.format(name="NVIDIA H100 80GB HBM3"))
    env = {"PYTHONPATH": str(tmp_path)}
    human = kvcli("plan", "llama3-8b", "--ctx", "32k", env=env)
    assert "H100 SXM5 80GB" in human.out
    assert "was taken" in human.err
    assert json.loads(kvcli("plan", "llama3-8b", "--json", env=env).out)["device"] is None
    assert json.loads(kvcli("plan", "llama3-8b", "--device", "local", "--json", env=env).out)["device"]["name"] == "h100-sxm5-80"
    (tmp_path / "pynvml.py").write_text(FAKE_GPU.format(name="NVIDIA X999"))
    assert "X999" in kvcli("plan", "llama3-8b", "--ctx", "32k", env=env).err
    assert kvcli("plan", "llama3-8b", "--device", "local", env=env).code == 2


def test_an_unknown_architecture_is_exit_4(kvcli, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "brand_new", "hidden_size": 8}))
    answer = kvcli("plan", str(path), "--json")
    assert answer.code == 4
    assert "brand_new" in json.loads(answer.out)["error"]["message"]


@pytest.mark.parametrize("view", ["--ctx 32k --device l4", "", "--ctx 1..300 --device l4", "--ctx 4k,8k --batch 1,2 --sweep tp=1,2"])
def test_a_pipe_that_closes_is_no_answer(view):
    """Exit 1 would say no; the library that lays out tables exits with it by itself."""
    command = f"{sys.executable} -m kvcli plan llama3-8b {view}"
    closed = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | true"], capture_output=True, text=True, check=False)
    assert closed.returncode == 141
    assert "Traceback" not in closed.stderr


def test_a_pipe_that_closes_and_a_full_disk():
    command = f"{sys.executable} -m kvcli plan llama3-8b --ctx 1..5000 --csv"
    closed = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True, check=False)
    assert closed.returncode == 141
    assert closed.stderr.count("\n") <= 1
    assert "Traceback" not in closed.stderr
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 3
    assert "no space left" in full.stderr
    assert "Traceback" not in full.stderr


def test_help_and_version(kvcli):
    for arguments in (["--help"], ["-h"], ["plan", "--help"], ["plan", "-h"]):
        answer = kvcli(*arguments)
        assert answer.code == 0
        assert "Usage: kvcli" in answer.out
    assert kvcli("--version").out.startswith("kvcli ")
    assert kvcli("nope").code == 2
    assert kvcli().code == 0
    assert "Usage: kvcli" in kvcli().out


def test_listing_models_and_parts(kvcli):
    assert "llama3-8b" in kvcli("presets").out
    assert {row["name"] for row in json.loads(kvcli("presets", "--json").out)["presets"]} >= {"gpt2", "phi-4"}
    assert "h100-sxm5-80" in kvcli("devices").out
    assert "NVIDIA H100 80GB HBM3" in kvcli("devices", "h100-sxm5-80").out
    assert kvcli("devices", "h100").code == 2


def test_a_thousand_plans_take_at_most_a_second():
    """One core's CPU time, so that another process does not decide."""
    import time

    from kvcli.cli.app import run

    before = time.process_time()
    with open("/dev/null", "w") as sink:
        stdout, sys.stdout = sys.stdout, sink
        try:
            assert run(["plan", "llama3-8b", "--ctx", "1..1000", "--device", "h100-sxm5-80", "--json"]) == 0
        finally:
            sys.stdout = stdout
    assert time.process_time() - before <= 1.0


def test_a_table_says_what_differs_and_what_is_common(kvcli, tmp_path):
    other = tmp_path / "config.json"
    other.write_text(json.dumps({"model_type": "gpt2", "dtype": "float32"}))
    out = kvcli("plan", "llama3-8b", str(other), "--ctx", "1k").out
    assert "fp32" in out
    assert "bf16" in out
    assert "bf16 cache, bf16 weights" not in out  # never a title that holds for some rows only
    roomy = {"COLUMNS": "120"}
    wide = kvcli("plan", "llama3-8b", "gpt2", "--ctx", "4k,32k", "--batch", "1,16", "--device", "l4", "--device", "b200", env=roomy).out
    rows = [line for line in wide.splitlines() if " l4 " in line or " b200 " in line]
    assert len(rows) == 16
    assert all(("iB" in row and " ms" in row) or " us" in row or " s" in row for row in rows)
    assert kvcli("plan", "llama3-8b", "--ctx", "1k", env={"COLUMNS": "0"}).out.count("GiB") >= 5


def test_files_that_never_end_are_refused(kvcli, tmp_path):
    import os

    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("fifo.json", "zero.json"):
        answer = kvcli("plan", str(tmp_path / name), timeout=20)
        assert answer.code == 2
        assert "not a regular file" in answer.err


def test_closed_streams():
    for tail, code in ((">&-", 3), ("<&-", 0), ("2>&-", 0)):
        line = f"{sys.executable} -m kvcli plan llama3-8b --ctx 1k --json {tail}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.returncode == code, tail
        assert "Traceback" not in done.stderr
        if code == 0:
            json.loads(done.stdout)
    failing = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m kvcli plan nope --json 2>&-"], capture_output=True, text=True, check=False
    )
    assert failing.returncode == 2
    assert json.loads(failing.stdout)["error"]["code"] == "unknown_model"
    full = subprocess.run(["bash", "-c", f"{sys.executable} -m kvcli --help > /dev/full"], capture_output=True, text=True, check=False)
    assert full.returncode == 3
    assert "Traceback" not in full.stderr


def test_an_assumed_model_is_labelled(kvcli, tmp_path):
    path = tmp_path / "config.json"
    plain = {"model_type": "brand_new", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}
    path.write_text(json.dumps({**plain, "num_key_value_heads": 2, "dtype": "bfloat16"}))
    answer = kvcli("plan", str(path), "--assume", "gqa", "--ctx", "100", "--json")
    document = json.loads(answer.out)
    assert document["kv_cache"]["needed_bytes"] == 2 * 2 * 2 * 16 * 100 * 2
    assert document["model"]["name"].endswith("(assumed gqa)")
    assert document["model"]["source"].endswith("assumed gqa")
    assert "assumed_gqa" in [warning["code"] for warning in document["warnings"]]
    assert "assumed gqa" in kvcli("plan", str(path), "--assume", "gqa", "--ctx", "100").out
    # a known type is read as what it is
    assert "assumed" not in kvcli("plan", "llama3-8b", "--assume", "gqa", "--ctx", "1k").out


def test_a_quantised_file_is_labelled(kvcli, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "dtype": "float16", "quantization_config": {"quant_method": "fp8"}}))
    document = json.loads(kvcli("plan", str(path), "--ctx", "10", "--json").out)
    assert [warning["code"] for warning in document["warnings"]] == ["quantized_weights"]


def test_showing_a_preset(kvcli):
    answer = kvcli("presets", "show", "mistral-7b-v0.1")
    assert answer.code == 0
    assert "sliding_attention, 8 KV heads x (128 + 128)," in answer.out
    document = json.loads(kvcli("presets", "show", "Meta-Llama-3-8B", "--json").out)
    assert document["groups"][0]["parameters"]["total"] * 32 + sum(document["around_the_layers"].values()) == document["parameters"]
    small = json.loads(kvcli("presets", "--family", "qwen", "--max-params", "10B", "--json").out)["presets"]
    assert small
    assert all(row["model_type"].startswith("qwen") and row["parameters"] <= 10**10 for row in small)
    assert kvcli("presets", "show", "nothing-like-it").code == 2
    assert kvcli("presets", "show").code == 2
    assert kvcli("presets", "--max-params", "big").code == 2


def test_several_engines_side_by_side_with_the_reasons(kvcli):
    answer = kvcli("plan", "gemma3-27b", "--ctx", "32k", "--engine", "ideal", "--engine", "vllm", "--engine", "llama.cpp")
    assert answer.code == 0
    assert "vllm: needed + padding layers 65.000 MiB, windows kept 6.500 MiB" in " ".join(answer.out.split())
    assert "-c 32768 -np 1" in answer.err
    plans = json.loads(kvcli("plan", "gemma3-27b", "--ctx", "32k", "--engine", "ideal", "--engine", "vllm", "--json").out)["plans"]
    assert [plan["kv_cache"]["engine"] for plan in plans] == ["ideal", "vllm"]
    for plan in plans:
        cache = plan["kv_cache"]
        difference = sum(cause["bytes"] for cause in cache["stored_minus_needed"])
        assert cache["stored_bytes"] == cache["needed_bytes"] + cache["state_bytes"] + difference
        assert sum(row["stored_bytes"] for row in cache["layers"]) == cache["stored_bytes"]
    assert plans[1]["kv_cache"]["blocks"] > 0


def test_a_mix_of_gguf_types(kvcli):
    answer = kvcli("plan", "llama3.1-8b", "--ctx", "8k", "--weights", "Q4_K_M", "--json")
    weights = json.loads(answer.out)["weights"]
    assert (weights["dtype"], weights["resident_bytes"], weights["basis"]) == ("q4_k_m", 4_912_898_304, "engine rule")
    assert "range" not in weights
    assert "resident_low_bytes" not in weights


def test_a_range_of_weights(kvcli):
    """What must fit is the high end, what a step reads follows the low one, and the reader is told why."""
    asked = ("plan", "llama3.1-8b", "--ctx", "8k", "--weights", "iq4_xs", "--device", "l4")
    document = json.loads(kvcli(*asked, "--json").out)
    weights = document["weights"]
    assert weights["range"] is True
    assert weights["resident_low_bytes"] == 4_439_826_688 < weights["resident_bytes"] == 4_476_526_848
    line = next(line for line in document["memory"]["lines"] if line["item"] == "weights")
    assert (line["low_bytes"], line["high_bytes"]) == (weights["resident_low_bytes"], weights["resident_bytes"])
    assert document["memory"]["total_bytes"] == weights["resident_bytes"] + document["kv_cache"]["stored_bytes"]
    assert any(each["code"] == "weights_range" and "importance matrix" in each["message"] for each in document["warnings"])
    human = kvcli(*asked)
    assert "weights (iq4_xs), in memory, low" in human.out
    assert "4,439,826,688 B" in human.out
    assert "to high, which must fit" in human.out
    assert "4.135 GiB = 4,439,826,688 B to 4.169 GiB = 4,476,526,848 B" in kvcli(*asked, "--explain").out


@pytest.mark.parametrize(("prompt", "contexts"), [("8k", [8192, 16384, 65536, 131_072]), ("131072", [131_072]), ("200k", [204_800])])
def test_a_prompt_alone_is_the_shortest_context(kvcli, prompt, contexts):
    answer = kvcli("plan", "llama3.1-8b", "--prompt-tokens", prompt, "--device", "h100-sxm5-80")
    assert answer.code == 0, answer.err
    if len(contexts) > 1:
        shown = [int(line.split()[0].replace(",", "")) for line in answer.out.splitlines() if line[:8].strip().replace(",", "").isdigit()]
        assert sorted(set(shown)) == contexts
    else:
        assert f"{contexts[0]:,}" in answer.out
