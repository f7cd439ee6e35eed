"""What commands refuse, before they begin: the messages are in ``errors.txt``."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.cli import options
from ibert_tvm.relay_passes.quantization_table import PRESETS
from ibert_tvm.relay_passes.spec.preset_names import PRESET_NAMES
from tests.commands import Ibert, Refused
from tests.runtime.conftest import TinyModel


def test_names_of_presets_are_those_of_their_records() -> None:
    assert tuple(preset.name for preset in PRESETS.values()) == PRESET_NAMES


def test_unknown_target_lists_the_known_ones(
    refused: Refused, artefact: Path, tmp_path: Path
) -> None:
    from ibert_tvm.targets import target_names

    words = ("compile", artefact, "-o", tmp_path / "m.so", "--target", "x86-64-v33")
    refused(*words, targets=", ".join(target_names()))


@pytest.mark.parametrize(
    "words",
    [("compile", "-o", "m.so"), ("tune", "--database", "d", "--trials", "1")],
    ids=lambda words: words[0],
)
def test_an_unknown_target_is_told_before_anything_of_the_model(
    refused: Refused, tmp_path: Path, words: tuple[str, ...]
) -> None:
    from ibert_tvm.targets import target_names

    command = (words[0], tmp_path / "nothing", *words[1:], "--target", "rpi5")
    refused(*command, targets=", ".join(target_names()))


@pytest.mark.slow_cases(14)
@pytest.mark.representatives(4)
@pytest.mark.parametrize("value", ["", "0", "-3", "12,", "a", "1.5", "8,x", "99999999", "٣"])
@pytest.mark.parametrize("option", ["--seq-len", "--batch"])
def test_bad_sizes(ibert: Ibert, artefact: Path, tmp_path: Path, option: str, value: str) -> None:
    outcome = ibert("compile", artefact, "-o", tmp_path / "m.so", f"{option}={value}")
    words = [word.strip() for word in value.split(",")]
    bad = next(w for w in words if not (w.isascii() and w.isdigit() and 0 < int(w) <= 65536))
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: bad value for {option}: {value!r}\n"
        f"  why: {bad!r} is not a whole number from 1 to 65536\n"
        f"  what to do: give one size or several with commas, for example {option} 32,128\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("quantize", "{tmp}", "-o", "{tmp}/m.ibert", "--seq-len", "8,16"),
        ("compile", "{artefact}", "-o", "{tmp}/m.so", "--seq-len", "8,17"),
        ("compile", "{artefact}", "-o", "{artefact}/model.json/m.so", "--seq-len", "8"),
        ("compile", "{tmp}/no.ibert", "-o", "{tmp}/m.so"),
        ("compile", "{artefact}", "-o", "{tmp}", "--seq-len", "8"),
    ],
    ids=lambda words: " ".join(words[1:]),
)
def test_places_and_sizes(
    refused: Refused, artefact: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    refused(*(word.format(tmp=tmp_path, artefact=artefact) for word in words))


@pytest.mark.parametrize(
    "content", [None, b"", b"\n \n\t\n", b"gr\xfc\xdfe", b"a long line, or many", b"a\r\nb\rc\nd\n"]
)
def test_files_of_texts(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr("ibert_tvm.texts.MAX_TEXTS_BYTES", 16)
    monkeypatch.setattr("ibert_tvm.texts.MAX_TEXTS", 3)
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)
    refused("quantize", tmp_path, "-o", tmp_path / "m.ibert", "--calibration", file)


def test_quantize_never_replaces_a_folder_of_the_user(refused: Refused, tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    refused("quantize", tmp_path, "-o", folder)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_demo_without_its_model(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> object:
        return None if name.startswith("gt_") else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    refused("demo")


def test_the_default_length_is_one_that_the_model_has(artefact: Path) -> None:
    """128 tokens, unless there are positions for fewer."""
    for positions, expected in ((64, 64), (512, 128), (None, 128)):
        info = replace(TinyModel().info, max_sequence_length=positions)
        assert options.Shapes().of(info, artefact) == [(1, expected)]


@pytest.mark.parametrize(
    "words",
    [
        "--heldout texts.txt",
        "--max-bytes 9 --word-table-bits 4",
        "--weights mixed",
        "--target cortex-m4",
        "--max-drop 0.01 --fidelity fast",
        "--max-drop 0.01 --preset paper",
        "--max-drop 0.01 --widen",
        "--max-drop 0.5 --metric task",
        "--max-drop 0.5 --metric task --task mrpc",
        "--max-drop 0.5 --metric task --task mrpc --data dev.tsv --heldout texts.txt",
        "--task mrpc --data dev.tsv",
        "--task mrpc --data dev.tsv --metric task",
        "--task mrpc --data dev.tsv --max-drop 0.5",
        "--calibration-columns text=1",
        "--calibration t.csv --calibration-columns pair=b,label=c",
    ],
)
def test_options_of_quantize_that_do_not_go_together(
    refused: Refused, tmp_path: Path, words: str
) -> None:
    refused("quantize", tmp_path, "-o", tmp_path / "m.ibert", *words.split())
    assert not (tmp_path / "m.ibert").exists()


@pytest.mark.parametrize(
    "words",
    [
        "compile {artefact} -o {notes} --seq-len 8",
        "compile {artefact} -o {tmp}/notes.so --seq-len 8 --runtime none",
        "compile {artefact} -o {tmp}/m.so --seq-len 8 --dump-ir {tmp}",
        "quantize {artefact} -o {notes}",
        "report {artefact} -o {notes}",
        "report {artefact} --graph {tmp}/notes.onnx",
        "verify {artefact} -o {notes}.json",
        "verify {artefact} -o {tmp}/thesis.json",
        "run {artefact} --text a -o {notes}",
        "demo -o {notes}",
    ],
)
def test_what_is_not_ours_is_not_replaced(
    refused: Refused, artefact: Path, tmp_path: Path, words: str
) -> None:
    names = ("notes.h", "notes.onnx", "notes", "thesis.txt", "notes.json")
    for name in names:
        (tmp_path / name).write_text("mine\n", encoding="utf-8")
    notes = tmp_path / "notes"
    refused(*words.format(artefact=artefact, notes=notes, tmp=tmp_path).split())
    assert {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()} == (
        dict.fromkeys(names, "mine\n")
    )


def test_a_certificate_lies_beside_its_artefact_and_replaces_an_earlier_one(
    ibert: Ibert, artefact: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.ibert"
    shutil.copytree(artefact, own)
    for _ in range(2):
        assert ibert("verify", own).code in (0, 5)
    names = ("own.ibert", "own.ibert.verify.json", "own.ibert.verify.txt")
    assert sorted(file.name for file in tmp_path.glob("own*")) == list(names)
