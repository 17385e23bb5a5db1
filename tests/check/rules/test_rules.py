"""Rules on deployments whose numbers are worked by hand: what fails for certain fails, what may fail warns, nothing else is said."""

import datetime

import pytest

from kvcli.check.run import check
from kvcli.errors import BadInput

DAY = datetime.date(2026, 11, 29)
#: Llama-3.1-8B: bf16 weights, and 131,072 B of cache a token
WEIGHTS, TOKEN = 16_060_522_496, 131_072
L4 = 23_654_532_382


@pytest.fixture
def gate(tmp_path):
    """Runs the gate on a capacity file with one target; returns its cell."""

    def run(target, fleet="{ pool: { device: l4, devices: 8 } }", strict=False, more=""):
        path = tmp_path / "kvcli.yaml"
        path.write_text(f"version: 1\nfleet: {fleet}\n{more}targets:\n  - name: chat\n{target}")
        report, _ = check([path], DAY, strict=strict)
        return report.cells[0]

    return run


def target(command, on="pool", **more):
    lines = [f"    command: {command}", f"    on: [{on}]", *(f"    {key}: {value}" for key, value in more.items())]
    return "\n".join(lines) + "\n"


def said(cell, rule):
    found = [each for each in cell.outcomes if each.rule == rule]
    assert found, f"{rule} says nothing"
    return max(found, key=lambda each: ("passed", "skipped", "note", "warning", "error").index(each.level))


def serve(options="", model="meta-llama/Llama-3.1-8B-Instruct"):
    return f"vllm serve {model} {options}"


def test_what_does_not_fit_fails(gate):
    """16.06e9 B of weights and 131,072 x 131,072 B = 17.18e9 B of cache on a card of 23.65e9 B."""
    found = said(gate(target(serve("--max-model-len 131072"))), "KV001")
    assert found.level == "error"
    assert f"weights {WEIGHTS:,}" in found.formula
    assert f"kv_cache {131072 * TOKEN:,}" in found.formula
    assert f"> {L4:,} B usable" in found.formula
    terms, _, total = found.formula.replace(",", "").partition(" = ")
    assert sum(int(term.split()[1]) for term in terms.split(" + ")) == int(total.split(" B")[0])
    assert found.place.line == 5


def test_the_longest_length_is_named_and_proven(gate):
    found = said(gate(target(serve("--max-model-len 131072"))), "KV001")
    longest = int(found.fix.split("--max-model-len ")[1].split(" ")[0])
    assert said(gate(target(serve(f"--max-model-len {longest}"))), "KV001").level == "passed"
    assert said(gate(target(serve(f"--max-model-len {longest + 16}"))), "KV001").level == "warning"
    # what is left of 22.03 GiB x 0.92 beside weights bounds it from above
    assert longest * TOKEN < L4 * 0.92 - WEIGHTS


def test_the_type_and_the_devices_that_would_fit_are_named_and_proven(gate):
    found = said(gate(target(serve("--max-model-len 60000"))), "KV001")
    assert found.level == "error"
    assert "--tensor-parallel-size 2 on 2 x l4" in found.fix
    assert said(gate(target(serve("--max-model-len 60000 --tensor-parallel-size 2"))), "KV001").level == "passed"
    near = said(gate(target(serve("--max-model-len 16384"))), "KV001")
    assert near.level == "warning"
    assert "--kv-cache-dtype fp8" in near.fix
    assert said(gate(target(serve("--max-model-len 16384 --kv-cache-dtype fp8"))), "KV001").level == "passed"


def test_longer_contexts_may_fit_where_shorter_do_not(gate):
    """vLLM 0.7 takes prompts whole up to 32,768 tokens: 32,768 x 2 x (4,096 + 21,504) B = 1.68e9 B of activations beside the cache;
    longer ones in chunks of 2,048, 0.10e9 B."""
    fleet = "{ pool: { device: rtx4090, devices: 1 } }"

    def level(tokens):
        return said(
            gate(target(serve(f"--max-model-len {tokens} --gpu-memory-utilization 0.85"), engine_version="0.7.3"), fleet), "KV001"
        ).level

    assert (level(32768), level(32784), level(60000)) == ("error", "warning", "error")
    found = said(gate(target(serve("--max-model-len 60000 --gpu-memory-utilization 0.85"), engine_version="0.7.3"), fleet), "KV001")
    assert int(found.fix.split("--max-model-len ")[1].split(",")[0].split(" ")[0]) > 0


