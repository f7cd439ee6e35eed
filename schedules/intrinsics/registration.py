"""Telling TVM of a tensor intrinsic."""

from __future__ import annotations


def register(name: str, sources: tuple[str, str]) -> str:
    """Register an intrinsic with TVM, replacing one of the same name.

    Parameters
    ----------
    name
        Name under which schedules use it.
    sources
        Text of the description and of the implementation.

    Returns
    -------
    str
        `name`.
    """
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = (from_source(source) for source in sources)
    TensorIntrin.register(name, description, implementation, override=True)
    return name
