"""How a table finds room, held against figures counted by hand."""

import random

from kvcli.report.layout import blocks
from kvcli.report.table import Column

COLUMNS = [Column("name", right=False, key=True), Column("cache needed"), Column("decode floor")]
ROWS = [["abcd", "1.000 GiB", "10.00 ms"], ["ab", "20.500 GiB", "900.0 us"]]
# wide: 4 + 12 + 12 + 2 * 3 = 34; folded: 4 + 10 + 8 + 6 = 28; gap of 2: 26; unit in the title: 4 + 6 + 8 + 4 = 22


def shape(room, columns=COLUMNS, rows=ROWS):
    return [(block.titles, block.widths, block.gap) for block in blocks(columns, rows, room)]


def test_styles_from_the_widest_to_the_narrowest():
    assert shape(34) == [(["name", "cache needed", "decode floor"], [4, 12, 12], 3)]
    assert shape(33) == [(["\nname", "cache\nneeded", "decode\nfloor"], [4, 10, 8], 3)]
    assert shape(28) == shape(33)
    assert shape(27) == [(["\nname", "cache\nneeded", "decode\nfloor"], [4, 10, 8], 2)]
    assert shape(26) == shape(27)
    assert shape(25) == [(["\n\nname", "cache\nneeded\nGiB", "\ndecode\nfloor"], [4, 6, 8], 2)]
    assert shape(22) == shape(25)
    assert blocks(COLUMNS, ROWS, 22)[0].rows == [["abcd", "1.000", "10.00 ms"], ["ab", "20.500", "900.0 us"]]


def test_blocks_repeat_the_key_and_take_the_widest_style_that_needs_no_more_of_them():
    assert shape(21) == [(["name", "cache needed"], [4, 12], 3), (["name", "decode floor"], [4, 12], 3)]
    assert shape(18) == [(["\nname", "cache\nneeded"], [4, 10], 3), (["\nname", "decode\nfloor"], [4, 8], 3)]


def test_rows_are_numbered_where_their_names_leave_no_room():
    titles = [block.titles for block in blocks(COLUMNS, ROWS, 13)]
    assert [[title.strip() for title in each] for each in titles] == [["#", "name"], ["#", "cache\nneeded"], ["#", "decode\nfloor"]]
    assert [block.rows[1][0] for block in blocks(COLUMNS, ROWS, 13)] == ["2", "2", "2"]


def test_a_unit_moves_only_where_all_cells_have_it():
    mixed = [["abcd", "1.000 GiB", "10.00 ms"], ["ab", "20.50 MiB", "1.000 ms"]]
    (block,) = blocks(COLUMNS, mixed, 23)
    assert block.titles[1:] == ["\ncache\nneeded", "decode\nfloor\nms"]
    words = [["abcd", "about GiB", "10.00 ms"], ["ab", "20.50 GiB", ""]]
    (block,) = blocks(COLUMNS, words, 24)
    assert [title.split("\n")[-1] for title in block.titles[1:]] == ["needed", "ms"]
    assert [row[2] for row in block.rows] == ["10.00", ""]


def test_only_sentences_fold():
    rows = [["x", "a" * 30, "one two three four five six seven"]]
    columns = [Column("k"), Column("word", right=False), Column("said", right=False)]
    (block,) = blocks(columns, rows, 62)
    assert block.folds == [False, False, True]
    assert block.widths == [1, 30, 24]


def test_any_table_fits_where_its_names_do_and_keeps_every_cell():
    chance = random.Random(7)
    for _ in range(300):
        columns = [Column("word " * chance.randint(1, 3), right=chance.random() < 0.7, key=n < 2) for n in range(chance.randint(2, 14))]
        rows = [[f"{chance.randint(0, 10**9):,}"[: chance.randint(1, 12)] for _ in columns] for _ in range(chance.randint(1, 5))]
        made = blocks(columns, rows, 40)
        assert all(block.least_width <= 40 for block in made)
        assert all(len(cell) <= width for block in made for row in block.rows for cell, width in zip(row, block.widths, strict=True))
        keys = made[0].titles[:2] if len(made) > 1 else []
        shown = sum(len(block.titles) - len(keys) for block in made) + len(keys)
        assert shown == len(columns)


def test_a_ledger_keeps_its_names_however_narrow_it_is():
    columns = [Column("", right=False), Column("at least"), Column("at most"), Column("from", right=False)]
    rows = [
        ["context and libraries", "51.200 MiB", "481.3 MiB", "logs of an engine, by its width"],
        ["  read by each step", "1.000 GiB", "", "rule"],
    ]
    made = blocks(columns, rows, 40)
    # 12 + 2 blanks leave 26: 10 + 2 + 9 = 21, and a sentence needs 24
    assert [block.titles for block in made] == [["", "at least", "at most"], ["", "from"]]
    assert all(block.least_width <= 40 for block in made)
    assert [block.rows[0][0] for block in made] == ["context and\nlibraries"] * 2
    assert made[0].rows[1][0] == "  read by\n  each step"
    long = [["a-name-that-has-no-blank-and-is-longer-than-the-room", "1.000 GiB", "2.000 GiB", "x"]]
    assert [block.rows[0][0] for block in blocks(columns, long, 40)] == [long[0][0]] * len(blocks(columns, long, 40))
