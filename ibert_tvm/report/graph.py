"""The graph of an integer program, with what is proven about every edge, as a document.

Ranges and widths are those of `ibert_tvm.relay_passes.integer.ranges`, which `ibert verify` states
as well. Headroom is what a type has beyond them, in bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.strict_json import JsonDict, JsonObject
from ..model.roles import block_of

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.integer.program import Program, Step
    from ibert_tvm.relay_passes.integer.ranges import ValueRange

    from ..model.artefact import QuantizedModel

# A value that is made for one reader is called VALUE.for.READER, and belongs to the reader's layer.
_FOR = ".for."
_WORD, _LONG = 32, 64


def program_graph(model: QuantizedModel) -> JsonDict:
    """Describe the program of a quantised model.

    Parameters
    ----------
    model
        The model.

    Returns
    -------
    dict
        JSON-able. ``steps`` are in order of execution; each is a node, and the edge from it to
        those that read it: ``low`` and ``high``, ``bits`` that they need of the ``of_bits`` of its
        type and ``headroom``, what is left. ``width`` is that of the widest intermediate of the
        operator, ``word`` the bits that it is computed in and ``spare`` what is left of them.
        ``blocks`` are runs of steps of one layer: [``first``, ``first + count``).

    Raises
    ------
    CompilerError
        If a value does not fit its type.
    """
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges

    program = model.program
    proven = analyse_ranges(program, model.parameters)
    steps = [_step(program, step, proven.details[step.name]) for step in program.steps]
    return {
        "longest_sequence": proven.max_seq_len,
        "widest_bits": max(step["width"] for step in steps),
        "least_spare": min(step["spare"] for step in steps),
        "parameters": len(program.parameters),
        "inputs": [{"name": name, "type": str(type_)} for name, type_ in program.inputs.items()],
        "outputs": list(program.outputs),
        "blocks": _blocks(steps),
        "steps": steps,
    }


def _step(program: Program, step: Step, proven: ValueRange) -> JsonDict:
    bits, of_bits = _needed(proven.low, proven.high, proven.dtype)
    word = _WORD if proven.width <= _WORD else _LONG
    attributes = step.operator.to_dict()
    del attributes["name"]
    return {
        "name": step.name,
        "operator": step.operator.OP,
        "type": str(step.type),
        "low": proven.low,
        "high": proven.high,
        "bits": bits,
        "of_bits": of_bits,
        "headroom": of_bits - bits,
        "width": proven.width,
        "word": word,
        "spare": word - proven.width,
        "operands": [_operand(program, name, value) for name, value in step.operands.items()],
        "attributes": attributes,
        "stages": [
            {"name": name, "low": low, "high": high} for name, (low, high) in proven.stages.items()
        ],
    }


def _needed(low: int, high: int, dtype: str) -> tuple[int, int]:
    """Bits that an interval needs of a type, and those that the type has."""
    import numpy as np

    from ibert_tvm.relay_passes.spec.widths import bits_of

    stored = np.dtype(dtype)
    # A type without sign has one bit less to hold.
    return bits_of(low, high) - (stored.kind == "u"), stored.itemsize * 8


def _operand(program: Program, name: str, value: str) -> dict[str, str]:
    """What a step reads: a parameter, an input, or the value of an earlier step."""
    for origin, types in (("parameter", program.parameters), ("input", program.inputs)):
        if value in types:
            return {"name": name, "value": value, "from": origin, "type": str(types[value])}
    return {"name": name, "value": value, "from": "step"}


def _blocks(steps: list[JsonDict]) -> list[JsonDict]:
    blocks: list[JsonDict] = []
    for index, step in enumerate(steps):
        name = block_of(step["name"].rpartition(_FOR)[2])
        if not blocks or blocks[-1]["name"] != name:
            blocks.append({"name": name, "first": index, "count": 0})
        blocks[-1]["count"] += 1
    return [{**block, **_least(steps, block)} for block in blocks]


def _least(steps: list[JsonDict], block: JsonObject) -> JsonDict:
    """Where a block comes closest to its limits.

    Narrow types are filled to the last bit on purpose, by clamping; what is wide is not.
    """
    own = steps[block["first"] : block["first"] + block["count"]]
    wide = [step["headroom"] for step in own if step["of_bits"] >= _WORD]
    return {
        "least_headroom": min(wide, default=None),
        "least_spare": min(step["spare"] for step in own),
    }
