"""llama-server's cache: one buffer of `-c` cells that slots share, or a stream for each of them.

Worked by hand, after ggml-org/llama.cpp: `n_ctx_seq` is `n_ctx` where the cache is unified and `n_ctx / n_seq_max` where not
(src/llama-context.cpp), `-np` without a number is four slots on one buffer (tools/server, pull request 16736), and a window's cells are
GGML_PAD(min(n_ctx, n_swa x n_seq_max + n_ubatch), 256) (src/llama-kv-cache-iswa.cpp).
"""

import datetime
import re

import pytest

from kvcli.check.run import check

DAY = datetime.date(2026, 11, 29)
IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda"
#: Qwen3-8B in fp16: 36 layers x 2 x 8 heads x 128 x 2 B = 144 KiB a token
TOKEN = 144 * 1024
MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: { name: chat }
spec:
  containers:
    - name: server
      image: %s
      args: [%s]
      resources: { limits: { nvidia.com/gpu: 1 } }
"""


@pytest.fixture
def gate(tmp_path):
    """One pod of llama-server on a device, with a load; its cell."""

    def run(args, device="l4", image=IMAGE, more=""):
        words = ", ".join(f'"{word}"' for word in args.split())
        (tmp_path / "pod.yaml").write_text(MANIFEST % (image, words))
        path = tmp_path / "kvcli.yaml"
        path.write_text(f"version: 1\ntargets:\n  - name: chat\n    from: pod.yaml\n    on: [{device}]\n{more}")
        return check([path], DAY)[0].cells[0]

    return run


def said(cell, rule):
    (found,) = [each for each in cell.outcomes if each.rule == rule]
    return found


def cache(cell):
    return int(re.search(r"kv_cache ([\d,]+)", said(cell, "KV001").formula)[1].replace(",", ""))


@pytest.mark.parametrize("image", [IMAGE, f"{IMAGE}-b8000"])
@pytest.mark.parametrize("slots", ["", "-np 4 -kvu", "-np 1"])
def test_slots_that_share_one_buffer_hold_it_once(gate, image, slots):
    """40,960 cells x 144 KiB = 5.625 GiB, whoever shares them."""
    cell = gate(f"-m /m/Qwen3-8B-Q4_K_M.gguf -c 40960 -ngl 99 {slots}", image=image)
    assert cache(cell) == 40960 * TOKEN == int(5.625 * 2**30)
    assert said(cell, "KV001").level == "passed"


@pytest.mark.parametrize(
    ("args", "device", "bytes_per_token", "cells"),
    [
        # 64 layers x 2 x 8 x 128 x 2 B = 256 KiB
        ("-m /m/Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf -c 16384 -ngl 99", "rtx3090", 256 * 1024, 16384),
        ("-m /m/Qwen3-32B-Q4_K_M.gguf -c 8192 -ngl 99", "rtx3090", 256 * 1024, 8192),
        # 32 layers x 2 x 8 x 128 x 2 B = 128 KiB
        ("-m /m/Llama-3.1-8B-Instruct-Q4_K_M.gguf -c 16384 -ngl 99", "rtx3060-12", 128 * 1024, 16384),
        ("-m /m/Llama-3.1-8B-Instruct-Q8_0.gguf -c 32768 -ngl 99", "rtx4090", 128 * 1024, 32768),
    ],
)
def test_what_runs_does_not_fail(gate, args, device, bytes_per_token, cells):
    cell = gate(args, device)
    assert cache(cell) == cells * bytes_per_token
    assert said(cell, "KV001").level in ("passed", "warning")


def test_streams_of_their_own_hold_as_much(gate):
    """Four streams of 10,240 cells; on four shared ones of 40,000 a stream is padded to 10,240, one buffer to 40,192."""
    assert cache(gate("-m /m/Qwen3-8B-Q4_K_M.gguf -c 40960 -ngl 99 -np 4")) == 40960 * TOKEN
    assert cache(gate("-m /m/Qwen3-8B-Q4_K_M.gguf -c 40000 -ngl 99 -np 4")) == 4 * 10240 * TOKEN
    assert cache(gate("-m /m/Qwen3-8B-Q4_K_M.gguf -c 40000 -ngl 99 -np 4 -kvu")) == 40192 * TOKEN


def test_windows_grow_with_the_slots(gate):
    """gpt-oss-20b: 12 layers of all cells, 12 of pad256(4 x 128 + 512) = 1,024, of 2 x 8 x 64 x 2 B."""
    assert cache(gate("-m /m/gpt-oss-20b-mxfp4.gguf -c 8192 -ngl 99", "rtx4090")) == 12 * 2048 * (8192 + 1024)


def test_too_long_a_buffer_fails_and_says_which_passes(gate):
    """pad256(40,000) = 40,192 cells of 256 KiB = 10.5e9 B beside 18.7e9 B on a card of 25.3e9. What passes is the whole -c, once."""
    args, device = "-m /m/Qwen3-32B-Q4_K_M.gguf -ngl 99", "rtx3090"
    found = said(cell := gate(f"{args} -c 40000", device), "KV001")
    assert cache(cell) == 40192 * 256 * 1024
    assert found.level == "error"
    assert "one cache of 40,000 tokens that 4 slots share" in found.message
    sure, perhaps = re.match(r"-c (\d+) \(up to (\d+) with a warning, if overheads stay low\)", found.fix).groups()
    for tokens, level in ((sure, "passed"), (int(sure) + 256, "warning"), (perhaps, "warning"), (int(perhaps) + 256, "error")):
        assert said(gate(f"{args} -c {tokens}", device), "KV001").level == level


def test_two_rules_propose_one_length(gate):
    """Qwen3-8B: 40,960 positions, and an L4 holds more. Llama-3.1-8B: 131,072 positions, and an RTX 3060 holds fewer."""
    many = gate("-m /m/Qwen3-8B-Q4_K_M.gguf -ngl 99 -c 240960")
    assert cache(many) == 241152 * TOKEN  # padded to 256
    assert said(many, "KV003").fix == "-c 40960" == said(many, "KV001").fix.split(",")[0]
    few = gate("-m /m/Llama-3.1-8B-Instruct-Q4_K_M.gguf -ngl 99 -c 163840", "rtx3060-12")
    assert said(few, "KV003").fix == said(few, "KV001").fix.split(" (")[0]
    assert int(said(few, "KV003").fix.removeprefix("-c ")) < 131072
    assert said(gate(f"-m /m/Llama-3.1-8B-Instruct-Q4_K_M.gguf -ngl 99 {said(few, 'KV003').fix}", "rtx3060-12"), "KV001").level == "passed"


def test_a_length_with_a_warning_is_written_as_the_sure_one(gate):
    """Each of four slots has a stream of its own: both lengths that are named are the -c of all four."""
    args = "-m /m/Llama-3.1-8B-Instruct-Q4_K_M.gguf -ngl 99 -np 4"
    found = said(gate(f"{args} -c 400000", image=f"{IMAGE}-b6000"), "KV001")
    sure, perhaps = re.match(r"-c (\d+) \(up to (\d+) with a warning, if overheads stay low\)", found.fix).groups()
    assert 0 < int(sure) < int(perhaps) < 400000
    assert said(gate(f"{args} -c {perhaps}", image=f"{IMAGE}-b6000"), "KV001").level == "warning"
    assert said(gate(f"{args} -c {int(perhaps) + 1024}", image=f"{IMAGE}-b6000"), "KV001").level == "error"


def test_sequences_that_the_shared_buffer_holds(gate):
    """40,960 cells are ten of 4,096 tokens, of which four slots run four, and two of 20,480."""
    args = "-m /m/Qwen3-8B-Q4_K_M.gguf -c 40960 -ngl 99"
    assert gate(args, more="    load: { users: 4, ctx_p99: 4096 }\n").measures.sequences == 4
    two = gate(args, more="    load: { users: 4, ctx_p99: 20480 }\n")
    assert two.measures.sequences == 2
    assert said(two, "KV007").level == "warning"
    # where each has a stream of its own, as long as that
    assert gate(f"{args} -np 4", more="    load: { users: 4, ctx_p99: 4096 }\n").measures.sequences == 4


def test_fit_still_lowers_an_automatic_length(gate):
    """--fit on, no -c: it shortens the buffer, down to one that fits."""
    found = said(gate("-m /m/Qwen3-32B-Q6_K.gguf -ngl 99", "rtx5090", image=f"{IMAGE}-b8000"), "KV001")
    assert found.level in ("passed", "warning")