@pytest.mark.parametrize(
    ("command", "level", "words"),
    [
        (serve("--max-model-len auto"), "warning", "lowers the length by itself"),
        (serve("--max-model-len 131072 --cpu-offload-gb 14"), "warning", "of weights stay in the host's memory"),
        (serve("--max-model-len 131072 --cpu-offload-gb 2"), "error", "too little"),
        (serve("--max-model-len $LENGTH --block-size ${X}"), "warning", "not certain"),
        ("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", "warning", "are refused or never finish"),
        ("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct", "error", "too little"),
        ("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0 -c 131072 -ngl 99 --fit off", "error", "too little"),
        ("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0 -c 131072", "warning", "in the host's memory"),
        ("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0 -c 16384 -ngl 99 --fit off", "passed", ""),
    ],
)
def test_only_what_is_certain_fails(gate, command, level, words):
    found = said(gate(target(f"'{command}'")), "KV001")
    assert (found.level, words in found.message) == (level, True), found


def test_headroom_is_one_request_for_certain_and_all_users_perhaps(gate):
    big = "{ pool: { device: h100-sxm5-80, devices: 1 } }"
    users = "{ users: 48, ctx_p99: 8k }"
    assert said(gate(target(serve("--max-model-len 16384"), limits="{ memory: 20% }"), big), "KV002").level == "error"
    # 48 x 8,192 x 131,072 B = 51.5e9 B beside the weights; of 64 users some would wait, which KV007 says
    found = said(gate(target(serve("--max-model-len 16384"), limits="{ memory: 60% }", load=users), big), "KV002")
    assert found.level == "warning"
    assert "48 sequences of 8,192 tokens together take" in found.message
    more = gate(target(serve("--max-model-len 16384"), limits="{ memory: 60% }", load=users.replace("48", "64")), big)
    assert (said(more, "KV002").level, said(more, "KV007").level) == ("passed", "warning")
    assert said(gate(target(serve("--max-model-len 16384"), limits="{ memory: 60% }"), big), "KV002").level == "passed"
    assert said(gate(target(serve("--max-model-len 16384"), headroom="40GiB"), big), "KV002").level == "passed"
    assert said(gate(target(serve("--max-model-len 16384"), headroom="70GiB"), big), "KV002").level == "error"


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (serve("--max-model-len 262144"), "error"),
        (serve("--max-model-len 131072"), "passed"),
        (serve('--max-model-len 262144 --hf-overrides \'{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}\''), "passed"),
        ("llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0 -c 262144 -np 1", "warning"),
    ],
)
def test_lengths_beyond_training(gate, command, level):
    assert said(gate(target("\n      " + command).replace("command: \n", "command: >-\n")), "KV003").level == level


def test_requests_longer_than_admitted(gate):
    found = said(gate(target(serve("--max-model-len 4096"), load="{ ctx_p99: 8k }")), "KV003")
    assert (found.level, found.fix) == ("warning", "--max-model-len 8192")


def test_a_split_that_does_not_divide_names_the_nearest(gate):
    found = said(gate(target(serve("--tensor-parallel-size 3"))), "KV004")
    assert found.level == "error"
    assert "--tp" in found.fix or "2" in found.fix
    assert found.place.line == 5


def test_copies_of_heads_warn(gate):
    """8 KV heads on 16 ranks: each is held twice."""
    found = said(gate(target(serve("-tp 16 --max-model-len 32768")), "{ pool: { device: h100-sxm5-80, devices: 16 } }"), "KV004")
    assert found.level == "warning"
    assert f"copies {32768 * TOKEN:,} B" in found.formula


def test_the_prefill_is_what_is_not_cached(gate):
    """30,720 tokens take 2 x 8e9 x 30,720 FLOPs and more, 0.45 s at 1.07e15 FLOP/s; one takes the weights' 14.98e9 B / 3.35e12 B/s."""
    big = "{ pool: { device: h100-sxm5-80 } }"
    limits = "{ ttft: 100ms }"
    whole = target(serve("--max-model-len 32768"), load="{ prompt: 30k, cached_prefix: 0 }", limits=limits)
    found = said(gate(whole, big), "KV005")
    assert found.level == "error"
    assert "FLOP/s" in found.formula
    assert found.place.line == 8
    cached = target(serve("--max-model-len 32768"), load="{ prompt: 30k }", limits=limits)
    assert said(gate(cached, big), "KV005").level == "passed"
    parts = target(serve("--max-model-len 32768"), load="{ prompt: 30k, cached_prefix: 29k }", limits=limits)
    assert said(gate(parts, big), "KV005").level == "passed"


