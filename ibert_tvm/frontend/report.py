"""What happened while a model was imported: what was matched, what was folded, what was refused.

Every frontend fills this one structure, `ibert inspect MODEL` shows it, and an import that is
refused carries what was filled up to there. Names of nodes and tensors are the source's own: those
of an ONNX graph, of an exported torch program, the modules of a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from ..common.strict_json import JsonDict


class SourceOp(str):
    """The name of an imported operator, together with the node of the source that it belongs to.

    It is the operator's name for all purposes, so that whoever only looks at operators need not
    know of nodes.

    Parameters
    ----------
    op : str
        Operator of the imported graph, for example ``relax.matmul``.
    node
        Name of the source's node; empty if the source names none.
    kind
        Operator of that node in the source's own terms, for example ``MatMul``; empty for `op`.
    """

    node: str
    kind: str

    def __new__(cls, op: str, node: str = "", kind: str = "") -> SourceOp:
        """Make the name; see the class."""
        result = super().__new__(cls, op)
        result.node = node
        result.kind = kind or op
        return result


@dataclass(frozen=True)
class Origin:
    """Where a variable of an imported graph comes from.

    Parameters
    ----------
    node
        Name of the source's node; empty if it names none.
    kind
        Operator of that node in the source's own terms.
    tensors
        Names of the source's tensors that the variable is.
    refused
        Why the importer could not translate the node; empty if it could.
    """

    node: str = ""
    kind: str = ""
    tensors: tuple[str, ...] = ()
    refused: str = ""


def source_nodes(ops: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes of `ops` in order, each once; operators without a node have none."""
    nodes = (getattr(op, "node", "") for op in ops)
    return tuple(dict.fromkeys(node for node in nodes if node))


def source_kinds(ops: Iterable[str]) -> tuple[str, ...]:
    """Return the operators of `ops` in the source's terms, where a node is one operator."""
    result: list[str] = []
    seen: set[str] = set()
    for op in ops:
        kind, node = str(getattr(op, "kind", op)), getattr(op, "node", "")
        if kind != op and node in seen:
            continue
        seen.add(node)
        result.append(kind)
    return tuple(result)


@dataclass(frozen=True)
class MatchedOp:
    """One canonical operator and the source operators that became it.

    Parameters
    ----------
    op
        Canonical operator, for example ``canonical.attention``.
    name
        Canonical name of its value.
    source_ops
        Operators that it replaces, in their order: of the source where it names its nodes, else
        of the imported graph.
    nodes
        Names of the source's nodes that it replaces, in their order; empty if it names none.
    """

    op: str
    name: str
    source_ops: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Folding:
    """A computation that was done at import time, or a part of the source that was left out.

    Parameters
    ----------
    name
        Canonical name of the value, or name of the weight.
    what
        What was folded into what.
    nodes
        Names of the source's nodes; empty if it names none.
    """

    name: str
    what: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RefusedOp:
    """A source operator that has no canonical form.

    Parameters
    ----------
    op
        The operator, for example ``relax.sin`` or ``HardSwish``.
    layer
        Module path of the nearest parameter, empty if there is none.
    why
        Why it did not match.
    node
        Name of the source's node; empty if it names none.
    """

    op: str
    layer: str
    why: str
    node: str = ""


@dataclass(frozen=True)
class ShownTensor:
    """A tensor of the source that shows a canonical value, perhaps in another layout or scaled.

    Parameters
    ----------
    tensor
        Name of the tensor in the source.
    value
        Canonical name of the value.
    factor
        The tensor is the value times this number.
    """

    tensor: str
    value: str
    factor: float = 1.0


@dataclass
class ImportReport:
    """The record of one import; `str()` gives a text for people.

    Parameters
    ----------
    source
        What was imported, in one line: kind, producer, version.
    matched
        In the order of the canonical module.
    foldings
        What was computed at import time or left out.
    refusals
        What was not understood. After an import that succeeded these are parts of the source that
        no output needs.
    tensors
        Tensors of the source that show canonical values, in the source's order; empty if the
        source names no tensors.
    weights
        Names of the source's arrays by names of the canonical parameters, where they differ.
    """

    source: str = ""
    matched: list[MatchedOp] = field(default_factory=list)
    foldings: list[Folding] = field(default_factory=list)
    refusals: list[RefusedOp] = field(default_factory=list)
    tensors: list[ShownTensor] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> JsonDict:
        """Return the report as a JSON-serialisable dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        counts = Counter(item.op for item in self.matched)
        lines = [f"Source: {self.source}"] if self.source else []
        lines += ["Matched:"]
        for op, count in sorted(counts.items()):
            used = sum(len(item.source_ops) for item in self.matched if item.op == op)
            lines.append(f"  {op:24} {count:4}  from {used} source operators")
        lines += ["Per value:"]
        lines += [
            f"  {item.name:60} {item.op.removeprefix('canonical.'):14} {len(item.source_ops):3}"
            + (f"  {', '.join(item.nodes)}" if item.nodes else "")
            for item in self.matched
        ]
        if self.foldings:
            lines.append("Folded:")
            lines += [f"  {item.name}: {item.what}" for item in self.foldings]
        if self.refusals:
            lines.append("Refused:")
            lines += [
                f"  {item.op} {f'({item.node}) ' if item.node else ''}near {item.layer or '?'}: "
                f"{item.why}"
                for item in self.refusals
            ]
        return "\n".join(lines)
