"""From scheduled kernels to a program without runtime: the main entry of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import tvm

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription
from ..microkernels import compile_microkernels, microkernel_sources, microkernel_symbols
from ..processors.c99 import NO_DOT
from ..weights import FETCH, Weight, external_bytes, weight_pieces, weight_rows
from .c_text import c_type, prefixed, rendered, shape_suffix, unique_identifiers
from .fetch import Image
from .graph import Graph, PlacedGraph, place_values, read_function
from .header import (
    ABI_VERSION,
    DEVICE_STATUSES,
    STATUSES,
    External,
    Sizes,
    function_prototype,
    header_text,
    tensor_identifiers,
)
from .in_place import aliased, writable_over
from .interface import Interface, ShapeSpec, item_size
from .lower import Fetching, KernelSignature, LoweredKernel, lower_kernels
from .model import (
    ArenaPeak,
    BareCall,
    BareFunction,
    BareKernel,
    BareModel,
    KernelParameter,
    TextSources,
)
from .objects import LAUNCH, kernel_object
from .pieces import SECTOR, TableFetch, aligned

# The C source that runs a model: checks, then the kernels in order, on fixed places.

_DRIVER = Path(__file__).with_name("driver.c.in")


@dataclass(frozen=True)
class Program:
    """Everything that the driver is written from.

    Attributes
    ----------
    interface
        Signature.
    graphs
        One placed function for each of the interface's.
    kernels
        By name in the module.
    weights
        In the order of the parameters.
    external
        Those that are not in the program; None if all are.
    device
        Whether kernels run on a GPU, by `model.DeviceProgram`.
    """

    interface: Interface
    graphs: tuple[PlacedGraph, ...]
    kernels: dict[str, BareKernel]
    weights: tuple[Weight, ...]
    external: External | None = None
    device: bool = False


def driver_text(program: Program) -> str:
    """C99 source of the driver.

    Parameters
    ----------
    program
        What to run, and where everything lies.

    Returns
    -------
    str
        Includes ``ibert_model.h``; refers to one symbol per kernel and per weight.
    """
    interface = program.interface
    inputs, outputs = tensor_identifiers(interface)
    calls = [] if program.device else [call for g in program.graphs for call in g.graph.calls]
    in_use = set() if program.device else _weights_in_use(program)
    ranged = {spec.dtype for spec in interface.inputs if (spec.low, spec.high) != (None, None)}
    text = rendered(
        _DRIVER,
        interface=interface,
        inputs=inputs,
        outputs=outputs,
        weights=[
            weight for weight in program.weights if weight.index in in_use and not weight.external
        ],
        external=program.external,
        fetched=program.external is not None and program.external.fetch_bytes,
        by_rows=any(fetch.tables for one in program.graphs for fetch in one.fetches.values()),
        kernels=[program.kernels[name] for name in dict.fromkeys(c.kernel for c in calls)],
        shapes=[
            _shape(program, function, placed)
            for function, placed in zip(interface.functions, program.graphs, strict=True)
        ],
        checked=sorted(ranged),
        statuses=DEVICE_STATUSES if program.device else STATUSES,
        device=program.device,
        prototype=function_prototype,
        item_size=item_size,
    )
    return prefixed(text, interface.prefix)


def _weights_in_use(program: Program) -> set[int]:
    """Numbers of the weights that a kernel reads, or that are outputs."""
    return {
        placed.places[value].position
        for placed in program.graphs
        for value in (
            *(value for call in placed.graph.calls for value in (*call.reads, *call.writes)),
            *(value for value, _ in placed.copies),
        )
        if placed.places[value].kind == "weight"
    }


def _shape(program: Program, function: ShapeSpec, placed: PlacedGraph) -> Mapping[str, object]:
    """What the template says of one shape: its kernel calls, and outputs that are copied."""
    graph = placed.graph
    sizes = {"batch": function.batch, "seq_len": function.seq_len}
    if program.device:
        return {**sizes, "suffix": shape_suffix(**sizes), "steps": graph.calls}
    steps = [
        {
            "kernel": program.kernels[call.kernel],
            "layer": call.layer,
            "arguments": [*_arguments(program, placed, step), f"arena + {workspace}"],
            "rows": [_row_fetch(program, placed, step, table) for table in fetch.tables]
            if (fetch := placed.fetches.get(step))
            else [],
            "pieces": fetch.pieces if fetch and fetch.nbytes else 0,
        }
        for step, (call, workspace) in enumerate(zip(graph.calls, placed.workspaces, strict=True))
    ]
    in_pieces = [step for step, one in enumerate(steps) if one["pieces"]]
    pieces = [_piece_fetch(placed, step) for step in in_pieces]
    for step, own, follows in zip(in_pieces, pieces, (*pieces[1:], None), strict=False):
        steps[step] |= {"fetch": own, "follows": follows}
    copies = [
        {
            "type": c_type(graph.values[value].dtype),
            "elements": graph.values[value].elements,
            "source": _address(program, placed, value, False),
            "output": output,
        }
        for value, output in placed.copies
    ]
    return {
        **sizes,
        "suffix": shape_suffix(**sizes),
        "steps": steps,
        "copies": copies,
        "first": pieces[0] if pieces else None,
    }


def _arguments(program: Program, placed: PlacedGraph, step: int) -> Iterator[str]:
    """C expressions of what a call passes to its kernel, in the order of the kernel's arguments."""
    call, fetch = placed.graph.calls[step], placed.fetches.get(step)
    rows: dict[int, tuple[str, int]] = {}
    for table in fetch.tables if fetch else ():
        rows[table.argument] = ("rows", table.argument)
        rows[table.numbers] = ("numbers", table.numbers)
    for index, value in enumerate((*call.reads, *call.writes)):
        dtype = c_type(placed.graph.values[value].dtype)
        if fetch and index in fetch.places:
            yield f"(const {dtype} *)(const void *)(piece + {fetch.places[index]})"
        elif index in rows:
            kind, argument = rows[index]
            yield f"(const {dtype} *)(void *)(arena + {placed.arena.offsets[kind, step, argument]})"
        else:
            moved = f" + number * {fetch.steps[index]}" if fetch and fetch.steps[index] else ""
            yield _address(program, placed, value, index >= len(call.reads)) + moved


