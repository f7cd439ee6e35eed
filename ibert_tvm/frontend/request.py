"""How a model is to be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """The parameters of `ibert_tvm.load`."""

    head: str | None = None
    inputs: Sequence[str] | Mapping[str, str] | None = None
    image_size: tuple[int, ...] | None = None
    tokenizer: Path | None = None
    verify: bool = True
    trust: bool = False
