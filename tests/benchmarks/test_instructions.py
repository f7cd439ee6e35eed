"""`benchmarks.instructions`: what libraries for AVX-512 execute, counted on an emulated PC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ibert_tvm as ibert
from benchmarks.instructions import main
from tests.arm.small_bert import small_bert
from tests.arm.tools import needs
from tests.pc.machine import EMULATOR


@pytest.mark.slow
def test_longer_texts_take_more_and_equal_libraries_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(EMULATOR)
    shapes = [(1, 5), (1, 20)]
    model = small_bert()
    path = ibert.compile(model, "x86-avx512-vnni", shapes, runtime="none").export(
        tmp_path / "model.so"
    )
    words = [f"one={path}", f"two={path}", "--shapes", "1x5,1x20"]
    assert main([*words, "--output", str(tmp_path / "result")]) == 0
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [row["shape"] for row in rows] == ["1x5", "1x20"]
    assert all(row["one"] == row["two"] for row in rows)
    assert 1.5 < rows[1]["one"] / rows[0]["one"] < 4
    assert f"{rows[0]['one']:,} (1.000)" in capsys.readouterr().out
    assert "| 1x20 |" in (tmp_path / "result.md").read_text()
    assert main([str(path), "--shapes", "1x7"]) == 1
    assert "of the library's interface" in capsys.readouterr().err


def test_what_is_no_library_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.so"), "--shapes", "1x8"]) == 1
    assert "cannot count" in capsys.readouterr().err
    (tmp_path / "text.so").write_text("no ELF")
    assert main([str(tmp_path / "text.so"), "--shapes", "1x8"]) == 1
    assert "cannot count" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["a.so", "--shapes", "8"])
    assert "is not BATCHxLENGTH" in capsys.readouterr().err


def test_columns_have_names_of_their_own_and_the_result_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["old/model.so", "new/model.so", "--shapes", "1x8"])
    assert "two columns have one name" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["model.so", "--shapes", "1x8", "--output", str(tmp_path / "no" / "result")])
    assert "there is no folder" in capsys.readouterr().err
