"""The folder NAME.ibert: what is saved comes back, and nothing else is accepted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.artefact import QuantizedModel, is_artefact, read_document
from ibert_tvm.errors import ArtefactError, OutputError

_AGAIN = (
    "the file is damaged or of another version; copy the folder again, or make it again with "
    "`ibert quantize`"
)
_TOGETHER = "model.json and params.safetensors do not belong together; quantise the model again"


@pytest.fixture
def folder(quantized: QuantizedModel, tmp_path: Path) -> Path:
    return quantized.save(tmp_path / "tiny.ibert")


def test_round_trip(quantized: QuantizedModel, folder: Path) -> None:
    import tvm

    again = QuantizedModel.load(folder)
    tvm.ir.assert_structural_equal(again.module, quantized.module)
    assert [p.name for p in again.module["main"].params] == [
        "input_ids",
        "attention_mask",
        "emb.weight",
        "emb.multiplier",
    ]
    assert again.info == quantized.info
    assert again.quantization == quantized.quantization
    assert again.tokenizer == quantized.tokenizer
    assert (again.preset, again.input_names) == ("accurate", ["input_ids", "attention_mask"])
    assert again.num_bytes == quantized.num_bytes == 8 * 4 + 4
    # In the order of the function, which is neither alphabetic nor that of the file.
    assert list(again.parameters) == ["emb.weight", "emb.multiplier"]
    for name, array in quantized.parameters.items():
        assert again.parameters[name].dtype == array.dtype
        np.testing.assert_array_equal(again.parameters[name], array)


def test_files(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == [
        "model.json",
        "params.safetensors",
        "quantization.json",
        "tokenizer",
    ]
    assert [p.name for p in folder.parent.iterdir()] == ["tiny.ibert"]
    assert is_artefact(folder)
    assert json.loads((folder / "quantization.json").read_text())["schema_version"] == 1


def test_a_view_is_saved_as_what_it_shows(quantized: QuantizedModel, tmp_path: Path) -> None:
    table = quantized.parameters["emb.weight"]
    views = {**quantized.parameters, "emb.weight": np.asfortranarray(table)}
    folder = replace(quantized, parameters=views).save(tmp_path / "view.ibert")
    np.testing.assert_array_equal(QuantizedModel.load(folder).parameters["emb.weight"], table)


def test_saving_again_replaces_the_artefact(quantized: QuantizedModel, folder: Path) -> None:
    changed = replace(quantized, quantization={**quantized.quantization, "preset": "paper"})
    changed.save(folder)
    assert QuantizedModel.load(folder).preset == "paper"
    assert [p.name for p in folder.parent.iterdir()] == ["tiny.ibert"]


def test_saving_never_replaces_another_folder(quantized: QuantizedModel, folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    assert not is_artefact(folder)
    with pytest.raises(OutputError) as caught:
        quantized.save(folder)
    assert str(caught.value) == (
        f"cannot write {folder}\n"
        "  why: something is there already, and it is not an .ibert artefact\n"
        "  what to do: choose another output, or remove it yourself"
    )
    assert (folder / "notes.txt").read_text() == "mine"


def test_saving_never_replaces_a_file(quantized: QuantizedModel, tmp_path: Path) -> None:
    file = tmp_path / "file.ibert"
    file.write_text("mine")
    with pytest.raises(OutputError):
        quantized.save(file)
    assert file.read_text() == "mine"


def test_failed_save_leaves_the_old_artefact(
    quantized: QuantizedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.numpy

    def fail(*_arguments: Any) -> None:
        raise OSError("disk full")

    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        quantized.save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["tiny.ibert"]


def test_loading_does_not_import_torch(folder: Path) -> None:
    """With torch made impossible to import, as where it is not installed."""
    script = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import ibert_tvm\n"
        "print(ibert_tvm.QuantizedModel.load(sys.argv[1]).preset)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("accurate\n", 0), done.stderr


@pytest.mark.parametrize("name", ["model.json", "params.safetensors", "quantization.json"])
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    assert str(caught.value) == (
        f"the quantised model {folder} is incomplete\n"
        f"  why: it lacks {name}\n"
        "  what to do: copy the whole folder, or make it again with `ibert quantize`"
    )


def test_file_instead_of_folder(folder: Path) -> None:
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder / "model.json")
    assert str(caught.value) == (
        f"{folder / 'model.json'} is not a quantised model\n"
        "  why: it is a file; a quantised model is a folder\n"
        "  what to do: give the NAME.ibert folder that `ibert quantize` wrote"
    )


@pytest.mark.parametrize("kept", [0, 4, 8, 60, -1])
def test_truncated_parameters(folder: Path, kept: int) -> None:
    file = folder / "params.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"cannot read {file}"
    assert lines[1].startswith("  why: it is truncated or not a safetensors file: ")
    assert lines[2] == f"  what to do: {_AGAIN}"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("model.json", b'{"root', "it is not readable JSON: Unterminated string"),
        ("model.json", b"{}", "TVM 0.27.0.post1 cannot load it: "),
        ("model.json", b'{"root_index": 0, "nodes": []}', "TVM 0.27.0.post1 cannot load it: "),
        ("quantization.json", b"\xff", "it is not readable JSON: 'utf-8' codec can't decode"),
        ("quantization.json", b"[]", "it has no schema_version"),
        (
            "quantization.json",
            b'{"schema_version": 1}',
            "its model information is unusable: a JSON object was expected, not NoneType",
        ),
    ],
)
def test_damaged_file(folder: Path, name: str, content: bytes, why: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"cannot read {folder / name}"
    assert lines[1].startswith(f"  why: {why}")
    assert lines[2] == f"  what to do: {_AGAIN}"


def test_program_of_another_dialect(folder: Path) -> None:
    """An operator without one of its attributes, as a version before that attribute wrote it."""
    file = folder / "model.json"
    text = file.read_text()
    assert text.count("fraction_bits") > 0
    file.write_text(text.replace("fraction_bits", "fractional_bits"))
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"cannot read {file}"
    assert lines[1].startswith("  why: it is no program of this integer dialect: ")
    assert lines[2] == f"  what to do: {_AGAIN}"


def test_other_schema_version(folder: Path) -> None:
    document = json.loads((folder / "quantization.json").read_text())
    document["schema_version"] = 2
    (folder / "quantization.json").write_text(json.dumps(document))
    with pytest.raises(ArtefactError) as caught:
        read_document(folder)
    assert str(caught.value) == (
        f"the quantised model {folder} has schema version 2\n"
        "  why: this version of ibert_tvm reads schema version 1\n"
        "  what to do: use the version of ibert_tvm that wrote it, or quantise the model again"
    )


_CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (
        lambda p: p.pop("emb.weight"),
        "the quantised model lacks 1 parameter\n"
        "  where: {folder}\n"
        "  why: emb.weight; the integer program expects 2 parameters\n"
        f"  what to do: {_TOGETHER}",
    ),
    "unknown": (
        lambda p: p.update(a=np.zeros(1, np.int8), b=np.zeros(1, np.int8)),
        "the quantised model has unknown 2 parameters\n"
        "  where: {folder}\n"
        "  why: a, b; the integer program expects 2 parameters\n"
        f"  what to do: {_TOGETHER}",
    ),
    "shape": (
        lambda p: p.update({"emb.weight": p["emb.weight"][:4]}),
        "parameter 'emb.weight' does not fit the integer program\n"
        "  where: {folder}\n"
        "  why: it is int8[4, 4], expected int8[8, 4]\n"
        f"  what to do: {_TOGETHER}",
    ),
    "dtype": (
        lambda p: p.update({"emb.weight": p["emb.weight"].astype(np.float32)}),
        "parameter 'emb.weight' does not fit the integer program\n"
        "  where: {folder}\n"
        "  why: it is float32[8, 4], expected int8[8, 4]\n"
        f"  what to do: {_TOGETHER}",
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_parameters_that_do_not_fit(folder: Path, change: str) -> None:
    from safetensors.numpy import load_file, save_file

    act, message = _CHANGES[change]
    parameters = dict(load_file(folder / "params.safetensors"))
    act(parameters)
    save_file(
        {n: np.ascontiguousarray(a) for n, a in parameters.items()}, folder / "params.safetensors"
    )
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    assert str(caught.value) == message.format(folder=folder)


def test_a_model_that_does_not_fit_cannot_even_be_made(quantized: QuantizedModel) -> None:
    with pytest.raises(ArtefactError, match=r"^the quantised model lacks 2 parameters\n"):
        replace(quantized, parameters={})
