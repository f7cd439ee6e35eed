"""A value during lowering, in every integer form that its readers ask for.

A rule returns the *native* form of its result: what the arithmetic of its operator yields, for
example an int32 accumulator with one scale per output channel. Consumers ask for the form they can
read; it is made from the native one on first demand and kept, so that a value with several readers
is requantised once per form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from .. import integer
from ..dialect.arrays import Reals
from ..errors import LoweringError, RangeError
from ..quantization_table import ROW_LIMIT, ActivationQuant
from ..spec.row_scale import LARGEST
from ..spec.short_requantise import ShortFactors, short_factors
from .context import LoweringContext
from .forms import Form, multipliers, storage

# A scale per row: the 8-bit form of a value that has one, and the products that are made of it.

# A sum times m, of 8-bit integers with the offset that an instruction may ask for, and the bias
# have 30 bits each, so that both together have 31.
_BITS = 30
_LARGEST_TERM = 127 * (128 + 255)


def serves_as_rows(native: Form, quant: ActivationQuant) -> bool:
    """Whether rows can be divided by their magnitude as they are, without a requantisation."""
    whole = quant.channel_divisor is None and native.magnitude <= ROW_LIMIT
    return whole and native.plain and str(native.var.ty.dtype) in ("int8", "int16", "int32")


def quantised_rows(
    context: LoweringContext, source: Form, quant: ActivationQuant, name: str
) -> Form:
    """Emit ``integer.row_magnitude`` and ``integer.quantise_rows``.

    Parameters
    ----------
    context
        The lowering.
    source
        15 bits and a sign, at the scales of `quant`, or its own where these are one.
    quant
        Entry of the table, by row.
    name
        Of the value.

    Returns
    -------
    Form
        int8, with `Form.row_magnitude`; without the divisors of channels, which the weights have.
    """
    unit = quant.scale if quant.channel_divisor is not None else float(source.scale[0])
    magnitude = context.emit(integer.row_magnitude(source.var, name=f"{name}.magnitude"))
    label, bounds = f"{name}.matmul", {"low": -LARGEST, "high": LARGEST, "dtype": "int8"}
    out = context.emit(integer.quantise_rows(source.var, magnitude, name=label, **bounds))
    scale = np.array([unit / LARGEST])
    return Form(out, label, scale, 0, LARGEST, readable=False, row_magnitude=magnitude)


def product_shift(channels: int) -> int:
    """Bits by which sums over so many channels are shifted when a magnitude multiplies them.

    They depend on nothing else, so that products of one value can be merged.
    """
    largest = channels * _LARGEST_TERM
    return max(largest.bit_length() + ROW_LIMIT.bit_length() - _BITS, 0)


def restored_sums(
    context: LoweringContext,
    sums: Form,
    magnitude: relax.Var,
    shift: int,
    bias: NDArray[np.int64],
    parameter: str,
) -> Form:
    """Emit ``integer.scale_rows``.

    Parameters
    ----------
    context
        The lowering.
    sums
        Of products with 8-bit rows, int32, with a scale per channel.
    magnitude
        Of the rows.
    shift
        `product_shift`.
    bias
        int64 [N], in units of the result, which are 2^shift times those of the sums.
    parameter
        Name of the bias.

    Returns
    -------
    Form
        int32, with a scale per channel.

    Raises
    ------
    RangeError
        If the bias does not fit.
    """
    largest = int(np.abs(bias).max(initial=0))
    if largest >= 1 << _BITS:
        raise RangeError(
            f"a bias is {largest} units of the products that it is added to",
            where=sums.value,
            why=f"with a scale per row both have at most {_BITS} bits",
            todo="give this layer's input a static scale (row_scales), or prune the row",
        )
    name = f"{sums.value}.scaled"
    constant = context.parameter(parameter, bias.astype(np.int32))
    out = context.emit(integer.scale_rows(sums.var, magnitude, constant, name=name, shift=shift))
    bound = (sums.magnitude * ROW_LIMIT >> shift) + 1 + largest
    return Form(out, name, sums.scale * 2.0**shift, 0, bound)


class IntegerValue:
    """A canonical value during lowering: its native form, and others on demand.

    Parameters
    ----------
    context
        Where further operators are emitted.
    name
        Canonical name.
    native
        The native form, or how to emit it; called once at most.
    rescale
        ``rescale(quant, name) -> Form`` emits the value directly at the scale of a consumer, for
        operators (embedding) that contain a requantisation anyway.
    """

    def __init__(
        self,
        context: LoweringContext,
        name: str,
        native: Form | Callable[[], Form],
        rescale: Callable[[ActivationQuant, str], Form] | None = None,
    ) -> None:
        self.context = context
        self.name = name
        self._native = native
        self._rescale = rescale
        # Entries of the table compare by identity.
        self._forms: dict[tuple[str, ActivationQuant], Form] = {}
        self._rows: Form | None = None
        self._grid = context.table.grids.get(name)
        if isinstance(native, Form):
            context.record(name, "native", native)

    def native(self) -> Form:
        """Return the native form: of the operator, rounded where the table has a grid for it."""
        if not isinstance(self._native, Form):
            self._native = self._native()
            self.context.record(self.name, "native", self._native)
        if self._grid is not None:
            grid, self._grid = self._grid, None
            self._native = self._as(grid, "grid")
        return self._native

    def matmul(self) -> Form:
        """Return the 8-bit form of the table, with static scales: what matrix products read."""
        form = self.shifted()
        if form.offset is not None:
            raise _cannot_read_offset(self.name)
        return form

    def shifted(self) -> Form:
        """Return what `matmul` does, for a reader that makes up for its `Form.offset`."""
        return self._as(self.context.table_entry("matmul", self.name), "matmul")

    def operand(self) -> Form:
        """Return what a matrix of weights multiplies: as `matmul`, or with a scale per row."""
        quant = self.context.table_entry("matmul", self.name)
        if not quant.by_row:
            return self.shifted()
        if self._rows is None:
            whole = serves_as_rows(self.native(), quant)
            source = self.native() if whole else self._as(quant, "rows")
            self._rows = quantised_rows(self.context, source, quant, self.name)
        return self._rows

    def stream(self) -> Form:
        """Return the wide form of the table, with one scale and no zero point."""
        return self._as(self.context.table_entry("stream", self.name), "stream")

    def scalar(self) -> Form:
        """Return any form with a single scale and no zero point; the native one if it is such.

        Of a value that the table rounds to a coarse grid, the finer stream form: a mean of integers
        that are steps of the grid would be rounded to the grid as well.
        """
        finer = self.name in self.context.table.grids and self.name in self.context.table.stream
        return self.native() if self.native_is_plain() and not finer else self.stream()

    def ordered(self) -> Form:
        """Return a form of 32 bits whose integers grow with the numbers of their channel, 0 for 0.

        The native one if it is such, with whatever scales; otherwise the stream form.
        """
        native = self.native()
        wide = str(native.var.ty.dtype) == "int64"
        serves = native.readable and not wide and native.zero_point == 0
        return native if serves and bool(np.all(native.scale > 0)) else self.stream()

    def native_is_plain(self) -> bool:
        """Whether the native form has a single scale and no zero point."""
        return self.native().plain

    def term(self, quant: ActivationQuant, consumer: str) -> Form:
        """Return the value at the scale of the sum `consumer`.

        Parameters
        ----------
        quant
            The sum's stream form.
        consumer
            Canonical name of the sum; it becomes a part of the new operator's name.

        Returns
        -------
        Form
            With the scale of `quant`.
        """
        return self._as(quant, "term", f"{self.name}.for.{consumer}")

    def within(self, source: Form, limit: int, consumer: str) -> Form:
        """Return `source`, a form of it, or a term at a coarser scale where it exceeds a limit."""
        if source.magnitude <= limit:
            return source
        scale = float(source.scale[0]) * source.magnitude / limit
        return self.term(ActivationQuant(scale, -limit, limit), consumer)

    def _as(self, quant: ActivationQuant, label: str, name: str = "") -> Form:
        if (label, quant) in self._forms:
            return self._forms[(label, quant)]
        name = name or f"{self.name}.{label}"
        direct = self._rescale if label == "term" else None
        form = direct(quant, name) if direct else self._requantise(quant, name, label == "matmul")
        if form.offset is not None and label != "matmul":
            raise _cannot_read_offset(self.name)
        self._forms[(label, quant)] = form
        if form is not self._native:
            self.context.record(self.name, label, form)
        return form

    def _requantise(self, quant: ActivationQuant, name: str, exact: bool) -> Form:
        native = self.native()
        target = quant.channel_scale
        dtype = storage(quant)
        # Already there: attention yields the very form that its reader asks for. Matrix products
        # insist on the type as well.
        if (
            quant.offset is None
            and quant.phase is None
            and native.magnitude <= max(-quant.low, quant.high)
            and native.zero_point == quant.zero_point
            and native.zero_points is None
            and np.array_equal(native.scale, target)
            and (dtype == str(native.var.ty.dtype) or not (exact or dtype in ("int8", "uint8")))
        ):
            return native
        if native.zero_point != 0 or native.zero_points is not None:
            raise LoweringError(
                f"{self.name} has a zero point and a second form is asked of it",
                where=name,
                why="requantisation multiplies integers whose zero is the real 0",
                todo="quantise this value symmetrically",
            )
        # A larger factor gives the same: whatever is not 0 leaves the range.
        shift = 0 if quant.offset is None else int(np.abs(quant.offset).max())
        outside = quant.high - quant.low + 1 + shift + abs(quant.zero_point)
        factors = self.context.guard(
            name, lambda: np.clip(native.scale / target, -outside, outside)
        )
        source = native.var
        if quant.splits is not None:
            factors = np.broadcast_to(factors, quant.splits.shape)[quant.columns]
            source = self.context.gather_channels(source, quant.columns, f"{name}.columns")
        short = self._short(factors, quant)
        if short is not None:
            form = self.context.requantise_short(source, short, quant, name, exact)
        else:
            bits = 8 if exact or dtype in ("int8", "uint8") else 16
            dyadic = self.context.guard(name, lambda: multipliers(factors, native.magnitude, bits))
            form = self.context.requantise(source, dyadic, quant, name)
        if native.offset is None:
            return form
        return replace(form, offset=native.offset + (0 if form.offset is None else form.offset))

    def _short(self, factors: Reals, quant: ActivationQuant) -> ShortFactors | None:
        """Constants in 16-bit arithmetic; None where only the wide form serves."""
        native = self.native()
        if not self.context.preset.short or str(native.var.ty.dtype) == "int64":
            return None
        # Of a fraction of a step the integer part says how many bits it needs.
        lowest, highest = (int(bound) for bound in (np.min(quant.reach[0]), np.max(quant.reach[1])))
        try:
            return short_factors(factors, native.magnitude, lowest, highest)
        except RangeError:
            return None


def _cannot_read_offset(name: str) -> LoweringError:
    return LoweringError(
        f"numbers are taken off {name} that a reader does not add again",
        where=name,
        why="only what attention reads by channel, and then multiplies by weights, makes up for "
        "them",
        todo="leave the value out of the table's offsets",
    )
