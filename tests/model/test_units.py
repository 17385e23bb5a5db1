"""Quantities: what is read, what is refused, how amounts print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcli.errors import BadInput
from kvcli.units import MAX_COUNT, format_bytes, format_seconds, format_tokens, parse_count, parse_counts


@pytest.mark.parametrize(
    ("text", "value"),
    [("32768", 32768), ("32k", 32768), ("32K", 32768), ("128k", 131072), ("1M", 1048576), ("1.5k", 1536), ("131_072", 131072), ("1", 1)],
)
def test_counts_are_binary_thousands(text, value):
    assert parse_count(text, "--ctx") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "32 k b", "1e6", "32kb", "0.3", "1.0001k", "nan", "inf", "٣", "1" * 5000, "9" * 15 + "M"])
def test_anything_else_is_one_sentence(text):
    with pytest.raises(BadInput) as caught:
        parse_count(text, "--ctx")
    assert caught.value.message.startswith("--ctx")
    assert len(caught.value.message) < 160


def test_the_largest_count():
    assert parse_count(str(MAX_COUNT), "--ctx") == MAX_COUNT
    with pytest.raises(BadInput, match="largest"):
        parse_count(str(MAX_COUNT + 1), "--ctx")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4k", [4096]),
        ("4k,32k", [4096, 32768]),
        ("1..4", [1, 2, 3, 4]),
        ("4k..128k*2", [4096, 8192, 16384, 32768, 65536, 131072]),
        ("1..16+5", [1, 6, 11, 16]),
        ("1,1,2", [1, 2]),
        ("1,4..6,9", [1, 4, 5, 6, 9]),
    ],
)
def test_sweeps(text, values):
    assert parse_counts(text, "--ctx") == values


@pytest.mark.parametrize("text", ["4..1", "1..8*1", "1..", "..8", "1...8", "1..8+", "1..9999999", "1,,2", "a..b", "1..2..3"])
def test_bad_sweeps(text):
    with pytest.raises(BadInput):
        parse_counts(text, "--batch")


@given(st.text(max_size=30))
def test_no_text_gives_another_error(text):
    try:
        values = parse_counts(text, "--ctx")
    except BadInput:
        return
    assert values
    assert all(1 <= value <= MAX_COUNT for value in values)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (576, "576 B"), (1024, "1.000 KiB"), (2**32, "4.000 GiB"), (-(50 * 2**20), "-50.000 MiB"), (812 * 2**30, "812.0 GiB")],
)
def test_memory_prints_binary(amount, text):
    assert format_bytes(amount) == text


def test_times_and_tokens():
    assert format_seconds(0.0057626) == "5.763 ms"
    assert format_seconds(12.5) == "12.50 s"
    assert format_seconds(3e-5) == "30.00 us"
    assert format_tokens(32768) == "32,768 (32k)"
    assert format_tokens(128000) == "128,000 (125k)"
    assert format_tokens(1000) == "1,000"
    assert format_tokens(10 * 2**20) == "10,485,760 (10240k)"
    assert format_tokens(10**12) == "1,000,000,000,000"  # 976562500k says nothing to anyone
