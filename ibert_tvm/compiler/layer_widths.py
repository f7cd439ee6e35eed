"""What calibration made dearer in some layers than in others: wide values, loops without vectors.

The scales that calibration chooses decide the types: where one layer's values need more bits than
those of its like in other layers, they take more memory, and their loops may lose their vectors.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..common.strict_json import JsonDict, JsonObject
from ..model.roles import role_of

if TYPE_CHECKING:
    import tvm

    from ibert_tvm.relay_passes.integer.program import Program


def wide_values(program: Program) -> list[JsonDict]:
    """Values that are stored in a wider type than most of their like in other layers.

    Parameters
    ----------
    program
        Of the integer dialect.

    Returns
    -------
    list of dict
        ``value``, ``type`` and ``usual``, the most frequent type (of equally many the narrowest),
        in order of execution.
    """
    import numpy as np

    def size(dtype: str) -> int:
        return np.dtype(dtype).itemsize

    alike: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for step in program.steps:
        alike[role_of(step.name)].append((step.name, step.type.dtype))
    wide: dict[str, JsonDict] = {}
    for values in alike.values():
        counts = Counter(dtype for _, dtype in values)
        usual = max(counts, key=lambda dtype: (counts[dtype], -size(dtype)))
        wide |= {
            name: {"value": name, "type": dtype, "usual": usual}
            for name, dtype in values
            if size(dtype) > size(usual)
        }
    return [wide[step.name] for step in program.steps if step.name in wide]


def scalar_loops(module: tvm.IRModule, kernels: Iterable[Sequence[JsonObject]]) -> list[JsonDict]:
    """Loops of kernels that are scalar because of numbers of 64 bits.

    Parameters
    ----------
    module
        Scheduled.
    kernels : iterable of sequence of dict
        Of each function, as `ibert_tvm.compiler.driver.kernel_table` gives them.

    Returns
    -------
    list of dict
        ``layer``, ``kernel``, its name in the library, and ``loops``, once each.
    """
    from ibert_tvm.schedules.finish import SCALAR_LOOPS

    named = {var.name_hint: function for var, function in module.functions_items()}
    found = {}
    for rows in kernels:
        for row in rows:
            attributes = named[row["name"]].attrs
            loops = int(attributes[SCALAR_LOOPS]) if SCALAR_LOOPS in attributes else 0
            if loops:
                found[row["layer"], row["name"]] = {
                    "layer": row["layer"],
                    "kernel": row["name"],
                    "loops": loops,
                }
    return list(found.values())


def width_statements(report: JsonObject) -> list[str]:
    """Say what a compilation's ``wide_values`` and ``scalar_loops`` are, for people."""
    lines = []
    if report.get("wide_values"):
        places = Counter(
            (role_of(row["value"]), row["type"], row["usual"]) for row in report["wide_values"]
        )
        listed = ", ".join(
            f"{count} of {place} ({dtype}, not {usual})"
            for (place, dtype, usual), count in places.items()
        )
        lines.append(f"wider than in other layers, by calibration: {listed}")
    if report.get("scalar_loops"):
        sums: Counter[str] = Counter()
        for row in report["scalar_loops"]:
            sums[role_of(row["layer"])] += row["loops"]
        listed = ", ".join(f"{count} of {place}" for place, count in sums.items())
        lines.append(f"loops without vectors, for they compute in 64 bits: {listed}")
    return lines
