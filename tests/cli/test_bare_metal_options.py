"""Options of `ibert compile` that are for microcontrollers, and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ibert_tvm.cli.bare_metal import parse_memory
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.targets.bare_metal.document import DOCUMENT, KIND
from tests.arm.tools import needs
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192K", 196_608),
        ("192k", 196_608),
        ("192KB", 196_608),
        ("192 KiB", 196_608),
        ("1M", 1_048_576),
        ("2MiB", 2_097_152),
        ("65536", 65_536),
        ("100B", 100),
    ],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert parse_memory("--ram", text) == expected


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1G", "'G' is not a unit; K is 1024 bytes, M is 1024 K"),
        ("192Kb/s", "it is not a whole number with a unit"),
        ("1.5M", "it is not a whole number with a unit"),
        ("-1K", "it is not a whole number with a unit"),
        ("", "it is not a whole number with a unit"),
        ("K", "it is not a whole number with a unit"),
        ("0K", "it is 0"),
    ],
)
def test_bad_amounts(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path, text: str, why: str
) -> None:
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "out", "--target", "cortex-m4", "--seq-len", "16",
        f"--flash={text}",
    )  # fmt: skip
    assert (outcome.code, outcome.stdout, outcome.stderr) == (
        2,
        "",
        f"error: bad value for --flash: {text!r}\n"
        f"  why: {why}\n"
        "  what to do: give bytes, or a whole number with K or M, for example --flash 1M\n",
    )


def test_memory_of_a_target_with_an_operating_system(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path
) -> None:
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "m.so", "--target", "rpi4", "--seq-len", "16",
        "--flash", "1M", "--ram", "64K",
    )  # fmt: skip
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: --flash and --ram cannot be used with --target rpi4\n"
        "  why: the target has an operating system; the option is for microcontrollers, whose "
        "memory is fixed and whose model is a package to link\n"
        "  what to do: leave it out, or choose one of: cortex-m0, cortex-m3, cortex-m4, "
        "cortex-m55\n",
    )


def test_unknown_form(ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path) -> None:
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "out", "--target", "cortex-m4", "--seq-len", "16",
        "--emit", "rust",
    )  # fmt: skip
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: bad value for --emit: 'rust'\n"
        "  why: packages have no such form\n"
        "  what to do: use one of: objects, c, c-arrays\n",
    )


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_nothing_else_is_overwritten(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path, kind: str
) -> None:
    needs("arm-none-eabi-gcc")
    output = tmp_path / "out"
    if kind == "folder":
        output.mkdir()
        (output / "thesis.tex").write_text("years of work")
        why = "the folder is not empty, and not a package that `ibert compile` wrote"
    else:
        output.write_text("years of work")
        why = "there is a file of that name; a package for a microcontroller is a folder"
    outcome = ibert("compile", artefact, "-o", output, "--target", "cortex-m4", "--seq-len", "16")
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: cannot write {output}\n"
        f"  why: {why}\n"
        "  what to do: choose another output, or remove it yourself\n",
    )
    kept = output / "thesis.tex" if kind == "folder" else output
    assert kept.read_text() == "years of work"


def test_a_missing_compiler_names_its_package(
    ibert: Callable[..., Outcome],
    artefact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "out", "--target", "cortex-m4", "--seq-len", "16"
    )
    assert outcome.code == 4
    assert "apt-get install gcc-arm-none-eabi" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(
    ibert: Callable[..., Outcome], artefact: Path, tmp_path: Path
) -> None:
    output = tmp_path / "absent" / "out"
    outcome = ibert("compile", artefact, "-o", output, "--target", "cortex-m4", "--seq-len", "16")
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: cannot write {output}\n"
        f"  why: the folder {output.parent} does not exist\n"
        f"  what to do: create it (mkdir -p {output.parent}) or choose another output\n",
    )


def _package(folder: Path, **changes: object) -> Path:
    """What `inspect` reads of a package."""
    document = {
        "kind": KIND,
        "prefix": "tiny",
        "emit": "objects",
        "target": {"name": "cortex-m4"},
        "functions": [{"batch": 1, "seq_len": 8}],
        "inputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
        "outputs": [{"name": "hidden"}],
        "memory": {
            "flash": {"total": 10, "weights": 5, "code": 3, "constants": 2},
            "ram": {"total": 9, "arena": 6, "stack": 3, "peak": {"layer": "encoder.0"}},
        },
        "verified": {"instructions": 1234},
        **changes,
    }
    folder.mkdir()
    (folder / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")
    write_manifest(folder)
    return folder


def test_inspect_shows_a_package(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = _package(tmp_path / "package")
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
    ibert: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = _package(tmp_path / "package", memory=[])
    outcome = ibert("inspect", folder)
    assert (outcome.code, outcome.stderr) == (
        3,
        f"error: cannot read the package {folder}\n"
        "  why: its document lacks what packages of this version have: list indices must be "
        "integers or slices, not str\n"
        "  what to do: make it again with `ibert compile`\n",
    )
    (folder / "more").write_text("x")
    (folder / DOCUMENT).write_text("{}")
    assert ibert("inspect", folder).code == 3