def _piece_fetch(placed: PlacedGraph, step: int) -> Mapping[str, object]:
    """Where the pieces of a call are in the file, and where they go in the arena."""
    fetch, offsets = placed.fetches[step], placed.arena.offsets
    halves = [offsets["piece", step, half] for half in range(min(fetch.pieces, 2))]
    return {"offset": fetch.offset, "nbytes": fetch.nbytes, "halves": halves}


def _row_fetch(
    program: Program, placed: PlacedGraph, step: int, table: TableFetch
) -> Mapping[str, object]:
    """What the template says of a table that is fetched by rows."""
    call, offsets = placed.graph.calls[step], placed.arena.offsets
    source = _address(program, placed, (*call.reads, *call.writes)[table.numbers], False)
    return {
        "table": table,
        "source": source,
        "rows": offsets["rows", step, table.argument],
        "numbers": offsets["numbers", step, table.numbers],
    }


def _address(program: Program, placed: PlacedGraph, value: int, written: bool) -> str:
    """C expression of the pointer to a value."""
    place = placed.places[value]
    dtype = c_type(placed.graph.values[value].dtype)
    if place.kind == "weight":
        weight = program.weights[place.position]
        outside = f"(const {dtype} *)(const void *)(context->weights + {weight.offset})"
        return outside if weight.external else weight.symbol
    if place.kind == "input":
        return f"(const {dtype} *)inputs[{place.position}]"
    if place.kind == "output":
        return f"({dtype} *)outputs[{place.position}]"
    qualifier = "" if written else "const "
    return f"({qualifier}{dtype} *)(void *)(arena + {place.position})"


# What fills the arena of a function where it is fullest, for people who have to make it fit.


