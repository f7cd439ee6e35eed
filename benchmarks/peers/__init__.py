"""The runtimes that are compared. Each is one class in one file; this is the list of them."""

from __future__ import annotations

from .base import Peer
from .ibert import IbertPeer
from .onnx_runtime import OnnxRuntimeFloat, OnnxRuntimeInt8Dynamic, OnnxRuntimeInt8Static
from .openvino import OpenVinoFloat, OpenVinoInt8, OpenVinoInt8Bf16
from .pytorch import PyTorchFloat

__all__ = ["PEERS", "Peer"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        IbertPeer(),
        OpenVinoInt8(),
        OpenVinoInt8Bf16(),
        OnnxRuntimeInt8Dynamic(),
        OnnxRuntimeInt8Static(),
        OpenVinoFloat(),
        OnnxRuntimeFloat(),
        PyTorchFloat(),
    )
}
