"""QOperator to QDQ, and QDQ to a float graph with a list of roundings: nothing may be lost."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ibert_tvm.frontend.qdq.qoperator import is_quantised, to_qdq
from ibert_tvm.frontend.qdq.strip import Grid, StrippedModel, strip
from tests.examples import examples
from tests.frontend.qdq.encoder import batches, encoder, quantize, run
from tests.frontend.qdq.variants import VARIANTS


def rounded_again(stripped: StrippedModel) -> onnx.ModelProto:
    """Put the roundings back, in a graph whose weights are floats."""
    edges = {edge.tensor: edge for edge in stripped.edges}
    model = onnx.ModelProto()
    model.CopyFrom(stripped.model)
    nodes = []
    for node in model.graph.node:
        edge = edges.get(node.output[0])
        if edge is None:
            nodes.append(node)
            continue
        grid, name = edge.grid, node.output[0]
        dtype = getattr(TensorProto, grid.dtype.upper())
        model.graph.initializer.append(numpy_helper.from_array(grid.scale, f"{name}.s"))
        zero = helper.make_tensor(f"{name}.z", dtype, [], [int(grid.zero_point)])
        model.graph.initializer.append(zero)
        scales = [f"{name}.s", f"{name}.z"]
        nodes.append(helper.make_node("QuantizeLinear", [node.input[0], *scales], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", *scales], [name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def with_exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Round the scales of what matrix products take and give to powers of two.

    Integer operators add integers; in QDQ form the same sum is one of floats. With such scales it
    is exact as well; with others its last bits depend on the processor, and a sum next to a half is
    rounded to either side.
    """
    scales = {"QLinearMatMul": (1, 4, 6), "QGemm": (1, 4, 7)}
    names = {
        node.input[index] for node in model.graph.node for index in scales.get(node.op_type, ())
    }
    for name in names:
        tensor = _initializer(model, name)
        rounded = np.exp2(np.round(np.log2(numpy_helper.to_array(tensor))))
        tensor.CopyFrom(numpy_helper.from_array(rounded, name))
    return model


@pytest.fixture(
    scope="module", params=examples(VARIANTS, "qdq_all", "qdq_linear_symmetric", "qoperator_all")
)
def quantised(request, tmp_path_factory) -> onnx.ModelProto:
    gemm = request.param in ("qdq_all", "qoperator_all")
    folder = tmp_path_factory.mktemp(request.param)
    # Symmetric int8 of -FLT_MAX overflows to minus infinity, and the file computes NaN.
    lowest = -1e9 if "symmetric" in request.param else float(np.finfo(np.float32).min)
    model = quantize(folder, encoder(gemm=gemm, lowest=lowest), **VARIANTS[request.param])
    return with_exact_products(model) if request.param.startswith("qoperator") else model


@pytest.mark.slow
def test_a_model_in_qdq_form_computes_the_same(quantised):
    assert is_quantised(quantised)
    rewritten = to_qdq(quantised)
    for inputs in batches():
        np.testing.assert_array_equal(run(rewritten, inputs), run(quantised, inputs))


@pytest.mark.slow
@pytest.mark.representatives(1)
def test_nothing_is_lost_by_taking_the_roundings_out(quantised):
    stripped = strip(to_qdq(quantised))
    onnx.checker.check_model(stripped.model, full_check=True)
    assert not is_quantised(stripped.model)
    rewritten = rounded_again(stripped)
    for inputs in batches():
        np.testing.assert_array_equal(run(rewritten, inputs), run(quantised, inputs))


def test_neither_step_changes_the_model_it_is_given(quantised):
    before = quantised.SerializeToString(deterministic=True)
    strip(to_qdq(quantised))
    assert quantised.SerializeToString(deterministic=True) == before


def test_a_float_model_is_not_quantised():
    assert not is_quantised(encoder())


def test_float_weights_keep_the_names_that_they_had_before_quantisation(tmp_path):
    model = quantize(tmp_path, encoder(), **VARIANTS["qdq_all_per_channel"])
    names = {tensor.name for tensor in strip(model).model.graph.initializer}
    expected = {tensor.name for tensor in encoder().graph.initializer}
    assert {name for name in expected if "weight" in name or "bias" in name} <= names


# -- operators of ONNX Runtime --------------------------------------------------------------


