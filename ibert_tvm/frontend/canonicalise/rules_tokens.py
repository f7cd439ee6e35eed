"""Rules of what joins tokens or channels, and of neighbours: concatenations and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from . import mixing, views
from .borders import ZEROS_ONLY, Bordered, bordered
from .builder import Builder
from .computed import Joined, Linear, LinearSum, Prepended, TokenRun
from .dispatch import Rule, by_kind
from .images import Pixels
from .mismatch import Mismatch
from .mixing import Mixed
from .operands import integer, integers
from .values import Computed, Given, Hidden, Several, Value, Weight
from .views import Atom


def token_run(hidden: Hidden, length: int, first: int, last: int, op: str) -> TokenRun:
    """Return tokens `first` to `last` of a hidden tensor whose sequences have `length`.

    Raises
    ------
    Mismatch
        If the tensor is scaled.
    """
    if hidden.factor != 1.0:
        raise Mismatch("tokens are taken of a tensor that was scaled")
    source: Computed = hidden.source
    start = 0
    if isinstance(source, TokenRun):
        start, length = source.first, source.length
        source = source.x
    first, last = start + first, start + last
    part = f"token{first}" if last == first + 1 else f"tokens{first}to{last - 1}"
    name = f"{source.name}.{part}"
    return TokenRun(name, source.channels, (*hidden.ops, op), source, first, last, length)


def _concat(c: Builder, call: relax.Call, op: str, operands: Several) -> Value:
    parts, along = operands.parts, integer(call.attrs.axis)
    mixed = _parts_of_heads(parts, along, op)
    if mixed is None and len(parts) == 2 and isinstance(parts[1], Mixed):
        mixed = mixing.behind_others(parts[1], parts[0].hidden(c), along, op)
    if mixed is not None:
        return mixed
    if isinstance(parts[-1], Given):
        raise Mismatch(
            "learned rows are put behind hidden tensors, and only before tokens they may"
        )
    last = parts[-1].hidden(c)
    axis = along % len(last.view)
    if all(item.kind == "channel" for item in last.view[axis]) and last.view[axis]:
        return _join_channels([item.hidden(c) for item in parts], axis, op)
    rows = [_rows(item) for item in parts[:-1]]
    known = [item for item in rows if item is not None]
    if rows and len(known) == len(rows):
        return _prepend(c, known, last, axis, op)
    first = parts[0].hidden(c)
    if rows and rows[0] is None and len(known) == len(rows) - 1 and axis == 1:
        return _insert(first, known, last, op)
    raise Mismatch("hidden tensors are joined, and only learned tokens before a sequence are")


def _parts_of_heads(values: Sequence[Value], axis: int, op: str) -> Mixed | None:
    """Join channels of each head again; None if that is not what is joined."""
    parts = [part for value in values if (part := mixing.as_mixed(value)) is not None]
    bases = {(part.base.source, part.base.view) for part in parts}
    if len(parts) < len(values) or len(bases) > 1:
        return None
    axis %= len(parts[0].view)
    kinds = {atom.kind for value in parts for atom in value.view[axis]}
    return mixing.joined(parts, axis, op) if kinds <= {"lane"} else None


def _prepend(c: Builder, rows: Sequence[Weight], hidden: Hidden, axis: int, op: str) -> Hidden:
    """Put learned rows before the tokens of every sequence."""
    hidden.require_all_channels()
    tokens = views.merged(hidden.view[1]) if len(hidden.view) == 3 else ()
    if axis != 1 or hidden.view[0] != (c.batch,) or not views.is_tokens(tokens):
        raise Mismatch(
            f"learned rows are put before axis {axis} of {views.describe(hidden.view)}, and only "
            "before the tokens of a sequence they have a form"
        )
    if tokens[0].kind == "sequence" and not c.images:
        raise Mismatch(
            "learned tokens are put before a sequence of any length, whose padding mask does not "
            "cover them"
        )
    prefix = Weight(rows[0].name, np.concatenate([item.array for item in rows]))
    x = hidden.emit(c)
    source = Prepended(prefix.name, x.channels, (*hidden.ops, op), x, prefix)
    whole = Atom("patch", len(prefix.array) + tokens[0].extent)
    return Hidden(source, ((c.batch,), (whole,), hidden.view[2]), layer=hidden.layer)


def _insert(before: Hidden, rows: Sequence[Weight], behind: Hidden, op: str) -> Hidden:
    """Put learned rows among those before a sequence that was cut there: registers."""
    rest = behind.source
    if (
        not isinstance(rest, TokenRun)
        or not rest.behind(before.source)
        or not isinstance(rest.x, Prepended)
    ):
        raise Mismatch("tokens are joined that are not both parts of one sequence, cut once")
    whole, place = rest.x, rest.first
    if place > len(whole.rows.array):
        raise Mismatch("learned rows are put between tokens, and not before all of them")
    new = np.concatenate([item.array for item in rows])
    prefix = Weight(whole.rows.name, np.insert(whole.rows.array, [place] * len(new), new, axis=0))
    table = whole.table
    if table is not None:  # positions were added before
        empty = np.zeros_like(new)
        table = replace(table, array=np.insert(table.array, [place] * len(new), empty, axis=0))
    source = replace(whole, rows=prefix, table=table, ops=(*whole.ops, op))
    tokens = Atom("patch", rest.length + len(new))
    return replace(behind, source=source, view=(behind.view[0], (tokens,), behind.view[2]), ops=())


def _rows(value: Value) -> Weight | None:
    """Return learned rows [N, C] of a tensor [batch, N, C] that is the same in every batch row."""
    array = value.fixed() if isinstance(value, Given) else None
    if array is None or array.ndim != 3:
        return None
    if not np.array_equal(array, np.broadcast_to(array[:1], array.shape)):
        return None
    name = value.name if isinstance(value, Weight) else "tokens"
    return Weight(name, np.asarray(array[0], np.float32), layer=value.layer)


def _join_channels(parts: Sequence[Hidden], axis: int, op: str) -> Hidden:
    """Put the channels of several tensors one after the other."""
    first = parts[0]
    for part in parts:
        others = [part.view[:axis], part.view[axis + 1 :], part.missing]
        if others != [first.view[:axis], first.view[axis + 1 :], first.missing]:
            raise Mismatch("tensors are joined that are laid out differently")
        if views.merged(part.view[axis]) != views.channel_axis(part.source.channels):
            raise Mismatch("a part of the channels of a tensor is joined with others")
    channels = sum(part.source.channels for part in parts)
    ops = (*(o for part in parts for o in part.ops), op)
    source = Joined(first.source.name, channels, ops, tuple(parts))
    view = (*first.view[:axis], views.channel_axis(channels), *first.view[axis + 1 :])
    return Hidden(source, view, missing=first.missing, layer=first.layer)


def joined_product(
    joined: Joined, weight: Weight, product: Callable[[Hidden, Weight], Hidden]
) -> LinearSum:
    """Return the product of joined channels and a matrix: the sum of a product for each part.

    Parameters
    ----------
    joined
        The operand.
    weight
        [channels, outputs].
    product
        Multiplies a hidden tensor by a matrix, giving a `Linear`.

    Returns
    -------
    LinearSum
        The sum.

    Raises
    ------
    Mismatch
        If the matrix has another number of rows.
    """
    if len(weight.array) != joined.channels:
        raise Mismatch(
            f"the weight {weight.name} has {len(weight.array)} rows for {joined.channels} channels"
        )
    terms: list[Linear] = []
    first = 0
    for part in joined.parts:
        last = first + part.source.channels
        rows = replace(
            weight, name=f"{weight.name}[{first}:{last}]", array=weight.array[first:last]
        )
        source = product(part, rows).source
        if not isinstance(source, Linear):
            raise Mismatch("a part of joined channels is no operand of a linear layer")
        terms.append(source)
        first = last
    head = terms[0]
    return LinearSum(head.name, head.channels, joined.ops, tuple(terms))


def _pad(c: Builder, call: relax.Call, op: str, value: Value) -> Value:
    """Zeros beside a convolution, or where a slice left out as many tokens at the other end."""
    widths = np.reshape(integers(call.attrs.pad_width), (-1, 2))
    mode, number = str(call.attrs.pad_mode), float(getattr(call.attrs, "pad_value", 0.0))
    if (mode, number) != ("constant", 0.0):
        filled = f"filled with {number:g}" if mode == "constant" else f"made by {mode}"
        raise Mismatch(f"a border is {filled}: {ZEROS_ONLY}")
    x = value if isinstance(value, Pixels | Bordered) else value.hidden(c)
    if isinstance(x, Hidden) and isinstance(x.source, TokenRun):
        axes = [i for i, item in enumerate(x.view) if [atom.kind for atom in item] == ["run"]]
        if len(axes) == 1 and np.flatnonzero(widths.any(axis=1)).tolist() in ([], axes):
            return _shifted(c, x, x.source, axes[0], widths[axes[0]].tolist(), op)
    return bordered(x, op, widths)


def _shifted(
    c: Builder, x: Hidden, source: TokenRun, axis: int, zeros: Sequence[int], op: str
) -> Hidden:
    """Zeros in the place of the tokens that a slice left out at the other end: a shift."""
    before, after = zeros
    distance = source.first - before
    shifted = (max(distance, 0), min(source.length, source.length + distance))
    if (source.first, source.last) != shifted or (before, after) != (
        max(-distance, 0),
        max(distance, 0),
    ):
        raise Mismatch("tokens are cut off and zeros are put elsewhere, or not as many")
    ops = (*source.ops, *x.ops, op)
    tokens = source.x.emit(c)
    moved = tokens.then(c, "shift_tokens", ops, suffix="shifted", distance=distance)
    view = tuple((c.seq_len,) if i == axis else item for i, item in enumerate(x.view))
    return Hidden(moved, view, missing=x.missing, layer=x.layer)


TOKEN_RULES: dict[str, Rule] = {
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
    "relax.slice_scatter": by_kind(
        otherwise="a part of a tensor is overwritten, which borders that wrap around do as well: "
        + ZEROS_ONLY
    ),
}
"""Rules by operator."""
