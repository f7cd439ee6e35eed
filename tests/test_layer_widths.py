"""What `ibert compile` says of layers that calibration made wide or scalar."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ibert_tvm.compiler.layer_widths import scalar_loops, wide_values, width_statements
from ibert_tvm.schedules.finish import SCALAR_LOOPS, keep_whole_vectors
from tests.encoder.small_encoders import bert


def test_a_value_wider_than_its_like_is_reported() -> None:
    program = bert().program
    assert wide_values(program) == []
    step = next(step for step in program.steps if step.name.startswith("encoder.layer.0."))
    alike = [
        SimpleNamespace(name=step.name.replace(".0.", f".{layer}."), type=step.type)
        for layer in range(4)
    ]
    wide = alike[2]
    wide.type = replace(step.type, dtype="int64")
    rows = wide_values(SimpleNamespace(steps=alike))
    assert rows == [{"value": wide.name, "type": "int64", "usual": step.type.dtype}]
    place = step.name.replace(".0.", ".*.")
    assert width_statements({"wide_values": rows, "scalar_loops": []}) == [
        f"wider than in other layers, by calibration: 1 of {place} (int64, not {step.type.dtype})"
    ]


def _kernel(dtype: str, addend: str = "x[i]") -> Any:
    from tvm.script import from_source

    return from_source(
        "@T.prim_func\n"
        f'def main(x: T.Buffer((8,), "{dtype}"), y: T.Buffer((8,), "{dtype}"),\n'
        '         r: T.Buffer((1,), "int64")):\n'
        "    for i in T.vectorized(8):\n"
        f"        y[i] = x[i] + {addend}\n"
    )


def test_loops_that_lose_their_vectors_to_64_bits_are_reported_by_layer() -> None:
    narrow, wide = (keep_whole_vectors(_kernel(dtype)) for dtype in ("int32", "int64"))
    of_row = keep_whole_vectors(_kernel("int32", "T.Cast('int32', r[0] >> T.int64(3))"))
    assert SCALAR_LOOPS not in (narrow.attrs or {})
    assert SCALAR_LOOPS not in (of_row.attrs or {}), "one number for all lanes"
    assert int(wide.attrs[SCALAR_LOOPS]) == 1
    functions = [(SimpleNamespace(name_hint=name), f) for name, f in (("n", narrow), ("w", wide))]
    module = SimpleNamespace(functions_items=lambda: functions)
    rows = [
        {"name": "n", "layer": "encoder.layer.0.dense"},
        {"name": "w", "layer": "encoder.layer.1.dense"},
    ]
    found = scalar_loops(module, [rows, rows])
    assert found == [{"layer": "encoder.layer.1.dense", "kernel": "w", "loops": 1}]
    assert width_statements({"wide_values": [], "scalar_loops": found}) == [
        "loops without vectors, for they compute in 64 bits: 1 of encoder.layer.*.dense"
    ]