def test_a_step_reads_the_weights(gate):
    """(15,009,849,344 + 3,072 x 131,072 - 48 MiB) B / 300e9 B/s = 51.2 ms."""
    load = "{ ctx_p50: 3k }"
    found = said(gate(target(serve("--max-model-len 8192"), load=load, limits="{ tpot: 40ms }")), "KV006")
    assert found.level == "error"
    assert "51.2" in found.message
    assert "--tensor-parallel-size 2" in found.fix
    assert said(gate(target(serve("--max-model-len 8192 -tp 2"), load=load, limits="{ tpot: 40ms }")), "KV006").level == "passed"
    assert said(gate(target(serve("--max-model-len 8192"), load=load, limits="{ tpot: 52ms }")), "KV006").level == "warning"
    assert said(gate(target(serve("--max-model-len 8192"), load=load, limits="{ tpot: 80ms }")), "KV006").level == "passed"


def test_a_step_may_emit_drafted_tokens(gate):
    """Five tokens a step: not refuted any more."""
    drafts = serve('--max-model-len 8192 --speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\'')
    folded = target("\n      " + drafts, load="{ ctx_p50: 3k }", limits="{ tpot: 40ms }").replace("command: \n", "command: >-\n")
    assert said(gate(folded), "KV006").level == "passed"


def test_sequences_at_their_p99(gate):
    big = "{ pool: { device: h100-sxm5-80 } }"
    fits = target(serve("--max-model-len 16384"), load="{ users: 8, ctx_p99: 8k }")
    assert said(gate(fits, big), "KV007").level == "passed"
    many = said(gate(target(serve("--max-model-len 16384"), load="{ users: 500, ctx_p99: 8k }"), big), "KV007")
    assert many.level == "warning"
    assert "of 500 users" in many.message
    # (84.98e9 B x 0.92 - 16.06e9 B) / (8,192 x 131,072 B) = 57.8
    assert int(many.message.split("at most ")[1].split()[0]) == 57
    few = said(gate(target(serve("--max-model-len 16384 --max-num-seqs 4"), load="{ users: 8, ctx_p99: 8k }"), big), "KV007")
    assert (few.level, few.fix) == ("warning", "--max-num-seqs 8")


@pytest.mark.parametrize(("strict", "level"), [(False, "warning"), (True, "error")])
def test_what_is_unknown_warns_unless_strict(gate, strict, level):
    assert said(gate(target(serve(), on="h999"), strict=strict), "KV008").level == level
    assert said(gate(target(serve(model="acme/none")), strict=strict), "KV009").level == level
    cell = gate(target(serve(model="acme/none")), strict=strict)
    assert said(cell, "KV001").level == "skipped"


def test_a_name_of_the_manifest_is_found_under_models(gate):
    cell = gate(target(serve("--max-model-len 8192", model="/mnt/models")), more='models: { "/mnt/models": llama3.1-8b }\n')
    assert said(cell, "KV009").level == "passed"
    assert said(cell, "KV001").level == "passed"


def test_types_that_the_engine_or_the_part_lacks(gate):
    refused = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype fp4_e2m1"
    assert said(gate(target(refused)), "KV010").level in ("error", "warning", "passed")
    old = "{ pool: { device: a100-sxm4-80 } }"
    assert said(gate(target(serve("--kv-cache-dtype fp8")), old), "KV010").level == "warning"
    assert said(gate(target(serve("--kv-cache-dtype fp8"))), "KV010").level == "passed"


def test_fp8_weights_on_a_part_without_the_units(gate):
    found = said(gate(target(serve("--quantization fp8")), "{ pool: { device: a100-sxm4-80 } }"), "KV013")
    assert found.level == "warning"
    assert said(gate(target(serve("--quantization fp8"))), "KV013").level == "passed"


def test_the_share_of_memory(gate):
    assert said(gate(target(serve("--max-model-len 8192 --gpu-memory-utilization 1.0"))), "KV011").level == "error"
    assert said(gate(target(serve("--max-model-len 8192 --gpu-memory-utilization 0.98"))), "KV011").level == "warning"
    assert said(gate(target(serve("--max-model-len 8192 --gpu-memory-utilization 0.9"))), "KV011").level == "passed"
    low = gate(target(serve("--max-model-len 8192 --gpu-memory-utilization 0.6")))
    assert said(low, "KV001").level == "error"
    assert "--gpu-memory-utilization 0.95" in said(low, "KV011").fix


