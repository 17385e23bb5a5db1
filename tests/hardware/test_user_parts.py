"""Parts that a user describes: sizes and rates with units, files with lines, overrides."""

import pytest

from kvcli.errors import BadInput
from kvcli.hardware.match import find
from kvcli.hardware.user_parts import custom, override, read
from kvcli.units import parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80 gb", 80 * 10**9),
        ("80gib", 80 * 2**30),
        ("1.5TiB", 3 * 2**39),
        ("24.05GiB", 25823490867),
        ("512MiB", 2**29),
        ("4096 B", 4096),
        ("1_000kB", 10**6),
    ],
)
def test_a_size_has_a_unit(text, size):
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["80", "80G", "80Gb", "80Gib", "GiB", "-1GiB", "0GiB", "1e3GiB", "nan", "", "80GiB/s", "9999EiB"])
def test_what_is_no_size(text):
    with pytest.raises(BadInput, match="not a size with a unit") as caught:
        parse_size(text, "--memory")
    assert caught.value.code == "bad_size"


def test_a_rate_has_a_unit():
    assert parse_rate("3.35TB/s", "--bandwidth") == 3.35e12
    assert parse_rate("936 GB/s", "--bandwidth") == 936e9
    assert parse_rate("87GiB/s", "--bandwidth") == 87 * 2**30
    for text in ("3350", "3350GB", "3350Gb/s", "3350 GB/h", "/s", ""):
        with pytest.raises(BadInput, match="not a rate with a unit"):
            parse_rate(text, "--bandwidth")


def test_an_override_says_what_it_replaced():
    part = override(find("l4"), 1e11, 2**34)
    assert (part.bandwidth_bytes_per_s, part.bandwidth_bound_bytes_per_s) == (1e11, 1e11)
    assert (part.memory_bytes, part.usable_bytes) == (2**34, 2**34)
    assert part.basis.startswith("user (bandwidth and memory); else constant (")
    assert part.peak("bf16") == find("l4").peak("bf16")
    only = override(find("l4"), None, 2**34)
    assert only.bandwidth_bytes_per_s == 300e9
    assert only.basis.startswith("user (memory)")
    assert override(find("l4"), None, None) == find("l4")


def test_a_device_of_which_only_this_is_known():
    part = custom(3.35e12, 80 * 2**30)
    assert (part.id, part.basis, part.usable_bytes) == ("custom", "user (bandwidth and memory)", 80 * 2**30)
    assert part.peak("bf16", "fp16") == 0
    assert custom(None, 2**30).bandwidth_bound_bytes_per_s == 0
    assert custom(1e12, None).usable_bytes is None


def write(tmp_path, text):
    path = tmp_path / "my.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_of_parts(tmp_path):
    parts = read(
        write(
            tmp_path,
            "id,name,memory,bandwidth,bf16_dense_tflops,last_level_cache_mb,notes\n"
            "box-1,Box one,80GiB,3.35TB/s,990,50,\n"
            'box-2,"Box, two",24GB,936 GB/s,,,lab\n',
        )
    )
    one, two = parts
    assert (one.id, one.memory_bytes, one.bandwidth_bytes_per_s, one.peak("bf16")) == ("box-1", 80 * 2**30, 3.35e12, 990e12)
    assert one.last_level_cache_bytes == 50 * 2**20
    assert (two.name, two.usable_bytes, two.basis) == ("Box, two", 24 * 10**9, "user (my.csv)")
    assert find("BOX-2", parts) == two
    assert find("l4", parts).id == "l4"


def test_a_users_part_goes_before_the_tables(tmp_path):
    parts = read(write(tmp_path, "id,name,mem_bytes_plan,mem_bw_gbs\nl4,my L4,1000000,111\n"))
    assert find("l4", parts).bandwidth_bytes_per_s == 111e9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: no column id, name, memory, bandwidth"),
        ("id,name,memory\n", "line 1: no column bandwidth"),
        ("id,name,memory,bandwidth\n", "no part below the first line"),
        ("id,name,memory,bandwidth\na,A,80,1TB/s\n", r"line 2: memory '80' is not a size"),
        ("id,name,memory,bandwidth\na,A,80GiB,1TB/s\n\nb,B,80GiB,1000\n", r"line 4: bandwidth '1000' is not a rate"),
        ("id,name,memory,bandwidth\na,A,80GiB,\n", "line 2: bandwidth is empty"),
        ("id,name,memory,bandwidth\na,A\n", "line 2: memory is empty"),
        ("id,name,memory,bandwidth\n,A,80GiB,1TB/s\n", "line 2: id is empty"),
        ("id,name,memory,bandwidth\na,A,1GiB,1TB/s\na,B,1GiB,1TB/s\n", "line 3: id 'a' is there twice"),
        ("id,name,memory,bandwidth,fp8_dense_tflops\na,A,1GiB,1TB/s,fast\n", "line 2: fp8_dense_tflops 'fast' is not a number"),
        ("id,name,memory,bandwidth,fp8_dense_tflops\na,A,1GiB,1TB/s,inf\n", "line 2: fp8_dense_tflops 'inf' is not a number"),
        ("id,name,mem_bytes_plan,mem_bw_gbs\na,A,nan,1\n", "line 2: mem_bytes_plan 'nan' is not a number"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, says):
    with pytest.raises(BadInput, match=says) as caught:
        read(write(tmp_path, text))
    assert "my.csv" in caught.value.message
    assert caught.value.code in ("bad_device_file", "bad_size", "bad_rate")


def test_files_that_are_none(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read(str(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not a UTF-8"):
        read(str(tmp_path / "bytes.csv"))
    with pytest.raises(BadInput, match="directory"):
        read(str(tmp_path))
    (tmp_path / "long.csv").write_text("id,name,memory,bandwidth\n" + "x" * 2**21)
    with pytest.raises(BadInput, match="1 MiB"):
        read(str(tmp_path / "long.csv"))
