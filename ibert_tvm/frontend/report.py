"""What happened while a model was imported: what was matched, what was folded, what was refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Folding", "ImportReport", "MatchedOp", "RefusedOp"]


@dataclass(frozen=True)
class MatchedOp:
    """One canonical operator and the source operators that became it.

    Parameters
    ----------
    op : str
        Canonical operator, for example ``canonical.attention``.
    name : str
        Canonical name of its value.
    source_ops : tuple of str
        Operators of the imported graph that it replaces, in their order.
    """

    op: str
    name: str
    source_ops: tuple[str, ...]


@dataclass(frozen=True)
class Folding:
    """A computation that was done at import time.

    Parameters
    ----------
    name : str
        Canonical name of the value, or name of the weight.
    what : str
        What was folded into what.
    """

    name: str
    what: str


@dataclass(frozen=True)
class RefusedOp:
    """A source operator that has no canonical form.

    Parameters
    ----------
    op : str
        The operator, for example ``relax.sin``.
    layer : str
        Module path of the nearest parameter, empty if there is none.
    why : str
        Why it did not match.
    """

    op: str
    layer: str
    why: str


@dataclass
class ImportReport:
    """The record of one import; `str()` gives a text for people.

    Parameters
    ----------
    matched : list of MatchedOp
        In the order of the canonical module.
    foldings : list of Folding
        What was computed at import time.
    refusals : list of RefusedOp
        What was not understood. Only a failed import has any.
    """

    matched: list[MatchedOp] = field(default_factory=list)
    foldings: list[Folding] = field(default_factory=list)
    refusals: list[RefusedOp] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        counts = Counter(item.op for item in self.matched)
        lines = ["Matched:"]
        for op, count in sorted(counts.items()):
            used = sum(len(item.source_ops) for item in self.matched if item.op == op)
            lines.append(f"  {op:24} {count:4}  from {used} source operators")
        lines += ["Per value:"]
        lines += [
            f"  {item.name:60} {item.op.removeprefix('canonical.'):14} {len(item.source_ops):3}"
            for item in self.matched
        ]
        if self.foldings:
            lines.append("Folded:")
            lines += [f"  {item.name}: {item.what}" for item in self.foldings]
        if self.refusals:
            lines.append("Refused:")
            lines += [f"  {item.op} near {item.layer or '?'}: {item.why}" for item in self.refusals]
        return "\n".join(lines)