def test_more_devices_than_the_pool_has(gate):
    found = said(gate(target(serve("-tp 4")), "{ pool: { device: l4, devices: 2 } }"), "KV014")
    assert found.level == "error"
    assert "tp 4 = 4 > 2" in found.formula


def test_the_least_cost(gate):
    """0.70 an hour / 3,600 s x 51.2 ms a token alone x 1e6 = 9.96."""
    fleet = "{ pool: { device: l4, devices: 1, price_hour: 0.70 } }"
    alone = target(serve("--max-model-len 8192"), load="{ users: 1, ctx_p50: 3k, ctx_p99: 8k }", limits="{ cost_per_mtok: 9 }")
    found = said(gate(alone, fleet), "KV015")
    assert found.level == "error"
    assert "9.957" in found.message or "9.958" in found.message
    assert said(gate(alone.replace("mtok: 9", "mtok: 10"), fleet), "KV015").level == "passed"
    # 0.70 x 9 / 9.957 = 0.6327, to four digits and down
    assert found.fix == "price_hour: 0.6327 in pool"
    assert said(gate(alone, fleet.replace("0.70", "0.6327")), "KV015").level == "passed"
    assert said(gate(alone, fleet.replace("0.70", "0.6330")), "KV015").level == "error"


def test_fewer_devices_cost_less_where_more_hold_copies(gate):
    """16 ranks of 8 KV heads read each key and value twice: half as many ranks read them once, at half the price an hour."""
    fleet = "{ pool: { device: l4, devices: 16, price_hour: 11.2 } }"
    many = target(
        serve("--max-model-len 32768 --tensor-parallel-size 16"),
        load="{ users: 32, ctx_p50: 32k, ctx_p99: 32k }",
        limits="{ cost_per_mtok: 5.5 }",
    )
    found = said(gate(many, fleet), "KV015")
    assert found.level == "error"
    assert found.fix.startswith("--tensor-parallel-size 8 on 8 x l4, or price_hour: ")
    assert said(gate(many.replace("size 16", "size 8"), fleet), "KV015").level == "passed"
    assert said(gate(many.replace("mtok: 5.5", "mtok: 0.5"), fleet), "KV015").fix.startswith("price_hour: ")
    price = found.fix.split("price_hour: ")[1].split(" in ")[0]
    assert said(gate(many, fleet.replace("11.2", price)), "KV015").level == "passed"


def test_what_holds_all_users_is_named_and_proven(gate):
    """48 x 8,192 x 131,072 B = 51.5e9 B beside 16.1e9 B of weights, of 85.0e9 B: more than 60 %, or 51.0e9 B."""
    big = "{ pool: { device: h100-sxm5-80, devices: 8 } }"

    def users(options):
        return gate(target(serve(options), limits="{ memory: 60% }", load="{ users: 48, ctx_p99: 8k }"), big)

    found = said(users("--max-model-len 16384"), "KV002")
    assert found.level == "warning"
    length, kind, ranks = found.fix.split(", or ")
    tokens = int(length.removeprefix("--max-model-len "))
    # 51.0e9 less weights alone, over 48 x 131,072 B, is 5,551
    assert 4000 < tokens < 5551
    assert (kind, ranks) == ("--kv-cache-dtype fp8", "--tensor-parallel-size 2 on 2 x h100-sxm5-80")
    for options in (f"--max-model-len {tokens}", "--max-model-len 16384 --kv-cache-dtype fp8", "--max-model-len 16384 -tp 2"):
        assert said(users(options), "KV002").level == "passed", options
    assert said(users(f"--max-model-len {tokens + 64}"), "KV002").level == "warning"


@pytest.mark.parametrize(
    ("made", "verdict", "words"),
    [
        # 16 x 8,192 x 131,072 B = 17.2e9 B beside 16.1e9 B of weights, of 23.7e9 B
        ({"command": serve("--max-model-len 8192"), "load": "{ users: 16, ctx_p99: 8k }"}, "warn", "at once, of whom the engine holds"),
        ({"command": serve("--max-model-len auto")}, "warn", "KV001 says why that need not fail"),
        (
            {"command": serve("--max-model-len 65536"), "waive": "[{ rule: KV001, reason: known, expires: 2030-01-01 }]"},
            "pass",
            "a waiver of KV001 accepts",
        ),
        ({"command": serve("--max-model-len 65536")}, "fail", ""),
        ({"command": serve("--max-model-len 8192"), "load": "{ users: 1, ctx_p99: 8k }"}, "pass", ""),
    ],
)
def test_more_memory_than_there_is_beside_no_failure_is_explained(gate, made, verdict, words):
    from kvcli.check.verdict import Report
    from kvcli.report.check.github import github
    from kvcli.report.check.shown import beyond
    from kvcli.report.check.text import text

    cell = gate(target(**made))
    assert cell.verdict == verdict
    assert words in beyond(cell)
    assert bool(words) == bool(beyond(cell))
    assert (cell.measures.memory_bytes > cell.measures.usable_bytes) == (bool(words) or verdict == "fail")
    assert ("  memory: this is" in text(Report((cell,)), False)) == bool(words)
    assert ("memory of chat on pool: this is" in github(Report((cell,)))) == bool(words)


