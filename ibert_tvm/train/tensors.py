"""Torch tensors that NumPy's functions take: what is written for NumPy runs on torch as it is.

The integer specification (`ibert_tvm.relay_passes.spec`) and the float meanings of canonical
operators are written with NumPy's operators and functions. `TensorArray` answers NumPy's two
protocols (``__array_ufunc__``, ``__array_function__``) with torch, so that neither is written a
second time, and gradients of the float meanings are torch's own.

An operation in place gives the array a new tensor instead of writing to the old one, as torch's
gradients need it; another array that shares the old one does not see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ["TensorArray", "tensor_of"]


def tensor_of(value: Any, device: torch.device) -> Any:
    """Return what torch computes with: tensors on `device`, and Python's numbers as they are.

    Parameters
    ----------
    value : TensorArray, numpy.ndarray, number or other
        An operand, or an index.
    device : torch.device
        Where arrays are put.
    """
    if isinstance(value, TensorArray):
        return value.tensor
    if isinstance(value, np.ndarray):
        # A plain, writable array: torch takes neither subclasses nor read-only memory silently.
        return torch.from_numpy(np.array(value, order="C", subok=False)).to(device)
    return value.item() if isinstance(value, np.generic) else value


class TensorArray(NDArrayOperatorsMixin):
    """An array of NumPy's kind whose numbers are a torch tensor's.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any type that both libraries have.

    Attributes
    ----------
    tensor : torch.Tensor
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    # -- NumPy's protocols ----------------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        function = _UFUNCS.get(ufunc.__name__)
        if method != "__call__" or function is None or options:
            return NotImplemented
        result = function(*(tensor_of(x, self.tensor.device) for x in inputs))
        if out is None:
            return TensorArray(result)
        (target,) = out
        target.tensor = result
        return target

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Any
    ) -> Any:
        answer = _FUNCTIONS.get(function.__name__)
        if answer is None:
            return NotImplemented
        return answer(self.tensor.device, *args, **kwargs)

    # -- what arrays have -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.tensor.numel()

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's name of the type."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def T(self) -> TensorArray:
        """Axes in reverse."""
        return TensorArray(self.tensor.permute(*reversed(range(self.ndim))))

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: Any) -> TensorArray:
        parts = index if isinstance(index, tuple) else (index,)
        tensor, axis, chosen = self.tensor, 0, []
        for part in parts:
            if isinstance(part, slice) and part.step == -1 and part.start is part.stop is None:
                tensor, part = tensor.flip(axis), slice(None)  # torch has no steps backwards
            axis += part is not None
            chosen.append(tensor_of(part, tensor.device))
        return TensorArray(tensor[tuple(chosen)])

    def __setitem__(self, index: Any, value: Any) -> None:
        tensor = self.tensor.clone()
        tensor[index] = tensor_of(value, tensor.device)
        self.tensor = tensor

    def astype(self, dtype: Any, copy: bool = True) -> TensorArray:
        """Convert, also to a type of NumPy's name."""
        return TensorArray(self.tensor.to(getattr(torch, np.dtype(dtype).name)))

    def reshape(self, *shape: Any) -> TensorArray:
        """With other extents."""
        extents = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return TensorArray(self.tensor.reshape(extents))

    def transpose(self, *axes: int) -> TensorArray:
        """Axes in this order."""
        return TensorArray(self.tensor.permute(*axes))

    def swapaxes(self, first: int, second: int) -> TensorArray:
        """With two axes exchanged."""
        return TensorArray(self.tensor.transpose(first, second))

    def repeat(self, count: int, axis: int) -> TensorArray:
        """Each entry of an axis so many times."""
        if count == 1:
            return self
        return TensorArray(self.tensor.repeat_interleave(count, dim=axis))

    def sum(self, axis: int, keepdims: bool = False) -> TensorArray:
        """Over an axis."""
        return TensorArray(self.tensor.sum(axis, keepdim=keepdims))

    def mean(self, axis: int, keepdims: bool = False) -> TensorArray:
        """Over an axis."""
        return TensorArray(self.tensor.mean(axis, keepdim=keepdims))

    def max(self, axis: int, keepdims: bool = False) -> TensorArray:
        """Over an axis."""
        return TensorArray(self.tensor.amax(axis, keepdim=keepdims))

    def any(self, axis: int, keepdims: bool = False) -> TensorArray:
        """Whether any entry of an axis holds."""
        return TensorArray(self.tensor.any(axis, keepdim=keepdims))


def _limit(clamp: str, function: Callable[..., Any]) -> Callable[[Any, Any], torch.Tensor]:
    """A minimum or maximum with a number or a tensor, in either order."""

    def limited(a: Any, b: Any) -> torch.Tensor:
        if not isinstance(a, torch.Tensor):
            a, b = b, a
        if not isinstance(b, torch.Tensor):
            return a.clamp(**{clamp: b})
        return function(a, b)

    return limited


def _floor_divide(a: Any, b: Any) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _left_shift(a: Any, b: Any) -> torch.Tensor:
    return a << b


