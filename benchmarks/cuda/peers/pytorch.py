"""PyTorch on CUDA: FP32 without TF32, and FP16, each eager and as a CUDA graph.

And compiled: FP16, and torchao's INT8.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.models import Cell, ModelSpec

from ..prepared import Prepared
from .base import CellRun, GpuPeer, Loaded

__all__ = [
    *("PyTorchFloat", "PyTorchFloatGraph", "PyTorchHalf", "PyTorchHalfCompiled"),
    *("PyTorchHalfGraph", "PyTorchInt8"),
]

# Runs before a capture: cuBLAS chooses its kernels and allocates its workspace in the first ones.
_BEFORE_CAPTURE = 3


class _Run(CellRun):
    has_device_only = True

    def __init__(self, torch: Any, model: Any, cell: Cell, graph: bool) -> None:
        self._torch, self._model = torch, model
        ids = torch.from_numpy(cell.inputs()["input_ids"])
        self._host_ids = ids.pin_memory()
        self._ids = ids.cuda()
        self._graph: Any = None
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_BEFORE_CAPTURE):
                self._result = model(self._ids)
        self._stream.synchronize()
        if graph:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._result = model(self._ids)
        self._host_result = torch.empty_like(self._result, device="cpu").pin_memory()
        self.call()

    def _launch(self) -> None:
        if self._graph is None:
            self._result = self._model(self._ids)
        else:
            self._graph.replay()

    def on_device(self) -> None:
        with self._torch.cuda.stream(self._stream):
            self._launch()
        self._stream.synchronize()

    def call(self) -> None:
        with self._torch.inference_mode(), self._torch.cuda.stream(self._stream):
            self._ids.copy_(self._host_ids, non_blocking=True)
            self._launch()
            self._host_result.copy_(self._result, non_blocking=True)
        self._stream.synchronize()

    def output(self) -> np.ndarray:
        return self._host_result.float().numpy()


class _Loaded(Loaded):
    def __init__(self, prepared: Prepared, spec: ModelSpec, peer: _PyTorch) -> None:
        import torch

        from ..torch_bert import TorchBert
        from ..weights import read_weights

        # FP32 means FP32: TF32 has ten bits of mantissa.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._torch, self._peer = torch, peer
        self._model = TorchBert(
            spec,
            read_weights(prepared.folder(spec.name)),
            "cuda",
            torch.float16 if peer.half else torch.float32,
        )
        if peer.quantised:
            self._model.quantise()

    def cell(self, cell: Cell) -> CellRun:
        torch, model = self._torch, self._model
        if self._peer.compiled:
            # For this shape alone; what was compiled for others is in their graphs. The graph is
            # ours, as that of the peers that are not compiled.
            torch.compiler.reset()
            mode = "max-autotune-no-cudagraphs"
            model = torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
        return _Run(torch, model, cell, self._peer.graph)


class _PyTorch(GpuPeer):
    half = False
    graph = False
    compiled = False
    quantised = False

    def missing(self, prepared: Prepared, model: str) -> str | None:
        """It needs a torch that can use a GPU, and the float weights."""
        if find_spec("torch") is None:
            return "torch is not installed; pip install torch (a build with CUDA) for this peer"
        import torch

        if torch.version.cuda is None:
            return f"torch {torch.__version__} is a build without CUDA"
        needed = ["triton"] * self.compiled + ["torchao"] * self.quantised
        for package in needed:
            if find_spec(package) is None:
                return f"{package} is not installed; pip install {package} for this peer"
        weights = prepared.folder(model) / "model.safetensors"
        return None if weights.exists() else f"{weights} is missing"

    def load(self, prepared: Prepared, spec: ModelSpec) -> Loaded:
        """Bring the weights to the GPU."""
        return _Loaded(prepared, spec, self)


class PyTorchFloat(_PyTorch):
    """Eager FP32."""

    name = "pytorch-fp32"
    title = "PyTorch FP32 (TF32 off), eager, scaled-dot-product attention"
    precision = "fp32"


class PyTorchFloatGraph(_PyTorch):
    """FP32 without the time that launching takes."""

    name = "pytorch-fp32-graph"
    title = "PyTorch FP32 (TF32 off), scaled-dot-product attention, CUDA graph"
    precision = "fp32"
    graph = True


class PyTorchHalf(_PyTorch):
    """Eager FP16."""

    name = "pytorch-fp16"
    title = "PyTorch FP16, eager, scaled-dot-product attention"
    precision = "fp16"
    half = True
    least_cosine = 0.99


class PyTorchHalfGraph(_PyTorch):
    """FP16 without the time that launching takes."""

    name = "pytorch-fp16-graph"
    title = "PyTorch FP16, scaled-dot-product attention, CUDA graph"
    precision = "fp16"
    half = True
    graph = True
    least_cosine = 0.99


class PyTorchHalfCompiled(PyTorchHalfGraph):
    """FP16 with kernels that PyTorch's compiler made and chose by measurement."""

    name = "pytorch-fp16-compiled"
    title = "PyTorch FP16, torch.compile (max-autotune), CUDA graph"
    compiled = True
    by_default = False


class PyTorchInt8(PyTorchHalfCompiled):
    """FP16 between linear layers of INT8."""

    name = "pytorch-int8-compiled"
    title = "PyTorch and torchao, dynamic INT8, torch.compile (max-autotune), CUDA graph"
    precision = "int8"
    quantised = True
    least_cosine = 0.98
