"""TVM's runtime library, and nothing else of TVM.

`import tvm` brings the compiler with it: LLVM with all its backends, 150 MiB of memory and half a
second. A library needs a few hundred kilobytes of that, the virtual machine of
``libtvm_runtime.so``, which this module loads by itself; where TVM is imported too, before or
afterwards, both use the same runtime.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from ..common.extras import require
from .mapping import SharedObject
from .metadata import LibraryMetadata


class _NoTorch:
    """Finder that hides torch from imports of one thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse torch to that thread; leave everything else to the other finders."""
        if name == "torch" and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keep an import of this thread from importing torch, if nothing has imported it yet.

    TVM's FFI imports torch wherever it is installed, to convert its tensors: 190 MiB and more than
    a second, for something that running a library does not use.
    """
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_tvm() -> None:
    """Import TVM with its compiler if it is installed, without torch: 2 s less.

    For commands that import no model; they say what they need TVM for.
    """
    with suppress(ModuleNotFoundError), _without_torch():
        import tvm  # noqa: F401


@functools.cache
def load_runtime() -> Any:
    """Load TVM's runtime library, without its compiler.

    Returns
    -------
    module
        ``tvm_ffi``, TVM's foreign function interface.

    Raises
    ------
    MissingExtraError
        If TVM is not installed.
    OSError
        If its runtime library cannot be loaded.
    """
    require(
        "tvm",
        "tvm_ffi",
        to="a library for TVM's runtime",
        otherwise=", or compile it with --runtime none",
    )
    with _without_torch():
        import tvm_ffi
    spec = importlib.util.find_spec("tvm")
    assert spec is not None and spec.submodule_search_locations
    folders = [Path(folder) / "lib" for folder in spec.submodule_search_locations]
    tvm_ffi.libinfo.load_lib_ctypes(
        "apache-tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders
    )
    return tvm_ffi


def tvm_object(metadata: LibraryMetadata) -> SharedObject:
    """Map a library for TVM's runtime, whose module is `SharedObject.loaded`."""
    # `tvm_ffi.load_module` wants a name that ends in ".so".
    load = load_runtime().get_global_func("ffi.Module.load_from_file.so")
    return SharedObject(metadata, lambda name: load(name, "so"))
