"""What the canonicaliser knows about each tensor of the source graph.

Every tensor is interpreted once, in graph order, as a `Value`. A `Refusal` is one too: it is an
error only if an output needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from tvm import relax

from ...common.types import Array, Doubles, Longs
from . import functions, views
from .builder import Builder, Read, layer_of
from .functions import GRID
from .inputs import Probes
from .mismatch import Mismatch
from .operands import Table
from .views import Axis, View

Change = Callable[[View, Axis], View]
"""``change(view, missing)``: what a movement makes of a layout, and atoms that may be repeated."""

_Value = TypeVar("_Value", bound="Value")


@dataclass(frozen=True, eq=False)
class Value:
    """Base of all interpretations.

    Parameters
    ----------
    ops
        Source operators absorbed since the canonical value that it shows.
    layer
        Module path of the nearest parameter before this value.
    """

    ops: tuple[str, ...] = field(default=(), kw_only=True)
    layer: str = field(default="", kw_only=True)

    WHAT: ClassVar[str] = ""
    """What it is called in messages; its class by default."""

    def after(self: _Value, op: str, **fields: Any) -> _Value:
        """Return the same value with `op` added to what was absorbed, and other `fields`."""
        return replace(self, ops=(*self.ops, op), **fields)

    def number(self) -> float | None:
        """Return the number that every element holds in every run, or None.

        Elements that are none, 0 / 0 of a sequence without tokens, may be any.
        """
        return None

    def fixed(self) -> Array | None:
        """Return the elements if they are the same in every run, or None."""
        return None

    def hidden(self, c: Builder) -> Hidden:
        """Return it as a hidden tensor, recognising and emitting what still waits.

        Raises
        ------
        Mismatch
            If it is something else, or an unknown function.
        """
        what = self.WHAT or type(self).__name__
        raise Mismatch(f"a hidden tensor is needed, and this is {what}")

    def settled(self, c: Builder) -> Value:
        """Return a function of rows as the hidden tensor that it is, where it is one already."""
        return self

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        """Return it in another layout."""
        raise Mismatch("only hidden tensors and attention scores are followed through it")

    def broadcast(self, c: Builder, op: str, shape: tuple[int, ...]) -> Value:
        """Return it repeated to a shape."""
        return self.moved(c, op, lambda view, missing: views.broadcast(view, shape, missing))

    def expanded(self, c: Builder, op: str, axes: list[int]) -> Value:
        """Return it with more axes, of extent 1."""
        return self.moved(c, op, lambda view, _missing: views.expand_dims(view, axes))

    def shown(self, c: Builder) -> tuple[str, float] | None:
        """Return the canonical value that it shows, and the factor; None if none."""
        return None

    def lifted(self) -> Pointwise:
        """Return it as a function of a hidden tensor, a hidden tensor as the identity of itself."""
        raise Mismatch("it is applied to something other than a hidden tensor")

    def elementwise(self, c: Builder, op: str) -> Value:
        """Return what an operator of one operand makes of every element."""
        x = self.lifted()
        return applied(op, x, (x.samples,), (x.text,), (*x.ops, op))

    def bounded(self, c: Builder, op: str, low: float, high: float) -> Value:
        """Return it kept between bounds: a part of an activation function, or applied to one."""
        x = self.lifted()
        least, most = float(x.samples.min()), float(x.samples.max())
        none = functions.UNBOUNDED
        low, high = max(low, -none), min(high, none)
        if not (low == -none or least < low) or not (high == none or high < most):
            # Samples on the grid do not show such a bound.
            return self.hidden(c).clipped(c, low, high, (*self.ops, op))
        samples = np.clip(x.samples, low, high)
        bounds = [f"{bound:g}" for bound in (low, high) if abs(bound) < none]
        text = f"{op.removeprefix('relax.')}({', '.join([x.text, *bounds])})"
        return x.after(op, samples=samples, text=text, parts=())

    def as_weight(self, c: Builder, name: str) -> Weight:
        """Return it as a weight; a constant of the graph gets a name."""
        raise Mismatch("a weight is needed here")

    def leaves(self) -> Iterator[Value]:
        """Every tensor of it."""
        yield self

    def result(self, index: int) -> Value:
        """Return one of several results; of a refusal, the refusal."""
        return self

    def with_rows(self, *rows: Weight) -> Value:
        """Return it, looked up by position, with its rows at the probe shape; else the rows."""
        return together(rows)


class Recognised(Value):
    """A value whose meaning is decided, and emitted, where it is read as a hidden tensor."""

    def hidden(self, c: Builder) -> Hidden:
        return c.once(self, lambda: self.recognised(c))

    def recognised(self, c: Builder) -> Hidden:
        """Decide what it is, and emit it."""
        raise NotImplementedError

    def shown(self, c: Builder) -> tuple[str, float] | None:
        return self.hidden(c).shown(c) if c.is_made(self) else None


class LaidOut(Value):
    """A value that any movement may be followed through."""

    view: View

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        return self.after(op, view=change(self.view, ()))


class Scalable(Value):
    """A value that takes part in products with numbers before it is known what it is."""

    def times(self: _Value, number: float, op: str) -> _Value:
        """Return it multiplied by a number."""
        raise NotImplementedError

    def over(self: _Value, number: float, op: str) -> _Value:
        """Return it divided by a number that is not 0."""
        return self.times(1 / number, op)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Refusal(Value):
    """A tensor without interpretation.

    Parameters
    ----------
    op
        The operator that could not be interpreted.
    why
        The reason.
    """

    op: str
    why: str


@dataclass(frozen=True, eq=False)
class Several(Value):
    """The results of an operator, or the operands that it takes as a tuple."""

    parts: tuple[Value, ...]

    WHAT: ClassVar[str] = "a tuple of tensors"

    def leaves(self) -> Iterator[Value]:
        for part in self.parts:
            yield from part.leaves()

    def result(self, index: int) -> Value:
        return self.parts[index]

    def with_rows(self, *rows: Weight) -> Value:
        pairs = zip(self.parts, rows, strict=True)
        return Several(tuple(part.with_rows(own) for part, own in pairs))


def together(values: Sequence[Value]) -> Value:
    """Return the results of an operator as one value."""
    return values[0] if len(values) == 1 else Several(tuple(values))


class Given(Value):
    """A tensor that no hidden tensor is part of.

    Attributes
    ----------
    name
        The parameter that it was computed from; "" if there is none.
    """

    name: str

    def in_every_run(self, probes: Probes) -> list[Array]:
        """Return its values in every run, also where it is the same in all of them."""
        return [np.asarray(self.fixed())] * len(probes.runs)


@dataclass(frozen=True, eq=False)
class FromInputs(Given):
    """A tensor that depends on inputs and constants only: ids, positions, masks.

    Parameters
    ----------
    samples
        Returns its value in every probe run, a list of arrays in the order of the runs; evaluated
        on first use.
    shape
        Its shape in the source graph.
    constant
        Its value if it is written in the graph.
    name
        The parameter that it was computed from as well; "" if there is none.
    """

    samples: Callable[[], list[Array]]
    shape: tuple[int, ...]
    constant: Array | None = None
    name: str = ""

    WHAT: ClassVar[str] = "a tensor that depends on inputs or constants only"

    @classmethod
    def of(cls, array: Array) -> FromInputs:
        """Return a constant."""
        return cls(lambda: [array], tuple(array.shape), array)

    def number(self) -> float | None:
        number: float | None = None
        for array in [self.constant] if self.constant is not None else self.samples():
            numbers = array[~np.isnan(array)] if array.dtype.kind == "f" else array.reshape(-1)
            if numbers.size == 0:
                continue
            number = float(numbers[0]) if number is None else number
            if not np.all(numbers == number):
                return None
        return number

    def fixed(self) -> Array | None:
        if self.constant is not None:
            return self.constant
        arrays = self.samples()
        return arrays[0] if all(np.array_equal(a, arrays[0]) for a in arrays) else None

    def as_weight(self, c: Builder, name: str) -> Weight:
        if self.constant is None:
            return super().as_weight(c, name)
        c.note(name, "a constant of the graph became a parameter")
        return Weight(name, np.asarray(self.constant, np.float32))

    def in_every_run(self, probes: Probes) -> list[Array]:
        return self.samples() if self.constant is None else super().in_every_run(probes)


@dataclass(frozen=True, eq=False)
class Weight(Given):
    """A tensor that depends on parameters only, already computed.

    Parameters
    ----------
    name
        Source name of the parameter it comes from.
    array
        Its elements; a view of the parameter where possible.
    table
        The table that it was cut out of, for as many tokens as the probe shape has.
    """

    name: str
    array: Array
    table: Table | None = None

    WHAT: ClassVar[str] = "a weight"

    def fixed(self) -> Array | None:
        return self.array

    def as_weight(self, c: Builder, name: str) -> Weight:
        return self

    def operand(self, c: Builder) -> relax.Expr:
        """Return the parameter of the canonical function with these elements."""
        return c.weight(self.name, self.array)


# -- canonical values, and what becomes one ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class PerChannel:
    """Numbers that channels are multiplied by, and numbers that are added to them then.

    Parameters
    ----------
    scale, row
        [channels].
    ops
        Source operators that did so.
    """

    scale: Weight | None = None
    row: Weight | None = None
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Computed:
    """Where a hidden value comes from.

    Parameters
    ----------
    name
        Its canonical name.
    channels
        Length of its last axis.
    ops
        Source operators that it replaces.
    """

    name: str
    channels: int
    ops: tuple[str, ...]

    TAKES_FACTORS: ClassVar[bool] = False
    """Whether it has weights that a factor is moved to."""

    def emit(self, c: Builder) -> Emitted:
        """Return the canonical value, emitting it where it still waits."""
        return c.once(self, lambda: self.make(c))

    def make(self, c: Builder) -> Emitted:
        """Emit the canonical value."""
        raise NotImplementedError

    def times(self, c: Builder, factor: float) -> Computed:
        """Return the value multiplied by a number."""
        return self if factor == 1.0 else c.once((self, factor), lambda: self.scaled(c, factor))

    def scaled(self, c: Builder, factor: float) -> Computed:
        """Multiply the value by a number."""
        factors = np.full(self.channels, factor, np.float32)
        return self.affine(c, PerChannel(Weight(f"{self.name}.factor", factors)))

    def affine(self, c: Builder, by: PerChannel) -> Computed:
        """Return the value with its channels multiplied, and then added to, by numbers of each.

        A matrix product takes them over, as an embedding does with what is added; what else there
        is waits for more of them.
        """
        x = self.emit(c)
        name = f"{x.name}.{'scaled' if by.row is None else 'shifted'}"
        return Affine(name, x.channels, by.ops, x, by.scale, by.row)

    def note_row(self, c: Builder, row: Weight) -> None:
        """Note that a row was added, where weights take it over."""


@dataclass(frozen=True, eq=False)
class Emitted(Computed):
    """A value of the canonical module.

    Parameters
    ----------
    var
        The variable that holds it: [batch, seq_len, channels] or [batch, channels].
    """

    var: relax.Var

    @classmethod
    def call(
        cls,
        c: Builder,
        kind: str,
        name: str,
        channels: int,
        ops: Sequence[str],
        /,
        *operands: Read,
        **attributes: Any,
    ) -> Emitted:
        """Emit an operator; parameters as for `Builder.call`, but that any name will do."""
        name = c.unique(name)
        return cls(name, channels, tuple(ops), c.call(kind, name, ops, *operands, **attributes))

    def then(
        self,
        c: Builder,
        kind: str,
        ops: Sequence[str],
        /,
        *operands: Read,
        suffix: str = "",
        **attributes: Any,
    ) -> Emitted:
        """Emit an operator on it that keeps its channels, named after it."""
        name = f"{self.name}.{suffix or kind}"
        return Emitted.call(c, kind, name, self.channels, ops, self, *operands, **attributes)

    def emit(self, c: Builder) -> Emitted:
        return self

    def operand(self, c: Builder) -> relax.Expr:
        """Return its variable."""
        return self.var


@dataclass(frozen=True, eq=False)
class Affine(Computed):
    """A value whose channels are multiplied, and then added to, by numbers of their own.

    Parameters
    ----------
    x
        The value.
    scale, row
        [channels].
    """

    x: Emitted
    scale: Weight | None = None
    row: Weight | None = None

    def make(self, c: Builder) -> Emitted:
        result, given = self.x, (self.channels, self.ops)
        if self.scale is not None:
            name = self.name if self.row is None else f"{self.x.name}.scaled"
            result = Emitted.call(c, "scale_channels", name, *given, result, self.scale)
        if self.row is not None:
            result = Emitted.call(c, "add_row", self.name, *given, result, self.row)
        return result

    def affine(self, c: Builder, by: PerChannel) -> Computed:
        old_scale, old_row = self.scale, self.row
        if by.scale is not None:
            old_scale = _together(np.multiply, old_scale, by.scale)
            if old_row is not None:
                old_row = Weight(old_row.name, old_row.array * by.scale.array)
        if by.row is not None:
            old_row = _together(np.add, old_row, by.row)
        name = self.name if by.row is None else f"{self.x.name}.shifted"
        return replace(self, name=name, scale=old_scale, row=old_row, ops=(*self.ops, *by.ops))


def _together(combine: Callable[[Array, Array], Array], old: Weight | None, new: Weight) -> Weight:
    """Two numbers per channel in one."""
    return new if old is None else Weight(old.name, combine(old.array, new.array))


# -- hidden tensors ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tokens(Value):
    """A hidden tensor, or a scalar function of one."""


@dataclass(frozen=True, eq=False)
class Hidden(Tokens):
    """A hidden tensor in some layout.

    Parameters
    ----------
    source
        The canonical value it shows.
    view
        How the tensor lays it out.
    factor
        Constant that multiplies the canonical value, from an attention scale applied early.
    missing
        Atoms that the tensor does not have because the value does not depend on them.
    rows
        The same tensor for the probe shape, where it is looked up by position.
    """

    source: Computed
    view: View
    factor: float = 1.0
    missing: Axis = ()
    rows: Weight | None = None

    def hidden(self, c: Builder) -> Hidden:
        return self

    def fixed(self) -> Array | None:
        return None if self.rows is None else self.rows.array

    def lifted(self) -> Pointwise:
        return Pointwise(
            replace(self, factor=1.0, ops=()),
            GRID * self.factor,
            "x" if self.factor == 1.0 else f"{self.factor:g} x",
            ops=self.ops,
            layer=self.layer,
        )

    def moved(self, c: Builder, op: str, change: Change) -> Hidden:
        return self.rearranged(change, op).after(op)

    def rearranged(self, change: Change, op: str) -> Hidden:
        """Return it in another layout, `op` not absorbed."""
        view = change(self.view, self.missing)
        held = set(views.flatten(view))
        missing = tuple(atom for atom in self.missing if atom not in held)
        return replace(self, view=view, missing=missing, rows=None)

    def with_rows(self, *rows: Weight) -> Value:
        return replace(self, rows=rows[0])

    def shown(self, c: Builder) -> tuple[str, float] | None:
        if not isinstance(self.source, Emitted) and not c.is_made(self.source):
            return None
        return self.source.emit(c).name, self.factor

    def scaled(self, c: Builder) -> Computed:
        """Return the value that it shows, multiplied by its factor."""
        return self.source.times(c, self.factor)

    def emit(self, c: Builder) -> Emitted:
        """Return the canonical value that it shows, emitting what still waits."""
        return self.scaled(c).emit(c)

    def showing(self, source: Computed) -> Hidden:
        """Return another value in its layout."""
        return Hidden(source, self.view, missing=self.missing, layer=layer_of(source.name))

    def require_all_channels(self) -> None:
        """Check that the last axis enumerates all channels and the others none of them.

        Raises
        ------
        Mismatch
            If an operator over the last axis would see a part of the channels.
        """
        channels = self.source.channels
        if not self.view or views.merged(self.view[-1]) != views.channel_axis(channels):
            raise Mismatch(
                f"the last axis of {views.describe(self.view)} is not all {channels} channels"
            )

    def channel_places(self) -> Longs | None:
        """Return where on the last axis each channel is; None if they are in order, all of them.

        Raises
        ------
        Mismatch
            If the last axis does not hold each channel once.
        """
        order = views.channel_order(self.view[-1], self.source.channels) if self.view else None
        if order is None:
            self.require_all_channels()
            raise Mismatch("its operand has no axis")
        return None if np.array_equal(order, np.arange(order.size)) else np.argsort(order)

    def activated(self, c: Builder, kind: str, ops: Sequence[str], **attributes: Any) -> Hidden:
        """Emit an activation function; once, though several operators may read it."""
        x, key = self.emit(c), str(attributes)
        made = c.once((x.name, kind, key), lambda: x.then(c, kind, ops, **attributes))
        return self.showing(made)

    def clipped(self, c: Builder, low: float, high: float, ops: Sequence[str]) -> Hidden:
        """Emit it kept between two bounds."""
        if (low, high) == (0.0, functions.UNBOUNDED):
            return self.activated(c, "relu", ops)
        return self.activated(c, "clip", ops, low=low, high=high)


def add(c: Builder, left: Value, right: Value, ops: Sequence[str]) -> Hidden:
    """Emit the sum of two hidden tensors of one layout."""
    return _pair(c, "add", "terms", left.hidden(c), right.hidden(c), ops)


def multiply(c: Builder, left: Value, right: Value, ops: Sequence[str]) -> Hidden:
    """Emit the product of two hidden tensors of one layout."""
    a, b = left.hidden(c), right.hidden(c)
    # A number is moved to whichever side has weights that can take it.
    if a.source.TAKES_FACTORS:
        a, b = b, a
    a, b = replace(a, factor=1.0), replace(b, factor=a.factor * b.factor)
    return _pair(c, "multiply", "factors", a, b, ops)


def _pair(c: Builder, kind: str, what: str, a: Hidden, b: Hidden, ops: Sequence[str]) -> Hidden:
    """Emit an operator on two hidden tensors of one layout."""
    shape = tuple(np.broadcast_shapes(views.shape_of(a.view), views.shape_of(b.view)))
    view_a, view_b = (views.broadcast(x.view, shape, x.missing) for x in (a, b))
    if [views.merged(axis) for axis in view_a] != [views.merged(axis) for axis in view_b]:
        raise Mismatch(
            f"the {what} are laid out differently: {views.describe(view_a)} and "
            f"{views.describe(view_b)}"
        )
    x, y = a.emit(c), b.emit(c)
    if x.channels != y.channels or x.var.ty.ndim != y.var.ty.ndim:
        raise Mismatch(f"the {what} {x.name} and {y.name} have different shapes")
    age = [item.name for item in c.report.matched].index
    newest = max(x.name, y.name, key=age)
    all_ops = (*a.ops, *b.ops, *ops)
    emitted = Emitted.call(c, kind, f"{newest}.{kind}", x.channels, all_ops, x, y)
    held = set(views.flatten(view_a))
    missing = tuple(atom for atom in a.missing if atom in b.missing and atom not in held)
    return Hidden(emitted, view_a, missing=missing, layer=layer_of(newest))


@dataclass(frozen=True, eq=False)
class Pointwise(Recognised, Tokens):
    """A scalar function of every element of one hidden tensor.

    Parameters
    ----------
    base
        The tensor.
    samples
        The function on the grid of `functions.GRID`, float64.
    text
        The operators in order, for messages.
    parts
        The two terms if the last operator was an addition.
    """

    base: Hidden
    samples: Doubles
    text: str
    parts: tuple[Value, ...] = ()

    @property
    def view(self) -> View:
        """Layout, that of its tensor."""
        return self.base.view

    def lifted(self) -> Pointwise:
        return self

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        if self.parts:
            # Its terms have the layout before the movement, so a sum is decided now; what is no sum
            # of known functions may still become one by the operators that follow.
            try:
                decided: Tokens = self.hidden(c)
            except Mismatch:
                decided = replace(self, parts=())
            return decided.moved(c, op, change)
        return self.after(op, base=self.base.rearranged(change, op))

    def bounded(self, c: Builder, op: str, low: float, high: float) -> Value:
        known = functions.name_function(self.samples)
        if known is not None and known[0] != "relu":
            return self.hidden(c).bounded(c, op, low, high)
        return super().bounded(c, op, low, high)

    def recognised(self, c: Builder) -> Hidden:
        """Recognise the function and emit its operator."""
        slope = functions.slope(self.samples)
        if slope is not None:
            base = self.base
            return Hidden(
                base.source,
                base.view,
                base.factor * slope,
                base.missing,
                ops=self.ops,
                layer=self.layer,
            )
        found = functions.name_function(self.samples)
        if found is None and self.parts:
            left, right = self.parts
            return add(c, left, right, self.ops[-1:])
        clipped = self._clipped_line(c) if found is None else None
        if clipped is not None:
            return clipped
        if found is None:
            raise Mismatch(
                f"the function {self.text} is none of {functions.KNOWN}",
                op=next(op for op in reversed(self.ops) if op in functions.ELEMENTWISE),
                layer=self.layer,
            )
        kind, attributes = found
        return self.base.activated(c, kind, self.ops, **attributes)

    def _clipped_line(self, c: Builder) -> Hidden | None:
        """Emit a clipped line, or the product of one and its operand; None if it is neither."""
        line = functions.clipped_line(self.samples)
        gate = None if line is not None else functions.clipped_gate(self.samples)
        known = line or gate
        if known is None:
            return None
        source = self.base.scaled(c)
        if (known.slope, known.offset) != (1.0, 0.0):
            # The operand of a gate is read as it is, too.
            source = source if gate is None else source.emit(c)
            scale, row = (
                Weight(f"{source.name}.{what}", np.full(source.channels, number, np.float32))
                for what, number in (("slope", known.slope), ("offset", known.offset))
            )
            source = source.affine(c, PerChannel(scale, row if known.offset else None))
        line_of = Hidden(source, self.base.view, missing=self.base.missing)
        clipped = line_of.clipped(c, known.low, known.high, self.ops)
        return clipped if gate is None else multiply(c, self.base, clipped, self.ops[-1:])


def applied(
    op: str, x: _Value, samples: Sequence[Array | float], texts: Sequence[str], ops: tuple[str, ...]
) -> _Value:
    """Return the function that an elementwise operator makes of `x` and what else it reads.

    Parameters
    ----------
    op
        The operator.
    x : Pointwise or RowFunction
        Says what the function is one of.
    samples, texts
        Values and text of every operand, in order.
    ops
        What is absorbed with it.

    Returns
    -------
    Pointwise or RowFunction
        As `x`.
    """
    with np.errstate(all="ignore"):
        values = functions.ELEMENTWISE[op](*samples)
    text = f"{op.removeprefix('relax.')}({', '.join(texts)})"
    changed: dict[str, Any] = {"samples": values, "text": text, "parts": (), "ops": ops}
    return replace(x, **changed)
