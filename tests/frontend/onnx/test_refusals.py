"""Graphs without a canonical form: one test per kind, the whole message, and the report."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.onnx import folding
from ibert_tvm.frontend.onnx.importing import import_onnx_model
from tests.frontend.imports import calls_of
from tests.snapshots import Messages

from .graphs import CHANNELS, WIDTH, Graph


def at(make: Callable[[Graph], str]) -> UnsupportedModelError:
    g = Graph(opset=17)
    output = make(g)
    with pytest.raises(UnsupportedModelError) as error:
        import_onnx_model(g.model(output, names=("out",)), source="by hand", verify=False)
    return error.value


def dense(g: Graph) -> str:
    return g.linear(g.words(), "encoder.dense")


def squared_gate(g: Graph) -> str:
    x = dense(g)
    gate = g.op("Sigmoid", x)
    times = g.op("Mul", x, g.op("Mul", gate, gate), name="times")
    return g.layer_norm(times, "norm")


def mean_norm(g: Graph) -> str:
    x = g.words()
    size = g.op("Add", g.axes("ReduceMean", g.op("Abs", x), -1), g.array(1e-6))
    scaled = g.op("Mul", g.op("Div", x, size), g.weight("norm.weight", CHANNELS), name="scale")
    return g.linear(scaled, "last")


def softmax_of_hidden(g: Graph) -> str:
    return g.op("Softmax", dense(g), axis=-1, name="soft")


def later_tokens(g: Graph) -> str:
    def mask(scores: str) -> str:
        length = g.op("Slice", g.op("Shape", "input_ids"), g.ints(1), g.ints(2))
        ones = g.op("ConstantOfShape", g.op("Concat", length, length, axis=0))
        later = g.op("Trilu", g.op("Add", ones, g.array(1.0)), g.array(0, "int64"), upper=0)
        return g.op("Add", scores, g.op("Mul", later, g.array(-1e9)), name="hide")

    return g.attention(g.words(), mask)


def relative_bias(g: Graph) -> str:
    def mask(scores: str) -> str:
        wide = g.axes("Unsqueeze", "attention_mask", 1, 2)
        real = g.op("Cast", wide, to=TensorProto.FLOAT)
        return g.op("Add", scores, g.op("Mul", real, g.array(2.0)), name="bias")

    return g.attention(g.words(), mask)


def branch(g: Graph) -> str:
    kept = g.op("ReduceSum", "attention_mask", keepdims=0)
    many = g.op("Greater", kept, g.array(3, "int64"))
    x = dense(g)
    bodies = [
        helper.make_graph(
            [helper.make_node("Identity", [x], [f"{name}_out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    ]
    return g.op("If", many, name="branch", then_branch=bodies[0], else_branch=bodies[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda g: g.op("Softplus", dense(g), name="act"),
        lambda g: g.op("Mystery", dense(g), name="act", domain="my.domain"),
        lambda g: g.op("Erf", "input_ids", name="act"),
        lambda g: g.op("Transpose", g.array([[1.0, 2.0]]), perm=[0, 1, 2], name="turn"),
        squared_gate,
        mean_norm,
        softmax_of_hidden,
        later_tokens,
        relative_bias,
        branch,
        lambda g: g.axes("ReduceMean", dense(g), 1, name="average"),
        lambda g: g.op("Reshape", dense(g), g.array([5, CHANNELS], "int64"), name="fixed"),
        lambda g: g.op("Cast", dense(g), to=99, name="odd"),
        lambda g: g.op("Reshape", dense(g), g.array([0, 0, 0, 0], "int64"), name="kept"),
    ],
)
def test_refusals(make, messages):
    messages.check(str(at(make)))


def test_the_report_holds_what_was_matched_before():
    def make(g: Graph) -> str:
        x = g.attention(g.words(), g.additive_mask)
        return g.linear(g.op("Softplus", g.linear(x, "up"), name="act"), "down")

    report = at(make).report
    assert report is not None
    assert report.source == "ONNX, operator set 17, made by hand"
    assert [(m.op.removeprefix("canonical."), m.name) for m in report.matched] == [
        ("embedding", "words"),
        ("linear", "self.q"),
        ("linear", "self.k"),
        ("linear", "self.v"),
        ("attention", "self"),
        ("linear", "up"),
    ]
    assert [(r.op, r.node, r.layer, r.why) for r in report.refusals] == [
        ("Softplus", "act", "up", "the operator Softplus is not known here")
    ]


def test_what_no_output_needs_is_not_refused():
    g = Graph(opset=17)
    x = dense(g)
    g.op("NonZero", x)
    model = import_onnx_model(g.model(x, names=("out",)), source="by hand", verify=False)
    assert [m.name for m in model.report.matched] == ["words", "encoder.dense"]


def test_an_operand_from_nowhere(messages):
    g = Graph(opset=17)
    model = g.model(g.op("Add", g.words(), "lost", name="sum"), names=("out",))
    with messages.raises(ModelSourceError):
        import_onnx_model(model, source="by hand", verify=False)


def test_an_output_from_nowhere(messages):
    g = Graph(opset=17)
    model = g.model(dense(g), names=("out",))
    model.graph.output[0].name = "*/ int x; /*"
    with messages.raises(ModelSourceError):
        import_onnx_model(model, source="by hand", verify=False)


def test_inputs_of_no_token(messages):
    """ONNX Runtime holds a model to an extent of 0, which others take for a free one."""
    g = Graph(opset=17)
    model = g.model(dense(g), names=("out",))
    for item in model.graph.input:
        item.type.tensor_type.shape.dim[1].dim_value = 0
    with messages.raises(
        ModelSourceError, why=re.compile("why: .*Got invalid dimensions for input.*")
    ):
        import_onnx_model(model, source="by hand")


def test_a_graph_that_disagrees_with_itself_is_found():
    """The comparison with ONNX Runtime is made: a doubled weight in the import is noticed."""
    from ibert_tvm.frontend.onnx import importing

    g = Graph(opset=17)
    model = g.model(dense(g), names=("out",))
    original = importing.canonicalise

    def doubled(module, parameters, **more):
        return original(module, {k: 2 * v for k, v in parameters.items()}, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "canonicalise", doubled)
        with pytest.raises(UnsupportedModelError) as error:
            import_onnx_model(model, source="by hand")
    assert error.value.what == "the imported model differs from its source"
    assert error.value.report is not None
    assert [m.name for m in error.value.report.matched] == ["words", "encoder.dense"]


def test_scales_of_attention_that_are_no_rounding_stay():
    g = Graph(opset=17)

    def mask(scores: str) -> str:
        return g.additive_mask(g.op("Mul", scores, g.array(1.01)))

    model = import_onnx_model(g.model(g.attention(g.words(), mask)), source="by hand", verify=False)
    scales = [float(call.attrs["scale"]) for call in calls_of(model, "attention")]
    np.testing.assert_allclose(scales, [1.01 * WIDTH**-0.5], rtol=1e-6)


def doubled(g: Graph) -> str:
    row = g.array(np.ones(2**10))
    for _ in range(40):
        row = g.op("Concat", row, row, axis=0)
    return row


GROWING: dict[str, Callable[[Graph], str]] = {
    "ConstantOfShape": lambda g: g.op("ConstantOfShape", g.ints(2**20, 2**20)),
    "Tile": lambda g: g.op("Tile", g.array(np.ones(4)), g.ints(2**40)),
    "Expand": lambda g: g.op("Expand", g.array(np.ones(1)), g.ints(2**40)),
    "Range": lambda g: g.op("Range", *(g.array(n, "int64") for n in (0, 2**40, 1))),
    "Pad": lambda g: g.op("Pad", g.array(np.ones(4)), g.ints(2**40, 0)),
    "OneHot": lambda g: g.op("OneHot", g.ints(1), g.array(2**40, "int64"), g.ints(0, 1)),
    "Concat": doubled,
    "a tensor that depends on inputs": lambda g: g.op(
        "Cast",
        g.op("Expand", g.axes("Unsqueeze", "input_ids", 0), g.ints(2**40, 1, 1)),
        to=TensorProto.FLOAT,
    ),
}


@pytest.mark.parametrize("name", GROWING)
def test_results_without_bound_are_not_computed(
    name: str, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LARGEST_RESULT", 2**20)  # so that the test itself is quick
    g = Graph()
    sizes = g.op("ReduceSum", GROWING[name](g), keepdims=0)
    output = g.op("Add", g.words(), g.op("Cast", sizes, to=TensorProto.FLOAT))
    with messages.raises(UnsupportedModelError):
        import_onnx_model(g.model(output), source="by hand", verify=False)


def test_all_that_is_computed_has_a_bound(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LARGEST_RESULT", 2**12)

    def model(parts: int) -> onnx.ModelProto:
        g = Graph()
        rows = [g.op("ConstantOfShape", g.ints(2**9)) for _ in range(parts)]
        row = g.op("Sum", *rows)
        return g.model(g.op("Add", g.words(), g.op("ReduceSum", row, keepdims=0)))

    assert import_onnx_model(model(8), source="by hand", verify=False)
    with messages.raises(UnsupportedModelError):
        import_onnx_model(model(64), source="by hand", verify=False)


def functions(count: int, *, recursive: bool = False) -> onnx.ModelProto:
    """A model whose functions each call the next one twice."""
    g = Graph()
    output = g.op("F0", g.words())
    g.nodes[-1].domain = "local"
    model = g.model(output)
    for n in range(count):
        inner = "Identity" if n + 1 == count else f"F{n + 1}"
        domain = "" if inner == "Identity" else "local"
        if recursive and n + 1 == count:
            inner, domain = "F0", "local"
        nodes = [
            helper.make_node(inner, ["x"], ["y"], domain=domain),
            helper.make_node(inner, ["y"], ["z"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", f"F{n}", ["x"], ["z"], nodes, imports))
    return model


@pytest.mark.parametrize("recursive", [False, True])
def test_functions_that_multiply_are_refused(recursive: bool, messages: Messages) -> None:
    assert import_onnx_model(functions(3), source="by hand", verify=False)
    with messages.raises(ModelSourceError):
        import_onnx_model(functions(41, recursive=recursive), source="by hand", verify=False)