def _model(nodes, constants, channels: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "/Quantize"), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, channels])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _operator(kind: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    columns = 12 if kind == "QAttention" else 6
    constants = {
        "s": np.array(0.02, np.float32),
        "z": np.array(100, np.uint8),
        "w": random.integers(-128, 128, (4, columns), dtype=np.int8),
        "ws": random.uniform(0.01, 0.02, columns).astype(np.float32),
        "wz": np.zeros(columns, np.int8),
        "bias": random.normal(size=columns).astype(np.float32),
        "factor": (0.02 * random.uniform(0.01, 0.02, columns)).astype(np.float32),
    }
    node, private = helper.make_node, {"domain": "com.microsoft"}
    nodes = {
        "MatMulInteger": lambda: [
            node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], "/Product"),
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "factor"], ["y"]),
        ],
        "MatMulIntegerToFloat": lambda: [
            node(kind, ["q", "w", "s", "ws", "z", "wz", "bias"], ["y"], "/Product", **private)
        ],
        "QAttention": lambda: [
            node(
                kind,
                ["q", "w", "bias", "s", "ws", "", "z", "wz"],
                ["y"],
                "/Attention",
                num_heads=2,
                **private,
            )
        ],
        "QLinearSigmoid": lambda: [
            node(kind, ["q", "s", "z", "ws1", "z"], ["r"], **private),
            node("DequantizeLinear", ["r", "ws1", "z"], ["y"]),
        ],
        "QLinearConcat": lambda: [
            node(kind, ["s", "z", "q", "s", "z", "q", "s", "z"], ["r"], axis=-1, **private),
            node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
        "QLinearWhere": lambda: [
            node("Greater", ["x", "zero"], ["c"]),
            node(kind, ["c", "q", "s", "z", "q", "s", "z", "s", "z"], ["r"], **private),
            node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ],
    }[kind]()
    constants |= {"ws1": np.array(0.004, np.float32), "zero": np.array(0, np.float32)}
    read = {name for item in nodes for name in item.input} | {"s", "z"}
    return _model(nodes, {k: v for k, v in constants.items() if k in read}, 4)


@pytest.mark.parametrize(
    "kind",
    [
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QLinearConcat",
        "QLinearSigmoid",
        "QLinearWhere",
    ],
)
def test_an_integer_operator_is_rewritten_to_what_it_computes(kind):
    model = _operator(kind)
    assert is_quantised(model)
    rewritten = to_qdq(model)
    left = {node.op_type for node in rewritten.graph.node}
    assert not any(op.startswith(("QL", "QA", "MatMulI")) for op in left)
    x = {"x": np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)}
    np.testing.assert_allclose(run(rewritten, x), run(model, x), atol=1e-5)
    stripped = strip(rewritten)
    np.testing.assert_allclose(run(rounded_again(stripped), x), run(model, x), atol=1e-5)
    if "w" in {tensor.name for tensor in model.graph.initializer}:
        np.testing.assert_array_equal(
            stripped.constants["w"].integers, numpy_helper.to_array(_initializer(model, "w"))
        )


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


# -- grids ----------------------------------------------------------------------------------


def grid(scale, zero, dtype="uint8", **kw) -> Grid:
    return Grid(np.asarray(scale, np.float32), np.asarray(zero, np.int64), dtype, **kw)


def test_dequantisation_is_that_of_onnx():
    random = np.random.default_rng(0)
    integers = random.integers(0, 256, (3, 5), dtype=np.uint8)
    for axis, count in ((0, 3), (1, 5)):
        scale = random.uniform(0.001, 0.1, count).astype(np.float32)
        zero = random.integers(0, 256, count).astype(np.uint8)
        node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"], axis=axis)
        expected = _evaluate(node, {"q": integers, "s": scale, "z": zero})
        ours = grid(scale, zero, axis=axis).dequantize(integers.astype(np.int64))
        np.testing.assert_array_equal(ours, expected)


def test_quantisation_is_that_of_onnx():
    values = np.concatenate([np.linspace(-40, 40, 4001), [np.inf, -np.inf, 3.4e38]])
    values = values.astype(np.float32)
    for dtype, zero in (("uint8", 7), ("int8", -3), ("int16", 0), ("uint16", 300)):
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
        constants = {"s": np.array(0.125, np.float32), "z": np.array(zero, dtype)}
        expected = _evaluate(node, {"x": values, **constants})
        np.testing.assert_array_equal(grid(0.125, zero, dtype).quantize(values), expected)


def test_blocks_repeat_their_scale_along_the_axis():
    blocks = grid([[1.0], [2.0]], [[0], [1]], "int4", axis=0, block=2)
    integers = np.array([[3, 3], [3, 3], [3, 3]])
    expected = [[3, 3], [3, 3], [4, 4]]
    np.testing.assert_array_equal(blocks.dequantize(integers), expected)


def test_ranges_and_widths():
    assert [
        (grid(1, 0, d).low, grid(1, 0, d).high, grid(1, 0, d).bits) for d in ("int4", "uint8")
    ] == [(-8, 7, 4), (0, 255, 8)]
    assert not grid([1.0, np.inf], [0, 0]).usable
    assert not grid(0.0, 0).usable


def _evaluate(node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> np.ndarray:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in constants.items()
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=node.output[0])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return run(model, constants)
