"""Which value a rounding belongs to, on small graphs, and how integers of weights are found."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from ibert_tvm.frontend.errors import UnsupportedModelError
from ibert_tvm.frontend.qdq.importing import MatrixIndex, Placement, Placer
from ibert_tvm.frontend.qdq.strip import Edge, GivenTensor, Grid, StrippedModel
from ibert_tvm.frontend.report import ShownTensor


def place(nodes, edges, shown, channels=4, outputs=("y",)) -> Placement:
    """Place edges in a graph; a node is ``op inputs -> outputs``, an edge its Identity's output."""
    made = []
    for text in nodes:
        left, right = text.split(" -> ")
        op, *inputs = left.split()
        made.append(helper.make_node(op, inputs, right.split(), name=f"/{right.split()[0]}"))
    graph = helper.make_graph(made, "g", [], [onnx.ValueInfoProto(name=name) for name in outputs])
    graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.FLOAT, [4, 4], [0.0] * 16))
    sources = {node.output[0]: node.input[0] for node in made}
    found = tuple(
        Edge(name, sources[name], f"/{name}", step if isinstance(step, Grid) else grid(step))
        for name, step in edges.items()
    )
    tensors = [ShownTensor(name, *value) for name, value in shown.items()]
    values = {value[0]: channels for value in shown.values()}
    return Placer(StrippedModel(helper.make_model(graph), found), tensors, values).run()


def grid(step, zero=0, dtype="uint8", **kw) -> Grid:
    scale = np.asarray(step, np.float32)
    return Grid(scale, np.full(scale.shape, zero, np.int64), dtype, **kw)


def readers(placement: Placement, value: str):
    return [
        (r.node, r.product, None if r.scale is None else float(r.scale.scale))
        for r in placement.readers[value]
    ]


def test_a_reader_sees_the_last_rounding_on_its_way():
    placement = place(
        [
            "MatMul x w -> a",
            "Identity a -> a8",
            "Transpose a8 -> t",
            "Identity t -> t8",
            "MatMul t8 t8 -> s",
            "Add a a -> y",
        ],
        {"a8": 0.5, "t8": 0.25},
        {name: ("v",) for name in ("a", "a8", "t", "t8")},
    )
    assert sorted(readers(placement, "v")) == [("/s", True, 0.25), ("/y", False, None)]
    assert [(u.tensor, u.use, u.value) for u in placement.uses] == [
        ("a", "superseded", "v"),
        ("t", "value", "v"),
    ]
    assert placement.tensors == {"v": "a"}


def test_equal_roundings_on_one_way_are_all_used():
    placement = place(
        [
            "MatMul x w -> a",
            "Identity a -> a8",
            "Reshape a8 k -> r",
            "Identity r -> r8",
            "MatMul r8 w -> y",
        ],
        {"a8": 0.5, "r8": 0.5},
        {name: ("v",) for name in ("a", "a8", "r", "r8")},
    )
    assert [use.use for use in placement.uses] == ["value", "value"]


def test_the_rounding_of_a_fused_tensor_counts_for_its_slices():
    placement = place(
        ["MatMul x w -> f", "Identity f -> f8", "Split f8 -> q k", "MatMul q k -> y"],
        {"f8": 0.5},
        {"q": ("queries",), "k": ("keys",)},
    )
    assert readers(placement, "queries") == [("/y", True, 0.5)]
    assert readers(placement, "keys") == [("/y", True, 0.5)]
    assert placement.uses[0].use == "value"


def test_a_value_made_from_another_does_not_inherit_its_rounding():
    placement = place(
        ["MatMul x w -> a", "Identity a -> a8", "Gather a8 first -> c", "MatMul c w -> y"],
        {"a8": 0.5},
        {"a": ("v",), "a8": ("v",), "c": ("token",)},
    )
    assert readers(placement, "token") == [("/y", True, None)]
    assert readers(placement, "v") == [("/c", False, 0.5)]


def test_a_scaled_tensor_has_a_scaled_grid():
    placement = place(
        ["MatMul x w -> a", "Mul a half -> h", "Identity h -> h8", "MatMul h8 w -> y"],
        {"h8": grid(0.25, 10)},
        {"a": ("v",), "h": ("v", 0.5), "h8": ("v", 0.5)},
    )
    assert readers(placement, "v") == [("/y", True, 0.5)]
    negative = place(
        ["MatMul x w -> a", "Mul a half -> h", "Identity h -> h8", "MatMul h8 w -> y"],
        {"h8": grid(0.25, 10)},
        {"a": ("v",), "h": ("v", -0.5), "h8": ("v", -0.5)},
    )
    (reader,) = negative.readers["v"]
    assert (reader.scale.low, reader.scale.high, int(reader.scale.zero_point)) == (-255, 0, -10)


