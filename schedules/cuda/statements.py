"""Statements that skeletons of GPU kernels are made of: threads, registers, unrolled loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import ir, tirx

WARP = 32


def thread(tag: str) -> tirx.Var:
    """Variable for ``blockIdx.x``, ``threadIdx.x`` and so on; `launch` says how far it runs."""
    return tirx.Var(tag.replace(".", "_"), "int32")


def launch(body: tirx.Stmt, threads: Mapping[tirx.Var, int]) -> tirx.Stmt:
    """Run a statement in every thread of a grid.

    Parameters
    ----------
    body
        What one thread does.
    threads
        For each variable of `thread`, its extent.

    Returns
    -------
    tvm.tirx.Stmt
    """
    for var, extent in reversed(list(threads.items())):
        tag = var.name.replace("_", ".")
        axis = tirx.IterVar(ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(axis, "thread_extent", tirx.const(extent, "int32"), body)
    return body


def registers(name: str, count: int, dtype: str) -> tirx.Var:
    """Array of a thread that stays in registers, as long as all its indices are constant."""
    return tirx.decl_buffer((count,), dtype, name, scope="local")


def unrolled(var: tirx.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """Loop that is written out; one of a single iteration is its body."""
    return tirx.For(var, tirx.const(0, "int32"), tirx.const(extent, "int32"), _UNROLLED, body)


def serial(var: tirx.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
    """Loop that the compiler may unroll."""
    return tirx.For(
        var, tirx.const(0, "int32"), tirx.const(extent, "int32"), tirx.ForKind.SERIAL, body
    )


def call(name: str, *arguments: tirx.Expr, dtype: str = "void") -> tirx.Expr:
    """Call of a device function by the name that C++ knows it by."""
    return tirx.call_extern(dtype, name, *arguments)


def address(buffer: tirx.Var, *indices: tirx.Expr | int) -> tirx.Expr:
    """Pointer to an entry."""
    return tirx.address_of(tirx.BufferLoad(buffer, [_index(index) for index in indices]))


def guarded(condition: tirx.Expr | None, body: tirx.Stmt) -> tirx.Stmt:
    """Statement under a condition, if there is one."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other; one that does nothing if there are none."""
    if not statements:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _index(index: tirx.Expr | int) -> tirx.Expr:
    return tirx.const(index, "int32") if isinstance(index, int) else index


_UNROLLED = tirx.ForKind.UNROLLED
