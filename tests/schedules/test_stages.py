"""Kernels read as stages: what their expressions compute, put together anew."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from ibert_tvm.schedules.stages import NotElementwise, StageGraph
from tests.snapshots import Messages

ROWS, HEADS, WIDTH = 6, 2, 4
COLUMNS = HEADS * WIDTH


def chain() -> tirx.PrimFunc:
    """Read a parameter twice, bind a variable, guard a load, and give two results."""
    x = te.placeholder((ROWS, COLUMNS), "int32", name="x")
    y = te.placeholder((COLUMNS,), "int16", name="y")
    doubled = te.compute((ROWS, COLUMNS), lambda i, j: x[i, j] * 2 + y[j], name="doubled")

    def squared(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        t = tirx.Var("t", "int32")
        u = tirx.Var("u", "int32")
        inner = tirx.Let(u, t + doubled[i, j], u * t)
        return tirx.Let(t, doubled[i, j] - doubled[ROWS - 1 - i, j], inner)

    square = te.compute((ROWS, COLUMNS), squared, name="square")

    def shifted(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        value = tirx.if_then_else(j > 0, square[i, j - 1], tirx.const(-1, "int32"))
        return value + square[i, j]

    moved = te.compute((ROWS, COLUMNS), shifted, name="moved")
    narrow = te.compute(
        (ROWS, COLUMNS), lambda i, j: (moved[i, j] >> 3).astype("int8"), name="narrow"
    )
    return te.create_prim_func([x, y, square, narrow])


def sums() -> tirx.PrimFunc:
    """A row sum and a maximum, and entries that read both."""
    x = te.placeholder((ROWS, COLUMNS), "int32", name="x")
    k = te.reduce_axis((0, COLUMNS), name="k")
    total = te.compute((ROWS,), lambda i: te.sum(x[i, k] + 1, axis=k), name="total")
    top = te.compute((ROWS,), lambda i: te.max(x[i, k], axis=k), name="top")
    out = te.compute((ROWS, COLUMNS), lambda i, j: top[i] - x[i, j] + total[i], name="out")
    return te.create_prim_func([x, out])


def merged() -> tirx.PrimFunc:
    """A result of four axes that is stored as two, and one that reads it."""
    x = te.placeholder((1, ROWS, HEADS, WIDTH), "int32", name="x")
    a = te.compute(x.shape, lambda b, i, h, d: x[b, i, h, d] * (h + 1) - d, name="a")
    sch = s_tir.Schedule(te.create_prim_func([x, a]))
    sch.transform_layout(
        sch.get_sblock("a"), ("write", 0), lambda b, i, h, d: (b * ROWS + i, h * WIDTH + d)
    )
    return sch.mod["main"]


def rebuilt(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with one loop nest per result, everything else inlined or reduced in place."""
    graph = StageGraph(func)
    statements = []
    locals_of = {}
    for stage in graph.stages.values():
        if stage.reduced:
            local = tirx.decl_buffer(stage.extents, str(stage.value.ty), stage.name)
            locals_of[stage.buffer] = local
            statements.append(reduction(graph, stage, local))
    leaves = {
        buffer: lambda indices, local=local: tirx.BufferLoad(local, list(indices))
        for buffer, local in locals_of.items()
    }
    for output in graph.outputs:
        shape = [int(size) for size in output.ty.shape]
        loops = [tirx.Var(f"i{axis}", "int32") for axis in range(len(shape))]
        evaluation = graph.evaluate(leaves)
        value = evaluation.entry(output, loops)
        body = evaluation.before(tirx.BufferStore(output, value, loops))
        for var, size in reversed(list(zip(loops, shape, strict=True))):
            body = tirx.For(var, 0, size, tirx.ForKind.SERIAL, body)
        statements.append(body)
    allocations = [tirx.AllocBuffer(local) for local in locals_of.values()]
    body = sequence([*allocations, *statements])
    return tirx.PrimFunc(list(func.params), body).with_attr("global_symbol", "main")


def sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def reduction(graph: StageGraph, stage, local: tirx.Var) -> tirx.Stmt:
    places = [tirx.Var(f"p{axis}", "int32") for axis in range(len(stage.extents))]
    inner = [tirx.Var(f"r{axis}", "int32") for axis in range(len(stage.reduced_extents))]
    evaluation = graph.evaluate()
    term = evaluation.value(stage, places, inner)
    old = tirx.BufferLoad(local, places)
    new = old + term if stage.combine == "sum" else tirx.max(old, term)
    body = evaluation.before(tirx.BufferStore(local, new, places))
    for var, size in zip(inner, stage.reduced_extents, strict=True):
        body = tirx.For(var, 0, size, tirx.ForKind.SERIAL, body)
    body = tirx.SeqStmt([tirx.BufferStore(local, stage.initial, places), body])
    for var, size in zip(places, stage.extents, strict=True):
        body = tirx.For(var, 0, size, tirx.ForKind.SERIAL, body)
    return body


@pytest.mark.representatives(1)
@pytest.mark.parametrize("kernel", [chain, sums, merged])
def test_entries_are_what_the_kernel_computes(kernel) -> None:
    func = kernel()
    random = np.random.default_rng(0)
    arrays = []
    for var in func.params:
        shape, dtype = [int(size) for size in var.ty.shape], str(var.ty.dtype)
        arrays.append(random.integers(-99, 100, shape).astype(dtype))
    results = []
    for version in (func, rebuilt(func)):
        built = tvm.compile(tvm.IRModule({"main": version}), target="llvm")
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        built["main"](*tensors)
        results.append([tensor.numpy() for tensor in tensors])
    assert len(StageGraph(func).outputs) > 0
    for expected, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_graph_names_its_stages_parameters_and_results() -> None:
    func = chain()
    graph = StageGraph(func)
    assert list(graph.stages) == ["doubled", "square", "moved", "narrow"]
    assert [var.name for var in graph.parameters] == ["x", "y"]
    assert [var.name for var in graph.outputs] == ["square", "narrow"]
    assert graph.producer(graph.parameters[0]) is None
    total = StageGraph(sums()).stages["total"]
    assert (total.combine, total.reduced_extents, int(total.initial)) == ("sum", (COLUMNS,), 0)


def test_an_entry_is_computed_once() -> None:
    """Of `doubled`, what `square` reads at two rows: two entries, though it reads three."""
    graph = StageGraph(chain())
    evaluation = graph.evaluate()
    row, column = tirx.Var("row", "int32"), tirx.Var("column", "int32")
    evaluation.entry(graph.outputs[0], [row, column])
    names = [binding.var.name for binding in evaluation.bindings]
    assert sorted(names) == ["doubled", "doubled", "square", "t", "u"]


def test_a_reduction_that_is_no_leaf_is_refused(messages: Messages) -> None:
    graph = StageGraph(sums())
    with messages.raises(NotElementwise):
        graph.evaluate().entry(graph.outputs[0], [tirx.const(0, "int32")] * 2)


def test_what_a_condition_guards_is_computed_under_it_alone() -> None:
    """`moved` reads `square` at column - 1 under a condition: nothing of it may come before."""
    graph = StageGraph(chain())
    evaluation = graph.evaluate()
    row, column = tirx.Var("row", "int32"), tirx.Var("column", "int32")
    evaluation.entry(graph.outputs[1], [row, column])
    names = [binding.var.name for binding in evaluation.bindings]
    assert sorted(names) == ["moved", "narrow"]
