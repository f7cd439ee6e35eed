"""Rules of convolutions: linear layers on rows that windows of their operand make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from ...common.types import Array
from . import views
from .borders import Bordered
from .builder import Builder, layer_of
from .computed import Linear
from .dispatch import Rule, by_kind
from .images import Pixels, image_view, patch_axes
from .mismatch import Mismatch
from .operands import integer, integers
from .rules_attention import linear
from .values import Emitted, Hidden, Value, Weight
from .views import Atom

_LAYOUTS = (("NCW", "OIW"), ("NCHW", "OIHW"))


@dataclass(frozen=True, eq=False)
class _Convolution:
    """A convolution by `weight` [outputs, inputs of a group, *window], along each axis.

    Parameters
    ----------
    strides
        Steps of the window.
    before, after
        Zeros at the ends.
    groups
        Parts of the channels that are apart.
    """

    op: str
    weight: Weight
    strides: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    groups: int


def _convolution(c: Builder, call: relax.Call, op: str, value: Value, weight: Weight) -> Value:
    layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
    if layouts not in _LAYOUTS or any(step != 1 for step in integers(call.attrs.dilation)):
        raise Mismatch(
            f"a convolution of layouts {', '.join(layouts)} and dilation "
            f"{integers(call.attrs.dilation)}; windows of neighbours have a form"
        )
    strides, padding = integers(call.attrs.strides), integers(call.attrs.padding)
    if isinstance(value, Bordered):
        padding = value.taken_in(padding)
        value = replace(value.inside, ops=value.ops)
    sides = len(strides)
    before, after = padding[:sides], padding[sides:]
    window = weight.array.shape[2:]
    if any(pad >= extent for pad, extent in zip(padding, (*window, *window), strict=True)):
        raise Mismatch(f"a convolution of {_shown(window)} with padding {padding}, which is wider")
    how = _Convolution(op, weight, strides, before, after, integer(call.attrs.groups))
    if isinstance(value, Pixels):
        return _of_pixels(c, value, how)
    if sides != 1:
        raise Mismatch(
            "a convolution of hidden tensors in two directions; of an image or of a sequence "
            "convolutions have a form"
        )
    return _of_tokens(c, value.hidden(c), how)


def _shown(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))


def _of_pixels(c: Builder, pixels: Pixels, how: _Convolution) -> Hidden:
    """Multiply patches of images or features, which may overlap."""
    size, weight, groups = c.images[pixels.name], how.weight, how.groups
    channels, planes, *window = weight.array.shape
    if pixels.view != image_view(c.batch, size) or len(window) != len(size) - 1:
        raise Mismatch("a convolution of images that were moved before")
    if groups != 1 or planes != size[0]:
        raise Mismatch(f"a convolution of images in {groups} groups, and planes are joined in one")
    name = layer_of(weight.name)
    matrix = Weight(weight.name, weight.array.reshape(channels, -1), layer=name)
    # Features are images of one row.
    tall, wide = (1, *window)[-2:]
    down, across = (1, *how.strides)[-2:]
    top, left = (0, *how.before)[-2:]
    bottom, right = (0, *how.after)[-2:]
    apart = (down, across) == (tall, wide) and not any((top, left, bottom, right))
    if len(window) == 2 and apart:
        patches = pixels.patches(c, tall, wide)
        rows, columns = size[1] // tall, size[2] // wide
    else:
        sides = {"height": tall, "width": wide, "stride_down": down, "stride_across": across}
        borders = {"top": top, "bottom": bottom, "left": left, "right": right}
        patches = pixels.windows(c, **sides, **borders)
        height, width = (1, *size[1:])[-2:]
        rows = (height + top + bottom - tall) // down + 1
        columns = (width + left + right - wide) // across + 1
    source = Linear(name, channels, (*pixels.ops, how.op), patches, matrix, None)
    axes = patch_axes(rows, columns)[-len(window) :]
    return Hidden(source, ((c.batch,), views.channel_axis(channels), *axes), layer=name)


def _of_tokens(c: Builder, x: Hidden, how: _Convolution) -> Hidden:
    """Multiply neighbouring tokens, whose channels lie before the sequence."""
    weight, groups, width = how.weight, how.groups, how.weight.array.shape[2]
    if len(x.view) != 3 or x.view[0] != (c.batch,) or not views.is_tokens(x.view[2]):
        raise Mismatch(
            f"a convolution of {views.describe(x.view)}, which is not [batch, channels, sequence]"
        )
    if groups != 1 and width != 1:
        raise Mismatch(
            f"a convolution of {width} tokens in {groups} groups; of several tokens, convolutions "
            "of all channels have a form"
        )
    tokens = x.view[2]
    x = replace(x, view=(x.view[0], tokens, x.view[1]))
    if (width, *how.strides, *how.before, *how.after) != (1, 1, 0, 0):
        x, tokens = _neighbours(c, x, how)
    matrix = _matrix(weight.array, groups)
    result = linear(c, x, replace(weight, array=matrix), how.op)
    return replace(result, view=(result.view[0], result.view[2], tokens))


def _matrix(kernel: Array, groups: int) -> Array:
    """A kernel [N, C, width] as the matrix [width C, N] of neighbours; groups are its blocks."""
    outputs, inputs, width = kernel.shape
    if groups == 1:
        return kernel.transpose(2, 1, 0).reshape(width * inputs, outputs)
    matrix = np.zeros((inputs * groups, outputs), np.float32)
    for group, rows in enumerate(np.split(kernel[:, :, 0], groups)):
        first = group * len(rows)
        matrix[group * inputs : (group + 1) * inputs, first : first + len(rows)] = rows.T
    return matrix


def _neighbours(c: Builder, x: Hidden, how: _Convolution) -> tuple[Hidden, tuple[Atom, ...]]:
    """Emit the rows of neighbouring tokens, and return the axis that enumerates them."""
    if x.channel_places() is not None:
        raise Mismatch("a convolution of channels in another order")
    (tokens,) = views.merged(x.view[1])
    width, (stride,) = how.weight.array.shape[2], how.strides
    (before,), (after,) = how.before, how.after
    as_long = stride == 1 and before + after == width - 1
    if tokens.kind == "sequence" and not as_long:
        raise Mismatch(
            f"a convolution of {width} tokens with a stride of {stride} and {before} + {after} of "
            "padding changes the length of a sequence that may have any"
        )
    rows = (tokens.extent + before + after - width) // stride + 1
    operand = x.emit(c)
    if operand.var.ty.ndim != 3:
        raise Mismatch(f"{operand.name} has no tokens that are neighbours")
    channels, ops = operand.channels * width, (*x.ops, how.op)
    window = {"width": width, "stride": stride, "before": before, "after": after}
    name = f"{operand.name}.neighbours"
    made = Emitted.call(c, "unfold_tokens", name, channels, ops, operand, **window)
    axis = x.view[1] if tokens.kind == "sequence" else (Atom("patch", rows),)
    view = (x.view[0], axis, views.channel_axis(made.channels))
    return Hidden(made, view, layer=x.layer), axis


CONVOLUTION_RULES: dict[str, Rule] = dict.fromkeys(
    ("relax.nn.conv1d", "relax.nn.conv2d"),
    by_kind(
        ((Value, Weight), _convolution), otherwise="a convolution by something other than a weight"
    ),
)
"""Rules by operator."""
