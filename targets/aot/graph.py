"""A Relax function read as a list of kernel calls on values, and a place for every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from ibert_tvm.common.errors import TargetError

from .interface import item_size

# Where the values of a function lie in its arena: offsets from lifetimes.
#
# A program without runtime takes no memory at run time. All that a call needs beside its inputs,
# its outputs and the weights is one block, the arena, in which every value has a fixed place; two
# values share bytes only where no step of the program needs both.


@dataclass(frozen=True)
class Request:
    """Memory that is needed from one step to another, both included.

    Attributes
    ----------
    key
        What it is for; unique in a plan.
    nbytes
        Size, 0 or more.
    first, last
        Steps of the program, counted from 0.
    """

    key: Hashable
    nbytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.nbytes < 0 or not 0 <= self.first <= self.last:
            raise ValueError(f"request {self.key}: {self.nbytes} bytes, {self.first}..{self.last}")

    def overlaps(self, other: Request) -> bool:
        """Whether a step needs both."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaPlan:
    """A place for every request.

    Attributes
    ----------
    offsets
        Offset of each request in bytes, by key; multiples of the alignment.
    nbytes
        Size of the arena, a multiple of the alignment.
    lower_bound
        The most that any step needs at once: no plan can be smaller.
    """

    offsets: Mapping[Hashable, int]
    nbytes: int
    lower_bound: int


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _place(ordered: Sequence[Request], alignment: int) -> tuple[dict[Hashable, int], int]:
    """Put each request in the tightest gap between those placed before that live with it."""
    placed: list[tuple[int, int, Request]] = []  # offset, end, request; by offset
    offsets: dict[Hashable, int] = {}
    total = 0
    for request in ordered:
        size = _aligned(request.nbytes, alignment)
        best: tuple[int, int] | None = None  # bytes left over in the gap, offset
        end = 0
        for offset, stop, other in placed:
            if not request.overlaps(other):
                continue
            gap = offset - end
            if gap >= size and (best is None or gap - size < best[0]):
                best = (gap - size, end)
            end = max(end, stop)
        offset = end if best is None else best[1]
        offsets[request.key] = offset
        total = max(total, offset + size)
        if size:
            placed.append((offset, offset + size, request))
            placed.sort(key=lambda entry: entry[:2])
    return offsets, total


_Order = Callable[[Request], tuple[int, ...]]
# None is the best for every graph; planning takes milliseconds, so all are tried.
_ORDERS: tuple[_Order, ...] = (
    lambda r: (-r.nbytes, r.first),
    lambda r: (-r.nbytes * (r.last - r.first + 1), -r.nbytes),
    lambda r: (-(r.last - r.first), -r.nbytes),
    lambda r: (r.first, -r.nbytes),
    lambda r: (-r.last, -r.nbytes),
)


