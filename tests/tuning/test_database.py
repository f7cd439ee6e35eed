"""The database of measurements: what it remembers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ibert_tvm.common.integrity import sealed
from ibert_tvm.schedules.tiles import LinearTile
from ibert_tvm.schedules.tuning import DatabaseError, Trial, TuningDatabase
from ibert_tvm.targets import get_target
from tests.snapshots import Messages

TARGET = get_target("x86-64")
DEFAULT = LinearTile(4, 2)


def trial(
    tile: LinearTile = DEFAULT, seconds: tuple[float, ...] = (2.0, 1.0), **more: str
) -> Trial:
    return Trial(
        key=more.get("key", "0" * 16),
        kind="linear",
        layer="encoder.0.fc",
        tile=tile,
        seconds=seconds,
        error=more.get("error", ""),
        board="this machine",
    )


def filled(folder: Path, *trials: Trial) -> TuningDatabase:
    database = TuningDatabase.create(folder, TARGET)
    with database.writing():
        for one in trials:
            database.append(one)
    return database


def _error(call: object, *arguments: object) -> str:
    with pytest.raises(DatabaseError) as caught:
        call(*arguments)  # type: ignore[operator]
    return str(caught.value)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    failed = trial(LinearTile(2, 4, unroll=2), (), error="wrong result")
    filled(tmp_path / "db", trial(), failed)
    again = TuningDatabase.open(tmp_path / "db", TARGET)
    assert again.trials == [trial(), failed]
    assert (again.target_name, again.dropped) == ("x86-64", False)
    assert again.of("0" * 16) == [trial(), failed]
    assert again.of("1" * 16) == []


def test_a_bit_of_a_line(tmp_path: Path) -> None:
    """Refused, or white space that became other white space."""
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "trials.jsonl"
    whole = file.read_bytes()
    for bit in range(0, 8 * (len(whole) - 1), 21):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            assert TuningDatabase.open(tmp_path / "db", TARGET).trials == [trial()]
        except DatabaseError as error:
            assert " is no trial: " in error.why


@pytest.mark.parametrize("line", ["[" * 100_000, "9" * 6000, "[]", "null", " " * 70_000])
def test_a_hostile_line(tmp_path: Path, line: str) -> None:
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "trials.jsonl"
    file.write_text(line + "\n")
    assert "line 1 is no trial: " in _error(TuningDatabase.open, tmp_path / "db", TARGET)


def test_a_hostile_description(tmp_path: Path) -> None:
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "database.json"
    about = json.loads(file.read_text())
    for text, why in (
        (json.dumps({**about, "name": "host"}), "its sha256 is not that of its content"),
        (json.dumps(sealed({**about, "target": []})), "target; it is []; an object is needed"),
        (json.dumps(sealed({**about, "target": {"gpu": 1}})), "target.gpu; it is 1; an object"),
        ("[" * 100_000, "arrays and objects are nested too deep"),
    ):
        file.write_text(text)
        assert f"  why: {why}" in _error(TuningDatabase.open, tmp_path / "db", TARGET)


def test_a_database_without_digests_is_still_read(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", trial())
    about = json.loads((tmp_path / "db" / "database.json").read_text())
    del about["sha256"]
    (tmp_path / "db" / "database.json").write_text(json.dumps({**about, "format": 1}))
    (tmp_path / "db" / "trials.jsonl").write_text(json.dumps(trial().to_json()) + "\n")
    database = TuningDatabase.open(tmp_path / "db", TARGET)
    with database.writing():
        database.append(trial())
    assert TuningDatabase.open(tmp_path / "db", TARGET).trials == [trial(), trial()]


def test_the_default_wins_unless_another_is_clearly_faster(tmp_path: Path) -> None:
    close, fast, failed = (LinearTile(2, 2, unroll=u) for u in (1, 2, 4))
    database = filled(tmp_path / "db", trial(), trial(close, (3.0, 0.99)))
    assert database.best("0" * 16, DEFAULT) == trial()
    assert database.best("0" * 16) == trial(close, (3.0, 0.99))
    with database.writing():
        database.append(trial(failed, (), error="not compiled"))
        database.append(trial(fast, (0.9, 5.0)))
    assert database.best("0" * 16, DEFAULT) == trial(fast, (0.9, 5.0))
    assert database.best("1" * 16, DEFAULT) is None


def test_only_failures_give_nothing(tmp_path: Path) -> None:
    database = filled(tmp_path / "db", trial(seconds=(), error="not compiled"))
    assert database.best("0" * 16, DEFAULT) is None


def test_another_target_is_refused(tmp_path: Path, messages: Messages) -> None:
    folder = tmp_path / "db"
    filled(folder, trial())
    with messages.raises(DatabaseError):
        TuningDatabase.open(folder, get_target("rpi4"))
    assert "is of another target" in _error(TuningDatabase.create, folder, get_target("rpi4"))


def test_no_database(tmp_path: Path, messages: Messages) -> None:
    folder = tmp_path / "nowhere"
    with messages.raises(DatabaseError):
        TuningDatabase.open(folder, TARGET)


def test_a_folder_of_something_else(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with messages.raises(DatabaseError):
        TuningDatabase.create(tmp_path, TARGET)


_DAMAGED = "  what to do: restore the file, remove the line, or give another folder to begin anew"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "{",
            "it is not readable JSON: Expecting property name enclosed in double quotes: line 1 ",
        ),
        ("[]", "it has format None; this version reads 2"),
        ('{"format": 9, "name": "", "target": {}}', "it has format 9; this version reads 2"),
    ],
)
def test_a_damaged_description(tmp_path: Path, text: str, why: str) -> None:
    filled(tmp_path / "db", trial())
    (tmp_path / "db" / "database.json").write_text(text, encoding="utf-8")
    message = _error(TuningDatabase.open, tmp_path / "db", TARGET)
    head = f"cannot read the tuning database\n  where: {tmp_path}/db/database.json\n  why: {why}"
    assert message.startswith(head)
    assert message.endswith(_DAMAGED)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tile": {"rows": 1}}, "the decisions on a kernel are whole numbers rows, vectors, "
         "row_block, column_block, rows_outermost, unroll, prefetch or score_rows, score_vectors, "
         "context_rows, context_vectors or block_rows, block_columns, warp_rows, warp_columns, "
         "warp_depths, stage_depth, stages or row_groups, key_groups, step_keys, steps, "
         "held, value_tile"),
        ({"seconds": []}, "a trial has positive seconds, or an error"),
        ({"seconds": [-1.0]}, "a trial has positive seconds, or an error"),
        ({"seconds": "soon"}, 'seconds; it is "soon"; a list is needed'),
        ({"seconds": [1e300]}, "seconds[0]; it is 1e+300; a number is needed"),
        ({"drop": "key"}, "the key 'key' is missing"),
    ],
)  # fmt: skip
def test_a_damaged_line(
    tmp_path: Path, change: dict[str, object], why: str, messages: Messages
) -> None:
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "trials.jsonl"
    document = {**trial().to_json(), **change}
    document.pop(str(document.pop("drop", "")), None)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(sealed(document)) + "\n")
    with messages.raises(DatabaseError):
        TuningDatabase.open(tmp_path / "db", TARGET)


def test_binary_rubbish(tmp_path: Path) -> None:
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "trials.jsonl"
    file.write_bytes(b"\xff\xfe\n" + file.read_bytes())
    assert "line 1 is no trial: " in _error(TuningDatabase.open, tmp_path / "db", TARGET)


def test_a_line_that_was_being_written_is_left_out(tmp_path: Path) -> None:
    filled(tmp_path / "db", trial())
    file = tmp_path / "db" / "trials.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    database = TuningDatabase.create(tmp_path / "db", TARGET)
    assert (database.trials, database.dropped) == ([trial()], True)
    second = trial(LinearTile(2, 2))
    with database.writing():
        database.append(second)
    again = TuningDatabase.open(tmp_path / "db", TARGET)
    assert (again.trials, again.dropped) == ([trial(), second], False)


def test_one_writer_at_a_time(tmp_path: Path, messages: Messages) -> None:
    database = TuningDatabase.create(tmp_path / "db", TARGET)
    with database.writing():
        second = TuningDatabase.create(tmp_path / "db", TARGET)
        with messages.raises(DatabaseError), second.writing():
            pass
    with TuningDatabase.create(tmp_path / "db", TARGET).writing():
        pass


def test_a_file_in_the_way(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "db").write_text("", encoding="utf-8")
    with messages.raises(DatabaseError):
        TuningDatabase.create(tmp_path / "db", TARGET)
