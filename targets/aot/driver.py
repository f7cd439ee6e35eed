"""The C source that runs a model: checks, then the kernels in order, on fixed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..weights import Weight
from .c_text import c_type, comment, filled, prefixed, quoted, shape_suffix
from .graph import Place, PlacedGraph
from .header import STATUSES, function_prototype, tensor_identifiers
from .interface import Interface, ShapeSpec, TensorSpec, item_size
from .model import BareKernel

_DRIVER = Path(__file__).with_name("driver.c")
_ARRAYS = "inputs, input_bytes, outputs, output_bytes"
# Where arguments have the names of a model's inputs and outputs: see `c_text.identifier`.
_GIVEN = "given_inputs, given_input_bytes, given_outputs, given_output_bytes"
_RANGE = """\
    if (tensor->type == {constant}) {{
        const {c_type} *entries = (const {c_type} *)values;
        for (i = 0; i < count; i++) {{
            if (entries[i] < low || entries[i] > high) {{
                return 0;
            }}
        }}
    }}
"""


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
    """

    interface: Interface
    graphs: tuple[PlacedGraph, ...]
    kernels: dict[str, BareKernel]
    weights: tuple[Weight, ...]


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
    shapes = [
        f"    {{{function.batch}, {function.seq_len}, "
        f"IBERT_ARENA_BYTES_{shape_suffix(function.batch, function.seq_len).upper()}, "
        f"{len(placed.graph.calls)}}},\n"
        for function, placed in zip(interface.functions, program.graphs, strict=True)
    ]
    suffixes = [shape_suffix(function.batch, function.seq_len) for function in interface.functions]
    functions = [
        _body(program, placed, suffix) + _entry(interface, index)
        for index, (placed, suffix) in enumerate(zip(program.graphs, suffixes, strict=True))
    ]
    text = filled(
        _DRIVER,
        include=f'#include "{interface.prefix}_model.h"\n',
        declarations="".join(_declarations(program)),
        inputs="".join(map(_tensor, interface.inputs)),
        outputs="".join(map(_tensor, interface.outputs)),
        shapes="".join(shapes),
        ranges=_ranges(interface.inputs),
        functions="".join(functions),
        choices="".join(_choice(*each) for each in enumerate(interface.functions)),
        statuses="".join(
            f"    case {name}:\n        return {quoted(words)};\n" for _, name, words in STATUSES
        ),
    )
    return prefixed(text, interface.prefix)


def _tensor(spec: TensorSpec) -> str:
    multiplier, shift = spec.dyadic_scale
    low, high = _limits(spec)
    axes = [f"IBERT_{axis.upper()}" if isinstance(axis, str) else str(axis) for axis in spec.shape]
    axes += ["1"] * (4 - len(axes))
    scale = quoted(repr(float(spec.scale)) if spec.scale else "0")
    return (
        f"    {{{quoted(spec.name)}, {scale}, {multiplier}, {shift}, {spec.zero_point}, "
        f"{_integer(low)}, {_integer(high)}, IBERT_{spec.dtype.upper()}, {len(spec.shape)}, "
        f"{{{', '.join(axes)}}}}},\n"
    )


def _limits(spec: TensorSpec) -> tuple[int, int]:
    """Range of a tensor's entries, cut to 32 bits."""
    bits = min(8 * item_size(spec.dtype), 32)
    unsigned = spec.dtype.startswith("u")
    low = 0 if unsigned else -(2 ** (bits - 1))
    high = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
    return (
        low if spec.low is None else max(low, spec.low),
        high if spec.high is None else min(high, spec.high),
    )


def _integer(value: int) -> str:
    """A constant of int32_t; the smallest has no literal of its own."""
    return "INT32_MIN" if value == -(2**31) else str(value)


def _ranges(inputs: Sequence[TensorSpec]) -> str:
    """Checks of the types that have an input with a range of its own."""
    checked = sorted({spec.dtype for spec in inputs if (spec.low, spec.high) != (None, None)})
    if not checked:
        return (
            "    (void)low;\n    (void)high;\n    (void)i;\n    (void)values;\n    (void)count;\n"
        )
    return "".join(
        _RANGE.format(constant=f"IBERT_{dtype.upper()}", c_type=c_type(dtype)) for dtype in checked
    )


