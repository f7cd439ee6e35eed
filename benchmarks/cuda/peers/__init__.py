"""What is measured on a GPU: this project in INT8 and FP32, PyTorch in FP32, FP16 and INT8."""

from __future__ import annotations

from .base import CellRun, GpuPeer, Loaded
from .float_library import FloatLibraryPeer
from .int8_library import Int8Peer
from .pytorch import (
    PyTorchFloat,
    PyTorchFloatGraph,
    PyTorchHalf,
    PyTorchHalfCompiled,
    PyTorchHalfGraph,
    PyTorchInt8,
)

__all__ = ["BASELINE", "PEERS", "CellRun", "GpuPeer", "Loaded"]

PEERS: dict[str, GpuPeer] = {
    peer.name: peer
    for peer in (
        Int8Peer(),
        FloatLibraryPeer(),
        PyTorchFloat(),
        PyTorchFloatGraph(),
        PyTorchHalf(),
        PyTorchHalfGraph(),
        PyTorchHalfCompiled(),
        PyTorchInt8(),
    )
}
BASELINE = Int8Peer.name
