"""Torch tensors that NumPy's functions take: what is written for NumPy runs on torch as it is.

The integer specification (`ibert_tvm.relay_passes.spec`) and the float meanings of canonical
operators are written with NumPy's operators and functions. `TensorArray` answers NumPy's two
protocols (``__array_ufunc__``, ``__array_function__``) with torch, so that neither is written a
second time, and gradients of the float meanings are torch's own.

An operation in place gives the array a new tensor instead of writing to the old one, as torch's
gradients need it; another array that shares the old one does not see it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike

Operand: TypeAlias = torch.Tensor | float
"""What torch's functions take."""


def tensor_of(value: object, device: torch.device) -> Any:
    """Return what torch computes with: tensors on `device`, and Python's numbers as they are.

    Parameters
    ----------
    value : TensorArray, numpy.ndarray, number or other
        An operand, or an index.
    device
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
    tensor
        Of any type that both libraries have.

    Attributes
    ----------
    tensor
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    # -- NumPy's protocols ----------------------------------------------------------------------

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: object,
        out: tuple[TensorArray] | None = None,
        **options: object,
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
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        answer = _FUNCTIONS.get(function.__name__)
        if answer is None:
            return NotImplemented
        device = self.tensor.device
        plain = [
            [tensor_of(part, device) for part in x]
            if isinstance(x, (list, tuple))
            else tensor_of(x, device)
            for x in args
        ]
        result = answer(*plain, **kwargs)
        if isinstance(result, torch.Tensor):
            return TensorArray(result)
        return [TensorArray(part) for part in result]

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

    def __getitem__(self, index: object) -> TensorArray:
        parts = index if isinstance(index, tuple) else (index,)
        tensor, axis, chosen = self.tensor, 0, []
        for part in parts:
            if isinstance(part, slice) and part.step == -1 and part.start is part.stop is None:
                tensor, part = tensor.flip(axis), slice(None)  # torch has no steps backwards
            axis += part is not None
            chosen.append(tensor_of(part, tensor.device))
        return TensorArray(tensor[tuple(chosen)])

    def __setitem__(self, index: Any, value: object) -> None:
        tensor = self.tensor.clone()
        tensor[index] = tensor_of(value, tensor.device)
        self.tensor = tensor

    def astype(self, dtype: DTypeLike, copy: bool = True) -> TensorArray:
        """Convert, also to a type of NumPy's name."""
        return TensorArray(self.tensor.to(getattr(torch, np.dtype(dtype).name)))

    def reshape(self, *shape: int | tuple[int, ...]) -> TensorArray:
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


def _limit(
    clamp: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[Operand, Operand], torch.Tensor]:
    """A minimum or maximum with a number or a tensor, in either order."""

    def limited(a: Operand, b: Operand) -> torch.Tensor:
        if not isinstance(a, torch.Tensor):
            a, b = b, a
        assert isinstance(a, torch.Tensor)  # of numbers alone NumPy asks nobody
        return function(a, b) if isinstance(b, torch.Tensor) else a.clamp(**{clamp: b})

    return limited


def _power(a: Any, b: Operand) -> torch.Tensor:
    return a * a if isinstance(b, (int, float)) and b == 2 else torch.pow(a, b)


_UFUNCS: dict[str, Callable[..., torch.Tensor]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "matmul": operator.matmul,
    "power": _power,
    "floor_divide": operator.floordiv,
    "remainder": torch.remainder,
    "negative": torch.neg,
    "absolute": torch.abs,
    "minimum": _limit("max", torch.minimum),
    "maximum": _limit("min", torch.maximum),
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "invert": torch.bitwise_not,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "log1p": torch.log1p,
    "erf": torch.erf,
    "expit": torch.sigmoid,
}
"""By the name of NumPy's (or SciPy's) function; Python's operators take numbers on either side."""


def _where(condition: Operand, yes: Operand, no: Operand) -> torch.Tensor:
    if not isinstance(condition, torch.Tensor):
        known = next(side for side in (yes, no) if isinstance(side, torch.Tensor))
        condition = torch.tensor(bool(condition), device=known.device)
    return torch.where(condition, yes, no)


def _einsum(pattern: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if pattern == "...c,...c->...":  # torch makes one matrix product per row of it
        return (a * b).sum(-1)
    return torch.einsum(pattern, a, b.to(a.dtype))


def _split(x: torch.Tensor, places: Sequence[int], axis: int = 0) -> Sequence[torch.Tensor]:
    return torch.tensor_split(x, tuple(places), dim=axis)


def _take_along_axis(x: torch.Tensor, places: torch.Tensor, axis: int) -> torch.Tensor:
    extents = list(x.shape)
    extents[axis] = places.shape[axis]
    return torch.gather(x, axis, places.expand(extents))


def _pad(x: torch.Tensor, widths: Sequence[tuple[int, int]]) -> torch.Tensor:
    return torch.nn.functional.pad(x, [width for pair in reversed(widths) for width in pair])


def _sliding_window_view(
    x: torch.Tensor, shape: int | tuple[int, ...], axis: int | tuple[int, ...]
) -> torch.Tensor:
    for width, along in zip(np.atleast_1d(shape), np.atleast_1d(axis), strict=True):
        x = x.unfold(int(along), int(width), 1)
    return x


_FUNCTIONS: dict[str, Callable[..., torch.Tensor | Sequence[torch.Tensor]]] = {
    "where": _where,
    "einsum": _einsum,
    "concatenate": lambda arrays, axis=0: torch.cat(arrays, dim=axis),
    "split": _split,
    "broadcast_to": lambda x, shape: x.expand(shape),
    "clip": lambda x, low, high: x.clamp(float(low), float(high)),
    "cumsum": lambda x, axis: x.cumsum(axis),
    "argmax": lambda x, axis: x.to(torch.int64).argmax(axis),
    "take_along_axis": _take_along_axis,
    "zeros_like": torch.zeros_like,
    "pad": _pad,
    "sliding_window_view": _sliding_window_view,
}
"""By the name of NumPy's function."""
