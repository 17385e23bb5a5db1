"""`kvcli devices` and the device options of `kvcli plan`, as a user types them."""

import csv
import io
import json
import os

import pytest


def document(answer):
    assert answer.out.count("\n") == 1
    return json.loads(answer.out)


def test_the_list_and_its_filters(kvcli):
    everything = document(kvcli("devices", "--json"))["devices"]
    assert len(everything) >= 170
    few = document(kvcli("devices", "--vendor", "nvidia", "--class", "Datacenter", "--min-memory", "100GiB", "--json"))["devices"]
    assert {part["id"] for part in few} == {
        part["id"]
        for part in everything
        if part["vendor"] == "NVIDIA" and part["class"] == "datacenter" and part["memory_bytes"] >= 100 * 2**30
    }
    assert "h200-sxm" in {part["id"] for part in few}
    # parts sold with any amount may have it
    assert "m3-ultra" in {part["id"] for part in document(kvcli("devices", "--min-memory", "200GiB", "--json"))["devices"]}


def test_the_list_in_other_forms(kvcli):
    rows = list(csv.DictReader(io.StringIO(kvcli("devices", "--csv").out)))
    h100 = next(row for row in rows if row["id"] == "h100-sxm5-80")
    assert (h100["driver_names"], h100["driver_total_bytes"]) == ("NVIDIA H100 80GB HBM3", str(81559 * 2**20))
    assert float(h100["dense_peak_bf16_flops"]) == 989.5e12
    assert "| h100-sxm5-80 | H100 SXM5 80GB | 79.647 GiB | 3,350 GB/s | 989.5 TFLOP/s | high |" in kvcli("devices", "--md").out
    plain = kvcli("devices", "--vendor", "apple").out.splitlines()
    assert plain[0].split() == ["id", "name", "memory", "bandwidth", "confidence"]
    assert max(map(len, plain)) <= 80


@pytest.mark.parametrize("words", [["NVIDIA H100 80GB HBM3"], ["NVIDIA", "H100", "80GB", "HBM3"], ["nvidia h100 80gb hbm3"]])
def test_match_gives_the_one_row(kvcli, words):
    answer = kvcli("devices", "match", *words)
    assert answer.code == 0
    assert "h100-sxm5-80" in answer.out and "3,350 GB/s" in answer.out


def test_match_that_is_not_clear_lists_candidates(kvcli):
    answer = kvcli("devices", "match", "NVIDIA Thor")
    assert (answer.code, answer.out) == (2, "")
    assert "thor-t5000, thor-t4000" in answer.err
    error = document(kvcli("devices", "match", "NVIDIA Thor", "--json"))["error"]
    assert error["code"] == "ambiguous_device" and "thor-t5000, thor-t4000" in error["message"]
    assert document(kvcli("devices", "match", "NVIDIA Thor", "--memory", "122GiB", "--json"))["device"]["id"] == "thor-t5000"
    near = kvcli("devices", "match", "H100")
    assert near.code == 2 and "h100-pcie-80, h100-sxm5-80, h100-nvl-94" in near.err


def test_show(kvcli):
    for words in (["show", "h100-sxm5-80"], ["h100-sxm5-80"], ["NVIDIA H100 80GB HBM3"]):
        answer = kvcli("devices", *words)
        assert answer.code == 0
        for figure in ("80 GB", "79.647 GiB = 85,520,809,984 B", "79.14-79.25", "79.140 GiB", "989.5 TFLOP/s", "450 GB/s"):
            assert figure in answer.out
    assert document(kvcli("devices", "show", "h200-sxm", "--mig", "1g.18gb", "--json"))["device"]["usable_bytes"] == 2**34


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show"], 2, "needs a name"),
        (["match"], 2, "needs a name"),
        (["--vendor", "acme"], 2, "amd, apple"),
        (["--class", "gpu"], 2, "datacenter"),
        (["--min-memory", "40"], 2, "size with a unit"),
        (["--json", "--csv"], 2, "exclude"),
        (["show", "l4", "--vendor", "nvidia"], 2, "for the list"),
        (["show", "l4", "--memory", "1GiB"], 2, "goes with match"),
        (["--memory", "1GiB"], 2, "need a device"),
        (["--measure", "l4"], 2, "no words"),
        (["show", "local"], 3, "--measure"),
    ],
)
def test_errors_say_what_to_type(kvcli, tmp_path, arguments, code, says):
    answer = kvcli("devices", *arguments, env={"KVCLI_HOME": str(tmp_path)})
    assert (answer.code, answer.out if "--json" not in arguments else "") == (code, "")
    assert says in answer.err
    assert "Traceback" not in answer.err


def plan(kvcli, *arguments, **more):
    return kvcli("plan", "llama3-8b", "--ctx", "8k", *arguments, **more)


