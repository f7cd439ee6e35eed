"""ONNX files: what is read, and every way in which one can be wrong."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import ibert_tvm as ibert
from ibert_tvm.frontend import MissingExtraError, ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.onnx import reading
from tests.frontend.imports import verified

from .graphs import Graph

NEWEST = onnx.defs.onnx_opset_version()


def small(opset: int = 17) -> onnx.ModelProto:
    g = Graph(opset=opset)
    return g.model(g.layer_norm(g.words(), "norm"), names=("last_hidden_state",))


def refused(file: Path, kind: type[Exception], **options: object) -> str:
    with pytest.raises(kind) as error:
        ibert.load(file, **options)
    return str(error.value)


def cause(text: str = "") -> re.Pattern[str]:
    """The reason in a message, in the words of another package; this is one of them."""
    return re.compile(rf"(?s)(?<=why: ).*{text}.*(?=\n  what to do)")


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "model.onnx"
    onnx.save(small(), file)
    return file


def test_a_file_is_loaded_with_its_facts(tmp_path, file):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    model = verified(file)
    info = model.info
    assert (info.architecture, info.head, info.source) == ("onnx", "none", str(file))
    assert info.source_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert info.description == "ONNX model model.onnx, head none"
    assert info.tokenizer_files == ("tokenizer.json", "tokenizer_config.json")
    assert info.static_shape is None
    assert b"hello" in model.tokenizer["tokenizer.json"]
    # A mask that the graph does not use is still an input of it.
    assert info.inputs == ("input_ids", "attention_mask")


def test_inputs_and_outputs_need_no_shapes(tmp_path, file):
    model = small()
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.ClearField("shape")
    bare = tmp_path / "bare.onnx"
    onnx.save(model, bare)
    loaded, plain = verified(bare), ibert.load(file)
    assert (loaded.info.head, loaded.info.static_shape) == (plain.info.head, None)
    assert loaded.info.outputs == plain.info.outputs


def test_configuration_and_tokenizer_of_another_folder(tmp_path, messages, file):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n[PAD]\n")
    assert ibert.load(file, tokenizer=folder, verify=False).info.pad_token_id == 5
    (folder / "config.json").write_text('{"model_type": "bert", "pad_token_id": 3}')
    model = ibert.load(file, tokenizer=str(folder), verify=False)
    assert (model.info.architecture, model.info.pad_token_id) == ("bert", 3)
    empty = tmp_path / "empty"
    messages.check(refused(file, ModelSourceError, tokenizer=empty))
    (tmp_path / "config.json").write_text("{")
    messages.check(refused(file, ModelSourceError))


def test_weights_in_other_files_are_read_and_hashed(tmp_path, messages):
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
    messages.check(refused(file, ModelSourceError), cause=cause("weights.bin"))


def test_a_missing_file(tmp_path, messages):
    file = tmp_path / "none.onnx"
    messages.check(refused(file, ModelSourceError))
    file.mkdir()
    messages.check(refused(file, ModelSourceError))


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = small()
    change(model)
    return model.SerializeToString()


WHOLE = small().SerializeToString()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
DAMAGED = {
    **{f"cut to {n}": (WHOLE[:n], rf"\({n} bytes\)") for n in (0, 1, 100, 2000)},
    "something else": (POINTER, ""),
    "a missing operand": (
        changed(lambda m: m.graph.node[0].input.__setitem__(1, "nowhere")),
        "nowhere",
    ),
    "an array of another shape": (
        changed(lambda m: m.graph.initializer[0].dims.__setitem__(slice(None), [3])),
        "cannot be read: cannot reshape array",
    ),
    # onnx's checker ended in a UnicodeDecodeError.
    "an input that is no text": (WHOLE.replace(b"input_ids", b"\xff\x80put_ids"), "is not UTF-8"),
    "an output that is no text": (
        WHOLE.replace(b"last_hidden_state", b"\xff\x80st_hidden_state"),
        "is not UTF-8",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name, file, messages):
    content, why = DAMAGED[name]
    file.write_bytes(content)
    messages.check(refused(file, ModelSourceError), cause=cause(why))


@pytest.mark.parametrize("place", ["weight", "attribute"])
@pytest.mark.parametrize(
    "dims",
    # onnx's checker finds the second, but does not see files of more than 2 GB.
    [[3], [-1]],
)
def test_arrays_without_the_elements_of_their_shape(dims, place, messages):
    """NumPy's own error came out of the translation."""
    model = small()
    tensor = next(t for t in model.graph.initializer if t.name == "words.weight")
    tensor.dims[:] = dims
    if place == "attribute":
        node = onnx.helper.make_node("Constant", [], ["words.weight"], value=tensor)
        model.graph.node.insert(0, node)
        model.graph.initializer.remove(tensor)
    with messages.raises(ModelSourceError):
        reading.check_arrays(model.graph, "by hand")


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
def test_every_node_is_checked_whatever_is_before_it(node, why, file, messages):
    """Fuzzing found them: a KeyError and an IndexError came out of the translation."""
    onnx.save(_node_behind_an_unknown_one(node), file)
    messages.check(refused(file, ModelSourceError), cause=cause(why))


def test_operator_sets_that_are_too_old_or_too_new(messages, file):
    model = small()
    for version in (10, NEWEST + 1):
        model.opset_import[0].version = version
        file.write_bytes(model.SerializeToString())
        parts = {"newest": NEWEST, "newer": NEWEST + 1, "version": onnx.__version__}
        messages.check(refused(file, UnsupportedModelError), **parts)


@pytest.mark.parametrize(
    ("missing", "verify"), [("onnx", True), ("onnx", False), ("onnxruntime", True)]
)
def test_missing_packages_name_the_extra(monkeypatch, missing, verify, messages, file):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest)
    )
    messages.check(refused(file, MissingExtraError, verify=verify))


def test_without_comparison_onnx_runtime_is_not_needed(monkeypatch, file):
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
    )
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
def test_weights_of_16_bits_are_taken_exactly(kind, file):
    model = halved(small(), kind)
    table = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype("float32")
    file.write_bytes(model.SerializeToString())
    np.testing.assert_array_equal(verified(file).parameters["words.weight"], table)


def test_weights_of_double_precision(messages, file):
    model = small()
    table = model.graph.initializer[0]
    array = onnx.numpy_helper.to_array(table).astype("double")
    table.CopyFrom(onnx.numpy_helper.from_array(array, table.name))
    file.write_bytes(model.SerializeToString())
    messages.check(refused(file, UnsupportedModelError))


def test_a_folder_with_onnx_files_says_so(tmp_path, messages):
    onnx.save(small(), tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    messages.check(refused(tmp_path, ModelSourceError))


def test_names_of_inputs_are_no_list(messages, file):
    messages.check(refused(file, ModelSourceError, inputs=["input_ids"]))


def test_reading_keeps_the_model_as_it_is(file):
    model, files = reading.read_model_files(file)
    assert files == (file,)
    assert model == small()
