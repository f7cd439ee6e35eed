"""What a package takes of a board's flash and RAM, and the refusal where a board has less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ibert_tvm.common.errors import TargetError

from ..aot.model import ArenaPeak
from ..description import TargetDescription
from .options import PackageOptions

_LISTED = 4


class MemoryLimitError(TargetError):
    """A model that is too large for the memory that there is."""


@dataclass(frozen=True)
class FunctionPeak:
    """The function whose arena is largest, and what fills it."""

    batch: int
    seq_len: int
    arena: ArenaPeak

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON-serialisable dictionary."""
        return {"batch": self.batch, "seq_len": self.seq_len, **self.arena.to_json()}


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a package by kind.

    Attributes
    ----------
    code, constants, weights
        In flash.
    arena, stack, data
        In RAM. `stack` is a bound; `data` are variables of the package, 0 by design.
    largest_weights
        (name, bytes), largest first.
    peak
        What fills the arena.
    """

    code: int
    constants: int
    weights: int
    arena: int
    stack: int
    data: int
    largest_weights: tuple[tuple[str, int], ...]
    peak: FunctionPeak

    @property
    def flash(self) -> int:
        """Bytes of flash, or of other memory that is only read."""
        return self.code + self.constants + self.weights

    @property
    def ram(self) -> int:
        """Bytes of RAM; the caller's inputs and outputs are not among them."""
        return self.arena + self.stack + self.data

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON-serialisable dictionary."""
        return {
            "flash": {
                "code": self.code,
                "constants": self.constants,
                "weights": self.weights,
                "total": self.flash,
            },
            "ram": {
                "arena": self.arena,
                "stack": self.stack,
                "data": self.data,
                "total": self.ram,
                "peak": self.peak.to_json(),
            },
        }


def kib(nbytes: int) -> str:
    """Bytes for people: ``184.3 KiB``."""
    return f"{nbytes / 1024:.1f} KiB"


def check_limits(
    use: MemoryUse,
    options: PackageOptions,
    description: TargetDescription,
    arena_at: Callable[[int], int] | None = None,
) -> None:
    """Refuse a package that is larger than the memory that there is.

    Parameters
    ----------
    use
        What it takes.
    options
        What there is.
    description
        The target.
    arena_at
        As in `BareModel`, to advise a sequence that fits.

    Raises
    ------
    MemoryLimitError
        With the numbers of everything that takes memory, for flash and RAM together.
    """
    over, asked, why, todo = [], [], [], []
    if options.flash is not None and use.flash > options.flash:
        over.append("flash")
        asked.append(f"--flash {options.flash}")
        why.append(
            f"flash: {use.flash} bytes are needed, {use.flash - options.flash} more than the "
            f"{options.flash} there are: {use.weights} weights ({_listed(use.largest_weights)}), "
            f"{use.code} code, {use.constants} constants"
        )
        todo.append(f"take a board with {kib(use.flash)} of flash, or a smaller model")
    if options.ram is not None and use.ram > options.ram:
        over.append("RAM")
        asked.append(f"--ram {options.ram}")
        peak = use.peak
        why.append(
            f"RAM: {use.ram} bytes are needed, {use.ram - options.ram} more than the "
            f"{options.ram} there are: {use.arena} arena, {use.stack} stack, {use.data} variables; "
            f"the arena is fullest in layer {peak.arena.layer} at batch {peak.batch}, "
            f"{peak.seq_len} tokens: {_listed(peak.arena.parts)}"
        )
        shorter = _shorter(use, options.ram, arena_at)
        todo.append(f"take a board with {kib(use.ram)} of RAM, or {shorter}")
    if over:
        raise MemoryLimitError(
            what=f"the model needs more {' and '.join(over)} than there is",
            where=f"target {description.name!r}, {' '.join(asked)}",
            why="; ".join(why),
            todo="; ".join(todo),
        )


def _listed(parts: Sequence[tuple[str, int]]) -> str:
    text = ", ".join(f"{nbytes} {what}" for what, nbytes in parts[:_LISTED])
    rest = sum(nbytes for _, nbytes in parts[_LISTED:])
    return f"{text}, {rest} others" if rest else text


def _shorter(use: MemoryUse, ram: int, arena_at: Callable[[int], int] | None) -> str:
    """What to compile for instead: values per token shrink with the sequence."""
    peak = use.peak
    if peak.batch > 1:
        return "compile for --batch 1"
    room = ram - use.data - 2 * use.stack  # short sequences have had frames larger by half
    tokens = peak.seq_len * room // max(1, use.arena)
    while tokens >= 1 and arena_at is not None:
        arena = arena_at(tokens)
        if arena <= room:
            return f"compile for shorter sequences (--seq-len {tokens})"
        tokens = min(tokens - 1, tokens * room // arena)
    return "compile for shorter sequences" if tokens >= 1 else "take a smaller model"