def _power(a: Any, b: Any) -> torch.Tensor:
    return a * a if b == 2 else torch.pow(a, b)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def _binary(name: str) -> Callable[[Any, Any], torch.Tensor]:
    """Python's operator, which takes numbers on either side."""
    import operator

    return getattr(operator, name)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": _binary("add"),
    "subtract": _binary("sub"),
    "multiply": _binary("mul"),
    "divide": _binary("truediv"),
    "matmul": _matmul,
    "power": _power,
    "floor_divide": _floor_divide,
    "remainder": torch.remainder,
    "negative": torch.neg,
    "absolute": torch.abs,
    "minimum": _limit("max", torch.minimum),
    "maximum": _limit("min", torch.maximum),
    "greater": _binary("gt"),
    "greater_equal": _binary("ge"),
    "less": _binary("lt"),
    "less_equal": _binary("le"),
    "equal": _binary("eq"),
    "not_equal": _binary("ne"),
    "left_shift": _left_shift,
    "right_shift": _binary("rshift"),
    "bitwise_and": _binary("and_"),
    "bitwise_or": _binary("or_"),
    "bitwise_xor": _binary("xor"),
    "invert": torch.bitwise_not,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "expit": torch.sigmoid,
}
"""By the name of NumPy's (or SciPy's) function."""


def _where(device: torch.device, condition: Any, yes: Any, no: Any) -> TensorArray:
    sides = [tensor_of(side, device) for side in (yes, no)]
    kept = tensor_of(condition, device)
    if not isinstance(kept, torch.Tensor):
        kept = torch.tensor(bool(kept), device=device)
    return TensorArray(torch.where(kept, *_alike(sides, device)))


def _alike(sides: list[Any], device: torch.device) -> list[torch.Tensor]:
    """Numbers as tensors of the other side's type; of two, whole numbers are int64."""
    known = next((side.dtype for side in sides if isinstance(side, torch.Tensor)), None)
    if known is None:
        known = torch.int64 if all(isinstance(side, int) for side in sides) else torch.float32
    return [
        side if isinstance(side, torch.Tensor) else torch.tensor(side, dtype=known, device=device)
        for side in sides
    ]


def _einsum(device: torch.device, pattern: str, *operands: Any) -> TensorArray:
    a, b = (tensor_of(x, device) for x in operands)
    if pattern == "...c,...c->...":  # torch makes one matrix product per row of it
        return TensorArray((a * b).sum(-1))
    return TensorArray(torch.einsum(pattern, a, b.to(a.dtype)))


def _concatenate(device: torch.device, arrays: Any, axis: int = 0) -> TensorArray:
    return TensorArray(torch.cat([tensor_of(x, device) for x in arrays], dim=axis))


def _split(device: torch.device, array: Any, places: Any, axis: int = 0) -> list[TensorArray]:
    parts = torch.tensor_split(tensor_of(array, device), tuple(places), dim=axis)
    return [TensorArray(part) for part in parts]


def _broadcast_to(device: torch.device, array: Any, shape: tuple[int, ...]) -> TensorArray:
    return TensorArray(tensor_of(array, device).expand(shape))


def _clip(device: torch.device, array: Any, low: Any, high: Any) -> TensorArray:
    return TensorArray(tensor_of(array, device).clamp(float(low), float(high)))


def _cumsum(device: torch.device, array: Any, axis: int) -> TensorArray:
    return TensorArray(torch.cumsum(tensor_of(array, device), dim=axis))


def _argmax(device: torch.device, array: Any, axis: int) -> TensorArray:
    return TensorArray(tensor_of(array, device).to(torch.int64).argmax(dim=axis))


def _take_along_axis(device: torch.device, array: Any, places: Any, axis: int) -> TensorArray:
    tensor, index = tensor_of(array, device), tensor_of(places, device)
    extents = list(tensor.shape)
    extents[axis] = index.shape[axis]
    return TensorArray(torch.gather(tensor, axis, index.expand(extents)))


def _zeros_like(device: torch.device, array: Any) -> TensorArray:
    return TensorArray(torch.zeros_like(tensor_of(array, device)))


def _pad(device: torch.device, array: Any, widths: Any) -> TensorArray:
    flat = [width for pair in reversed(tuple(widths)) for width in pair]
    return TensorArray(torch.nn.functional.pad(tensor_of(array, device), flat))


def _sliding_window_view(device: torch.device, array: Any, shape: Any, axis: Any) -> TensorArray:
    widths, axes = (shape, axis) if isinstance(axis, tuple) else ((shape,), (axis,))
    tensor = tensor_of(array, device)
    for width, along in zip(widths, axes, strict=True):
        tensor = tensor.unfold(along, width, 1)
    return TensorArray(tensor)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "einsum": _einsum,
    "concatenate": _concatenate,
    "split": _split,
    "broadcast_to": _broadcast_to,
    "clip": _clip,
    "cumsum": _cumsum,
    "argmax": _argmax,
    "take_along_axis": _take_along_axis,
    "zeros_like": _zeros_like,
    "pad": _pad,
    "sliding_window_view": _sliding_window_view,
}
"""By the name of NumPy's function."""
