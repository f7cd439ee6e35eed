"""Translation of convolutions, whose windows the canonicaliser takes for rows of a product."""

from __future__ import annotations

from tvm.relax import op

from ..translator import Node, Translator, operator
from ..values import Known, Traced, Untranslatable


@operator("Conv")
def _conv(t: Translator, node: Node) -> Traced:
    x, weight, bias = node.traced(), node.tensors(2)[1], node.operand(2)
    sides = len(x.shape) - 2
    if sides not in (1, 2) or not isinstance(weight, Known):
        raise Untranslatable("it is no convolution of images or sequences by weights")
    attributes = node.attributes
    window = weight.array.shape[2:]
    strides = [int(n) for n in attributes.get("strides", [1] * sides)]
    dilation = [int(n) for n in attributes.get("dilations", [1] * sides)]
    make = op.nn.conv1d if sides == 1 else op.nn.conv2d
    padding = _padding(node, x.shape[2:], window, strides, dilation)
    groups = int(attributes.get("group", 1))
    made = make(x.var, t.expr(node, weight), strides, padding, dilation, groups)
    result = t.emit(made, x, weight)
    if bias is None:
        return result
    if not isinstance(bias, Known):
        raise Untranslatable("its bias is no weight")
    row = Known(bias.array.reshape(1, -1, *[1] * sides), bias.name)
    return t.emit(op.add(result.var, t.expr(node, row, "bias")), result, row)


def _padding(
    node: Node,
    extents: tuple[int, ...],
    window: tuple[int, ...],
    strides: list[int],
    dilation: list[int],
) -> list[int]:
    """Zeros before all axes, and then behind them."""
    auto = bytes(node.attributes.get("auto_pad", b"NOTSET")).decode()
    if auto in ("NOTSET", "VALID"):
        none = [0] * (2 * len(window))
        return none if auto == "VALID" else [int(n) for n in node.attributes.get("pads", none)]
    before, after = [], []
    for extent, width, stride, step in zip(extents, window, strides, dilation, strict=True):
        reach = (width - 1) * step + 1
        total = max((-(-extent // stride) - 1) * stride + reach - extent, 0)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return [*before, *after]
