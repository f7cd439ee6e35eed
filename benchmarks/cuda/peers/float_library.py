"""This project's compiler on the float model: TVM's default CUDA pipeline, FP32."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.models import Cell, ModelSpec

from ..float_module import float_function
from ..prepared import Prepared
from .base import CellRun, GpuPeer, Loaded

__all__ = ["FloatLibraryPeer"]


class _Run(CellRun):
    has_device_only = True

    def __init__(self, tvm: Any, machine: Any, weights: list[Any], names: list[str], cell: Cell):
        self._tvm, self._device = tvm, tvm.cuda(0)
        self._function = machine[float_function(cell)]
        given = cell.inputs()
        absent = np.zeros((cell.batch, cell.seq_len), np.int64)
        self._host = [tvm.runtime.tensor(given.get(name, absent)) for name in names]
        self._inputs = [tvm.runtime.tensor(array.numpy(), self._device) for array in self._host]
        self._weights = weights
        self._result: Any = None
        self.on_device()
        first = self._first()
        self._copy = tvm.runtime.empty(first.shape, str(first.dtype), tvm.cpu(0))
        self.call()

    def _first(self) -> Any:
        return self._result if hasattr(self._result, "numpy") else self._result[0]

    def on_device(self) -> None:
        self._result = self._function(*self._inputs, *self._weights)
        self._device.sync()

    def call(self) -> None:
        for host, device in zip(self._host, self._inputs, strict=True):
            device.copyfrom(host)
        self._result = self._function(*self._inputs, *self._weights)
        self._first().copyto(self._copy)
        self._device.sync()

    def output(self) -> np.ndarray:
        return self._first().numpy()


class _Loaded(Loaded):
    def __init__(self, prepared: Prepared, spec: ModelSpec) -> None:
        import tvm
        from tvm import relax

        from ..weights import read_weights

        device = tvm.cuda(0)
        self._tvm = tvm
        self._names, order = prepared.float_signature(spec.name)
        self._machine = relax.VirtualMachine(
            tvm.runtime.load_module(str(prepared.fp32(spec.name))), device
        )
        weights = read_weights(prepared.folder(spec.name))
        self._weights = [tvm.runtime.tensor(weights[name], device) for name in order]

    def cell(self, cell: Cell) -> CellRun:
        return _Run(self._tvm, self._machine, self._weights, self._names, cell)


class FloatLibraryPeer(GpuPeer):
    """FP32 kernels by TVM's dlight schedules, for what integers gain within one compiler."""

    name = "ibert-fp32"
    title = "ibert_tvm FP32: the float model, same compiler, dlight schedules, CUDA graphs"
    precision = "fp32"

    def missing(self, prepared: Prepared, model: str) -> str | None:
        """Its library and the float weights must have been prepared."""
        for path in (prepared.fp32(model), prepared.folder(model) / "model.safetensors"):
            if not path.exists():
                return f"{path} is missing"
        return None

    def load(self, prepared: Prepared, spec: ModelSpec) -> Loaded:
        """Load the library, and bring the weights to the GPU."""
        return _Loaded(prepared, spec)
