"""The table of parts: exact look-up, four capacities, and the mistakes other tables make."""

import pytest

from kvcli.errors import BadInput, CannotRunHere
from kvcli.hardware import local
from kvcli.hardware.accelerators import GIB, by_driver_name, table
from kvcli.hardware.match import find


def test_ids_are_unique_and_every_row_has_a_source():
    parts = table()
    assert len(parts) >= 170
    assert len({part.id for part in parts}) == len(parts)
    for part in parts:
        assert part.source, part.id
        assert part.confidence in ("high", "medium", "low"), part.id
        assert part.bandwidth_bound_bytes_per_s >= part.bandwidth_bytes_per_s > 0, part.id
        assert part.usable_bytes is None or 0 < part.usable_bytes <= (part.memory_bytes or 0), part.id


def test_the_exact_driver_name_finds_the_part():
    assert find("NVIDIA H100 80GB HBM3").id == "h100-sxm5-80"
    assert find("NVIDIA H100 80GB HBM3").bandwidth_bytes_per_s == 3.35e12
    assert find("NVIDIA A10G").id != find("NVIDIA A10").id
    assert find("H100-SXM5-80").id == "h100-sxm5-80"


@pytest.mark.parametrize("text", ["h100", "NVIDIA H100", "H100 SXM", "a100", "4090", "", "NVIDIA"])
def test_a_piece_of_a_name_is_not_enough(text):
    with pytest.raises(BadInput) as caught:
        find(text)
    assert caught.value.code == "unknown_device"


def test_a_miss_lists_the_nearest_and_an_ambiguity_all():
    with pytest.raises(BadInput) as caught:
        find("h100")
    assert "h100-sxm5-80" in caught.value.hint
    assert len(by_driver_name("NVIDIA Thor")) > 1
    with pytest.raises(BadInput, match="several") as caught:
        find("NVIDIA Thor")
    assert caught.value.code == "ambiguous_device"


def test_label_driver_total_and_context_are_three_numbers():
    h100 = find("h100-sxm5-80")
    assert h100.memory_bytes == 81559 * 2**20
    assert h100.usable_bytes == int(79.14 * GIB)
    assert find("a30").usable_bytes == find("a30").memory_bytes - int(0.7 * GIB)
    assert find("cpu-ddr5-5600-2").usable_bytes is None


def test_dense_peaks():
    assert find("h100-sxm5-80").peak("bf16", "fp16") == 989.5e12  # the sheet's 1,979 is with sparsity
    assert find("l4").bandwidth_bytes_per_s == 300e9
    assert find("t4").peak("bf16") == 0
    assert find("t4").peak("bf16", "fp16") == 65e12


def test_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "local_gpus", list)
    monkeypatch.setenv("KVCLI_HOME", str(tmp_path))
    with pytest.raises(CannotRunHere, match="no GPU"):
        local.local_part()


def test_a_local_gpu_is_matched_by_exact_name_and_memory():
    assert local.match("NVIDIA H100 80GB HBM3", 0).id == "h100-sxm5-80"
    assert local.match("NVIDIA H100 99GB", 10**11) is None
    several = by_driver_name("NVIDIA Thor")
    assert local.match("NVIDIA Thor", 0) is None
    assert local.match("NVIDIA Thor", several[0].memory_bytes).id == several[0].id
