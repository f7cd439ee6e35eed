"""What a schedule rule decides about a kernel, and how tuning says otherwise.

Every rule has a default, which depends on the target and on the kernel's sizes. Tuning
(``ibert_tvm.schedules.tuning``) tries others on the processor itself; a decision that was found
better reaches the rule as an attribute of the unscheduled kernel. Without one, kernels are
scheduled as if there were no tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from tvm import tirx

from .errors import ScheduleError

_TILE = "ibert.tile"


class Tile(Protocol):
    """Decisions on a kernel: a frozen dataclass of whole numbers and truth values."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


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


_T = TypeVar("_T", bound=Tile)


def _check(tile: Tile, flags: tuple[str, ...]) -> None:
    for name, value in asdict(tile).items():
        largest = 1 if name in flags else None
        smallest = 0 if name in flags else 1
        if value < smallest or (largest is not None and value > largest):
            raise ValueError(f"{type(tile).__name__}: {name} is {value}")


def with_tile(func: tirx.PrimFunc, tile: Tile) -> tirx.PrimFunc:
    """Tell the rule of an unscheduled kernel what to decide."""
    return func.with_attr(_TILE, asdict(tile))


def without_tile(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Remove what `with_tile` said, which a scheduled kernel does not need."""
    return func.without_attr(_TILE) if has_tile(func) else func


def has_tile(func: tirx.PrimFunc) -> bool:
    """Whether a kernel was given decisions that no rule has taken yet."""
    return func.attrs is not None and _TILE in func.attrs


def value_types(kind: type[Tile]) -> dict[str, type[int] | type[bool]]:
    """Names of the decisions of a kind, and which of the two each is."""
    return {field.name: bool if field.type in (bool, "bool") else int for field in fields(kind)}


def tile_of(
    func: tirx.PrimFunc, kind: type[_T], problem: Callable[[_T], str] = lambda _tile: ""
) -> _T | None:
    """Decisions that a kernel was given; None where the rule takes its default.

    Parameters
    ----------
    func
        The kernel.
    kind
        What its rule decides.
    problem
        Why the target cannot follow some decisions; empty where it can.

    Raises
    ------
    ScheduleError
        If they are those of another kind of kernel, or the target cannot follow them.
    """
    if not has_tile(func):
        return None
    given = {str(name): int(value) for name, value in func.attrs[_TILE].items()}
    kinds = value_types(kind)
    where = str(func.attrs["ibert.layer"]) if "ibert.layer" in func.attrs else "a kernel"
    if set(given) != set(kinds):
        raise ScheduleError(
            what="a kernel was given the decisions of another kind",
            where=where,
            why=f"they are {', '.join(sorted(given))}",
            todo=f"give those of {kind.__name__}",
        )
    tile = kind(**{name: kinds[name](value) for name, value in given.items()})
    if why := problem(tile):
        raise ScheduleError(
            what="the device cannot follow the decisions on a kernel",
            where=where,
            why=why,
            todo="tune for this target",
        )
    return tile
