"""What a package says to the people who link it: its README and, for sources, its Makefile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ibert_tvm.common.strict_json import JsonObject

from ..aot.c_text import rendered
from .memory_use import kib

_README = Path(__file__).with_name("package.md.in")

_MAKEFILE = Path(__file__).with_name("package.mk.in")


def readme(document: JsonObject) -> str:
    """The README of a package.

    Parameters
    ----------
    document
        The content of its ``ibert_model.json``.

    Returns
    -------
    str
        Markdown.
    """
    function = document["functions"][0]
    sizes = {"batch": function["batch"], "seq_len": function["seq_len"]}
    arrays = [
        {**one, "count": math.prod(sizes.get(axis, axis) for axis in one["shape"])}
        for one in (*document["inputs"], *document["outputs"])
    ]
    return rendered(
        _README,
        document=document,
        target=document["target"]["name"],
        prefix=document["prefix"],
        helpers=document["verified"]["compiler_helpers"],
        function=function,
        arrays=arrays,
        padded=any(one["name"] == "attention_mask" for one in document["inputs"]),
        largest=max(document["weights"], key=lambda one: int(one["bytes"]), default=None),
        flash=document["memory"]["flash"],
        ram=document["memory"]["ram"],
        kib=kib,
    )


def makefile(prefix: str, sources: Sequence[str], compiler: str, flags: Sequence[str]) -> str:
    """The Makefile of a package of sources.

    Parameters
    ----------
    prefix
        What C names of the model begin with.
    sources
        Names of C and assembly files.
    compiler, flags
        The default compiler, and flags that choose the processor.
    """
    return rendered(
        _MAKEFILE,
        prefix=prefix,
        compiler=compiler,
        flags=flags,
        objects=[name.rpartition(".")[0] + ".o" for name in sources],
        has_assembly=any(name.endswith(".S") for name in sources),
    )
