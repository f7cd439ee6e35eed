"""How pixels become patches: which layouts of an image are the rows of a patch embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .builder import Builder
from .mismatch import Mismatch
from .values import Emitted, Hidden, LaidOut
from .views import Atom, Axis, View, describe, merged


@dataclass(frozen=True, eq=False)
class Pixels(LaidOut):
    """The images, moved but not computed with.

    Parameters
    ----------
    name
        Name of the input.
    view
        How the tensor lays them out: atoms batch, plane, row, column.
    """

    name: str
    view: View

    def hidden(self, c: Builder) -> Hidden:
        tall, wide, view = patch_layout(self, c.batch, c.images[self.name])
        return Hidden(self.patches(c, tall, wide), view, ops=self.ops, layer=self.layer)

    def patches(self, c: Builder, height: int, width: int) -> Emitted:
        """Return the patches of the input, emitted once per size."""
        size = {"patch_height": height, "patch_width": width}
        return self._cut(c, "patches", height * width, size)

    def windows(self, c: Builder, **sides: int) -> Emitted:
        """Return the windows of the input, which may overlap, emitted once per size."""
        return self._cut(c, "windows", sides["height"] * sides["width"], sides)

    def _cut(self, c: Builder, kind: str, area: int, sides: Mapping[str, int]) -> Emitted:
        def make() -> Emitted:
            channels, pixels = c.images[self.name][0] * area, c.input_vars[self.name]
            return Emitted.call(c, kind, f"{self.name}.{kind}", channels, (), pixels, **sides)

        return c.once((self.name, *sides.values()), make)


def image_view(batch: Atom, size: tuple[int, ...]) -> View:
    """Return the layout [batch, planes, height, width] of the input itself.

    Features are [batch, planes, frames], which are columns.
    """
    kinds = ("plane", "row", "column") if len(size) == 3 else ("plane", "column")
    runs = (
        (Atom(kind, extent),) if extent > 1 else ()
        for kind, extent in zip(kinds, size, strict=True)
    )
    return ((batch,), *runs)


def patch_axes(rows: int, columns: int) -> tuple[Axis, Axis]:
    """Return the axes of the patches of an image, `rows` down and `columns` across."""
    down = (Atom("patch", rows, columns),) if rows > 1 else ()
    across = (Atom("patch", columns, 1),) if columns > 1 else ()
    return down, across


def patch_layout(pixels: Pixels, batch: Atom, size: tuple[int, ...]) -> tuple[int, int, View]:
    """Read images that were cut by reshapes and transposes as the patches of an embedding.

    Parameters
    ----------
    pixels
        Images in the layout [batch, patches, pixels of a patch], the last in any order.
    batch
        The axis of images.
    size
        Planes, height and width of an image, or planes and frames of features.

    Returns
    -------
    tuple of (int, int, View)
        Height and width of a patch, and the layout of the patches, whose channels are in the order
        of the source.

    Raises
    ------
    Mismatch
        If the layout is another one.
    """
    planes, (height, width) = size[0], (1, *size[1:])[-2:]
    inside = merged(pixels.view[-1]) if pixels.view else ()
    tall = _extent(inside, "row")
    wide = _extent(inside, "column")
    rows, columns = height // tall, width // wide
    outer: Axis = tuple(
        atom for atom in (Atom("row", rows, tall), Atom("column", columns, wide)) if atom.extent > 1
    )
    whole = tall * rows == height and wide * columns == width and _extent(inside, "plane") == planes
    tokens = tuple(atom for axis in pixels.view[1:-1] for atom in axis)
    if not whole or not pixels.view or pixels.view[0] != (batch,) or tokens != outer:
        raise Mismatch(
            f"images are laid out as {describe(pixels.view)}, which is not one patch per token"
        )
    strides = {"plane": tall * wide, "row": wide, "column": 1}
    channels = tuple(
        Atom("channel", atom.extent, atom.stride * strides[atom.kind]) for atom in inside
    )
    down, across = patch_axes(rows, columns)
    places = {"row": down, "column": across}
    axes = [tuple(a for atom in axis for a in places[atom.kind]) for axis in pixels.view[1:-1]]
    return tall, wide, ((batch,), *axes, channels)


def _extent(axis: Axis, kind: str) -> int:
    """Number of neighbouring pixels, planes or rows that an axis holds."""
    extents = [atom.extent for atom in axis if atom.kind == kind and atom.stride == 1]
    return extents[0] if extents else 1
