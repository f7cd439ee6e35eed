"""ONNX files: what is read, and every way in which one can be wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

import ibert_tvm as ibert
from ibert_tvm.frontend import MissingExtraError, ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.onnx import reading

from .graphs import Graph

NEWEST = onnx.defs.onnx_opset_version()


def small(opset: int = 17) -> onnx.ModelProto:
    g = Graph(opset=opset)
    return g.model(g.layer_norm(g.words(), "norm"), names=("last_hidden_state",))


def refused(file: Path, kind: type[Exception], **options: object) -> str:
    with pytest.raises(kind) as error:
        ibert.load(file, **options)
    return str(error.value)


def test_a_file_is_loaded_with_its_facts(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    model = ibert.load(file)
    info = model.info
    assert (info.architecture, info.head, info.source) == ("onnx", "none", str(file))
    assert info.source_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert info.description == "ONNX model model.onnx, head none"
    assert info.tokenizer_files == ("vocab.txt",)
    assert info.static_shape is None
    assert model.tokenizer["vocab.txt"].startswith(b"[PAD]\n")
    # A mask that the graph does not use is still an input of it.
    assert info.inputs == ("input_ids", "attention_mask")
    assert model.verified_error is not None
    assert model.verified_error < 1e-5


def test_configuration_and_tokenizer_of_another_folder(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n[PAD]\n")
    assert ibert.load(file, tokenizer=folder, verify=False).info.pad_token_id == 5
    (folder / "config.json").write_text('{"model_type": "bert", "pad_token_id": 3}')
    model = ibert.load(file, tokenizer=str(folder), verify=False)
    assert (model.info.architecture, model.info.pad_token_id) == ("bert", 3)
    empty = tmp_path / "empty"
    assert refused(file, ModelSourceError, tokenizer=empty) == (
        f"there is no tokenizer in {empty}\n  where: {empty}\n  why: it is not a folder\n"
        "  what to do: give the folder that holds the model's tokenizer files"
    )
    (tmp_path / "config.json").write_text("{")
    assert refused(file, ModelSourceError) == (
        f"config.json cannot be read\n  where: {tmp_path / 'config.json'}\n"
        "  why: it is not readable JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)\n"
        "  what to do: copy it again, or remove it: the ONNX file does not need it"
    )


def test_weights_in_other_files_are_read_and_hashed(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    content = file.read_bytes() + (tmp_path / "weights.bin").read_bytes()
    model = ibert.load(file)
    assert model.info.source_sha256 == hashlib.sha256(content).hexdigest()
    plain = tmp_path / "plain.onnx"
    onnx.save(small(), plain)
    for name, array in ibert.load(plain, verify=False).parameters.items():
        np.testing.assert_array_equal(model.parameters[name], array)
    (tmp_path / "weights.bin").unlink()
    text = refused(file, ModelSourceError)
    assert text.startswith(f"the data of model.onnx cannot be read\n  where: {tmp_path}\n  why: ")
    assert "weights.bin" in text
    assert text.endswith(
        "\n  what to do: copy the files of its weights beside it, under the names that the model "
        "gives"
    )


def test_a_missing_file(tmp_path):
    file = tmp_path / "none.onnx"
    assert refused(file, ModelSourceError) == (
        f"there is no file {file}\n  where: {file}\n  why: the path does not exist\n"
        "  what to do: check the path"
    )
    file.mkdir()
    assert refused(file, ModelSourceError).splitlines()[2] == "  why: it is not a file"


@pytest.mark.parametrize("size", [0, 1, 100, 2000])
def test_truncated_files(tmp_path, size):
    file = tmp_path / "cut.onnx"
    file.write_bytes(small().SerializeToString()[:size])
    text = refused(file, ModelSourceError)
    assert text.startswith(f"cut.onnx is no ONNX model that can be read\n  where: {file}\n  why: ")
    assert text.endswith(f"({size} bytes)\n  what to do: export or copy the file again")


def test_a_file_of_something_else(tmp_path):
    file = tmp_path / "page.onnx"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert refused(file, ModelSourceError).startswith(
        f"page.onnx is no ONNX model that can be read\n  where: {file}\n"
    )


def test_a_malformed_graph(tmp_path):
    model = small()
    model.graph.node[0].input[1] = "nowhere"
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    text = refused(file, ModelSourceError)
    assert text.startswith(f"the model is malformed\n  where: {file}\n  why: ")
    assert "nowhere" in text
    assert text.endswith("\n  what to do: export or copy the file again")


@pytest.mark.parametrize("place", ["weight", "attribute"])
@pytest.mark.parametrize(
    ("dims", "why"),
    # onnx's checker finds the second, but does not see files of more than 2 GB.
    [([3], "cannot reshape array of size 744 into shape (3,)"), ([-1], "its shape is [-1]")],
)
def test_arrays_without_the_elements_of_their_shape(dims, why, place):
    """NumPy's own error came out of the translation."""
    model = small()
    tensor = next(t for t in model.graph.initializer if t.name == "words.weight")
    tensor.dims[:] = dims
    if place == "attribute":
        node = onnx.helper.make_node("Constant", [], ["words.weight"], value=tensor)
        model.graph.node.insert(0, node)
        model.graph.initializer.remove(tensor)
    with pytest.raises(ModelSourceError) as error:
        reading.check_arrays(model.graph, "by hand")
    assert str(error.value) == (
        "the model is malformed\n  where: by hand\n"
        f'  why: the array "words.weight" cannot be read: {why}\n'
        "  what to do: export or copy the file again"
    )