def plan_arena(requests: Sequence[Request], alignment: int) -> ArenaPlan:
    """Place requests so that those that live at the same time never share a byte.

    Greedy best fit in several orders (by size, by size times lifetime, by time), of which the
    smallest result is taken. The largest values first alone is what most compilers for
    microcontrollers do.

    Parameters
    ----------
    requests
        What is needed, and when.
    alignment
        Bytes that every offset is a multiple of: a power of two.

    Raises
    ------
    ValueError
        If the alignment is no power of two, or a key occurs twice.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("a key occurs twice")
    lower_bound = _most_at_once(requests, alignment)
    best: tuple[dict[Hashable, int], int] | None = None
    for order in _ORDERS:
        attempt = _place(sorted(requests, key=order), alignment)
        if best is None or attempt[1] < best[1]:
            best = attempt
        if best[1] == lower_bound:
            break
    offsets, nbytes = best or ({}, 0)
    return ArenaPlan(offsets, nbytes, lower_bound)


def _most_at_once(requests: Sequence[Request], alignment: int) -> int:
    """Bytes of the step that needs most."""
    changes: dict[int, int] = {}
    for request in requests:
        size = _aligned(request.nbytes, alignment)
        changes[request.first] = changes.get(request.first, 0) + size
        changes[request.last + 1] = changes.get(request.last + 1, 0) - size
    now = most = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


# Attribute of a function: the layer that each of its kernel calls serves. Known by name: this
# package does not import the one that writes it.
_LAYERS = "ibert.layers"


@dataclass(frozen=True)
class Value:
    """A tensor of the program: its type and its static number of entries."""

    dtype: str
    elements: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * item_size(self.dtype)


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel.

    Attributes
    ----------
    kernel
        Its name in the module.
    layer
        Canonical name of the layer that the call serves.
    reads, writes
        Its arguments: the values that it reads and then those that it writes, by index.
    """

    kernel: str
    layer: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """One function of the program.

    Attributes
    ----------
    name
        Of the Relax function.
    values
        Inputs, then parameters, then what kernels write.
    num_inputs, num_parameters
        How many of the values are inputs and parameters.
    calls
        In order of execution.
    results
        Values that the function returns.
    """

    name: str
    values: tuple[Value, ...]
    num_inputs: int
    num_parameters: int
    calls: tuple[KernelCall, ...]
    results: tuple[int, ...]

    @property
    def given(self) -> int:
        """Number of values that exist before the first call."""
        return self.num_inputs + self.num_parameters

    def lifetimes(self) -> dict[int, tuple[int, int]]:
        """For each value that a call writes, that call and the last that needs the value."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for step, call in enumerate(self.calls):
            first |= dict.fromkeys(call.writes, step)
            last |= dict.fromkeys((*call.reads, *call.writes), step)
        return {value: (step, last[value]) for value, step in first.items()}


@dataclass(frozen=True)
class Place:
    """Where a value lies.

    Attributes
    ----------
    kind
        ``"input"``, ``"weight"``, ``"arena"`` or ``"output"``.
    position
        Offset in bytes in the arena; otherwise which input, weight or output it is.
    """

    kind: str
    position: int


@dataclass(frozen=True)
class PlacedGraph:
    """A function whose values have places.

    Attributes
    ----------
    graph
        The function.
    places
        One for each value.
    workspaces
        Offset in the arena of each call's workspace.
    copies
        (value, output) pairs that are copied after the last call: results that lie elsewhere,
        being inputs, weights or another result as well.
    arena
        The plan; values by index, workspaces by ``("workspace", call)``.
    """

    graph: Graph
    places: tuple[Place, ...]
    workspaces: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    arena: ArenaPlan


def read_function(name: str, function: relax.Function) -> Graph:
    """Read a function that consists of ``call_tir``, tuples and reshapes.

    Parameters
    ----------
    name
        Its name.
    function
        With the attribute ``num_input``.

    Raises
    ------
    TargetError
        If there is anything else in it.
    """
    return _Reader(name, function).read()


class _Reader:
    def __init__(self, name: str, function: relax.Function) -> None:
        self.name = name
        self.function = function
        self.values: list[Value] = []
        self.calls: list[KernelCall] = []
        attributes = function.attrs or {}
        self.layers = [str(layer) for layer in attributes.get(_LAYERS, ())]
        # Indices of the values that a variable stands for: several if it is a tuple.
        self.known: dict[relax.Var, tuple[int, ...]] = {}

    def read(self) -> Graph:
        for var in self.function.params:
            self.known[var] = (self._value(var.ty),)
        for block in self.function.body.blocks:
            for binding in block.bindings:
                self.known[binding.var] = self._expression(binding.value, binding.var)
        results = self._expression(self.function.body.body, None)
        inputs = int(self.function.attrs["num_input"])
        parameters = len(self.function.params) - inputs
        return Graph(self.name, tuple(self.values), inputs, parameters, tuple(self.calls), results)

    def _value(self, kind: relax.TensorType) -> int:
        shape = [int(size) for size in kind.shape.values]
        self.values.append(Value(str(kind.dtype), math.prod(shape)))
        return len(self.values) - 1

    def _expression(self, value: relax.Expr, target: relax.Var | None) -> tuple[int, ...]:
        if isinstance(value, relax.Tuple):
            return tuple(index for field in value.fields for index in self._expression(field, None))
        if isinstance(value, relax.TupleGetItem):
            return (self._expression(value.tuple_value, None)[value.index],)
        if isinstance(value, relax.Call):
            operator = str(getattr(value.op, "name", ""))
            if operator == "relax.reshape":
                return self._expression(value.args[0], None)
            if operator == "relax.call_tir":
                return self._call(value, target)
            raise self._error(f"a call of {operator or value.op}")
        if value in self.known:
            return self.known[value]
        raise self._error(f"a {type(value).__name__}")

    def _call(self, call: relax.Call, target: relax.Var) -> tuple[int, ...]:
        arguments = call.args[1]
        reads = self._expression(arguments, None)
        kind = target.ty  # programs are in normal form: every call is bound to a variable
        fields = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
        writes = tuple(self._value(kind) for kind in fields)
        kernel, position = str(call.args[0].name_hint), len(self.calls)
        layer = self.layers[position] if position < len(self.layers) else kernel
        self.calls.append(KernelCall(kernel, layer, reads, writes))
        return writes

    def _error(self, found: str) -> TargetError:
        return TargetError(
            what=f"the program holds {found}",
            where=f"function {self.name}",
            why="code without runtime is made of kernel calls, tuples and reshapes only",
            todo="report this model; `--runtime tvm` may serve it meanwhile",
        )


def place_values(graph: Graph, workspaces: Mapping[str, int], alignment: int) -> PlacedGraph:
    """Give every value a place: results in the caller's buffers, the others in the arena.

    Parameters
    ----------
    graph
        The function.
    workspaces
        Bytes of workspace of each kernel.
    alignment
        Of all places in the arena.
    """
    places: dict[int, Place] = {
        index: Place("input", index)
        if index < graph.num_inputs
        else Place("weight", index - graph.num_inputs)
        for index in range(graph.given)
    }
    copies = []
    for output, value in enumerate(graph.results):
        if value in places:
            copies.append((value, output))
        else:
            places[value] = Place("output", output)
    plan = plan_arena(_requests(graph, workspaces, set(places)), alignment)
    for index in range(graph.given, len(graph.values)):
        if index not in places:
            places[index] = Place("arena", plan.offsets[index])
    return PlacedGraph(
        graph,
        tuple(places[index] for index in range(len(graph.values))),
        tuple(plan.offsets["workspace", step] for step in range(len(graph.calls))),
        tuple(copies),
        plan,
    )


def _requests(graph: Graph, workspaces: Mapping[str, int], elsewhere: set[int]) -> list[Request]:
    """What the arena must hold: values from the call that writes them to the last that reads."""
    return [
        *(
            Request(("workspace", step), workspaces[call.kernel], step, step)
            for step, call in enumerate(graph.calls)
        ),
        *(
            Request(value, graph.values[value].nbytes, first, last)
            for value, (first, last) in graph.lifetimes().items()
            if value not in elsewhere
        ),
    ]