def test_a_slice(kvcli):
    answer = document(plan(kvcli, "--device", "a100-sxm4-80", "--mig", "3g.40gb", "--json"))
    assert answer["device"]["name"] == "a100-sxm4-80 3/7 (3g.40gb)"
    assert answer["device"]["memory_bandwidth_bytes_per_s"] == 2039e9 / 2
    assert answer["memory"]["usable_bytes"] == 39.25 * 2**30
    # weights and cache, less the slice's half of the cache, at half the bandwidth
    moved = answer["weights"]["read_bytes_per_step"] + answer["kv_cache"]["read_bytes_per_step"] - 20 * 2**20
    assert answer["latency"]["decode_step_floor_s"] == pytest.approx(moved / (2039e9 / 2))
    error = document(plan(kvcli, "--device", "h100-sxm5-80", "--mig", "3g.20gb", "--json"))["error"]
    assert error["code"] == "unknown_mig_profile" and "1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb" in error["hint"]
    assert plan(kvcli, "--mig", "3g.40gb").code == 2


def test_figures_of_the_user(kvcli):
    answer = document(plan(kvcli, "--bandwidth", "3.35TB/s", "--memory", "80GiB", "--json"))
    assert answer["device"] == {
        "name": "custom",
        "count": 1,
        "memory_bytes": 80 * 2**30,
        "memory_bandwidth_bytes_per_s": 3.35e12,
        "basis": "user (bandwidth and memory)",
    }
    moved = answer["weights"]["read_bytes_per_step"] + answer["kv_cache"]["read_bytes_per_step"]
    # nothing is said of its cache, which may be as large as the largest known
    assert answer["latency"]["decode_step_floor_s"] == pytest.approx((moved - 408 * 2**20) / 3.35e12)
    over = document(plan(kvcli, "--device", "rtx4090", "--bandwidth", "1152GB/s", "--json"))
    assert over["device"]["basis"].startswith("user (bandwidth); else constant (")
    stock = document(plan(kvcli, "--device", "rtx4090", "--json"))
    assert over["latency"]["decode_step_floor_s"] < stock["latency"]["decode_step_floor_s"]
    assert over["memory"]["usable_bytes"] == stock["memory"]["usable_bytes"]
    only = document(plan(kvcli, "--memory", "12GiB", "--json"))
    assert (only["memory"]["fits"], only["latency"]) == (False, None)
    assert only["device"]["memory_bandwidth_bytes_per_s"] is None
    assert "no_bandwidth_bound" in [warning["code"] for warning in only["warnings"]]
    assert "size with a unit" in plan(kvcli, "--memory", "80").err


def test_a_file_of_parts(kvcli, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("id,name,memory,bandwidth\nbox-1,Box one,80GiB,3.35TB/s\nbox-2,Box two,24GB,936GB/s\n")
    both = document(plan(kvcli, "--device-file", str(path), "--json"))["plans"]
    assert [each["device"]["name"] for each in both] == ["box-1", "box-2"]
    one = document(plan(kvcli, "--device-file", str(path), "--device", "box-2", "--json"))
    assert (one["device"]["memory_bytes"], one["device"]["basis"]) == (24 * 10**9, "user (mine.csv)")
    path.write_text("id,name,memory,bandwidth\nbox-1,Box one,80,3.35TB/s\n")
    answer = plan(kvcli, "--device-file", str(path))
    assert answer.code == 2 and f"{path} line 2" in answer.err


def test_this_machines_processor(kvcli, tmp_path):
    """Without a bound there is memory but no floor; a measured rate makes an estimate with its date, never a floor."""
    home = {"KVCLI_HOME": str(tmp_path)}
    bare = document(plan(kvcli, "--device", "cpu", "--json", env=home))
    assert bare["latency"] is None and bare["memory"]["usable_bytes"] > 0
    assert plan(kvcli, "--device", "local", env=home).code == 3
    pytest.importorskip("torch", reason="measuring needs the extra `run`")
    measured = document(kvcli("devices", "--measure", "--json", env=home))["device"]
    assert measured["bandwidth_measured_bytes_per_s"] > 1e8 and measured["bandwidth_bound_bytes_per_s"] is None
    local = document(plan(kvcli, "--device", "local", "--json", env=home))
    assert local["device"]["basis"].startswith("measured 2")
    assert local["latency"] is None
    note = next(each["message"] for each in local["warnings"] if each["code"] == "no_bandwidth_bound")
    assert "an estimate of a decode step" in note and "measured on 2" in note
    bounded = document(plan(kvcli, "--device", "local", "--bandwidth", "51.2GB/s", "--json", env=home))
    assert bounded["latency"]["decode_step_floor_s"] > 0.2
    for form in ([], ["--explain"], ["--csv"], ["--md"], ["--ctx", "4k,8k"]):
        assert plan(kvcli, "--device", "cpu", *form, env=home).code == 0
    (kept,) = os.listdir(tmp_path / "measured")
    assert kept.startswith("cpu-") and kept.endswith(".json")
