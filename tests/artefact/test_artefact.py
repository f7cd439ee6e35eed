"""The folder NAME.ibert: what is saved comes back, and nothing else is accepted."""

from __future__ import annotations

import json
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
from tests.processes import run_captured
from tests.snapshots import Messages

_AGAIN = (
    "the file is damaged or of another version; copy the folder again, or make it again with "
    "`ibert quantize`"
)


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


def test_saving_never_replaces_another_folder(
    messages: Messages, quantized: QuantizedModel, folder: Path
) -> None:
    (folder / "notes.txt").write_text("mine")
    assert not is_artefact(folder)
    with messages.raises(OutputError):
        quantized.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_saving_never_replaces_a_file(quantized: QuantizedModel, tmp_path: Path) -> None:
    file = tmp_path / "file.ibert"
    file.write_text("mine")
    with pytest.raises(OutputError):
        quantized.save(file)
    assert file.read_text() == "mine"


def test_failed_save_leaves_the_old_artefact(
    messages: Messages, quantized: QuantizedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.numpy

    def fail(*_arguments: Any) -> None:
        raise OSError("disk full")

    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with messages.raises(OutputError):
        quantized.save(folder)
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
    done = run_captured([sys.executable, "-c", script, str(folder)])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[:2] == ["int32", "emb pool"]
    assert "quantised model" in lines[2]


@pytest.mark.parametrize("name", ["model.json", "params.safetensors", "quantization.json"])
def test_missing_file(messages: Messages, folder: Path, name: str) -> None:
    (folder / name).unlink()
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)


def test_file_instead_of_folder(messages: Messages, folder: Path) -> None:
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder / "model.json")


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
    ("name", "content"),
    [("model.json", b"\xff"), ("quantization.json", b"\xff"), ("quantization.json", b"[]")],
)
def test_damaged_file(messages: Messages, folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    messages.check(refusal(folder))


def refusal(folder: Path) -> str:
    """What is said of a folder whose manifest fits what is in it: an attacker can write both."""
    write_manifest(folder)
    with pytest.raises(ArtefactError) as caught:
        QuantizedModel.load(folder)
    return str(caught.value)


def test_a_program_that_is_refused_names_file_and_place(messages: Messages, folder: Path) -> None:
    file = folder / "model.json"
    file.write_text(file.read_text().replace("fraction_bits", "fractional_bits"))
    messages.check(refusal(folder))


def test_a_folder_of_an_earlier_version_is_refused_with_what_to_do(
    messages: Messages, quantized: QuantizedModel, folder: Path
) -> None:
    import tvm

    file = folder / "model.json"
    file.write_text(tvm.ir.save_json(quantized.module))
    messages.check(refusal(folder))


def test_a_file_of_endless_size_is_not_read(messages: Messages, folder: Path) -> None:
    file = folder / "model.json"
    with file.open("wb") as stream:
        stream.truncate(2**23 + 1)
    messages.check(refusal(folder))
    manifest = (folder / MANIFEST).read_bytes()
    with file.open("wb") as stream:
        stream.truncate(2**40)
    assert (folder / MANIFEST).read_bytes() == manifest
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)


_Document = dict[str, Any]
_QUANTIZATION: dict[str, Callable[[_Document], object]] = {
    "true scale": lambda d: d["outputs"][0].update(scale=True),
    "word for a scale": lambda d: d["outputs"][0].update(scale="half"),
    "scale 0": lambda d: d["outputs"][0].update(scale=0),
    "scale that no float32 holds": lambda d: d["outputs"][0].update(scale=1e300),
    "no scale": lambda d: d["outputs"][0].pop("scale"),
    "no outputs": lambda d: d.pop("outputs"),
    "empty outputs": lambda d: d.update(outputs=[]),
    "outputs of another kind": lambda d: d.update(outputs={"a": 1}),
    "output of another kind": lambda d: d.update(outputs=["a"]),
    "number for a preset": lambda d: d.update(preset=3),
    "values of a list": lambda d: d.update(values=[]),
    "scales of words": lambda d: d.update(
        values={"emb": [{"value": "emb", "form": "x", "scale": ["1"], "zero_point": 0}]}
    ),
    "half a record of source scales": lambda d: d.update(source_scales={}),
    "input that is none": lambda d: d.update(
        inputs=[{"name": "pixels", "dtype": "int8", "low": 0, "high": 1, "scale": 0.5}]
    ),
    "other inputs": lambda d: d["info"].update(inputs=["input_ids"]),
    "no information": lambda d: d.pop("info"),
    "labels of a list": lambda d: d["info"].update(id2label=[]),
    "name of an output of another kind": lambda d: d["info"]["outputs"][0].update(name=[]),
}


@pytest.mark.parametrize("case", _QUANTIZATION)
def test_wrong_types_in_quantization_json(messages: Messages, folder: Path, case: str) -> None:
    file = folder / "quantization.json"
    document = json.loads(file.read_text())
    _QUANTIZATION[case](document)
    file.write_text(json.dumps(document))
    messages.check(refusal(folder))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' + "9" * 6_000,
        '{"schema_version": 1, "schema_version": 1}',
        '{"schema_version": Infinity}',
        "{",
    ],
    ids=["deep", "long number", "one key twice", "infinite", "unfinished"],
)
def test_hostile_quantization_json(messages: Messages, folder: Path, text: str) -> None:
    (folder / "quantization.json").write_text(text)
    messages.check(refusal(folder))


@pytest.mark.parametrize("version", [2, True, "1"])
def test_other_schema_version(messages: Messages, folder: Path, version: object) -> None:
    document = json.loads((folder / "quantization.json").read_text())
    document["schema_version"] = version
    (folder / "quantization.json").write_text(json.dumps(document))
    write_manifest(folder)
    with messages.raises(ArtefactError):
        read_document(folder)


_CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "missing": lambda p: p.pop("emb.weight"),
    "unknown": lambda p: p.update(a=np.zeros(1, np.int8), b=np.zeros(1, np.int8)),
    "shape": lambda p: p.update({"emb.weight": p["emb.weight"][:4]}),
    "dtype": lambda p: p.update({"emb.weight": p["emb.weight"].astype(np.float32)}),
    "truth": lambda p: p.update({"emb.weight": p["emb.weight"].astype(np.bool_)}),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_parameters_that_do_not_fit(messages: Messages, folder: Path, change: str) -> None:
    from safetensors.numpy import load_file, save_file

    parameters = dict(load_file(folder / "params.safetensors"))
    _CHANGES[change](parameters)
    save_file(
        {n: np.ascontiguousarray(a) for n, a in parameters.items()}, folder / "params.safetensors"
    )
    messages.check(refusal(folder))


def test_a_model_that_does_not_fit_cannot_even_be_made(quantized: QuantizedModel) -> None:
    with pytest.raises(ArtefactError, match=r"^the quantised model lacks 2 parameters\n"):
        replace(quantized, parameters={})
