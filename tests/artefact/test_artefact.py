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

from ibert_tvm.common.errors import ArtefactError, OutputError
from ibert_tvm.common.integrity import MANIFEST, write_manifest
from ibert_tvm.model.artefact import QuantizedModel, is_artefact, read_document

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
    assert again.program == quantized.program
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
        "manifest.json",
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
    with pytest.raises(OutputError) as caught:
        quantized.save(folder)
    assert str(caught.value) == (
        f"cannot write {folder}\n"
        "  why: disk full\n"
        "  what to do: choose an output in a folder that you may write to, on a disk with space"
    )
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["tiny.ibert"]


def test_reading_evaluating_and_analysing_import_neither_tvm_nor_torch(folder: Path) -> None:
    """With both made impossible to import, as where they are not installed."""
    script = (
        "import sys\n"
        "sys.modules['tvm'] = sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import numpy as np\n"
        "from ibert_tvm import QuantizedModel\n"
        "from ibert_tvm.cli import main\n"
        "from ibert_tvm.evaluation.evaluate import evaluate_integers\n"
        "from ibert_tvm.relay_passes.integer.ranges import analyse_ranges\n"
        "model = QuantizedModel.load(sys.argv[1])\n"
        "ids = np.array([[2, 5, 3]])\n"
        "inputs = {'input_ids': ids, 'attention_mask': np.ones_like(ids)}\n"
        "print(evaluate_integers(model, inputs)['sentence_embedding'].dtype)\n"
        "print(*analyse_ranges(model.program, model.parameters).values)\n"
        "model.save(sys.argv[1])\n"
        "main(['inspect', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[:2] == ["int32", "emb pool"]
    assert "quantised model" in lines[2]


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
    write_manifest(folder)
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"cannot read {file}"
    assert lines[1].startswith("  why: it is truncated or not a safetensors file: ")
    assert lines[2] == f"  what to do: {_AGAIN}"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("model.json", b"\xff", "it is not readable JSON: 'utf-8' codec can't decode"),
        ("quantization.json", b"\xff", "it is not readable JSON: 'utf-8' codec can't decode"),
        ("quantization.json", b"[]", "it has no schema_version"),
    ],
)
def test_damaged_file(folder: Path, name: str, content: bytes, why: str) -> None:
    (folder / name).write_bytes(content)
    write_manifest(folder)
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    lines = str(caught.value).split("\n")
    assert lines[0] == f"cannot read {folder / name}"
    assert lines[1].startswith(f"  why: {why}")
    assert lines[2] == f"  what to do: {_AGAIN}"


def refusal(folder: Path) -> str:
    """What is said of a folder whose manifest fits what is in it: an attacker can write both."""
    write_manifest(folder)
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    return str(caught.value)


def test_a_program_that_is_refused_names_file_and_place(folder: Path) -> None:
    file = folder / "model.json"
    file.write_text(file.read_text().replace("fraction_bits", "fractional_bits"))
    assert refusal(folder) == (
        f"cannot read {file}\n"
        "  where: steps[1] 'pool'\n"
        "  why: attribute fraction_bits is missing; integer.mean_pool needs an integer\n"
        "  what to do: the file is damaged or was changed; copy it again, or make it again with "
        "`ibert quantize`"
    )


def test_a_folder_of_an_earlier_version_is_refused_with_what_to_do(
    quantized: QuantizedModel, folder: Path
) -> None:
    import tvm

    file = folder / "model.json"
    file.write_text(tvm.ir.save_json(quantized.module))
    assert refusal(folder) == (
        f"cannot read {file}\n"
        "  why: it is the object graph of TVM that earlier versions stored; this version of "
        "ibert_tvm reads ibert-program version 2\n"
        "  what to do: quantise the model again with `ibert quantize`"
    )


def test_a_file_of_endless_size_is_not_read(folder: Path) -> None:
    file = folder / "model.json"
    with file.open("wb") as stream:
        stream.truncate(2**23 + 1)
    assert refusal(folder) == (
        f"cannot read {file}\n  why: it has more than 8388608 bytes\n  what to do: {_AGAIN}"
    )
    manifest = (folder / MANIFEST).read_bytes()
    with file.open("wb") as stream:
        stream.truncate(2**40)
    assert (folder / MANIFEST).read_bytes() == manifest
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    assert str(caught.value) == (
        f"cannot read {file}\n  why: it has 1099511627776 bytes; manifest.json says 8388609\n"
        f"  what to do: {_AGAIN}"
    )


