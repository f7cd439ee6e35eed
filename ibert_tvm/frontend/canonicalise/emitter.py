"""Building the canonical function: what rules emit, and the weights that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.names import safe_name

from ..report import Folding, ImportReport, MatchedOp, SourceOp, source_kinds, source_nodes
from . import functions, mixing
from .arrays import Array
from .images import channel_order, patch_layout
from .inputs import Ids, Probes
from .revisit import Revisit
from .rotations import fit_rotation
from .rows import fit_norm
from .score_terms import ScoreTerms
from .slices import slice_channels
from .values import (
    Affine,
    Computed,
    ConstantRow,
    Embedded,
    Emitted,
    Hidden,
    Joined,
    Linear,
    LinearSum,
    MaskedHidden,
    Mismatch,
    Mixed,
    Pixels,
    Pointwise,
    Prepended,
    RowFunction,
    ScoreTerm,
    TokenRun,
    Weight,
)
from .views import (
    Atom,
    Axis,
    broadcast,
    channel_axis,
    describe,
    flatten,
    is_tokens,
    merged,
    row_width,
    shape_of,
)

# Of cosines and sines of large angles in float32, computed for one length or another.
_SAME_ANGLE = 1e-4


def layer_of(parameter: str) -> str:
    """Return the module path of a parameter: its name without the last component."""
    return parameter.rpartition(".")[0] or parameter


class Emitter:
    """A canonical function under construction.

    Parameters
    ----------
    inputs : sequence of str
        Names of the inputs that the source has.
    batch, seq_len : int
        The probe shape, in which source tensors are laid out; `seq_len` is 0 for images.
    images : mapping of str to tuple of int
        Those of the inputs that hold images, planes, height, width, or features, planes, frames.
    revisit : Revisit, optional
        What is wanted, if the same source was canonicalised at a shorter length before. No table of
        positions is cut then.

    Attributes
    ----------
    batch, seq_len : Atom
        The axes of the probe shape.
    probes : Probes
        Inputs of the probe runs.
    score_terms : ScoreTerms
        What tensors do to attention scores.
    input_names : tuple of str
        The source's inputs.
    input_vars : dict of str to relax.Var
        The canonical function's inputs, which may be one more.
    num_layers : int
        Attention operators so far.
    by_distance : bool
        Whether one of them has a window or a bias.
    rotations : list of numpy.ndarray
        Tables of rotations so far, each once.
    looked_up : int or None
        Positions of the smallest table that was looked up, or cut to the length, so far.
    absent_id : int or None
        Token id that the vocabulary is cut at.
    chosen_id : int or None
        Token id by which entries of hidden tensors were chosen, so far.
    current : tuple of str
        Node of the source that is being interpreted, and its operator; empty if unknown.
    report : ImportReport
        What was done.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        batch: int,
        seq_len: int,
        images: Mapping[str, tuple[int, ...]] | None = None,
        *,
        revisit: Revisit | None = None,
        compared: Sequence[int] = (),
        absent_id: int | None = None,
    ) -> None:
        self.report = ImportReport()
        self.absent_id, self.chosen_id = absent_id, absent_id
        self.input_names = tuple(inputs)
        self.images = dict(images or {})
        self.batch, self.seq_len = Atom("batch", batch), Atom("sequence", seq_len)
        tokens = [name for name in self.input_names if name not in self.images]
        self.revisit = revisit
        few = revisit is not None
        self.probes = Probes(
            tokens, batch, seq_len, few=few, compared=compared, absent_id=absent_id
        )
        known = revisit is not None and revisit.tables_only
        assumed = ScoreTerm(revisit.mask) if revisit is not None and known else None
        self.score_terms = ScoreTerms(self.probes, bool(self.images), assumed)
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
        self.rotations: list[NDArray[np.float32]] = []
        self.looked_up: int | None = None
        self.current: tuple[str, str] = ("", "")
        self._builder = relax.BlockBuilder()
        self._weights: dict[str, tuple[relax.Var, NDArray[np.float32]]] = {}
        self._taken: set[str] = set()
        self._emitted: dict[Computed, Emitted] = {}
        self._scaled_sources: dict[tuple[Computed, float], Computed] = {}
        self._resolved: dict[Pointwise | RowFunction | Mixed, Hidden] = {}
        self._reordered: dict[Linear, Linear] = {}
        self._masked: dict[Hidden | Pointwise, Hidden] = {}
        self._activations: dict[tuple[str, str, str], Emitted] = {}
        self._positions: dict[tuple[str, str, int], relax.Var] = {}
        self._masks: set[str | None] = set()
        self._patches: dict[tuple[str | int, ...], Emitted] = {}

    @property
    def rows(self) -> Axis:
        """The axis that enumerates the batch; empty in a source for one row, as all such axes."""
        return (self.batch,) if self.batch.extent > 1 else ()

    def op(self, call: relax.Call) -> SourceOp:
        """Return the name of the operator of `call`, which is being interpreted, with its node."""
        return SourceOp(str(call.op.name), *self.current)

    # -- emission ---------------------------------------------------------------------------

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
        while candidate in self._weights:
            variable, known = self._weights[candidate]
            if known.shape == data.shape and (
                known.ctypes.data == data.ctypes.data or np.array_equal(known, data)
            ):
                return variable
            count += 1
            candidate = f"{name}#{count}"
        variable = relax.Var(candidate, relax.TensorType(list(data.shape), "float32"))
        self._weights[candidate] = (variable, data)
        return variable

    def record(
        self,
        make: Callable[..., relax.Call],
        name: str,
        channels: int,
        ops: Sequence[str],
        *operands: relax.Expr | None,
        **attributes: Any,
    ) -> Emitted:
        """Emit a canonical operator, by its builder, and note what it replaces."""
        call = make(*operands, name=name, **attributes)
        matched = MatchedOp(str(call.op.name), name, source_kinds(ops), source_nodes(ops))
        self.report.matched.append(matched)
        return Emitted(name, channels, tuple(ops), self._builder.emit(call))

    def emit(self, hidden: Hidden) -> Emitted:
        """Return the canonical value that `hidden` shows, emitting what still waits."""
        return self.emit_source(self.scaled(hidden))

    def scaled(self, hidden: Hidden) -> Computed:
        """Return the value that `hidden` shows, multiplied by its factor."""
        return hidden.source if hidden.factor == 1.0 else self._scaled(hidden.source, hidden.factor)

    def emit_source(self, source: Computed) -> Emitted:
        """Return the canonical value `source`, emitting it where it still waits."""
        if isinstance(source, Emitted):
            return source
        if source not in self._emitted:
            self._emitted[source] = self._emit(source)
        return self._emitted[source]

    def _emit(self, source: Computed) -> Emitted:
        if isinstance(source, Prepended):
            return self._emit_prepended(source)
        if isinstance(source, Joined):
            return self._emit_joined(source)
        name = self.unique(source.name)
        if isinstance(source, Embedded):
            table = self.weight(source.table.name, source.table.array)
            operands = [table, source.ids]
            return self.record(build.embedding, name, source.channels, source.ops, *operands)
        if isinstance(source, Linear):
            weight = self.weight(source.weight.name, source.weight.array)
            bias = source.bias
            if bias is None:
                bias_name = layer_of(source.weight.name) + ".bias"
                bias = Weight(bias_name, np.zeros(source.channels, np.float32))
                self.report.foldings.append(Folding(name, "the source has no bias: zeros"))
            operands = [source.x.var, weight, self.weight(bias.name, bias.array)]
            return self.record(build.linear, name, source.channels, source.ops, *operands)
        if isinstance(source, Affine):
            return self._emit_affine(source, name)
        if isinstance(source, LinearSum):
            return self._emit_sum(source, name)
        if isinstance(source, TokenRun):
            return self._emit_run(source, name)
        raise Mismatch(
            f"{source.name} is the same row for every token, whatever the input; such a row may "
            "only be added to what depends on it"
        )

    def _emit_affine(self, source: Affine, name: str) -> Emitted:
        channels, result = source.channels, source.x
        if source.scale is not None:
            label = name if source.row is None else self.unique(f"{source.x.name}.scaled")
            operands = (result.var, self.weight(source.scale.name, source.scale.array))
            result = self.record(build.scale_channels, label, channels, source.ops, *operands)
        if source.row is not None:
            operands = (result.var, self.weight(source.row.name, source.row.array))
            result = self.record(build.add_row, name, channels, source.ops, *operands)
        return result

    def _emit_joined(self, source: Joined) -> Emitted:
        """Join channels that something else than a matrix product reads."""
        first, *others = (self.emit(part) for part in source.parts)
        for other in others:
            name = self.unique(f"{first.name}.concatenate")
            channels = first.channels + other.channels
            operands = (first.var, other.var)
            first = self.record(build.concatenate, name, channels, source.ops, *operands)
        return first

    def _emit_sum(self, source: LinearSum, name: str) -> Emitted:
        first, *others = (self.emit_source(term) for term in source.terms)
        for index, other in enumerate(others):
            label = name if index == len(others) - 1 else self.unique(f"{name}.part")
            operands = (first.var, other.var)
            first = self.record(build.add, label, source.channels, source.ops, *operands)
        return first

    def _emit_prepended(self, source: Prepended) -> Emitted:
        name = self.unique(source.rows.name)
        operands = (source.x.var, self.weight(source.rows.name, source.rows.array))
        result = self.record(build.prepend_tokens, name, source.channels, source.ops, *operands)
        if source.table is not None:
            label = self.unique(source.table.name)
            operands = (result.var, self.weight(source.table.name, source.table.array))
            ops = (*source.ops, "relax.add")
            result = self.record(build.add_positions, label, source.channels, ops, *operands)
        return result

    def _emit_run(self, source: TokenRun, name: str) -> Emitted:
        x = self.emit_source(source.x)
        channels, count = source.channels, source.last - source.first
        if count == 1:
            at = {"index": source.first}
            return self.record(build.select_token, name, channels, source.ops, x.var, **at)
        run = {"first": source.first, "count": count}
        return self.record(build.slice_tokens, name, channels, source.ops, x.var, **run)

    def _scaled(self, source: Computed, factor: float) -> Computed:
        key = (source, factor)
        if key not in self._scaled_sources:
            self._scaled_sources[key] = self._scale(source, factor)
        return self._scaled_sources[key]

    def _scale(self, source: Computed, factor: float) -> Computed:
        if isinstance(source, Embedded):
            what = f"factor {factor:g} moved to the table"
            self.report.foldings.append(Folding(source.table.name, what))
            scaled = Weight(source.table.name, source.table.array * np.float32(factor))
            return replace(source, table=scaled)
        if isinstance(source, Linear):
            what = f"factor {factor:g} moved to the weights"
            self.report.foldings.append(Folding(source.name, what))
        factors = np.full(source.channels, factor, np.float32)
        return self.affine(source, Weight(f"{source.name}.factor", factors))

    def affine(
        self,
        source: Computed,
        scale: Weight | None = None,
        row: Weight | None = None,
        ops: Sequence[str] = (),
    ) -> Computed:
        """Return `source` with its channels multiplied, and then added to, by numbers of their own.

        A matrix product takes them over, as an embedding does with what is added; what else there
        is waits for more of them.

        Parameters
        ----------
        source : Computed
            The value.
        scale, row : Weight, optional
            [channels].
        ops : sequence of str
            Source operators that this replaces.

        Returns
        -------
        Computed
            The value as it is then.
        """
        all_ops = (*source.ops, *ops)
        if isinstance(source, Linear):
            return replace(_affine_linear(source, scale, row), ops=all_ops)
        if isinstance(source, LinearSum):
            first, *others = source.terms
            rest = (_affine_linear(term, scale, None) for term in others)
            terms = (_affine_linear(first, scale, row), *rest)
            return replace(source, terms=terms, ops=all_ops)
        if isinstance(source, ConstantRow):
            array = source.row.array
            array = array if scale is None else array * scale.array
            array = array if row is None else array + row.array
            return replace(source, row=Weight(source.row.name, array), ops=all_ops)
        if isinstance(source, Embedded) and scale is None and row is not None:
            table = Weight(source.table.name, source.table.array + row.array)
            return replace(source, table=table, ops=all_ops)
        if not isinstance(source, Affine):
            x = self.emit_source(source)
            name = f"{x.name}.{'scaled' if row is None else 'shifted'}"
            return Affine(name, x.channels, tuple(ops), x, scale, row)
        old_scale, old_row = source.scale, source.row
        if scale is not None:
            old_scale = _together(np.multiply, old_scale, scale)
            if old_row is not None:
                old_row = Weight(old_row.name, old_row.array * scale.array)
        if row is not None:
            old_row = _together(np.add, old_row, row)
        name = source.name if row is None else f"{source.x.name}.shifted"
        return replace(source, name=name, scale=old_scale, row=old_row, ops=all_ops)

    def scaled_rows(self, hidden: Hidden, factor: float) -> Hidden | None:
        """Return the rows of a table times a number, as a table of their own.

        So the norms and sums behind scaled embeddings read one table. None for anything else, which
        the number may turn into another function.
        """
        if not isinstance(hidden.source, Embedded):
            return None
        return replace(hidden, source=self._scaled(hidden.source, hidden.factor * factor), factor=1)

    def positions(self, ids: Ids, name: str) -> relax.Var:
        """Return the position ids that `ids` describes, emitted once per kind."""
        key = (ids.kind, ids.input, ids.value)
        if key not in self._positions:
            name = self.unique(name)
            tokens = self.input_vars[ids.input or self.input_names[0]]
            absolute = ids.kind == "absolute"
            offset, padding = (ids.value, 0) if absolute else (0, ids.value)
            attributes = {"kind": ids.kind, "offset": offset, "padding_index": padding}
            made = self.record(build.position_ids, name, 0, (), tokens, **attributes)
            self._positions[key] = made.var
        return self._positions[key]

    def patches(self, name: str, height: int, width: int) -> Emitted:
        """Return the patches of input `name`, emitted once per size."""
        key: tuple[str | int, ...] = (name, height, width)
        if key not in self._patches:
            label = self.unique(f"{name}.patches")
            channels, pixels = self.images[name][0] * height * width, self.input_vars[name]
            size = {"patch_height": height, "patch_width": width}
            self._patches[key] = self.record(build.patches, label, channels, (), pixels, **size)
        return self._patches[key]

    def windows(self, name: str, **sides: int) -> Emitted:
        """Return the windows of input `name`, which may overlap, emitted once per size."""
        key: tuple[str | int, ...] = (name, *sides.values())
        if key not in self._patches:
            label, pixels = self.unique(f"{name}.windows"), self.input_vars[name]
            channels = self.images[name][0] * sides["height"] * sides["width"]
            self._patches[key] = self.record(build.windows, label, channels, (), pixels, **sides)
        return self._patches[key]

    def note_positions(self, count: int) -> None:
        """Note that a table of so many positions is looked up, or cut to the length."""
        self.looked_up = min(self.looked_up or count, count)

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
        self._masks.add(name)
        if len(self._masks) > 1 or (name is None and "attention_mask" in self.input_names):
            raise Mismatch("this attention ignores the padding mask that the model takes")
        if name is not None:
            return self.input_vars[name]
        if "attention_mask" not in self.input_vars:
            self.input_vars["attention_mask"] = relax.Var("attention_mask", self._token_type)
            self.report.foldings.append(
                Folding("attention_mask", "the source masks no padding: an input was added for it")
            )
        return self.input_vars["attention_mask"]

    # -- helpers of rules -------------------------------------------------------------------

    def hidden(self, value: Any) -> Hidden:
        """Return `value` as a hidden tensor, recognising an activation function where needed.

        Raises
        ------
        Mismatch
            If it is something else, or an unknown function.
        """
        if isinstance(value, Hidden):
            return value
        if isinstance(value, Pixels):
            tall, wide, view = patch_layout(value, self.batch, self.images[value.name])
            source = self.patches(value.name, tall, wide)
            return Hidden(source, view, ops=value.ops, layer=value.layer)
        if isinstance(value, MaskedHidden) and value.weights == "mask":
            if value.base not in self._masked:
                self._masked[value.base] = self._mask(value)
            return replace(self._masked[value.base], view=value.view)
        if not isinstance(value, Pointwise | RowFunction | Mixed):
            raise Mismatch(f"a hidden tensor is needed, and this is {_kind(value)}")
        if value not in self._resolved:
            if isinstance(value, Mixed):
                self._resolved[value] = self._resolve_rotation(value)
            elif isinstance(value, Pointwise):
                self._resolved[value] = self._resolve(value)
            else:
                self._resolved[value] = self._resolve_rows(value)
        return self._resolved[value]

    def _mask(self, value: MaskedHidden) -> Hidden:
        """Emit the product of a hidden tensor and the padding mask, in the tensor's layout."""
        base = self.hidden(value.base)
        x = self.emit(base)
        name = self.unique(f"{x.name}.masked")
        operands = (x.var, self.input_vars[value.mask])
        made = self.record(build.mask_tokens, name, x.channels, value.ops, *operands)
        return self.show(made, base)

    def _resolve(self, value: Pointwise) -> Hidden:
        """Recognise the function and emit its operator."""
        slope = functions.slope(value.samples)
        if slope is not None:
            return Hidden(
                value.base.source,
                value.base.view,
                value.base.factor * slope,
                value.base.missing,
                ops=value.ops,
                layer=value.layer,
            )
        known = functions.name_function(value.samples)
        if known is None and value.parts:
            left, right = value.parts
            return self.add(left, right, value.ops[-1:])
        clipped = self._clipped(value) if known is None else None
        if clipped is not None:
            return clipped
        if known is None:
            raise Mismatch(
                f"the function {value.text} is none of {functions.KNOWN}",
                op=next(op for op in reversed(value.ops) if op in functions.ELEMENTWISE),
                layer=value.layer,
            )
        kind, attributes = known
        return self._activated(value.base, kind, attributes, value.ops)

    def _activated(
        self, base: Hidden, kind: str, attributes: dict[str, Any], ops: Sequence[str]
    ) -> Hidden:
        """Emit an activation function; once, though several operators may read it."""
        x = self.emit(base)
        key = (x.name, kind, str(attributes))
        if key not in self._activations:
            name = self.unique(f"{x.name}.{kind}")
            make = getattr(build, kind)
            made = self.record(make, name, x.channels, ops, x.var, **attributes)
            self._activations[key] = made
        return self.show(self._activations[key], base)

    def _clipped(self, value: Pointwise) -> Hidden | None:
        """Emit a clipped line, or the product of one and its operand; None if it is neither."""
        line = functions.clipped_line(value.samples)
        gate = None if line is not None else functions.clipped_gate(value.samples)
        known = line or gate
        if known is None:
            return None
        source = self.scaled(value.base)
        if (known.slope, known.offset) != (1.0, 0.0):
            # The operand of a gate is read as it is, too.
            source = source if gate is None else self.emit_source(source)
            channels = (source.channels,)
            scale, row = (
                Weight(f"{source.name}.{what}", np.full(channels, number, np.float32))
                for what, number in (("slope", known.slope), ("offset", known.offset))
            )
            source = self.affine(source, scale, row if known.offset else None)
        clipped = self.clip(
            Hidden(source, value.base.view, missing=value.base.missing),
            known.low,
            known.high,
            value.ops,
        )
        return clipped if gate is None else self.multiply(value.base, clipped, value.ops[-1:])

    def clip(self, x: Hidden, low: float, high: float, ops: Sequence[str]) -> Hidden:
        """Emit a hidden tensor kept between two bounds."""
        if (low, high) == (0.0, functions.UNBOUNDED):
            return self._activated(x, "relu", {}, ops)
        return self._activated(x, "clip", {"low": low, "high": high}, ops)

    def _resolve_rows(self, value: RowFunction) -> Hidden:
        """Recognise a norm and emit it, or the sum that was taken last."""
        base = value.base
        width = row_width(base.view, base.source.channels)
        known = fit_norm(value.samples, width) if width > 1 else None
        if known is None and value.parts:
            left, right = value.parts
            return self.add(left, right, value.ops[-1:])
        if known is None and width > 1:
            # A norm directly behind an activation function: both are functions of its operand.
            both = functions.before_norm(lambda curve: fit_norm(value.samples, width, curve))
            if both is not None:
                kind, attributes, known = both
                base = self._activated(base, kind, attributes, ())
        if known is None:
            raise Mismatch(
                f"over the channels of a token it computes {value.text}, which is neither a "
                "LayerNorm nor an RMSNorm",
                op=value.ops[-1],
                layer=value.layer,
            )
        x = self.emit(base)
        if known.is_unit and width == x.channels:
            name = self.unique(f"{x.name}.l2_norm")
            emitted = self.record(build.l2_norm, name, x.channels, value.ops, x.var)
            return self.show(emitted, base)
        if width < x.channels:
            known = known.by_head()
        gamma = _exact(value.gammas, known.gamma, f"{x.name}.{known.kind}.weight")
        if known.beta is None:
            emitted = self.rms_norm(x, gamma, known.epsilon, value.ops)
        else:
            default = f"{layer_of(gamma.name)}.bias"
            beta = _exact(value.betas, known.beta, default)
            emitted = self.layer_norm(x, gamma, beta, known.epsilon, value.ops)
        return self.show(emitted, base)

    def _resolve_rotation(self, value: Mixed) -> Hidden:
        """Recognise a rotation of the channels of each head, and emit it."""
        _, lanes = mixing.lanes_of(value.view)
        used = [term.channels[np.any(term.factors != 0, axis=0)] for term in value.terms]
        first = int(min((channels.min() for channels in used if channels.size), default=0))
        base, count = value.base, lanes.size
        width = shape_of(base.view)[value.axis]
        if any(channels.max(initial=0) >= first + count for channels in used):
            raise Mismatch("channels of a head are picked, in another order or with steps")
        if count < width:
            base = slice_channels(base, value.axis, first, first + count, value.ops[-1])
        terms = tuple(replace(term, channels=term.channels - first) for term in value.terms)
        tokens = [axis for axis in value.view if is_tokens(axis)]
        if len(tokens) != 1:
            raise Mismatch(f"{describe(value.view)} has no axis of positions")
        found = fit_rotation(terms, count, shape_of((tokens[0],))[0])
        interleaved = found is not None and found.interleaved
        # Heads that lay between those of keys and values move closer together with the cut.
        view = tuple(
            tuple(
                atom
                for lane in axis
                for atom in _channels_of(_closer(lane, width, count), count, interleaved)
            )
            for axis in value.view
        )
        if found is None:
            return replace(base, view=view, part=None, rows=None, ops=value.ops)
        x = self.emit(self._halves(base, count) if interleaved else base)
        if x.var.ty.ndim != 3 or x.channels % count:
            raise Mismatch(f"{x.name} is rotated, which is not queries or keys of a sequence")
        name = self.unique(f"{x.name}.rotate")
        table = self.weight("rotary", self._whole(found.table))
        heads = x.channels // count
        made = self.record(build.rotate, name, x.channels, value.ops, x.var, table, num_heads=heads)
        layer = layer_of(x.name)
        return Hidden(made, view, found.amplitude, base.missing, ops=(), layer=layer)

    def _whole(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the table that one is the beginning of, if it is known; note it."""
        for known in (*self.rotations, *(self.revisit.tables if self.revisit else ())):
            same = known.shape[1] == table.shape[1] and len(known) >= len(table)
            if same and np.allclose(known[: len(table)], table, rtol=0, atol=_SAME_ANGLE):
                table = known
                break
        if not any(known is table for known in self.rotations):
            self.rotations.append(table)
        return table

    def _halves(self, base: Hidden, width: int) -> Hidden:
        """Reorder the rows of a linear layer: pairs of neighbours come to lie half a head apart."""
        source = base.source
        if not isinstance(source, Linear):
            raise Mismatch(
                f"neighbouring channels of {source.name} are rotated as pairs, and only the "
                "channels of a linear layer can be reordered for that"
            )
        if source not in self._reordered:
            order = np.arange(source.channels).reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(-1)
            self.report.foldings.append(
                Folding(source.name, "rows reordered: pairs that are rotated lie half a head apart")
            )
            self._reordered[source] = source.changed(lambda array: array[order])
        return replace(base, source=self._reordered[source])

    def layer_norm(
        self, x: Emitted, gamma: Weight, beta: Weight, epsilon: float, ops: Sequence[str]
    ) -> Emitted:
        """Emit a LayerNorm over the channels of `x`, or of its heads."""
        name = self.unique(layer_of(gamma.name))
        weights = [self.weight(weight.name, weight.array) for weight in (gamma, beta)]
        operands = (x.var, *weights)
        return self.record(build.layer_norm, name, x.channels, ops, *operands, epsilon=epsilon)

    def rms_norm(self, x: Emitted, gamma: Weight, epsilon: float, ops: Sequence[str]) -> Emitted:
        """Emit an RMSNorm over the channels of `x`, or of its heads."""
        name = self.unique(layer_of(gamma.name))
        weight = self.weight(gamma.name, gamma.array)
        return self.record(build.rms_norm, name, x.channels, ops, x.var, weight, epsilon=epsilon)

    def show(self, source: Computed, like: Hidden) -> Hidden:
        """Return `source` in the layout of `like`."""
        return Hidden(source, like.view, missing=like.missing, layer=layer_of(source.name))

    def add(self, left: Any, right: Any, ops: Sequence[str]) -> Hidden:
        """Emit the sum of two hidden tensors of one layout."""
        return self._pair("add", "terms", self.hidden(left), self.hidden(right), ops)

    def multiply(self, left: Any, right: Any, ops: Sequence[str]) -> Hidden:
        """Emit the product of two hidden tensors of one layout."""
        a, b = self.hidden(left), self.hidden(right)
        # A number is moved to whichever side has weights that can take it.
        if isinstance(a.source, Linear | Embedded):
            a, b = b, a
        a, b = replace(a, factor=1.0), replace(b, factor=a.factor * b.factor)
        return self._pair("multiply", "factors", a, b, ops)

    def _pair(self, kind: str, what: str, a: Hidden, b: Hidden, ops: Sequence[str]) -> Hidden:
        """Emit an operator on two hidden tensors of one layout."""
        shape = tuple(np.broadcast_shapes(shape_of(a.view), shape_of(b.view)))
        view_a = broadcast(a.view, shape, a.missing)
        view_b = broadcast(b.view, shape, b.missing)
        if [merged(axis) for axis in view_a] != [merged(axis) for axis in view_b]:
            raise Mismatch(
                f"the {what} are laid out differently: {describe(view_a)} and {describe(view_b)}"
            )
        x, y = self.emit(a), self.emit(b)
        if x.channels != y.channels or x.var.ty.ndim != y.var.ty.ndim:
            raise Mismatch(f"the {what} {x.name} and {y.name} have different shapes")
        newest = max(x, y, key=self._age)
        name = self.unique(f"{newest.name}.{kind}")
        all_ops = (*a.ops, *b.ops, *ops)
        make = getattr(build, kind)
        emitted = self.record(make, name, x.channels, all_ops, x.var, y.var)
        held = set(flatten(view_a))
        missing = tuple(atom for atom in a.missing if atom in b.missing and atom not in held)
        return Hidden(emitted, view_a, missing=missing, layer=layer_of(newest.name))

    def shown(self, value: Any) -> tuple[str, float] | None:
        """Return the canonical value that a source tensor shows, and the factor; None if none."""
        if isinstance(value, Pointwise | RowFunction | Mixed):
            value = self._resolved.get(value)
        if not isinstance(value, Hidden):
            return None
        source = value.source
        emitted = source if isinstance(source, Emitted) else self._emitted.get(source)
        return None if emitted is None else (emitted.name, value.factor)

    def _age(self, value: Emitted) -> int:
        names = [item.name for item in self.report.matched]
        return names.index(value.name)

    def require_all_channels(self, hidden: Hidden) -> None:
        """Check that the last axis enumerates all channels and the others none of them.

        Raises
        ------
        Mismatch
            If an operator over the last axis would see a part of the channels.
        """
        if not hidden.view or merged(hidden.view[-1]) != channel_axis(hidden.source.channels):
            raise Mismatch(
                f"the last axis of {describe(hidden.view)} is not all {hidden.source.channels} "
                "channels"
            )

    def channel_places(self, hidden: Hidden) -> NDArray[np.int64] | None:
        """Return where on the last axis each channel is; None if they are in order, all of them.

        Raises
        ------
        Mismatch
            If the last axis does not hold each channel once.
        """
        channels = hidden.source.channels
        order = channel_order(hidden.view[-1], channels) if hidden.view else None
        if order is None:
            self.require_all_channels(hidden)
            raise Mismatch("its operand has no axis")
        return None if np.array_equal(order, np.arange(order.size)) else np.argsort(order)


def _closer(atom: Atom, width: int, count: int) -> Atom:
    """Heads of `width` channels of which `count` are left."""
    if atom.kind != "channel" or atom.stride < width:
        return atom
    return Atom("channel", atom.extent, atom.stride // width * count)


def _channels_of(lane: Atom, count: int, interleaved: bool) -> Axis:
    """Channels that lanes of a head are; neighbours lie half a head apart if it is interleaved."""
    if lane.kind != "lane":
        return (lane,)
    if not interleaved:
        return (Atom("channel", lane.extent, lane.stride),)
    if lane.stride % 2 == 0:
        return (Atom("channel", lane.extent, lane.stride // 2),)
    if lane.extent % 2:
        raise Mismatch("pairs of channels that are rotated are taken apart")
    pairs = (Atom("channel", lane.extent // 2),) if lane.extent > 2 else ()
    return (*pairs, Atom("channel", 2, count // 2))


def _affine_linear(source: Linear, scale: Weight | None, row: Weight | None) -> Linear:
    """A matrix product with its channels multiplied, and then added to."""
    if scale is not None:
        factors = scale.array
        source = source.changed(lambda array: (array.T * factors).T)
    if row is None:
        return source
    bias = source.bias
    return replace(source, bias=row if bias is None else Weight(bias.name, bias.array + row.array))


def _together(combine: Callable[..., Any], old: Weight | None, new: Weight) -> Weight:
    """Two numbers per channel in one."""
    return new if old is None else Weight(old.name, combine(old.array, new.array))


def _exact(weights: Sequence[Weight], fitted: NDArray[np.float64], name: str) -> Weight:
    """Return the weight that was measured to be `fitted`, which has its name; else the measure."""
    for weight in weights:
        if weight.array.size not in (1, fitted.shape[-1], fitted.size):
            continue
        array = weight.array.reshape(fitted.shape if weight.array.size == fitted.size else -1)
        array = np.broadcast_to(array, fitted.shape)
        if np.allclose(array, fitted, rtol=1e-4, atol=1e-5):
            return Weight(weight.name, array)
    return Weight(weights[0].name if weights else name, fitted.astype(np.float32))


_KINDS = {
    "FromInputs": "a tensor that depends on inputs or constants only",
    "Weight": "a weight",
    "Scores": "attention scores before the softmax",
    "Probabilities": "attention probabilities",
    "RowFunction": "a statistic of the channels of each token",
    "Mixed": "channels of heads that are mixed by position",
    "MaskedHidden": "a sum of tokens, or one by weights",
    "TokenSum": "a sum of tokens, or one by weights",
    "FilledHidden": "a hidden tensor with low numbers at padding",
    "list": "a tuple of tensors",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value).__name__, type(value).__name__)
