"""Tables: as wide as they may be, and no text lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.cli.tables import Table, record_table, width
from ibert_tvm.common.terminal import printable
from tests.commands import Ibert

_LONG = "bert.encoder.layer.0.attention.self.query"


def test_cells_go_on_in_the_next_line() -> None:
    table = Table(("value", "operator"), [(_LONG, "linear with [brackets]"), ("b", "add")])
    assert table.lines(50) == [
        "value                       operator",
        "bert.encoder.layer.0.atten  linear with [brackets]",
        "tion.self.query",
        "b                           add",
    ]


@pytest.mark.parametrize(
    "text", ["Straße, 你好, שלום, 👩\u200d👩\u200d👧\tand\nmore", "[brackets] \\x1b", ""]
)
def test_plain_text_is_printed_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_a_narrow_table_has_no_white_space_at_its_ends() -> None:
    assert Table((), [("a", "b"), ("longer", "")]).lines(80) == ["a       b", "longer"]
    assert Table((), [("a",), ("b", "c")]).lines(80) == ["a", "b  c"]


def test_numbers_in_about_four_digits() -> None:
    values = [0.01234, 9.8765, 12.345, 123.45, 12345.6]
    table = record_table((("n", "n", "short"),), [{"n": value} for value in values])
    assert [row[0] for row in table.rows] == ["0.012", "9.877", "12.35", "123.5", "12346"]


def test_missing_values_are_dashes() -> None:
    table = record_table((("ms", "ms", ".3f"), ("layer", "layer", "")), [{"ms": None, "layer": ""}])
    assert table.lines(80) == ["ms  layer", "-"]


@pytest.mark.parametrize(("columns", "expected"), [("132", 132), ("10", 40), ("", 80), ("x", 80)])
def test_width(monkeypatch: pytest.MonkeyPatch, columns: str, expected: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.__stdout__", None)  # a pipe has no width
    assert width() == expected


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["80", "132"])
def test_commands_fit(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch, library: Path, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    bench = ("bench", library, "--seconds", "0", "--threads", "1", "--per-layer")
    for words in (("targets",), ("doctor",), ("doctor", "-v"), ("inspect", library, "-v"), bench):
        lines = ibert(*words).stdout.splitlines()
        if words is bench:
            del lines[0]  # a sentence with the file and the machine
        assert max(map(len, lines)) <= int(columns), words


def test_tables_of_long_names_fit() -> None:
    """Those of `tune` and `bench`, with the longest names and numbers that there are."""
    from ibert_tvm.cli import bench, tune

    row = {
        "kind": "attention_context",
        "layer": f"{_LONG}, {_LONG}",
        **dict.fromkeys(("calls", "space", "trials", "new", "failed"), 1200),
        **dict.fromkeys(("default_ms", "best_ms"), 1234.5),
        "faster": "1.23x",
        "tile": "rows=16 vectors=4 unroll=2",
    }
    for columns in (tune._COLUMNS, tune._DETAILS):
        lines = record_table(columns, [row]).lines(80)
        assert max(map(len, lines)) <= 80
        assert all(
            number in "".join(lines)
            for number in ("1200", "1234" if columns is tune._COLUMNS else "rows=16")
        )
    measured = {
        **dict.fromkeys((key for _, key, form in bench._COLUMNS if form), 1234),
        "shape": "32x512",
        "tokens_per_second": 123456,
        "real_tokens": 0.5,
        "of_ceiling": 0.5,
        "gmacs": 1234.5,
    }
    lines = record_table(bench._COLUMNS, [measured]).lines(80)
    assert len(lines) == 2 and max(map(len, lines)) <= 80