def test_each_rule_has_the_level_it_says_at_its_worst():
    """Held against the rules' own source: a level that a rule gives a constant, or chooses between two."""
    import inspect
    import re

    from kvcli.check import baseline
    from kvcli.check.rules import known, memory, shape, time
    from kvcli.check.verdict import RULES
    from kvcli.report.check.sarif_rules import DEFAULT_LEVELS

    text = "".join(map(inspect.getsource, (known, memory, shape, time, baseline)))
    failing = set(re.findall(r'Outcome\(\s*"(KV\d+)", "error"', text)) | set(re.findall(r'_held\("(KV\d+)"', text))
    if "Outcome(NEVER_HELD, level" in text:
        failing.add(baseline.NEVER_HELD)
    assert {rule for rule in RULES if DEFAULT_LEVELS.get(rule) == "error"} == failing


def test_a_waiver_makes_a_note_until_it_expires(gate):
    waived = "[{ rule: KV001, reason: drained next week, expires: %s }]"
    cell = gate(target(serve("--max-model-len 131072"), waive=waived % "2026-11-29"))
    found = next(each for each in cell.outcomes if each.rule == "KV001")
    assert (found.level, found.waiver.reason) == ("note", "drained next week")
    late = gate(target(serve("--max-model-len 131072"), waive=waived % "2026-11-28"))
    found = said(late, "KV001")
    assert found.level == "error"
    assert "expired on 2026-11-28" in found.message


def test_a_target_of_its_own_settings(gate):
    own = "    model: llama3-70b\n    weights: fp8\n    engine: vllm\n    ctx: 32k\n    on: [pool]\n"
    cell = gate(own, "{ pool: { device: h100-sxm5-80, devices: 8 } }")
    found = said(cell, "KV001")
    assert found.level == "error"  # 70.55e9 B of weights and 10.7e9 B of cache on 80 GB
    assert found.fix.startswith("ctx: ")
    assert "tp: 2 on 2 x h100-sxm5-80" in found.fix


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("version: 2\ntargets: []\n", 1, "version must be 1"),
        ("version: 1\ntargets:\n  - name: a\n    modle: x\n", 4, "did you mean 'model'"),
        ("version: 1\ntargets:\n  - name: a\n    model: x\n    limits: { ttft: 500 }\n", 5, "with its unit"),
        ("version: 1\ntargets:\n  - name: a\n    model: x\n  - name: a\n    model: x\n", 5, "stands twice"),
        ("version: 1\ntargets:\n  - name: a\n", 3, "says not what is deployed"),
        ("version: 1\nfleet: { p: { devices: 2 } }\ntargets: [{ name: a, model: x }]\n", 2, "names no device"),
        ("version: 1\ntargets: [{ name: a, model: x, waive: [{ rule: KV099, reason: r, expires: 2027-01-01 }] }]\n", 2, "no rule 'KV099'"),
        ("version: 1\ntargets: [{ name: a, model: x, waive: [{ rule: KV001, reason: r, expires: soon }] }]\n", 2, "is no date"),
        ("version: 1\ntargets: [{ name: a, model: x, limits: { memory: 90GB } }]\n", 2, "is not a share"),
        ("version: 1\ntargets: [{ name: a, from: none.yaml#Pod/x }]\n", 2, "none.yaml"),
    ],
)
def test_a_file_that_is_not_as_the_schema_says(tmp_path, text, where, words):
    path = tmp_path / "kvcli.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        check([path], DAY)
    message = f"{caught.value.message} {caught.value.hint}"
    assert f"kvcli.yaml:{where}: " in message
    assert words in message