def arena_peak(placed: PlacedGraph, kernels: Mapping[str, BareKernel]) -> ArenaPeak:
    """Find the call that needs most of the arena.

    Parameters
    ----------
    placed
        A function whose values have places.
    kernels
        By name in the module.
    """
    graph = placed.graph
    lifetimes = graph.lifetimes()
    peaks = []
    for step, call in enumerate(graph.calls):
        kernel = kernels[call.kernel]
        living = [
            (placed.places[value].position, graph.values[value].nbytes, graph.calls[first].layer)
            for value, (first, last) in lifetimes.items()
            if placed.places[value].kind == "arena" and first <= step <= last
        ]
        # What a result shares with the argument that it is written over counts once.
        parts, end = [], 0
        for position, nbytes, layer in sorted(living):
            alone = position + nbytes - max(position, end)
            end = max(end, position + nbytes)
            if alone > 0:
                parts.append((layer, alone))
        if kernel.workspace_bytes:
            parts.append((f"workspace of {call.layer}", kernel.workspace_bytes))
        if fetched := placed.fetched_bytes(step):
            parts.append(("weights that are fetched", fetched))
        parts.sort(key=lambda part: -part[1])
        peaks.append(ArenaPeak(call.layer, sum(size for _, size in parts), tuple(parts)))
    return max(peaks, key=lambda peak: peak.nbytes, default=ArenaPeak("", 0, ()))


def portable_description(description: TargetDescription) -> TargetDescription:
    """The same target without anything that C has no word for: instructions and vectors.

    Kernels that are scheduled for it can be written as C (`c_source.kernels_source`). Microkernels
    are C already, but for those that take vectors.
    """
    dot, microkernels = description.dot, description.microkernels
    if description.vector_lanes > 1 or not microkernels:
        dot, microkernels = description.scalar_dot or (NO_DOT, ())
    return replace(
        description,
        dot=dot,
        microkernels=microkernels,
        vector_lanes=1,
        q15_multiply=(),
        functions=(),
        scalar_instructions=(),
        stack_alignment=1,
        prefetches_weights=False,
    )


def compile_bare(
    module: tvm.IRModule,
    parameters: Mapping[str, np.ndarray],
    description: TargetDescription,
    interface: Interface,
    threads: bool = False,
    text: TextSources | None = None,
    external: str = "",
    fetch_buffer: int | None = None,
) -> BareModel:
    """Compile a scheduled module to kernels with a C ABI and a driver in C.

    Parameters
    ----------
    module
        Relax functions that consist of ``call_tir`` on scheduled integer kernels, as
        `ibert_tvm.targets.build.build_executable` takes it.
    parameters
        Integer arrays in the order of the functions' parameters.
    description
        What to compile for.
    interface
        Signature; its functions are those of the module that are compiled.
    threads
        Let kernels run on several threads.
    text
        Its tokenizer.
    external
        Which weights the program gives an address for at run time, of
        `bare_metal.options.EXTERNAL`; none if empty.
    fetch_buffer
        Bytes of weights that may be fetched at once, for those that are; None for few.

    Raises
    ------
    TargetError
        If a kernel needs more weights at once than may be fetched, or calls a function that code
        without runtime does not have, or the module holds anything but kernel calls.
    """
    alignment = description.machine.system.alignment
    prefix = interface.prefix
    plan = _planned(module, description, interface, threads, external, fetch_buffer)
    placed, in_place = plan.functions, _in_place(plan.functions)
    lowered = {
        name: replace(kernel, function=aliased(kernel.function, in_place[name]))
        if name in in_place
        else kernel
        for name, kernel in plan.kernels.items()
    }
    provided = {*microkernel_symbols(description), *((LAUNCH,) if threads else ())}
    kernels = {
        name: _kernel(module, name, kernel, in_place.get(name, ()), description, provided)
        for name, kernel in lowered.items()
    }
    outside = _outside(parameters, interface, external, placed)
    weights, weight_bytes = weight_rows(parameters, alignment, prefix, outside)
    apart = [weight for weight in weights if weight.external]
    if plan.image is None:
        block = b"".join(weight_pieces(apart, parameters, external_bytes(apart, alignment)))
    else:
        block = b"".join(plan.image.content(parameters))
    given = External.of(block, plan.largest_fetch) if block else None
    arena = {
        (shape.batch, shape.seq_len): graph.arena.nbytes
        for shape, graph in zip(interface.functions, placed, strict=True)
    }
    identity = fingerprint(interface, alignment, arena, parameters, external, given)
    sizes = Sizes(alignment, arena, weight_bytes, identity, given)
    title = f"An integer-only model, compiled for {description.name}."
    return BareModel(
        interface=interface,
        target_name=description.name,
        alignment=alignment,
        kernels=tuple(kernels.values()),
        functions=_functions(interface, placed, kernels),
        weights=weights,
        weight_bytes=weight_bytes,
        parameters=parameters,
        support=compile_microkernels(description, description.machine.system.object_flags),
        support_sources=microkernel_sources(description),
        threads=threads,
        header=header_text(
            interface, sizes, title, threads, "" if text is None else text.declarations
        ),
        driver_c=driver_text(Program(interface, tuple(placed), kernels, weights, given)),
        lowered=tvm.IRModule(
            {kernels[name].symbol: kernel.function for name, kernel in lowered.items()}
        ),
        text=text,
        external=external,
        external_content=block,
        fetch_buffer=fetch_buffer,
        largest_fetch=plan.largest_fetch,
    )


