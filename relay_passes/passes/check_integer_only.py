"""The proof, on the IR, that no floating-point value is left."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, tirx

from ..errors import IntegerOnlyError
from .program import IntegerProgram, bindings, variables

_FLOAT_TYPE = re.compile(r"^(bfloat|float|fp)\d+(_e\dm\d\w*)?(x\d+|xvscalex\d+)?$")
# Whatever the search below finds has one of these in its text; most kernels have none of them.
_SUSPICIOUS = re.compile(r"float|fp\d|ffi\.Tensor")
# Array data is serialised in DLPack's terms: after two words and the device come the number of
# dimensions, the code of the type (signed, unsigned and bool hold integers) and its bits.
_TENSOR_HEADER = struct.Struct("<24xiBB")
_INTEGER_CODES = (0, 1, 6)


def is_integer_dtype(dtype: str) -> bool:
    """Tell whether a TVM type name (scalar or vector) holds integers, or no number at all."""
    return not _FLOAT_TYPE.match(dtype)


def float_nodes(node: Any) -> Iterator[str]:
    """Everything floating-point below an IR node.

    The node is serialised, so that the search sees what the IR holds and not what a visitor happens
    to visit: types, buffers, constants, and attributes however deep, including types named in
    strings.

    Parameters
    ----------
    node
        Any TVM object.

    Yields
    ------
    str
        What was found, e.g. ``prim.Mul of type float32``.
    """
    text = tvm.ir.save_json(node)
    if not _SUSPICIOUS.search(text):
        return
    nodes = json.loads(text)["nodes"]
    floats = {
        index
        for index, item in enumerate(nodes)
        if isinstance(item.get("data"), dict)
        and not is_integer_dtype(str(item["data"].get("dtype", "")))
    }
    for item in nodes:
        kind, data = item["type"], item.get("data")
        if isinstance(data, dict):
            kinds = [nodes[data[key]] for key in ("ty", "dtype") if _refers(data.get(key), floats)]
            for found in kinds:
                yield f"{kind} of type {found['data']['dtype']}"
            dtype = str(data.get("dtype", ""))
            if kind != "ir.PrimType" and not is_integer_dtype(dtype):
                yield f"{kind} of type {dtype}"
        elif kind == "float":
            yield f"the number {data}"
        elif kind in ("ffi.String", "DataType") and not is_integer_dtype(str(data)):
            yield f"an attribute that names the type {data}"
        elif kind == "ffi.Tensor":
            _, code, bits = _TENSOR_HEADER.unpack_from(base64.b64decode(data))
            if code not in _INTEGER_CODES:
                yield f"an array of {bits}-bit floats"


def _refers(value: Any, indices: set[int]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in indices


class CheckIntegerOnly:
    """Refuse a program in which any float is left: values, constants, attributes, parameters.

    Changes nothing. Works on every phase: Relax functions over ``integer.*`` operators as well as
    emitted and scheduled kernels. `summary` counts what was looked at.

    Raises
    ------
    IntegerOnlyError
        Names the layer and what was found there.
    """

    def __init__(self) -> None:
        self.summary: Counter[str] = Counter()

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the check; return the program unchanged."""
        self.summary = Counter()
        for name, array in program.parameters.items():
            if array.dtype.kind not in "iub":
                raise _error(f"the parameter has type {array.dtype}", name)
            self.summary["parameters"] += 1
        self.check_module(program.module)
        return program

    def check_module(self, module: tvm.IRModule) -> None:
        """Check the attributes and every function of a module."""
        if module.attrs is not None:
            self._check(module.attrs, "attributes of the module")
        for var, function in module.functions_items():
            layer = var.name_hint
            if function.attrs is not None:
                if "ibert.layer" in function.attrs:
                    layer = str(function.attrs["ibert.layer"])
                self._check(function.attrs, layer)
            if isinstance(function, relax.Function):
                self._check_relax(function, layer)
            elif isinstance(function, tirx.PrimFunc):
                self._check(function, layer)
                self.summary["kernels"] += 1

    def _check_relax(self, function: relax.Function, layer: str) -> None:
        origin = {var: str(var.name) for var in function.params}
        for var in function.params:
            self._check(var.ty, f"{layer}, parameter {var.name!r}")
        for binding in bindings(function):
            value = binding.value
            name = _layer_name(value)
            source = next((origin[var] for var in variables(value) if var in origin), "")
            # An operator of another dialect has no name: say which layer's result it takes.
            behind = f" of {source!r}" if source else ""
            where = name or f"{layer}, {_operation(value)}{behind}"
            origin[binding.var] = name or source
            self._check(value, where)
            self._check(binding.var.ty, where)
            self.summary["operations"] += 1
        self._check(function.body.body, f"{layer}, result")

    def _check(self, node: Any, layer: str) -> None:
        self.summary["nodes"] += 1
        found = next(float_nodes(node), None)
        if found is not None:
            raise _error(found, layer)


def _layer_name(value: relax.Expr) -> str:
    """Canonical name that an operator of our dialects carries, or an empty string."""
    attrs = value.attrs if isinstance(value, relax.Call) else None
    names = attrs if isinstance(attrs, tvm.ir.DictAttrs) else {}
    return str(names["name"]) if "name" in names else ""


def _operation(value: relax.Expr) -> str:
    """Name of a called operator or kernel."""
    if not isinstance(value, relax.Call):
        return type(value).__name__
    callees = [value.op, *value.args[:1]]
    kernel = next((item.name_hint for item in callees if isinstance(item, tvm.ir.GlobalVar)), "")
    return kernel or str(getattr(value.op, "name", "a call"))


def _error(found: str, layer: str) -> IntegerOnlyError:
    return IntegerOnlyError(
        what=f"a floating-point value is left in the program: {found}",
        where=layer,
        why="compiled programs are integer-only, and this was not lowered to integers",
        todo="report the operation, or quantise the model again without it",
    )
