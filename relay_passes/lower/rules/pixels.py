"""Lowering of images and features that are cut into rows."""

from __future__ import annotations

from tvm import relax

from ...canonical.operators.pixels import Patches, Windows
from ...errors import LoweringError
from ..forms import Form, storage
from ..rule import MATMUL, Need, Node, lowers
from ..value import IntegerValue


@lowers(Patches, Windows, need=Need(result=(MATMUL,), given=True))
def cut(node: Node[Patches | Windows]) -> IntegerValue:
    """Rows that are cut out of 8-bit pixels.

    Pixels are real on the caller's side and 8-bit integers on the program's: the input takes the
    type, scale and zero point of the rows' matmul entry, by which the caller quantises. Cutting
    moves integers only, so the result is in its matmul form at once; around windows lies the
    integer of the real 0::

        y = patches(pixel_values)  →  y = integer.patches(pixel_values_s8)        # S_pixels
    """
    pixels: relax.Var = node.operands[0]
    quant = node.entry("matmul")
    if quant.channel_divisor is not None:
        raise LoweringError(
            "the pixels have a scale per channel",
            where=node.name,
            why="the caller quantises whole images with one scale",
            todo="quantise the pixels with one scale",
        )
    if str(pixels.ty.dtype) != storage(quant):
        raise LoweringError(
            f"the pixels are {pixels.ty.dtype} and their form is {storage(quant)}",
            where=node.name,
            why="two operators cut patches out of one input, and ask for different forms",
            todo="give both the same entry in the quantisation table",
        )
    around = {"zero_point": quant.zero_point} if isinstance(node.operator, Windows) else {}
    return node.value(Form.of(node.emit(pixels, **around), node.name, quant))
