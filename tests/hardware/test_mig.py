"""MIG slices against NVIDIA's user guide and what users of slices saw."""

from fractions import Fraction

import pytest

from kvcli.errors import BadInput
from kvcli.hardware.match import find, one
from kvcli.hardware.mig import instance, profiles

#: MIG user guide (v580), GPU instance profiles: part -> profiles
GUIDE = {
    "a30": "1g.6gb 2g.12gb 4g.24gb",
    "a100-sxm4-40": "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "a100-pcie-80": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100-sxm5-80": "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "h100-nvl-94": "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    "gh200-96": "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "h200-sxm": "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "rtxpro6000-server": "1g.24gb 2g.48gb 4g.96gb",
    "rtxpro5000-48": "1g.12gb 2g.24gb 4g.48gb",
    "b200": "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
}


@pytest.mark.parametrize(("part_id", "names"), GUIDE.items())
def test_profiles_of_the_guide(part_id, names):
    assert [each.name for each in profiles() if each.part == part_id] == names.split()


@pytest.mark.parametrize("each", profiles(), ids=lambda each: f"{each.part}-{each.name}")
def test_a_slice_is_less_than_its_part_and_more_than_nothing(each):
    whole = find(each.part)
    part = instance(whole, each.name)
    assert 0 < part.usable_bytes <= part.memory_bytes <= whole.memory_bytes
    slices = int(each.name.partition("g")[0])
    assert each.compute == Fraction(slices, 4 if each.part.startswith(("a30", "rtxpro")) else 7)
    # the label in the name is decimal or binary, and the driver gives a little less
    label = int(each.name.partition(".")[2].removesuffix("gb"))
    assert 0.85 * label * 1e9 <= part.memory_bytes <= label * 2**30
    assert part.bandwidth_bytes_per_s == pytest.approx(float(each.memory) * whole.bandwidth_bytes_per_s)
    assert part.bandwidth_bound_bytes_per_s >= part.bandwidth_bytes_per_s
    assert part.last_level_cache_bytes == int(each.cache * whole.last_level_cache_bytes)
    for unit, rate in part.peak_flops:
        assert rate <= whole.peak(unit)
        # seven slices of a part never compute more than the part, at its highest clock
        assert part.peak_bound(unit) <= whole.peak_bound(unit) * 1.0001


def test_a_slice_whose_multiprocessors_nobody_counted_is_bounded_by_one_slice_more():
    whole, part = find("b200"), instance(find("b200"), "3g.90gb")
    assert part.peak("bf16") == pytest.approx(whole.peak("bf16") * 3 / 7)
    assert part.peak_bound("bf16") == pytest.approx(whole.peak_bound("bf16") * 4 / 7)


def test_a_slice_by_hand():
    """3g.40gb of an A100: half the memory's bandwidth and cache, 42 of 108 multiprocessors, 39.25 GiB."""
    part = instance(find("a100-sxm4-80"), "3g.40gb")
    assert part.id == "a100-sxm4-80 3/7 (3g.40gb)"
    assert part.bandwidth_bytes_per_s == 2039e9 / 2
    assert part.peak("bf16") == pytest.approx(312e12 * 42 / 108)
    assert part.last_level_cache_bytes == 20 * 2**20
    assert part.usable_bytes == 39.25 * 2**30
    assert instance(find("h100-sxm5-80"), "1g.10gb").id == "h100-sxm5-80 1/7 (1g.10gb)"


@pytest.mark.parametrize(
    ("name", "part_id", "gib"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-sxm4-40 1/7 (1g.5gb)", 4.75),
        ("NVIDIA H200 MIG 1g.18gb", "h200-sxm 1/7 (1g.18gb)", 16.0),  # users see 16.00 GiB and 16 multiprocessors
        ("NVIDIA B200 MIG 1g.23gb", "b200 1/7 (1g.23gb)", 20.5),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "h100-sxm5-80 1/7 (1g.10gb)", 9.75),
    ],
)
def test_a_slice_is_known_by_the_name_it_reports(name, part_id, gib):
    part = one(name)
    assert (part.id, part.usable_bytes) == (part_id, gib * 2**30)


def test_the_h200_slice_that_users_measured():
    """60 of 132 multiprocessors, more than 3/7; torch sees 69.8 GiB, more than the tenth less that is assumed unseen."""
    part = instance(find("h200-sxm"), "3g.71gb")
    assert part.peak("bf16") == pytest.approx(989.5e12 * 60 / 132)
    assert 63 * 2**30 < part.usable_bytes <= 69.8 * 2**30


@pytest.mark.parametrize(("part_id", "profile", "code"), [("h100-sxm5-80", "9g.1gb", "unknown_mig_profile"), ("t4", "1g.5gb", "no_mig")])
def test_an_unknown_profile_lists_those_there_are(part_id, profile, code):
    with pytest.raises(BadInput) as caught:
        instance(find(part_id), profile)
    assert caught.value.code == code
    assert "1g.10gb" in caught.value.hint or "a100-sxm4-80" in caught.value.hint
