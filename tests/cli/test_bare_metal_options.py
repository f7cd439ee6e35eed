"""Options of `ibert compile` that are for microcontrollers, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.targets.bare_metal.document import DOCUMENT
from ibert_tvm.targets.bare_metal.options import parse_memory
from tests.arm.tools import needs
from tests.commands import Ibert, Refused
from tests.small_package import small_package


def test_amounts_of_memory() -> None:
    for text in ("192K", "192k", "192KB", "192 KiB", "196608", "196608B"):
        assert parse_memory("--ram", text) == 192 * 1024
    assert parse_memory("--ram", "1M") == parse_memory("--ram", "1MiB") == 2**20


@pytest.mark.parametrize(
    "words",
    [
        *("--flash=1G", "--flash=192Kb/s", "--flash=1.5M", "--flash=-1K", "--flash=", "--flash=K"),
        *("--flash=0K", "--target=rpi4 --flash=1M --ram=64K", "--emit=rust"),
    ],
)
def test_what_microcontrollers_do_not_take(
    refused: Refused, artefact: Path, tmp_path: Path, words: str
) -> None:
    from ibert_tvm.targets import get_target, target_names

    bare = [n for n in target_names()[1:] if get_target(n).system == "bare-metal"]
    command = ("compile", artefact, "-o", tmp_path / "out", "--target", "cortex-m4")
    refused(*command, "--seq-len", "16", *words.split(), boards=", ".join(bare))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_else_is_overwritten(
    refused: Refused, artefact: Path, tmp_path: Path, kind: str
) -> None:
    needs("arm-none-eabi-gcc")
    output = tmp_path / "out"
    kept = output / "thesis.tex" if kind == "folder" else output
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    refused("compile", artefact, "-o", output, "--target", "cortex-m4", "--seq-len", "16")
    assert kept.read_text() == "years of work"


def test_a_missing_compiler_names_its_package(
    ibert: Ibert, artefact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "out", "--target", "cortex-m4", "--seq-len", "16"
    )
    assert outcome.code == 4
    assert "apt-get install gcc-arm-none-eabi" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(refused: Refused, artefact: Path, tmp_path: Path) -> None:
    output = tmp_path / "absent" / "out"
    refused("compile", artefact, "-o", output, "--target", "cortex-m4", "--seq-len", "16")


def test_inspect_shows_a_package(ibert: Ibert, tmp_path: Path) -> None:
    folder = small_package(tmp_path / "package")
    outcome = ibert("inspect", folder)
    assert outcome.code == 0, outcome.stderr
    words = " ".join(outcome.stdout.split())
    for part in (
        "target cortex-m4",
        "names begin with tiny",
        "shapes 1x8 (batch x tokens)",
        "inputs input_ids, attention_mask",
        "flash 10 bytes: 5 weights, 3 code, 2 constants",
        "RAM 9 bytes: 6 arena, 3 stack at most; the arena is fullest in encoder.0",
        "checked 1234 instructions, none of floating point",
    ):
        assert part in words
    assert ibert("inspect", folder, "--json").document["prefix"] == "tiny"


def test_inspect_refuses_a_package_with_another_document(
    ibert: Ibert, refused: Refused, tmp_path: Path
) -> None:
    folder = small_package(tmp_path / "package", memory=[])
    refused("inspect", folder)
    (folder / "more").write_text("x")
    (folder / DOCUMENT).write_text("{}")
    assert ibert("inspect", folder).code == 3