def arena_bytes(
    module: tvm.IRModule,
    description: TargetDescription,
    interface: Interface,
    external: str = "",
    fetch_buffer: int | None = None,
) -> int:
    """Bytes of the arena that `compile_bare` would plan, without compiling anything."""
    plan = _planned(module, description, interface, False, external, fetch_buffer)
    return max(graph.arena.nbytes for graph in plan.functions)


@dataclass(frozen=True)
class _Plan:
    """Lowered kernels by name, where each function's values lie, and the file of weights."""

    kernels: Mapping[str, LoweredKernel]
    functions: Sequence[PlacedGraph]
    image: Image | None

    @property
    def largest_fetch(self) -> int:
        """Bytes of the largest piece that is fetched."""
        fetches = [fetch for graph in self.functions for fetch in graph.fetches.values()]
        rows = [table.row_bytes for fetch in fetches for table in fetch.tables]
        return aligned(max((*rows, *(fetch.nbytes for fetch in fetches)), default=0), SECTOR)


def _planned(
    module: tvm.IRModule,
    description: TargetDescription,
    interface: Interface,
    threads: bool,
    external: str,
    fetch_buffer: int | None,
) -> _Plan:
    alignment = description.machine.system.alignment
    graphs = [read_function(shape.name, module[shape.name]) for shape in interface.functions]
    signatures = _signatures(graphs, alignment, interface.prefix)
    image = Image(alignment) if external == FETCH else None
    fetching = None
    if image is not None:
        weights = {
            name: frozenset(
                index
                for graph in graphs
                for call in graph.calls
                if call.kernel == name
                for index, value in enumerate(call.reads)
                if graph.num_inputs <= value < graph.given
            )
            for name in signatures
        }
        fetching = Fetching(weights, fetch_buffer, alignment)
    lowered = lower_kernels(module, signatures, description, threads, fetching)
    workspaces = {name: kernel.workspace_bytes for name, kernel in lowered.items()}

    @cache
    def over(name: str) -> Mapping[tuple[int, int], int]:
        if not description.machine.system.in_place:
            return {}
        return writable_over(lowered[name].function, signatures[name].parameters)

    placed = [
        place_values(
            graph, workspaces, alignment, over, image.plan(graph, lowered) if image else None
        )
        for graph in graphs
    ]
    return _Plan(lowered, placed, image)


def _in_place(placed: Sequence[PlacedGraph]) -> dict[str, tuple[int, ...]]:
    """For each kernel that writes a result over an argument, the positions of both."""
    found: dict[str, set[int]] = {}
    for one in placed:
        for step, *arguments in one.shared:
            found.setdefault(one.graph.calls[step].kernel, set()).update(arguments)
    return {name: tuple(sorted(arguments)) for name, arguments in found.items()}


