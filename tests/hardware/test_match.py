"""Names: exact first, then the same words spelt otherwise and memory; ambiguity asks."""

import pytest

from kvcli.errors import BadInput
from kvcli.hardware.match import candidates, one, similar, words

GIB = 2**30
#: Names that contain a part's name and are another part: laptop, virtual and export versions.
OTHER_PARTS = ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A40-48Q", "NVIDIA A10M", "NVIDIA H100 80GB HBM2e", "NVIDIA L40G"]


@pytest.mark.parametrize(
    ("name", "part_id"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80"),  # no SXM in its name
        ("nvidia h100 80gb hbm3", "h100-sxm5-80"),
        ("H100 80 GB HBM3", "h100-sxm5-80"),
        ("NVIDIA H100 PCIe", "h100-pcie-80"),
        ("NVIDIA H100 NVL", "h100-nvl-94"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40"),
        ("A100-SXM4-80GB", "a100-sxm4-80"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96"),
        ("NVIDIA GH200 120GB", "gh200-96"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 5090 D", "rtx5090d"),
        ("NVIDIA GeForce RTX 5090 D v2", "rtx5090d-v2"),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "strix-halo"),
        ("Apple M4 Pro", "m4-pro"),
    ],
)
def test_a_name_is_one_part(name, part_id):
    assert one(name).id == part_id


@pytest.mark.parametrize(
    ("name", "memory_gib", "part_id"),
    [
        ("NVIDIA Thor", 122, "thor-t5000"),
        ("NVIDIA Thor", 61, "thor-t4000"),
        ("Orin", 61, "orin-agx-64"),
        ("Orin", 15.3, "orin-nx-16"),
        ("Orin", 7.4, "orin-nano-super"),
        ("NVIDIA GeForce RTX 3080", 12, "rtx3080-12"),
        ("NVIDIA GeForce RTX 3080", 10, "rtx3080-10"),
        ("NVIDIA GeForce RTX 4060 Ti", 8, "rtx4060ti-8"),
        ("NVIDIA A10", 24, "a10"),  # error correction off
        ("Apple M4 Pro", 48, "m4-pro"),  # sold with any amount
    ],
)
def test_memory_tells_parts_of_one_name_apart(name, memory_gib, part_id):
    assert one(name, int(memory_gib * GIB)).id == part_id


@pytest.mark.parametrize(
    "name", ["NVIDIA Thor", "Orin", "Apple M3 Max", "NVIDIA GeForce RTX 3080", "nvidia geforce rtx 4060 ti", "GeForce RTX 5060 Ti"]
)
def test_a_shared_name_asks(name):
    with pytest.raises(BadInput, match="several") as caught:
        one(name)
    assert caught.value.code == "ambiguous_device"
    assert len(candidates(name)) > 1


@pytest.mark.parametrize(
    "name", ["H100", "NVIDIA A100", "4090", "RTX", "H100 SXM", "A100 80GB", "GH200", "Thor 2", "", " ", "graphics", *OTHER_PARTS]
)
def test_a_piece_of_a_name_is_no_match(name):
    with pytest.raises(BadInput) as caught:
        one(name)
    assert caught.value.code == "unknown_device"


def test_a_miss_names_all_that_may_be_meant():
    assert {part.id for part in similar("A100 80GB")} >= {"a100-pcie-80", "a100-sxm4-80"}
    assert {part.id for part in similar("h200")} == {"h200-sxm", "h200-nvl"}
    assert "rtx4090" in [part.id for part in similar("rtx4900")]


def test_memory_that_contradicts_the_name_is_no_match():
    with pytest.raises(BadInput, match=r"and has 40\.0 GiB") as caught:
        one("NVIDIA H100 80GB HBM3", 40 * GIB)
    assert caught.value.code == "unknown_device"


def test_words():
    assert words("NVIDIA A100-SXM4-80GB") == words("a100 sxm4 80 GB") == {"a100", "sxm4", "80gb"}
    assert words("NVIDIA A10") != words("NVIDIA A10G")
