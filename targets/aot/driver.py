"""The C source that runs a model: checks, then the kernels in order, on fixed places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..weights import Weight
from .c_text import c_type, prefixed, rendered, shape_suffix
from .graph import PlacedGraph
from .header import STATUSES, External, function_prototype, tensor_identifiers
from .interface import Interface, ShapeSpec, item_size
from .model import BareKernel

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