def _declarations(program: Program) -> list[str]:
    """Extern declarations of kernels and weights that the functions use."""
    used = {
        place.position
        for placed in program.graphs
        for place in _places_in_use(placed)
        if place.kind == "weight"
    }
    lines = []
    for weight in program.weights:
        if weight.index in used:
            count = max(1, weight.nbytes // item_size(weight.dtype))
            lines.append(
                f"extern const {c_type(weight.dtype)} {weight.symbol}[{count}]; "
                f"/* {comment(weight.name)} */\n"
            )
    lines.append("\n")
    called = [call.kernel for placed in program.graphs for call in placed.graph.calls]
    for name in dict.fromkeys(called):
        kernel = program.kernels[name]
        arguments = [
            f"{'' if parameter.written else 'const '}{c_type(parameter.dtype)} *a{index}"
            for index, parameter in enumerate(kernel.parameters)
        ]
        lines.append(f"/* {comment(kernel.kind)}: {comment(kernel.layer)} */\n")
        lines.append(f"int32_t {kernel.symbol}({', '.join([*arguments, 'uint8_t *workspace'])});\n")
    lines.append("\n")
    return lines


def _places_in_use(placed: PlacedGraph) -> list[Place]:
    values = {value for call in placed.graph.calls for value in (*call.reads, *call.writes)}
    values |= {value for value, _ in placed.copies}
    return [placed.places[value] for value in sorted(values)]


def _address(program: Program, placed: PlacedGraph, value: int, written: bool) -> str:
    """C expression of the pointer to a value."""
    place = placed.places[value]
    dtype = c_type(placed.graph.values[value].dtype)
    if place.kind == "weight":
        return program.weights[place.position].symbol
    if place.kind == "input":
        return f"(const {dtype} *)inputs[{place.position}]"
    if place.kind == "output":
        return f"({dtype} *)outputs[{place.position}]"
    qualifier = "" if written else "const "
    return f"({qualifier}{dtype} *)(void *)(arena + {place.position})"


def _body(program: Program, placed: PlacedGraph, suffix: str) -> str:
    """The function that calls the kernels of one shape."""
    graph = placed.graph
    total = len(graph.calls)
    lines = [
        f"static int32_t body_{suffix}(ibert_context *context, const void *const *inputs,\n"
        "                    void *const *outputs) {\n",
        "    uint8_t *const arena = context->arena;\n",
    ]
    for step, call in enumerate(graph.calls):
        kernel = program.kernels[call.kernel]
        arguments = [_address(program, placed, value, False) for value in call.reads]
        arguments += [_address(program, placed, value, True) for value in call.writes]
        arguments.append(f"arena + {placed.workspaces[step]}")
        listed = ",\n             ".join(arguments)
        lines.append(f"    /* {comment(kernel.kind)}: {comment(call.layer)} */\n")
        lines.append(f"    STEP({step + 1}, {total},\n         {kernel.symbol}(\n")
        lines.append(f"             {listed}));\n")
    for value, output in placed.copies:
        kind = graph.values[value]
        dtype = c_type(kind.dtype)
        source = _address(program, placed, value, False)
        lines.append(
            "    {\n"
            f"        const {dtype} *from = {source};\n"
            f"        {dtype} *to = ({dtype} *)outputs[{output}];\n"
            "        uint32_t i;\n"
            f"        for (i = 0; i < {kind.elements}u; i++) {{\n"
            "            to[i] = from[i];\n"
            "        }\n"
            "    }\n"
        )
    lines.append(
        "    (void)arena;\n    (void)inputs;\n    (void)outputs;\n    return IBERT_OK;\n}\n"
    )
    return "".join([*lines, "\n"])


def _entry(interface: Interface, index: int) -> str:
    """The public function of one shape."""
    function = interface.functions[index]
    inputs, outputs = tensor_identifiers(interface)
    suffix = shape_suffix(function.batch, function.seq_len)
    return (
        f"{function_prototype(interface, function.batch, function.seq_len)} {{\n"
        f"    const void *given_inputs[IBERT_NUM_INPUTS];\n"
        f"    void *given_outputs[IBERT_NUM_OUTPUTS];\n"
        f"    size_t given_input_bytes[IBERT_NUM_INPUTS];\n"
        f"    size_t given_output_bytes[IBERT_NUM_OUTPUTS];\n"
        + "".join(_assigned("input", i, name) for i, name in enumerate(inputs))
        + "".join(_assigned("output", i, name) for i, name in enumerate(outputs))
        + f"    return run(context, &shapes[{index}], {_GIVEN}, body_{suffix});\n"
        "}\n\n"
    )


def _assigned(kind: str, index: int, name: str) -> str:
    """What puts an argument of a typed function into the arrays of all."""
    return (
        f"    given_{kind}s[{index}] = {name};\n    given_{kind}_bytes[{index}] = {name}_bytes;\n"
    )


def _choice(index: int, function: ShapeSpec) -> str:
    """What `ibert_run` does for one shape."""
    suffix = shape_suffix(function.batch, function.seq_len)
    return (
        f"    if (batch == {function.batch} && seq_len == {function.seq_len}) {{\n"
        f"        return run(context, &shapes[{index}], {_ARRAYS}, body_{suffix});\n"
        "    }\n"
    )
