"""From scheduled kernels to a program without runtime: the main entry of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import tvm

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription
from ..microkernels import compile_microkernels, microkernel_sources, microkernel_symbols
from ..processors.c99 import NO_DOT
from ..weights import Weight, external_bytes, weight_pieces, weight_rows
from .c_text import c_type, prefixed, rendered, shape_suffix, unique_identifiers
from .graph import Graph, PlacedGraph, place_values, read_function
from .header import (
    ABI_VERSION,
    STATUSES,
    External,
    Sizes,
    function_prototype,
    header_text,
    tensor_identifiers,
)
from .in_place import aliased, writable_over
from .interface import Interface, ShapeSpec, item_size
from .lower import KernelSignature, LoweredKernel, lower_kernels
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
    """

    interface: Interface
    graphs: tuple[PlacedGraph, ...]
    kernels: dict[str, BareKernel]
    weights: tuple[Weight, ...]
    external: External | None = None


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
    called = dict.fromkeys(call.kernel for g in program.graphs for call in g.graph.calls)
    ranged = {spec.dtype for spec in interface.inputs if (spec.low, spec.high) != (None, None)}
    text = rendered(
        _DRIVER,
        interface=interface,
        inputs=inputs,
        outputs=outputs,
        weights=[
            weight
            for weight in program.weights
            if weight.index in _weights_in_use(program) and not weight.external
        ],
        external=program.external,
        kernels=[program.kernels[name] for name in called],
        shapes=[
            _shape(program, function, placed)
            for function, placed in zip(interface.functions, program.graphs, strict=True)
        ],
        checked=sorted(ranged),
        statuses=STATUSES,
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
    steps = [
        {
            "kernel": program.kernels[call.kernel],
            "layer": call.layer,
            "arguments": [
                *(_address(program, placed, value, False) for value in call.reads),
                *(_address(program, placed, value, True) for value in call.writes),
                f"arena + {workspace}",
            ],
        }
        for call, workspace in zip(graph.calls, placed.workspaces, strict=True)
    ]
    copies = [
        {
            "type": c_type(graph.values[value].dtype),
            "elements": graph.values[value].elements,
            "source": _address(program, placed, value, False),
            "output": output,
        }
        for value, output in placed.copies
    ]
    sizes = {"batch": function.batch, "seq_len": function.seq_len}
    return {**sizes, "suffix": shape_suffix(**sizes), "steps": steps, "copies": copies}


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
        parts.sort(key=lambda part: -part[1])
        peaks.append(ArenaPeak(call.layer, sum(size for _, size in parts), tuple(parts)))
    return max(peaks, key=lambda peak: peak.nbytes, default=ArenaPeak("", 0, ()))


def portable_description(description: TargetDescription) -> TargetDescription:
    """The same target without anything that C has no word for: instructions and vectors.

    Kernels that are scheduled for it can be written as C (`c_source.kernels_source`).
    """
    return replace(
        description,
        dot=NO_DOT,
        vector_lanes=1,
        q15_multiply=(),
        functions=(),
        scalar_instructions=(),
        microkernels=(),
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

    Raises
    ------
    TargetError
        If a kernel calls a function that code without runtime does not have, or the module holds
        anything but kernel calls.
    """
    alignment = description.machine.system.alignment
    prefix = interface.prefix
    signatures, lowered, placed = _planned(module, description, interface, threads)
    in_place = _in_place(placed)
    lowered |= {
        name: replace(lowered[name], function=aliased(lowered[name].function, arguments))
        for name, arguments in in_place.items()
    }
    provided = {*microkernel_symbols(description), *((LAUNCH,) if threads else ())}
    kernels = {
        name: _kernel(
            module, name, signature, lowered[name], in_place.get(name, ()), description, provided
        )
        for name, signature in signatures.items()
    }
    outside = _outside(parameters, interface, external)
    weights, weight_bytes = weight_rows(parameters, alignment, prefix, outside)
    apart = [weight for weight in weights if weight.external]
    block = b"".join(weight_pieces(apart, parameters, external_bytes(apart, alignment)))
    given = External.of(block) if apart else None
    arena = {
        (shape.batch, shape.seq_len): graph.arena.nbytes
        for shape, graph in zip(interface.functions, placed, strict=True)
    }
    fingerprint = _fingerprint(interface, alignment, arena, parameters, external)
    sizes = Sizes(alignment, arena, weight_bytes, fingerprint, given)
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
    )


def arena_bytes(module: tvm.IRModule, description: TargetDescription, interface: Interface) -> int:
    """Bytes of the arena that `compile_bare` would plan, without compiling anything."""
    placed = _planned(module, description, interface, False)[2]
    return max(graph.arena.nbytes for graph in placed)


def _planned(
    module: tvm.IRModule, description: TargetDescription, interface: Interface, threads: bool
) -> tuple[dict[str, KernelSignature], dict[str, LoweredKernel], list[PlacedGraph]]:
    """Signatures and lowered form of the kernels, and where each function's values lie."""
    alignment = description.machine.system.alignment
    graphs = [read_function(shape.name, module[shape.name]) for shape in interface.functions]
    signatures = _signatures(graphs, alignment, interface.prefix)
    lowered = lower_kernels(module, signatures, description, threads)
    workspaces = {name: kernel.workspace_bytes for name, kernel in lowered.items()}

    @cache
    def over(name: str) -> Mapping[tuple[int, int], int]:
        if not description.machine.system.in_place:
            return {}
        return writable_over(lowered[name].function, signatures[name].parameters)

    placed = [place_values(graph, workspaces, alignment, over) for graph in graphs]
    return signatures, lowered, placed


def _in_place(placed: Sequence[PlacedGraph]) -> dict[str, tuple[int, ...]]:
    """For each kernel that writes a result over an argument, the positions of both."""
    found: dict[str, set[int]] = {}
    for one in placed:
        for step, *arguments in one.shared:
            found.setdefault(one.graph.calls[step].kernel, set()).update(arguments)
    return {name: tuple(sorted(arguments)) for name, arguments in found.items()}


def _outside(
    parameters: Mapping[str, np.ndarray], interface: Interface, external: str
) -> Collection[str]:
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


def _fingerprint(
    interface: Interface,
    alignment: int,
    arena: Mapping[tuple[int, int], int],
    parameters: Mapping[str, np.ndarray],
    external: str,
) -> int:
    """64 bits of all that a header says, and of the weights."""
    digest = hashlib.sha256(
        repr((ABI_VERSION, interface, alignment, sorted(arena.items()))).encode()
    )
    digest.update(external.encode())
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
    signature: KernelSignature,
    lowered: LoweredKernel,
    in_place: tuple[int, ...],
    description: TargetDescription,
    provided: Collection[str],
) -> BareKernel:
    attributes = module[name].attrs
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
