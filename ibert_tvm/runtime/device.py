"""What a library's kernels run on: this machine's processor, or one of its GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..common.errors import UsageError
from .metadata import LibraryMetadata

_TODO = "give cpu, cuda (the first GPU) or cuda:N, for example cuda:1"
_KINDS = {"cpu": "the processor", "cuda": "an NVIDIA GPU"}


@dataclass(frozen=True)
class Device:
    """A device of this machine.

    Attributes
    ----------
    kind
        ``"cpu"`` or ``"cuda"``.
    index
        Number of the GPU, as CUDA counts them; 0 for the processor.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def parse_device(text: str) -> Device:
    """Read a device as ``--device`` takes it.

    Parameters
    ----------
    text
        ``cpu``, ``cuda`` or ``cuda:N``.

    Raises
    ------
    UsageError
        If it is anything else.
    """
    found = re.fullmatch(r"cpu|cuda(?::([0-9]{1,3}))?", text)
    if found is None:
        raise UsageError(f"unknown device {text!r}", where="--device", todo=_TODO)
    return Device(text.partition(":")[0], int(found[1] or 0))


def choose_device(metadata: LibraryMetadata, wanted: str | None) -> Device:
    """Choose the device that a library runs on.

    Parameters
    ----------
    metadata
        The library, which runs on one kind of device only.
    wanted
        What the user asked for; None for the library's own: the processor, or the first GPU.

    Raises
    ------
    UsageError
        If the user asked for what is no device, or for one of the other kind.
    """
    if wanted is None:
        return Device(metadata.device)
    device = parse_device(wanted)
    if device.kind != metadata.device:
        target = metadata.target.get("name", "?")
        other = "--target host" if device.kind == "cpu" else "--target t4 (or another GPU)"
        raise UsageError(
            f"the library {metadata.path} cannot run on {device}",
            where="--device",
            why=f"it was compiled for {target}: its kernels run on {_KINDS[metadata.device]}",
            todo=f"leave --device out, or compile with {other}",
        )
    return device