def test_what_does_not_start_has_no_speed_no_sequences_and_no_price(gate):
    fleet = "{ pool: { device: l4, devices: 1, price_hour: 1 } }"
    misfit = gate(target(serve("--max-model-len 131072"), load="{ users: 2, ctx_p99: 2k }"), fleet)
    assert said(misfit, "KV001").level == "error"
    assert misfit.measures[2:] == (None,) * 4
    assert misfit.measures.memory_bytes > misfit.measures.usable_bytes == L4
    fits = gate(target(serve("--max-model-len 8192"), load="{ users: 2, ctx_p99: 2k }"), fleet)
    assert None not in fits.measures
    waiver = "[{ rule: KV001, reason: it was seen to run, expires: 2030-01-01 }]"
    waived = gate(target(serve("--max-model-len 131072"), load="{ users: 2, ctx_p99: 2k }", waive=waiver), fleet)
    assert None not in waived.measures


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("{ users: 1 }", "the prefill floor is of a prompt of one token: the load names no prompt"),
        ("{ prompt: 4k }", "the prefill floor computes one token of 4,096, the others are taken as cached (cached_prefix: 0 counts all)"),
        ("{ prompt: 4k, cached_prefix: 1k }", "the prefill floor computes 3,072 tokens of 4,096, the others are taken as cached"),
        ("{ prompt: 4k, cached_prefix: 0 }", None),
    ],
)
def test_of_what_the_prefill_floor_is_stands_beside_it(gate, load, said):
    found = [each for each in gate(target(serve("--max-model-len 8192"), load=load)).assumed if "prefill" in each and "default" not in each]
    assert found == ([said] if said else [])


def test_what_is_to_be_done_of_an_unknown_model_names_no_other_one(gate):
    """Copied, it must not make the gate compute another model."""
    fix = said(gate(target(serve("--max-model-len 4096", "acme/Nobody-7B"))), "KV009").fix
    entry = "models: { 'acme/Nobody-7B': config.json }"
    assert fix == f"in the capacity file, {entry} with the model's own file beside it, or the preset that it is"


def test_more_devices_than_the_pool_has_are_answered(gate):
    """The pool has eight; tp 8 of 16 is what it can, and an 8B model fits on it."""
    found = said(gate(target(serve("--max-model-len 8192 --tensor-parallel-size 8 --pipeline-parallel-size 2"))), "KV014")
    assert found.level == "error"
    assert found.fix == "--tensor-parallel-size 8 --pipeline-parallel-size 1, or a pool with devices: 16"
    applied = gate(target(serve("--max-model-len 8192 --tensor-parallel-size 8 --pipeline-parallel-size 1")))
    assert said(applied, "KV014").level != "error"
    # where no fewer hold the model, a larger pool alone
    large = serve("--max-model-len 8192 --tensor-parallel-size 8 --pipeline-parallel-size 2", "meta-llama/Llama-3.1-405B-Instruct")
    assert said(gate(target(large)), "KV014").fix == "a pool with devices: 16"


def test_slots_of_llama_server_are_called_slots(gate):
    command = "llama-server -m /m/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf -c 400000 -ngl 99"
    four = said(gate(target(f"{command} -np 4"), "{ pool: l4 }"), "KV001")
    assert "the weights and 4 slots of 100,000 tokens" in four.message
    one = said(gate(target(f"{command.replace('400000', '100000')} -np 1"), "{ pool: l4 }"), "KV001")
    assert "the weights and one request of 100,000 tokens" in one.message


def test_one_is_not_several(gate):
    load = "{ users: 1, ctx_p99: 1 }"
    found = gate(target(serve("--max-model-len 1 --max-num-seqs 1"), load=load, limits="{ tpot: 1ms, memory: 1% }"))
    text = " ".join(f"{each.message} {each.fix} {each.formula}" for each in found.outcomes)
    assert "1 token" in text
    assert not [word for word in ("tokens", "sequences", "users", "devices", "replicas") if f" 1 {word}" in text]


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        ({"load": "{ users: 1000000000000000000 }"}, "is more than 1,000,000,000,000, the largest count", ""),
        ({"load": "{ users: many }"}, "is not a positive whole number", "as in users: 128 or users: 32k"),
        ({"limits": "{ ttft: 20 }"}, "is not a time with its unit", "ttft: 20ms"),
        ({"ctx": "long"}, "is not a positive whole number", "as in ctx: 128 or ctx: 32k"),
    ],
)
def test_a_hint_is_what_one_would_write(gate, more, message, hint):
    with pytest.raises(BadInput) as error:
        gate(target(serve(), **more))
    assert message in error.value.message
    assert error.value.hint.endswith(hint)
