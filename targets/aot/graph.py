"""A Relax function read as a list of kernel calls on values, and a place for every value."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tvm import relax

from ibert_tvm.common.errors import TargetError

from .interface import item_size
from .pieces import CallFetch

# Where the values of a function lie in its arena: offsets from lifetimes.
#
# A program without runtime takes no memory at run time. All that a call needs beside its inputs,
# its outputs and the weights is one block, the arena, in which every value has a fixed place; two
# values share bytes only where no step of the program needs both, or where the step that reads the
# one for the last time may write the other over it (`in_place`).


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


Leads = Mapping[tuple[Hashable, Hashable], int]
"""For (argument, result) of a step after which nobody needs the argument: that the result may
share its bytes, if it begins at most so many behind its first."""


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
    shared
        (argument, result) pairs that have bytes in common.
    """

    offsets: Mapping[Hashable, int]
    nbytes: int
    lower_bound: int
    shared: frozenset[tuple[Hashable, Hashable]] = frozenset()


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _place(
    ordered: Sequence[Request], alignment: int, leads: Leads
) -> tuple[dict[Hashable, int], int]:
    """Put each request in the tightest gap between those placed before that live with it."""
    placed: list[tuple[int, Request]] = []  # offset, request
    offsets: dict[Hashable, int] = {}
    total = 0
    for request in ordered:
        size = _aligned(request.nbytes, alignment)
        # Where it cannot begin: behind the first and before the second.
        taken = sorted(
            _taken(request.key, size, other.key, offset, _aligned(other.nbytes, alignment), leads)
            for offset, other in placed
            if request.overlaps(other)
        )
        best: tuple[int, int] | None = None  # bytes left over in the gap, offset
        end = 0
        for first, last in taken:
            if first >= end and (best is None or first - end < best[0]):
                best = (first - end, end)
            end = max(end, last)
        offset = end if best is None else best[1]
        offsets[request.key] = offset
        total = max(total, offset + size)
        if size:
            placed.append((offset, request))
    return offsets, total


def _taken(
    key: Hashable, size: int, other: Hashable, offset: int, other_size: int, leads: Leads
) -> tuple[int, int]:
    """Where a request cannot begin for another one: behind the first, before the second place."""
    first, last = offset - size, offset + other_size
    if (lead := leads.get((other, key))) is not None:
        return max(first, min(offset + lead, last)), last
    if (lead := leads.get((key, other))) is not None:
        return first, max(first, min(offset - lead, last))
    return first, last


_Order = Callable[[Request], tuple[int, ...]]
# None is the best for every graph; planning takes milliseconds, so all are tried.
_ORDERS: tuple[_Order, ...] = (
    lambda r: (-r.nbytes, r.first),
    lambda r: (-r.nbytes * (r.last - r.first + 1), -r.nbytes),
    lambda r: (-(r.last - r.first), -r.nbytes),
    lambda r: (r.first, -r.nbytes),
    lambda r: (-r.last, -r.nbytes),
)


