"""Reading Relax functions as kernel calls, and the places of their values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.script import from_source

from ibert_tvm.targets import TargetError
from ibert_tvm.targets.aot.graph import Graph, KernelCall, Place, Value, place_values, read_function
from tests.snapshots import Messages

_MODULE = Path(__file__).with_name("graph.relax").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def module() -> tvm.IRModule:
    return from_source(_MODULE)


def test_a_function_becomes_calls_on_values(module: tvm.IRModule) -> None:
    graph = read_function("main", module["main"])
    assert (graph.num_inputs, graph.num_parameters, graph.given) == (1, 1, 2)
    assert [(value.dtype, value.elements, value.nbytes) for value in graph.values] == [
        ("int8", 16, 16),
        ("int32", 8, 32),
        ("int32", 16, 64),
        ("int16", 4, 8),
        ("int32", 16, 64),
        ("int32", 16, 64),
    ]
    assert graph.calls == (
        KernelCall("two", "first", (0,), (2, 3)),
        KernelCall("one", "second", (2, 1), (4,)),
        KernelCall("one", "third", (4, 1), (5,)),
    )
    assert graph.results == (5, 3, 1, 5)


def test_results_lie_in_the_outputs_and_all_else_in_the_arena(module: tvm.IRModule) -> None:
    graph = read_function("main", module["main"])
    placed = place_values(graph, {"two": 100, "one": 0}, 16)
    assert placed.places[:2] == (Place("input", 0), Place("weight", 0))
    assert placed.places[5] == Place("output", 0)
    assert placed.places[3] == Place("output", 1)
    # A weight, and a result that is another one already, are copied.
    assert placed.copies == ((1, 2), (5, 3))
    first, second = placed.places[2], placed.places[4]
    assert first.kind == second.kind == "arena"
    assert abs(first.position - second.position) >= 64, "one kernel reads the one, writes the other"
    workspace = placed.workspaces[0]
    assert workspace >= first.position + 64 or workspace + 112 <= first.position
    assert placed.arena.nbytes == placed.arena.lower_bound == 176


def _chain(*reads: tuple[int, ...]) -> Graph:
    """A weight, and calls that each write 160 bytes; the last writes the output."""
    calls = [KernelCall(f"k{i}", "layer", one, (i + 1,)) for i, one in enumerate(reads)]
    values = (Value("int8", 160),) * (len(reads) + 1)
    return Graph("main", values, 0, 1, tuple(calls), (len(reads),))


@pytest.mark.parametrize(
    ("reads", "known", "shared", "nbytes"),
    [
        pytest.param(((0,), (1,), (2,)), {(0, 1): 0}, {(1, 0, 1)}, 160, id="over what dies"),
        pytest.param(((0,), (1,), (1, 2)), {(0, 1): 0}, set(), 320, id="not what is read later"),
        pytest.param(((0,), (1,), (2,)), {}, set(), 320, id="not what the kernel refuses"),
        pytest.param(((0,), (1, 1), (2,)), {(0, 2): 0}, set(), 320, id="not if it has two names"),
        pytest.param(
            ((0,), (1, 1), (2,)),
            {(0, 2): 0, (1, 2): 0},
            {(1, 0, 2), (1, 1, 2)},
            160,
            id="as both names allow",
        ),
    ],
)
def test_a_result_lies_over_an_argument_that_nobody_needs(
    reads: tuple[tuple[int, ...], ...],
    known: dict[tuple[int, int], int],
    shared: set[tuple[int, int, int]],
    nbytes: int,
) -> None:
    graph = _chain(*reads)
    placed = place_values(graph, {"k0": 0, "k1": 0, "k2": 0}, 16, lambda _kernel: known)
    assert (placed.shared, placed.arena.nbytes) == (frozenset(shared), nbytes)


def test_only_kernels_that_decide_the_size_are_asked() -> None:
    asked = []

    def ask(kernel: str) -> dict[tuple[int, int], int]:
        asked.append(kernel)
        return {(0, 1): 0}

    place_values(_chain((0,), (1,), (2,), (3,)), {"k0": 0, "k1": 320, "k2": 0, "k3": 0}, 16, ask)
    assert asked == ["k1"]


def test_anything_but_kernel_calls_is_refused(messages: Messages) -> None:
    x = relax.Var("x", relax.TensorType((2, 2), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(y)
    with messages.raises(TargetError):
        read_function("main", builder.get()["main"])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, dict[str, int]]:
    """Random programs: values read at once, much later, twice or never, and returned anyhow."""
    inputs, weights = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    sizes = st.integers(1, 300)
    values = [Value("int8", draw(sizes)) for _ in range(inputs + weights)]
    calls, workspaces = [], {}
    for step in range(draw(st.integers(1, 12))):
        known = st.integers(0, len(values) - 1)
        reads = tuple(draw(st.lists(known, min_size=1, max_size=4)))
        count = draw(st.integers(1, 3))
        writes = tuple(range(len(values), len(values) + count))
        values += [Value("int8", draw(sizes)) for _ in range(count)]
        calls.append(KernelCall(f"k{step}", "layer", reads, writes))
        workspaces[f"k{step}"] = draw(st.one_of(st.just(0), sizes))
    known = st.integers(0, len(values) - 1)
    results = tuple(draw(st.lists(known, min_size=1, max_size=4)))
    return Graph("main", tuple(values), inputs, weights, tuple(calls), results), workspaces


@given(graphs(), st.sampled_from([1, 16, 64]))
def test_every_kernel_reads_what_was_written(
    program: tuple[Graph, dict[str, int]], alignment: int
) -> None:
    """A kernel may write its workspace and its results while it still reads."""
    graph, workspaces = program
    placed = place_values(graph, workspaces, alignment)
    arena = np.full(placed.arena.nbytes, -1)
    outputs = [np.full(graph.values[value].elements, -1) for value in graph.results]
    given_values = {
        value: np.full(graph.values[value].elements, value) for value in range(graph.given)
    }

    def memory(value: int) -> np.ndarray:
        place, count = placed.places[value], graph.values[value].elements
        if place.kind == "arena":
            assert place.position % alignment == 0
            view = arena[place.position : place.position + count]
            assert len(view) == count
            return view
        return outputs[place.position] if place.kind == "output" else given_values[value]

    def check(values: tuple[int, ...]) -> None:
        for value in values:
            assert (memory(value) == value).all()

    for step, call in enumerate(graph.calls):
        check(call.reads)
        start = placed.workspaces[step]
        arena[start : start + workspaces[call.kernel]] = -2
        check(call.reads)
        for value in call.writes:
            memory(value)[:] = value
            check(call.reads)
        assert (arena[start : start + workspaces[call.kernel]] == -2).all()
        check(call.writes)
    for value, output in placed.copies:
        outputs[output][:] = memory(value)
    for output, value in enumerate(graph.results):
        assert (outputs[output] == value).all()