def test_arrays_are_checked_when_a_file_is_read(tmp_path):
    model = small()
    model.graph.initializer[0].dims[:] = [3]
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    assert "cannot be read: cannot reshape array" in refused(file, ModelSourceError)


def _node_behind_an_unknown_one(node: onnx.NodeProto) -> onnx.ModelProto:
    """onnx's checker stops at an operator that it does not know, as ONNX Runtime writes them."""
    model = small()
    unknown = onnx.helper.make_node("Unheard", ["input_ids"], ["unheard"])
    model.graph.node.insert(0, node)
    model.graph.node.insert(0, unknown)
    return model


def _half_an_if() -> onnx.NodeProto:
    inner = onnx.helper.make_node("Identity", ["input_ids"], ["x"])
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, None)
    branch = onnx.helper.make_graph([inner], "branch", [], [value])
    return onnx.helper.make_node("If", ["input_ids"], ["y"], then_branch=branch)


def _if_with_a_bad_node() -> onnx.NodeProto:
    node = _half_an_if()
    node.attribute.add().CopyFrom(node.attribute[0])
    node.attribute[1].name = "else_branch"
    del node.attribute[1].g.node[0].input[:]
    return node


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (onnx.helper.make_node("Cast", ["input_ids"], ["y"]), "attribute"),
        (onnx.helper.make_node("QuantizeLinear", ["input_ids"], ["y"]), "has input size 1"),
        (_half_an_if(), "else_branch"),
        (_if_with_a_bad_node(), "has input size 0"),
    ],
    ids=["attribute", "operand", "branch", "inside of a branch"],
)
def test_every_node_is_checked_whatever_is_before_it(node, why, tmp_path):
    """Fuzzing found them: a KeyError and an IndexError came out of the translation."""
    file = tmp_path / "model.onnx"
    onnx.save(_node_behind_an_unknown_one(node), file)
    text = refused(file, ModelSourceError)
    assert text.startswith(f"the model is malformed\n  where: {file}\n  why: ")
    assert why in text


@pytest.mark.parametrize("name", [b"input_ids", b"last_hidden_state"])
def test_names_that_are_no_text(tmp_path, name):
    """onnx's checker ended in a UnicodeDecodeError."""
    file = tmp_path / "model.onnx"
    file.write_bytes(small().SerializeToString().replace(name, b"\xff\x80" + name[2:]))
    text = refused(file, ModelSourceError)
    why = text.splitlines()[2]
    assert text == (
        f"the model is malformed\n  where: {file}\n{why}\n"
        "  what to do: export or copy the file again"
    )
    assert why in (
        "  why: 'input' of a NodeProto is not UTF-8",
        "  why: 'output' of a NodeProto is not UTF-8",
    )


