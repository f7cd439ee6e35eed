"""A canonical function under construction: its inputs, weights, values and report."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.names import safe_name

from ...common.types import Array, Floats
from ..report import Folding, ImportReport, MatchedOp, SourceOp, source_kinds, source_nodes
from .inputs import Ids, Probes
from .mismatch import Mismatch
from .views import Atom, Axis

# Canonicalising a source once more, for what a short probe shape does not show.


@dataclass(frozen=True, eq=False)
class Revisit:
    """Another walk over a source that was canonicalised at a shorter length.

    Windows and biases by distance are seen at the longest sequence that is compared. Tables of
    rotations have more positions than that; masks of as many queries and keys are not computed for
    them.

    Parameters
    ----------
    length
        Tokens of the probe shape.
    tables_only
        Whether the tables of rotations are all that is wanted. What scores meet is then taken for
        the padding mask alone.
    mask
        Of the source's inputs that which masks keys; None if none does.
    tables
        Tables of rotations for more positions, [positions, 2 * angles] each: what is found takes
        the one that it is the beginning of.
    """

    length: int
    tables_only: bool = False
    mask: str | None = None
    tables: tuple[Floats, ...] = ()


_Made = TypeVar("_Made")

# Of cosines and sines of large angles in float32, computed for one length or another.
_SAME_ANGLE = 1e-4


def layer_of(parameter: str) -> str:
    """Return the module path of a parameter: its name without the last component."""
    return parameter.rpartition(".")[0] or parameter


class Operand(Protocol):
    """What an operator of the canonical function reads."""

    def operand(self, c: Builder) -> relax.Expr:
        """Return the variable that holds it."""


Read: TypeAlias = "relax.Expr | Operand | None"
"""An operand; None for one that is optional and not there."""


class Builder:
    """A canonical function under construction.

    Parameters
    ----------
    probes
        Inputs of the probe runs.
    images
        The inputs that hold images, planes, height, width, or features, planes, frames.
    revisit
        What is wanted, if the same source was canonicalised at a shorter length before. No table of
        positions is cut then.

    Attributes
    ----------
    batch, seq_len : Atom
        The axes of the probe shape.
    absent_id : int or None
        Token id that the vocabulary is cut at.
    input_names : tuple of str
        The source's inputs.
    input_vars : dict of str to relax.Var
        The canonical function's inputs, which may be one more.
    parameters : dict of str to (relax.Var, numpy.ndarray)
        Its weights so far.
    block : relax.BlockBuilder
        What values are emitted with.
    masks : set of str or None
        Inputs that mask keys, so far; None of an attention that masks none.
    num_layers : int
        Attention operators so far.
    by_distance : bool
        Whether one of them has a window or a bias.
    rotations : list of numpy.ndarray
        Tables of rotations so far, each once.
    looked_up : int or None
        Positions of the smallest table that was looked up, or cut to the length, so far.
    chosen_id : int or None
        Token id by which entries of hidden tensors were chosen, so far.
    current : tuple of str
        Node of the source that is being interpreted, and its operator; empty if unknown.
    report : ImportReport
        What was done.
    """

    def __init__(
        self,
        probes: Probes,
        images: Mapping[str, tuple[int, ...]] | None = None,
        revisit: Revisit | None = None,
    ) -> None:
        self.report = ImportReport()
        self.probes, self.revisit = probes, revisit
        self.absent_id = self.chosen_id = probes.absent_id
        self.images = dict(images or {})
        self.input_names = (*self.images, *probes.names)
        self.batch, self.seq_len = Atom("batch", probes.batch), Atom("sequence", probes.seq_len)
        symbols = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
        self._token_type = relax.TensorType(symbols, "int64")
        types = {
            name: relax.TensorType([symbols[0], *size], "float32")
            for name, size in self.images.items()
        }
        self.input_vars = {
            name: relax.Var(name, types.get(name, self._token_type)) for name in self.input_names
        }
        self.num_layers = 0
        self.by_distance = False
        self.rotations: list[Floats] = []
        self.looked_up: int | None = None
        self.current: tuple[str, str] = ("", "")
        self.block = relax.BlockBuilder()
        self.parameters: dict[str, tuple[relax.Var, Floats]] = {}
        self.masks: set[str | None] = set()
        self._taken: set[str] = set()
        self._made: dict[Hashable, Any] = {}

    @property
    def rows(self) -> Axis:
        """The axis that enumerates the batch; empty in a source for one row, as all such axes."""
        return (self.batch,) if self.batch.extent > 1 else ()

    def op(self, call: relax.Call) -> SourceOp:
        """Return the name of the operator of `call`, which is being interpreted, with its node."""
        return SourceOp(str(call.op.name), *self.current)

    def note(self, name: str, what: str, nodes: tuple[str, ...] = ()) -> None:
        """Note what was computed at import time, or left out, of a value or a weight."""
        self.report.foldings.append(Folding(name, what, nodes))

    def once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what `make` returned for this key, which is called the first time."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def is_made(self, key: Hashable) -> bool:
        """Tell whether `once` was called with this key."""
        return key in self._made

    def unique(self, name: str) -> str:
        """Return `name` as values are named, with a number appended if it is taken; take it."""
        name = safe_name(name)
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}#{count}"
        self._taken.add(candidate)
        return candidate

    def weight(self, name: str, array: Array) -> relax.Var:
        """Return the parameter `name` of the canonical function with these elements.

        The same name with other elements (a slice, a scaled copy) becomes another parameter.
        """
        data = np.ascontiguousarray(array, dtype=np.float32)
        name = safe_name(name)
        candidate, count = name, 1
        while candidate in self.parameters:
            variable, known = self.parameters[candidate]
            if known.shape == data.shape and (
                known.ctypes.data == data.ctypes.data or np.array_equal(known, data)
            ):
                return variable
            count += 1
            candidate = f"{name}#{count}"
        variable = relax.Var(candidate, relax.TensorType(list(data.shape), "float32"))
        self.parameters[candidate] = (variable, data)
        return variable

    def call(
        self, kind: str, name: str, ops: Sequence[str], /, *operands: Read, **attributes: Any
    ) -> relax.Var:
        """Emit a canonical operator, and note what it replaces.

        Parameters
        ----------
        kind
            The operator, as its builder is called.
        name
            Of the value, from `unique`.
        ops
            Source operators that it replaces.
        *operands, **attributes
            What it reads; None for what is optional and not there.
        """
        read = [
            item if item is None or isinstance(item, relax.Expr) else item.operand(self)
            for item in operands
        ]
        call = getattr(build, kind)(*read, name=name, **attributes)
        matched = MatchedOp(str(call.op.name), name, source_kinds(ops), source_nodes(ops))
        self.report.matched.append(matched)
        return self.block.emit(call)

    def positions(self, ids: Ids, name: str) -> relax.Var:
        """Return the position ids that `ids` describes, emitted once per kind."""

        def make() -> relax.Var:
            tokens = self.input_vars[ids.input or self.input_names[0]]
            absolute = ids.kind == "absolute"
            offset, padding = (ids.value, 0) if absolute else (0, ids.value)
            attributes = {"kind": ids.kind, "offset": offset, "padding_index": padding}
            return self.call("position_ids", self.unique(name), (), tokens, **attributes)

        return self.once(("positions", ids.kind, ids.input, ids.value), make)

    def note_positions(self, count: int) -> None:
        """Note that a table of so many positions is looked up, or cut to the length."""
        self.looked_up = min(self.looked_up or count, count)

    def whole_rotation(self, table: Floats) -> Floats:
        """Return the table that one is the beginning of, if it is known; note it."""
        for known in (*self.rotations, *(self.revisit.tables if self.revisit else ())):
            same = known.shape[1] == table.shape[1] and len(known) >= len(table)
            if same and np.allclose(known[: len(table)], table, rtol=0, atol=_SAME_ANGLE):
                table = known
                break
        if not any(known is table for known in self.rotations):
            self.rotations.append(table)
        return table

    def attention_mask(self, name: str | None) -> relax.Var | None:
        """Return the input that masks keys; a source without any mask gets ``attention_mask``.

        None for images, where nothing is padding.

        Raises
        ------
        Mismatch
            If the model has a padding mask that this attention does not use.
        """
        if self.images and name is None:
            return None
        self.masks.add(name)
        if len(self.masks) > 1 or (name is None and "attention_mask" in self.input_names):
            raise Mismatch("this attention ignores the padding mask that the model takes")
        if name is not None:
            return self.input_vars[name]
        if "attention_mask" not in self.input_vars:
            self.input_vars["attention_mask"] = relax.Var("attention_mask", self._token_type)
            self.note("attention_mask", "the source masks no padding: an input was added for it")
        return self.input_vars["attention_mask"]
