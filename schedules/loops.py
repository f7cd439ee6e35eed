"""Loops of TIR, which cannot be changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx


def rebuilt(
    loop: tirx.For,
    *,
    kind: int | None = None,
    body: tirx.Stmt | None = None,
    annotations: Mapping[str, Any] | None = None,
) -> tirx.For:
    """Make a loop anew, with other fields where they are given.

    Parameters
    ----------
    loop
        The loop; it stays as it is.
    kind
        One of ``tvm.tirx.ForKind``.
    body, annotations
        In place of the loop's own.

    Returns
    -------
    tvm.tirx.For
        Over the same variable.
    """
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind if kind is None else kind,
        loop.body if body is None else body,
        loop.thread_binding,
        loop.annotations if annotations is None else annotations,
        loop.step,
        loop.span,
    )