def test_the_rest_is_inside_of_an_operator_or_of_the_inputs_or_unread():
    placement = place(
        [
            "Cast mask -> m",
            "Identity m -> m8",
            "MatMul x w -> p",
            "Identity p -> p8",
            "Add p8 b -> a",
            "Add a m8 -> y",
            "MatMul a w -> d",
            "Identity d -> d8",
            "Shape d8 -> n",
        ],
        {"m8": 1e36, "p8": 0.5, "d8": 0.5},
        {"a": ("v",), "y": ("sum",)},
    )
    assert [(u.tensor, u.use, u.value) for u in placement.uses] == [
        ("m", "inputs", ""),
        ("p", "inside", "v"),
        ("d", "unread", ""),
    ]


def test_scales_per_channel_belong_to_the_last_axis():
    nodes = ["MatMul x w -> a", "Identity a -> a8", "MatMul a8 w -> y"]
    steps = np.array([1.0, 2.0, 3.0, 4.0])
    placement = place(nodes, {"a8": grid(steps, axis=2)}, {"a": ("v",), "a8": ("v",)})
    np.testing.assert_array_equal(placement.readers["v"][0].scale.scale, steps)
    with pytest.raises(
        UnsupportedModelError, match="4 scales along axis 1, and the value v has 4 channels"
    ):
        place(nodes, {"a8": grid(steps, axis=1)}, {"a": ("v",), "a8": ("v",)})


# -- integers of weights ----------------------------------------------------------------------


def given(integers, scale, zero=0, axis=1, name="w", dtype="int8") -> GivenTensor:
    scale = np.asarray(scale, np.float32)
    zeros = np.broadcast_to(np.asarray(zero, np.int64), scale.shape)
    return GivenTensor(name, np.asarray(integers, dtype), Grid(scale, zeros, dtype, axis))


RANDOM = np.random.default_rng(0)
INTEGERS = RANDOM.integers(0, 256, (6, 9), dtype=np.uint8)
PER_COLUMN = given(
    INTEGERS, RANDOM.uniform(0.01, 0.02, 9), RANDOM.integers(0, 256, 9), dtype="uint8"
)
STEPS = INTEGERS.astype(int) - PER_COLUMN.grid.zero_point


def floats(tensor: GivenTensor) -> np.ndarray:
    return tensor.grid.dequantize(tensor.integers)


def test_a_transposed_matrix_has_the_source_integers():
    found = MatrixIndex([PER_COLUMN]).find(np.ascontiguousarray(floats(PER_COLUMN).T))
    assert found.tensor == "w"
    assert found.found.all()
    np.testing.assert_array_equal(found.integers, STEPS.T)
    np.testing.assert_array_equal(found.scale, PER_COLUMN.grid.scale)


def test_slices_of_a_fused_matrix_are_found_row_by_row():
    found = MatrixIndex([PER_COLUMN]).find(floats(PER_COLUMN).T[3:6])
    np.testing.assert_array_equal(found.integers, STEPS.T[3:6])


@pytest.mark.parametrize("factor", [0.3, -2.0])
def test_a_factor_goes_to_the_scale(factor):
    found = MatrixIndex([PER_COLUMN]).find(floats(PER_COLUMN).T * np.float32(factor))
    np.testing.assert_array_equal(found.integers, STEPS.T * np.sign(factor).astype(int))
    np.testing.assert_allclose(found.scale, PER_COLUMN.grid.scale * abs(factor), rtol=1e-6)


def test_the_hint_chooses_among_equal_rows():
    twin = given(INTEGERS, PER_COLUMN.grid.scale, PER_COLUMN.grid.zero_point, 1, "twin", "uint8")
    found = MatrixIndex([PER_COLUMN, twin]).find(floats(twin).T[:2], "twin")
    assert found.tensor == "twin"


def test_other_matrices_are_not_found():
    index = MatrixIndex([PER_COLUMN, given([1, 2], 0.5, name="vector")])
    assert index.find(floats(PER_COLUMN).T + np.float32(0.001)) is None
    partly = floats(PER_COLUMN).T.copy()
    partly[2] += 1
    assert index.find(partly).found.tolist() == [i != 2 for i in range(9)]


def test_scales_that_change_within_the_rows_are_of_no_use():
    rows = given(RANDOM.integers(-128, 128, (4, 5)), RANDOM.uniform(0.01, 0.02, 4), axis=0)
    assert MatrixIndex([rows]).find(floats(rows)).found.all()
    assert MatrixIndex([rows]).find(floats(rows).T) is None