_Document = dict[str, Any]
_QUANTIZATION: dict[str, tuple[Callable[[_Document], object], str, str]] = {
    "true scale": (
        lambda d: d["outputs"][0].update(scale=True),
        "outputs[0].scale",
        "it is true; a number from 2^-126 to 2^127 is needed",
    ),
    "word for a scale": (
        lambda d: d["outputs"][0].update(scale="half"),
        "outputs[0].scale",
        'it is "half"; a number from 2^-126 to 2^127 is needed',
    ),
    "scale 0": (
        lambda d: d["outputs"][0].update(scale=0),
        "outputs[0].scale",
        "it is 0; a number from 2^-126 to 2^127 is needed",
    ),
    "scale that no float32 holds": (
        lambda d: d["outputs"][0].update(scale=1e300),
        "outputs[0].scale",
        "it is 1e+300; a number from 2^-126 to 2^127 is needed",
    ),
    "no scale": (
        lambda d: d["outputs"][0].pop("scale"),
        "outputs[0]",
        "the key 'scale' is missing",
    ),
    "no outputs": (lambda d: d.pop("outputs"), "", "the key 'outputs' is missing"),
    "empty outputs": (
        lambda d: d.update(outputs=[]),
        "outputs",
        "it has scales of 0 outputs, and the model has 1",
    ),
    "outputs of another kind": (
        lambda d: d.update(outputs={"a": 1}),
        "outputs",
        'it is {"a": 1}; a list is needed',
    ),
    "output of another kind": (
        lambda d: d.update(outputs=["a"]),
        "outputs[0]",
        'it is "a"; an object is needed',
    ),
    "number for a preset": (
        lambda d: d.update(preset=3),
        "preset",
        "it is 3; a string is needed",
    ),
    "values of a list": (lambda d: d.update(values=[]), "values", "it is []; an object is needed"),
    "scales of words": (
        lambda d: d.update(
            values={"emb": [{"value": "emb", "form": "x", "scale": ["1"], "zero_point": 0}]}
        ),
        "values.emb[0].scale",
        'it is ["1"]; a number or a list of numbers is needed',
    ),
    "half a record of source scales": (
        lambda d: d.update(source_scales={}),
        "source_scales",
        "the key 'file' is missing",
    ),
    "input that is none": (
        lambda d: d.update(
            inputs=[{"name": "pixels", "dtype": "int8", "low": 0, "high": 1, "scale": 0.5}]
        ),
        "inputs[0]",
        "it is 'pixels' of int8; the integer program has no such input",
    ),
    "other inputs": (
        lambda d: d["info"].update(inputs=["input_ids"]),
        "",
        "it describes the inputs input_ids and 1 outputs; the integer program has input_ids, "
        "attention_mask and 1",
    ),
    "no information": (lambda d: d.pop("info"), "info", "it is null; an object is needed"),
    "labels of a list": (
        lambda d: d["info"].update(id2label=[]),
        "info.id2label",
        "it is []; an object of strings by number is needed",
    ),
    "name of an output of another kind": (
        lambda d: d["info"]["outputs"][0].update(name=[]),
        "info.outputs[0].name",
        "it is []; a string is needed",
    ),
}


@pytest.mark.parametrize("case", _QUANTIZATION)
def test_wrong_types_in_quantization_json(folder: Path, case: str) -> None:
    change, where, why = _QUANTIZATION[case]
    file = folder / "quantization.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    assert refusal(folder) == str(
        ArtefactError(f"cannot read {file}", where=where, why=why, todo=_AGAIN)
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "arrays and objects are nested too deep; the format has 16 levels"),
        ('{"a": ' + "9" * 6_000, "a number has 6000 characters; 99999999... is longer than 32"),
        ('{"schema_version": 1, "schema_version": 1}',
         'the key "schema_version" is there twice in one object'),
        ('{"schema_version": Infinity}', "Infinity is not a number of JSON"),
        ("{", "it is not readable JSON: Expecting property name enclosed in double quotes: line 1 "
         "column 2 (char 1)"),
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_hostile_quantization_json(folder: Path, text: str, why: str) -> None:
    file = folder / "quantization.json"
    file.write_text(text)
    assert refusal(folder) == f"cannot read {file}\n  why: {why}\n  what to do: {_AGAIN}"


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), (True, "true"), ("1", '"1"')])
def test_other_schema_version(folder: Path, version: object, shown: str) -> None:
    document = json.loads((folder / "quantization.json").read_text())
    document["schema_version"] = version
    (folder / "quantization.json").write_text(json.dumps(document))
    write_manifest(folder)
    with pytest.raises(ArtefactError) as caught:
        read_document(folder)
    assert str(caught.value) == (
        f"the quantised model {folder} has schema version {shown}\n"
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
    "truth": (
        lambda p: p.update({"emb.weight": p["emb.weight"].astype(np.bool_)}),
        "parameter 'emb.weight' does not fit the integer program\n"
        "  where: {folder}\n"
        "  why: it is BOOL[8, 4], expected int8[8, 4]\n"
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
    assert refusal(folder) == message.format(folder=folder)


def test_a_model_that_does_not_fit_cannot_even_be_made(quantized: QuantizedModel) -> None:
    with pytest.raises(ArtefactError, match=r"^the quantised model lacks 2 parameters\n"):
        replace(quantized, parameters={})
