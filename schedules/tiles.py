"""What a schedule rule decides about a kernel, and how tuning says otherwise.

Every rule has a default, which depends on the target and on the kernel's sizes. Tuning
(``schedules.tuning``) tries others on the processor itself; a decision that was found better
reaches the rule as an attribute of the unscheduled kernel. Without one, kernels are scheduled as if
there were no tuning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from tvm import tirx

from .errors import ScheduleError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TILE = "ibert.tile"


@dataclass(frozen=True)
class LinearTile:
    """Decisions on a linear kernel.

    Attributes
    ----------
    rows, vectors
        Rows and accumulator vectors of the register tile; they divide the kernel's padded rows and
        its vectors of columns.
    row_block, column_block
        Register tiles, along rows and columns, that one task computes one after the other; they
        divide the numbers of tiles.
    rows_outermost
        1: tasks, and tiles in a task, pass over all columns before the next rows, so that
        activations stay in cache; 0: the other way round, so that weights do.
    unroll
        Steps of the depth that are written out.
    prefetch
        1: request the next weights meanwhile, where the target asks for that. Needs blocks of one
        tile, and columns outermost.
    """

    rows: int
    vectors: int
    row_block: int = 1
    column_block: int = 1
    rows_outermost: int = 0
    unroll: int = 1
    prefetch: int = 1

    def __post_init__(self) -> None:
        _check(self, flags=("rows_outermost", "prefetch"))


@dataclass(frozen=True)
class AttentionTile:
    """Decisions on an attention kernel: register tiles of its two matrix products.

    Attributes
    ----------
    score_rows, score_vectors
        Of queries times keys.
    context_rows, context_vectors
        Of exponentials times values.
    """

    score_rows: int
    score_vectors: int
    context_rows: int
    context_vectors: int

    def __post_init__(self) -> None:
        _check(self, flags=())


Tile = LinearTile | AttentionTile
KINDS: Mapping[str, type[LinearTile] | type[AttentionTile]] = {
    "linear": LinearTile,
    "attention": AttentionTile,
}
"""Decisions by kind of kernel; other kinds have none."""
_T = TypeVar("_T", bound="DataclassInstance")


def _check(tile: Tile, flags: tuple[str, ...]) -> None:
    for name, value in asdict(tile).items():
        largest = 1 if name in flags else None
        smallest = 0 if name in flags else 1
        if value < smallest or (largest is not None and value > largest):
            raise ValueError(f"{type(tile).__name__}: {name} is {value}")


def with_tile(func: tirx.PrimFunc, tile: DataclassInstance) -> tirx.PrimFunc:
    """Tell the rule of an unscheduled kernel what to decide, by a dataclass of whole numbers."""
    return func.with_attr(_TILE, asdict(tile))


def without_tile(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove what `with_tile` said, which a scheduled kernel does not need."""
    return func.without_attr(_TILE) if func.attrs is not None and _TILE in func.attrs else func


def tile_of(func: tirx.PrimFunc, kind: type[_T]) -> _T | None:
    """Decisions that a kernel was given; None where the rule takes its default.

    Raises
    ------
    ScheduleError
        If they are those of another kind of kernel.
    """
    if func.attrs is None or _TILE not in func.attrs:
        return None
    given = {str(name): int(value) for name, value in func.attrs[_TILE].items()}
    if set(given) != {field.name for field in fields(kind)}:
        raise ScheduleError(
            what="a kernel was given the decisions of another kind",
            where=str(func.attrs["ibert.layer"]) if "ibert.layer" in func.attrs else "a kernel",
            why=f"they are {', '.join(sorted(given))}",
            todo=f"give those of {kind.__name__}",
        )
    return kind(**given)


def tile_from_json(kind: str, document: Mapping[str, object]) -> Tile:
    """Read decisions that were stored.

    Parameters
    ----------
    kind
        Kind of kernel.
    document
        Whole numbers by name.

    Raises
    ------
    ValueError
        If the kind has no decisions, or they are none of its.
    """
    if kind not in KINDS:
        raise ValueError(f"kernels of kind {kind!r} are not tuned")
    names = [field.name for field in fields(KINDS[kind])]
    if set(document) != set(names) or not all(type(document[name]) is int for name in names):
        raise ValueError(f"the decisions of a {kind} kernel are whole numbers {', '.join(names)}")
    return KINDS[kind](**{name: int(str(document[name])) for name in names})