def test_operator_sets_that_are_too_old_or_too_new(tmp_path):
    file = tmp_path / "model.onnx"
    model = small()
    model.opset_import[0].version = 10
    file.write_bytes(model.SerializeToString())
    assert refused(file, UnsupportedModelError) == (
        f"the model uses operator set 10\n  where: {file}\n"
        f"  why: operator sets 11 to {NEWEST} are supported; older ones define slice, clip and "
        "softmax differently\n"
        "  what to do: export it again with opset_version=11 or newer, or convert it with "
        "onnx.version_converter"
    )
    model.opset_import[0].version = NEWEST + 1
    file.write_bytes(model.SerializeToString())
    assert refused(file, UnsupportedModelError) == (
        f"the model uses operator set {NEWEST + 1}\n  where: {file}\n"
        f"  why: onnx {onnx.__version__} knows operator sets up to {NEWEST}\n"
        "  what to do: install a newer onnx, or export the model with an older operator set"
    )


@pytest.mark.parametrize(
    ("missing", "verify"), [("onnx", True), ("onnx", False), ("onnxruntime", True)]
)
def test_missing_packages_name_the_extra(tmp_path, monkeypatch, missing, verify):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest)
    )
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    what, otherwise = "importing an ONNX file", ""
    if missing == "onnxruntime":
        what = "comparing the import with its source"
        otherwise = ", or load with verify=False"
    assert refused(file, MissingExtraError, verify=verify) == (
        f"{what} needs {missing}, which is not installed\n"
        "  where: ibert_tvm.load\n"
        "  why: onnx and onnxruntime are optional: a quantised model runs without them\n"
        f"  what to do: pip install 'ibert-tvm[onnx]'{otherwise}"
    )


def test_without_comparison_onnx_runtime_is_not_needed(tmp_path, monkeypatch):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
    )
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    assert ibert.load(file, verify=False).verified_error is None


def halved(model, kind):
    """The model with weights, inputs, outputs and casts of 16 bits, as converters write it."""
    from onnx import TensorProto

    number = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[kind]
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            short = onnx.helper.make_tensor(tensor.name, number, array.shape, array.ravel())
            tensor.CopyFrom(short)
    for item in (*model.graph.output, *model.graph.value_info):
        if item.type.tensor_type.elem_type == TensorProto.FLOAT:
            item.type.tensor_type.elem_type = number
    output = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Cast", [output.name], ["halved"], to=number))
    output.name = "halved"
    return model


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_of_16_bits_are_taken_exactly(tmp_path, kind):
    model = halved(small(), kind)
    table = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype("float32")
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    loaded = ibert.load(file)
    assert loaded.verified_error is not None and loaded.verified_error < 1e-5
    np.testing.assert_array_equal(loaded.parameters["words.weight"], table)


def test_weights_of_double_precision(tmp_path):
    model = small()
    table = model.graph.initializer[0]
    array = onnx.numpy_helper.to_array(table).astype("double")
    table.CopyFrom(onnx.numpy_helper.from_array(array, table.name))
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    assert refused(file, UnsupportedModelError) == (
        f"the model's weights are double\n  where: {file}, initializer words.weight\n"
        "  why: calibration measures ranges in float32\n"
        "  what to do: export the model in float32"
    )


def test_a_folder_with_onnx_files_says_so(tmp_path):
    onnx.save(small(), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert refused(tmp_path, ModelSourceError) == (
        f"{tmp_path} has no weights of its own, but ONNX models\n  where: {tmp_path}\n"
        "  why: it holds model.onnx\n"
        f"  what to do: give the ONNX file itself, for example {tmp_path / 'model.onnx'}"
    )


def test_names_of_inputs_are_no_list(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    assert refused(file, ModelSourceError, inputs=["input_ids"]) == (
        "the inputs of an ONNX file are not given as list\n  where: inputs\n"
        "  why: it names its inputs itself; only names that differ can be given\n"
        "  what to do: give a mapping such as {'input_mask': 'attention_mask'}, or leave it out"
    )


def test_reading_keeps_the_model_as_it_is(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    model, files = reading.read_model_files(file)
    assert files == (file,)
    assert model == small()
