"""The graph of a program: what is proven of its edges, and the file for viewers of graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import dtype_bounds
from ibert_tvm.report import program_graph, write_onnx
from tests.encoder.small_encoders import bert


@pytest.fixture(scope="module")
def graph() -> dict[str, Any]:
    return program_graph(bert())


def test_ranges_are_those_of_the_proof(graph: dict[str, Any]) -> None:
    model = bert()
    proven = analyse_ranges(model.program, model.parameters)
    assert graph["longest_sequence"] == proven.max_seq_len
    assert [step["name"] for step in graph["steps"]] == list(proven.details)
    for step in graph["steps"]:
        value = proven.details[step["name"]]
        assert (step["low"], step["high"], step["width"]) == (value.low, value.high, value.width)
        stages = {stage["name"]: (stage["low"], stage["high"]) for stage in step["stages"]}
        assert stages == value.stages


def test_headroom_is_how_often_a_value_may_double(graph: dict[str, Any]) -> None:
    for step in graph["steps"]:
        low, high = dtype_bounds(step["type"].partition("[")[0])
        room = step["headroom"]
        assert low <= step["low"] << room and (step["high"] + 1 << room) - 1 <= high, step
        beyond = room + 1
        assert step["low"] << beyond < low or (step["high"] + 1 << beyond) - 1 > high, step
        assert 0 <= step["spare"] == step["word"] - step["width"]
    assert graph["least_spare"] == min(step["spare"] for step in graph["steps"])
    assert graph["widest_bits"] == max(step["width"] for step in graph["steps"])


def test_blocks_are_the_layers_in_order(graph: dict[str, Any]) -> None:
    blocks = graph["blocks"]
    names = [block["name"] for block in blocks]
    assert names[0] == "embeddings" and "encoder.layer.0" in names
    assert len(set(names)) == len(names)
    ends = [block["first"] + block["count"] for block in blocks]
    assert [block["first"] for block in blocks] == [0, *ends[:-1]]
    assert ends[-1] == len(graph["steps"])


def test_every_operand_is_a_parameter_an_input_or_an_earlier_step(graph: dict[str, Any]) -> None:
    program, made = bert().program, set()
    for step in graph["steps"]:
        for operand in step["operands"]:
            value = operand["value"]
            known = {"parameter": program.parameters, "input": program.inputs, "step": made}
            assert value in known[operand["from"]]
        made.add(step["name"])


def test_the_onnx_file_is_valid_and_says_what_is_proven(
    graph: dict[str, Any], tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx", reason="the file needs the extra onnx")
    model = bert()
    write_onnx(model, graph, tmp_path / "graph.onnx")
    read = onnx.load(tmp_path / "graph.onnx")
    onnx.checker.check_model(read, full_check=True)
    assert [value.name for value in read.graph.input] == list(model.program.inputs)
    assert [value.name for value in read.graph.output] == list(model.program.outputs)
    types = {value.name: value for value in [*read.graph.value_info, *read.graph.output]}
    assert len(read.graph.node) == len(graph["steps"])
    for node, step, of_program in zip(
        read.graph.node, graph["steps"], model.program.steps, strict=True
    ):
        said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert (node.name, f"integer.{node.op_type}") == (step["name"], step["operator"])
        for name in ("low", "high", "bits", "of_bits", "headroom", "width", "word", "spare"):
            assert said[f"proven_{name}"] == step[name]
        tensor = types[step["name"]].type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        assert f"{dtype}[{', '.join(map(str, dims))}]" == str(of_program.type)
    props = {prop.key: prop.value for prop in read.metadata_props}
    assert props["preset"] == "accurate"


def test_a_graph_of_another_suffix_is_refused(graph: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        write_onnx(bert(), graph, tmp_path / "graph.json")
    assert str(error.value) == (
        f"bad value for --graph: '{tmp_path / 'graph.json'}'\n"
        "  why: viewers know the format by the suffix, and the file is ONNX\n"
        "  what to do: give a name that ends in .onnx"
    )
    assert list(tmp_path.iterdir()) == []
