"""The runtimes that are compared. Each is one class in one file; this is the list of them."""

from __future__ import annotations

from .base import Peer
from .commit import CommitPeer, commit_of, place_of
from .ibert import IbertBuckets, IbertPeer, IbertTvm, IbertVnni
from .onnx_runtime import (
    OnnxRuntimeFloat,
    OnnxRuntimeInt8AsExported,
    OnnxRuntimeInt8Dynamic,
    OnnxRuntimeInt8Static,
)
from .openvino import OpenVinoFloat, OpenVinoInt8, OpenVinoInt8Bf16
from .pytorch import PyTorchFloat

__all__ = ["OTHERS", "PEERS", "Peer", "commit_of", "find_peer", "place_of"]

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

# Measured where they are named.
OTHERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (IbertBuckets(), IbertTvm(), IbertVnni(), OnnxRuntimeInt8AsExported())
}


def find_peer(name: str) -> Peer:
    """The peer of that name, whichever benchmark it belongs to; ``ibert@COMMIT`` is one, too."""
    commit = commit_of(name)
    return {**PEERS, **OTHERS}[name] if commit is None else CommitPeer(commit)
