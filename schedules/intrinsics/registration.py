"""The two functions of a tensor intrinsic, and telling TVM of it.

An intrinsic is described by loops over its operands A, B and C, the last of which it writes, and
implemented by statements that compute the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

# TVM's parser calls the last decorator only, and one with arguments looks up the source of every
# frame on the stack, which takes as long as the parsing; the arguments of the first it reads.
_FUNCTION = """
@T.prim_func(s_tir=True)
@T.prim_func
def {which}(
    {parameters},
) -> None:
    with T.sblock("root"):
        T.reads({reads})
        T.writes({writes})
        {body}
"""

_NEST = """for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                {statement}"""

ANY_ROWS = "[T.int32(), 1]"
"""Strides of rows that lie anywhere."""


class Sources(NamedTuple):
    """An intrinsic: text of the description and of the implementation, and its name in TVM."""

    description: str
    implementation: str
    name: str


@dataclass(frozen=True)
class Operand:
    """A buffer of an intrinsic.

    Attributes
    ----------
    shape, dtype
        Of the whole.
    strides
        In TVMScript; empty where entries lie one after the other.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: str = ""

    def declared(self, name: str) -> str:
        """Parameter of a function."""
        strides = f", strides={self.strides}" if self.strides else ""
        return f'{name}: T.Buffer({self.shape}, "{self.dtype}", offset_factor=1{strides})'

    def region(self, name: str) -> str:
        """All of it."""
        return f"{name}[{', '.join(f'0:{size}' for size in self.shape)}]"

    def start(self, name: str) -> str:
        """Its address."""
        return f"T.address_of({name}[{', '.join('0' for _ in self.shape)}])"


def nest(statement: str, **extents: int) -> str:
    """Loops round a statement; its axes are called v and the name of the loop.

    Parameters
    ----------
    statement
        In TVMScript. A loop of one iteration is none, to TVM: its axis is 0.
    **extents
        Of the loops by name, outermost first; loop ``k`` reduces.
    """
    loops = [name for name, extent in extents.items() if extent > 1]
    return _NEST.format(
        loops=", ".join(loops),
        extents=", ".join(str(extents[name]) for name in loops),
        axes=", ".join(f"v{name}" for name in loops),
        kinds="".join("R" if name == "k" else "S" for name in loops),
        statement=re.sub(
            r"\bv([a-z])\b", lambda axis: axis[0] if axis[1] in loops else "0", statement
        ),
    )


def sources_of(
    name: str,
    operands: dict[str, Operand],
    description: str,
    implementation: list[str],
    accumulates: bool = True,
) -> Sources:
    """Write both functions of an intrinsic.

    Parameters
    ----------
    name
        Of the intrinsic, behind "ibert.".
    operands
        By name: those that are read, and C, which is written, last.
    description
        Of `nest`.
    implementation
        Statements in TVMScript.
    accumulates
        Whether C is read as well.
    """
    regions = {name: operand.region(name) for name, operand in operands.items()}
    written = regions.pop("C")
    head = {
        "parameters": ",\n    ".join(it.declared(name) for name, it in operands.items()),
        "reads": ", ".join([*([written] if accumulates else []), *regions.values()]),
        "writes": written,
    }
    return Sources(
        _FUNCTION.format(which="description", body=description, **head),
        _FUNCTION.format(which="implementation", body="\n        ".join(implementation), **head),
        f"ibert.{name}",
    )


def called(function: str, operands: dict[str, Operand], *arguments: object) -> str:
    """Statement that calls a function in C with the addresses of operands and other arguments."""
    starts = [operand.start(name) for name, operand in operands.items()]
    listed = ", ".join([f'"int32", "{function}"', *starts, *map(str, arguments)])
    return f"T.evaluate(T.call_extern({listed}))"


@cache
def register(sources: Sources) -> str:
    """Register an intrinsic with TVM, once; return its name."""
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    description, implementation = (from_source(source) for source in sources[:2])
    TensorIntrin.register(sources.name, description, implementation, override=True)
    return sources.name
