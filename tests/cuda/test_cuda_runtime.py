"""What is called of CUDA's runtime is there, in the library that the package brings."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from elftools.elf.elffile import ELFFile

from ibert_tvm.runtime import cuda_runtime
from tests.arm.tools import missing


def _library() -> Path:
    """NVIDIA's library, of the package that the extra `cuda` installs."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = sorted(Path(folder).glob(f"*/lib/{cuda_runtime._RUNTIME}"))
        if found:
            return found[0]
    missing("no CUDA runtime: pip install 'ibert-tvm[cuda]'")
    raise AssertionError("not reached")


def test_every_function_is_exported() -> None:
    with _library().open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".dynsym").iter_symbols()
        exported = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    called = {*cuda_runtime._SIGNATURES, "cudaGetErrorName", "cudaGetErrorString"}
    assert called <= exported