def _outside(
    parameters: Mapping[str, np.ndarray],
    interface: Interface,
    external: str,
    placed: Sequence[PlacedGraph],
) -> Collection[str]:
    if external == FETCH:  # results are copied from where they are linked
        copied = {
            value - one.graph.num_inputs
            for one in placed
            for value, _ in one.copies
            if one.places[value].kind == "weight"
        }
        return {name for index, name in enumerate(parameters) if index not in copied}
    if external != "words":
        return parameters if external else ()
    rows = 1 + max((spec.high or 0 for spec in interface.inputs), default=0)
    found = {name for name, array in parameters.items() if array.ndim > 1 and len(array) == rows}
    if not found:
        raise TargetError(
            what="the table of words cannot be apart",
            where="external weights",
            why=f"no weight has {rows} rows",
            todo="take all weights apart, or none",
        )
    return found


def fingerprint(
    interface: Interface,
    alignment: int,
    arena: Mapping[tuple[int, int], int],
    parameters: Mapping[str, np.ndarray],
    external: str,
    given: External | None,
) -> int:
    """64 bits of all that a header says, and of the weights.

    Parameters
    ----------
    interface, alignment, arena
        As of `header.Sizes`.
    parameters
        Weights by name.
    external, given
        Those that are not in the program.
    """
    digest = hashlib.sha256(
        repr((ABI_VERSION, interface, alignment, sorted(arena.items()))).encode()
    )
    digest.update(external.encode())
    if external == FETCH:
        digest.update(repr(given).encode())
    for name, array in parameters.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest()[:8], "big")


def _signatures(graphs: Sequence[Graph], alignment: int, prefix: str) -> dict[str, KernelSignature]:
    """Arguments of every kernel that is called, in order of first use.

    An argument that is a weight or lies in the arena at every call has the arena's alignment; one
    that is the caller's at any has that of its type.
    """
    arguments: dict[str, list[tuple[str, int, bool, bool]]] = {}
    for graph in graphs:
        none = dict.fromkeys((call.kernel for call in graph.calls), 0)
        places = place_values(graph, none, alignment).places
        for call in graph.calls:
            rows = [
                (
                    graph.values[value].dtype,
                    graph.values[value].elements,
                    position >= len(call.reads),
                    places[value].kind in ("weight", "arena"),
                )
                for position, value in enumerate((*call.reads, *call.writes))
            ]
            known = arguments.setdefault(call.kernel, rows)
            arguments[call.kernel] = [
                (*old[:3], old[3] and new[3]) for old, new in zip(known, rows, strict=True)
            ]
    symbols = unique_identifiers(list(arguments))
    return {
        name: KernelSignature(
            f"{prefix}_kernel_{symbol}",
            tuple(
                KernelParameter(dtype, count, written, alignment if ours else item_size(dtype))
                for dtype, count, written, ours in rows
            ),
        )
        for symbol, (name, rows) in zip(symbols, arguments.items(), strict=True)
    }


def _kernel(
    module: tvm.IRModule,
    name: str,
    lowered: LoweredKernel,
    in_place: tuple[int, ...],
    description: TargetDescription,
    provided: Collection[str],
) -> BareKernel:
    attributes, signature = module[name].attrs, lowered.signature
    data, undefined = kernel_object(signature.symbol, lowered.function, description, provided)
    return BareKernel(
        symbol=signature.symbol,
        name=name,
        kind=str(attributes.get("ibert.kernel", "kernel")),
        layer=str(attributes.get("ibert.layer", name)),
        macs=int(attributes.get("ibert.macs", 0)),
        parameters=signature.parameters,
        workspace_bytes=lowered.workspace_bytes,
        object_file=data,
        code_bytes=description.machine.objects.code_bytes(data),
        undefined=undefined,
        in_place=in_place,
    )


def _functions(
    interface: Interface, placed: Sequence[PlacedGraph], kernels: Mapping[str, BareKernel]
) -> tuple[BareFunction, ...]:
    return tuple(
        BareFunction(
            name=shape.name,
            symbol=f"{interface.prefix}_run_{shape_suffix(shape.batch, shape.seq_len)}",
            batch=shape.batch,
            seq_len=shape.seq_len,
            arena_bytes=graph.arena.nbytes,
            lower_bound=graph.arena.lower_bound,
            peak=arena_peak(graph, kernels),
            calls=tuple(
                BareCall(kernels[call.kernel].symbol, call.layer) for call in graph.graph.calls
            ),
        )
        for shape, graph in zip(interface.functions, placed, strict=True)
    )
