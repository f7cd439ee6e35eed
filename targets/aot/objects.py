"""Machine code of kernels: one relocatable object per kernel, which holds that kernel alone."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Collection
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..binutils import binary_tool
from ..description import TargetDescription
from ..linking import run_tool
from .symbols import check_undefined, undefined_symbols

# TVM adds conversions of half floats to every object, whether something calls them or not.
_DROPPED_SECTIONS = (".text.tvm.fp16.conv", ".ARM.exidx*", ".debug*", ".eh_frame*", ".comment")
_ALLOCATED = 0x2  # SHF_ALLOC


def finalise(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Lower what is left of TVM's builtins and intrinsics, and return 0 in the end.

    Parameters
    ----------
    func
        Of `ibert_tvm.targets.aot.lower.lower_kernels`.
    target
        Code generator.

    Returns
    -------
    tvm.tirx.PrimFunc
        For ``target.build.llvm`` or ``target.build.c``.
    """
    name = str(func.attrs["global_symbol"])
    module = tvm.IRModule({name: func.with_attr("target", target)})
    with target:
        lowered = tirx.transform.LowerTVMBuiltin()(module)[name]
        # Not before: that pass puts what it adds round the whole body.
        ending = tirx.Return(tirx.const(0, "int32"))
        whole = lowered.with_body(tirx.SeqStmt([lowered.body, ending]))
        return tirx.transform.LowerIntrin()(tvm.IRModule({name: whole}))[name]


def kernel_object(
    symbol: str,
    func: tirx.PrimFunc,
    description: TargetDescription,
    provided: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Compile a kernel.

    Parameters
    ----------
    symbol
        Its name.
    func
        Of `ibert_tvm.targets.aot.lower.lower_kernels`.
    description
        What to compile for.
    provided
        Functions that it may call beside memory functions and integer helpers.

    Returns
    -------
    data, undefined
        Relocatable ELF, its code in a section ``.text.SYMBOL``; and what it leaves undefined.

    Raises
    ------
    TargetError
        If it calls anything else, or the toolchain lacks a tool.
    """
    options = dict(description.tvm_target)
    if description.select_options and _selects_places(func):
        options["cl-opt"] = [*description.select_options]
    target = tvm.target.Target(options)
    module = tvm.IRModule({symbol: finalise(func, target)})
    built = tvm.get_global_func("target.build.llvm")(module, target)
    with tempfile.TemporaryDirectory(prefix="ibert-kernel-") as folder:
        work = Path(folder)
        built.write_to_file(str(work / "kernel.o"), "o")
        command = [binary_tool(description, "objcopy"), "--strip-debug"]
        command += [f"--remove-section={name}" for name in _DROPPED_SECTIONS]
        # Named by the unwinding tables that have just been removed.
        command += ["--wildcard", "--strip-symbol=__aeabi_unwind_cpp_pr*"]
        command += [f"--rename-section=.text=.text.{symbol}", "kernel.o", "stripped.o"]
        run_tool(command, work, "cannot strip a kernel", description)
        data = (work / "stripped.o").read_bytes()
    undefined = undefined_symbols(data)
    check_undefined(symbol, undefined, description, provided)
    return data, undefined


def _selects_places(func: tirx.PrimFunc) -> bool:
    """Whether a kernel selects among the lanes of a vector by their places alone."""
    found: list[tirx.Select] = []
    tvm_ffi.structural_walk(func.body, (tirx.Select, found.append))
    return any(s.ty.dtype.lanes > 1 and not _loads(s.condition) for s in found)


def _loads(expr: tirx.Expr) -> bool:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append))
    return bool(found)


def code_bytes(data: bytes) -> int:
    """Bytes of code and constants that an object adds to a program."""
    from elftools.elf.elffile import ELFFile

    return sum(
        section["sh_size"]
        for section in ELFFile(io.BytesIO(data)).iter_sections()
        if section["sh_flags"] & _ALLOCATED
    )