def plan_arena(
    requests: Sequence[Request], alignment: int, leads: Leads | None = None
) -> ArenaPlan:
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
    leads
        Which may share bytes nevertheless.

    Raises
    ------
    ValueError
        If the alignment is no power of two, or a key occurs twice.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("a key occurs twice")
    leads = {pair: lead // alignment * alignment for pair, lead in (leads or {}).items()}
    lower_bound = max(_needs(requests, alignment, leads), default=0)
    best: tuple[dict[Hashable, int], int] | None = None
    for order in _ORDERS:
        attempt = _place(sorted(requests, key=order), alignment, leads)
        if best is None or attempt[1] < best[1]:
            best = attempt
        if best[1] == lower_bound:
            break
    offsets, nbytes = best or ({}, 0)
    sizes = {request.key: request.nbytes for request in requests}
    shared = frozenset(
        (one, other)
        for one, other in leads
        if offsets[one] < offsets[other] + sizes[other]
        and offsets[other] < offsets[one] + sizes[one]
    )
    return ArenaPlan(offsets, nbytes, lower_bound, shared)


def _needs(requests: Sequence[Request], alignment: int, leads: Leads) -> list[int]:
    """Bytes that each step needs at least."""
    changes = [0] * (max((request.last for request in requests), default=-1) + 2)
    for request in requests:
        size = _aligned(request.nbytes, alignment)
        changes[request.first] += size
        changes[request.last + 1] -= size
    needs = list(accumulate(changes))[:-1]
    by_key = {request.key: request for request in requests}
    saved: dict[Hashable, int] = {}
    for (argument, result), lead in leads.items():
        one, other = (_aligned(by_key[key].nbytes, alignment) for key in (argument, result))
        begins = min(lead, 0)
        both = max(one, begins + other) - begins
        saved[result] = saved.get(result, 0) + max(0, one + other - both)
    for result, nbytes in saved.items():
        request = by_key[result]
        needs[request.first] -= min(nbytes, _aligned(request.nbytes, alignment))
    return needs


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
        The plan; values by index, workspaces by ``("workspace", call)``, buffers for weights as
        `_fetch_requests` says.
    shared
        (call, argument, result) of the calls whose result lies over an argument: positions among
        the arguments of its kernel.
    fetches
        What calls fetch, by their numbers.
    """

    graph: Graph
    places: tuple[Place, ...]
    workspaces: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    arena: ArenaPlan
    shared: frozenset[tuple[int, int, int]] = frozenset()
    fetches: Mapping[int, CallFetch] = field(default_factory=dict)

    def fetched_bytes(self, call: int) -> int:
        """Bytes of weights in the arena during a call."""
        return sum(
            one.nbytes
            for one in _fetch_requests(self.fetches)
            if one.first <= 2 * call + 1 and one.last >= 2 * call
        )


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


def place_values(
    graph: Graph,
    workspaces: Mapping[str, int],
    alignment: int,
    writable_over: Callable[[str], Mapping[tuple[int, int], int]] = lambda _kernel: {},
    fetches: Mapping[int, CallFetch] | None = None,
) -> PlacedGraph:
    """Give every value a place: results in the caller's buffers, the others in the arena.

    Parameters
    ----------
    graph
        The function.
    workspaces
        Bytes of workspace of each kernel.
    alignment
        Of all places in the arena.
    writable_over
        Which arguments results of a kernel may lie over, as `in_place.writable_over` has it; asked
        of those kernels only whose calls decide how large the arena is.
    fetches
        What calls fetch, by their numbers.
    """
    fetches = fetches or {}
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
    requests = _requests(graph, workspaces, set(places), 2 if fetches else 1)
    requests += _fetch_requests(fetches)
    plan = plan_arena(requests, alignment)
    # A kernel that is called for one piece after the other reads its arguments again.
    leads = {} if fetches else _leads(graph, requests, alignment, writable_over)
    if leads:
        smaller = plan_arena(requests, alignment, leads)
        plan = smaller if smaller.nbytes < plan.nbytes else plan
    for index in range(graph.given, len(graph.values)):
        if index not in places:
            places[index] = Place("arena", plan.offsets[index])
    return PlacedGraph(
        graph,
        tuple(places[index] for index in range(len(graph.values))),
        tuple(plan.offsets["workspace", step] for step in range(len(graph.calls))),
        tuple(copies),
        plan,
        frozenset(
            (step, read, len(call.reads) + written)
            for step, call in enumerate(graph.calls)
            for read, argument in enumerate(call.reads)
            for written, result in enumerate(call.writes)
            if (argument, result) in plan.shared
        ),
        fetches,
    )


def _leads(
    graph: Graph,
    requests: Sequence[Request],
    alignment: int,
    writable_over: Callable[[str], Mapping[tuple[int, int], int]],
) -> dict[tuple[Hashable, Hashable], int]:
    """What may share bytes in the calls that need most, down to those that need less without."""
    movable = {request.key: request for request in requests}
    needs = _needs(requests, alignment, {})
    leads: dict[tuple[Hashable, Hashable], int] = {}
    most = 0
    for step in sorted(range(len(graph.calls)), key=lambda step: -needs[step]):
        if needs[step] <= most:
            break
        call = graph.calls[step]
        known = writable_over(call.kernel)
        here: dict[tuple[Hashable, Hashable], int] = {}
        for argument in dict.fromkeys(call.reads):
            if argument not in movable or movable[argument].last != step:
                continue
            reads = [place for place, value in enumerate(call.reads) if value == argument]
            for written, result in enumerate(call.writes, len(call.reads)):
                each = [known.get((place, written)) for place in reads]
                possible = [lead for lead in each if lead is not None]
                if result in movable and len(possible) == len(each):
                    here[argument, result] = min(possible) // alignment * alignment
        leads |= here
        most = max(most, _needs(requests, alignment, here)[step])
    return leads


def _requests(
    graph: Graph, workspaces: Mapping[str, int], elsewhere: set[int], steps: int
) -> list[Request]:
    """What the arena must hold: values from the call that writes them to the last that reads.

    Where weights are fetched, a call has two steps: the second is its last piece, or all of it.
    """
    return [
        *(
            Request(
                ("workspace", call), workspaces[one.kernel], steps * call, steps * (call + 1) - 1
            )
            for call, one in enumerate(graph.calls)
        ),
        *(
            Request(value, graph.values[value].nbytes, steps * first, steps * (last + 1) - 1)
            for value, (first, last) in graph.lifetimes().items()
            if value not in elsewhere
        ),
    ]


def _fetch_requests(fetches: Mapping[int, CallFetch]) -> Iterator[Request]:
    """Memory for weights: ``("piece", call, number % 2)``, and for rows of tables.

    A piece takes memory from when the piece before it begins to be used. Rows of the table that is
    an argument are ``("rows", call, argument)``, and their numbers there ``("numbers", call,
    argument)``.
    """
    begun = 0
    for call, fetch in sorted(fetches.items()):
        last = 2 * call + 1
        for table in fetch.tables:
            rows = min(table.most, table.count)
            yield Request(("rows", call, table.argument), rows * table.row_bytes, last - 1, last)
        for argument in sorted({table.numbers for table in fetch.tables}):
            most = max(table.most for table in fetch.tables if table.numbers == argument)
            yield Request(("numbers", call, argument), 4 * most, last - 1, last)
        if not fetch.nbytes:
            continue
        for half in range(min(fetch.pieces, 2)):
            ends = last if (fetch.pieces - 1) % 2 == half else last - 1
            yield Request(("piece", call, half), fetch.nbytes, last - 1 if half else begun, ends)
        begun = last
