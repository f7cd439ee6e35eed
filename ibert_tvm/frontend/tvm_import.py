"""Importing TVM without PyTorch.

TVM imports PyTorch where it is installed: 3 of 5 seconds, for what nothing here uses. A process
that has PyTorch already, or imports it later, is not affected, but for TVM's own modules of PyTorch
that were left out (`tvm.relax.BasePyModule`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_HIDDEN = "torch"


class _Hiding(MetaPathFinder):
    """Has nothing of that name for one thread: others may import it meanwhile."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _HIDDEN and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)
        return None


def import_tvm() -> None:
    """Import TVM, and not PyTorch on the way; where one of them was imported, that is kept."""
    if "tvm" in sys.modules or _HIDDEN in sys.modules:
        return
    hiding = _Hiding()
    sys.meta_path.insert(0, hiding)
    try:
        import tvm  # noqa: F401
    finally:
        sys.meta_path.remove(hiding)
