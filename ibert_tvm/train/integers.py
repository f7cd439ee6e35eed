"""Run an integer program on torch tensors: every integer is that of the NumPy reference."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from ibert_tvm.relay_passes.errors import CompilerError, LoweringError, RangeError
from ibert_tvm.relay_passes.integer.arrays import Array, Entry
from ibert_tvm.relay_passes.integer.evaluate import run_whole
from ibert_tvm.relay_passes.integer.operator import Operator, Serial
from ibert_tvm.relay_passes.integer.program import Program

# Torch tensors that NumPy's functions take: what is written for NumPy runs on torch as it is.
#
# The integer specification (`ibert_tvm.relay_passes.spec`) and the float meanings of canonical
# operators are written with NumPy's operators and functions. `TensorArray` answers NumPy's two
# protocols (``__array_ufunc__``, ``__array_function__``) with torch, so that neither is written a
# second time, and gradients of the float meanings are torch's own.
#
# An operation in place gives the array a new tensor instead of writing to the old one, as torch's
# gradients need it; another array that shares the old one does not see it.

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


# Integers on torch tensors, on any device: what the domain of arrays is made of in training.
#
# The bodies of integer operators run on `ibert_tvm.relay_passes.integer.arrays` here as they do
# with NumPy. Arrays are `TensorArray`, int64; only exact products and bounds are torch's own.

_EXACT = 2**24
"""float32 has every integer up to here."""


def exact_product(a: torch.Tensor, b: torch.Tensor, largest_a: int, largest_b: int) -> torch.Tensor:
    """``a @ b`` of integers, exactly, by float matrix products.

    In float32 where no partial sum can reach 2^24, cut along the inner axis if it must be; in
    float64 below 2^53. Every product and partial sum is then an integer that the type has. Where
    torch was told that float32 products may be less precise (TF32, bfloat16), all are float64.

    Parameters
    ----------
    a, b
        int64 [..., M, K] and [..., K, N].
    largest_a, largest_b
        Bounds of their magnitudes.

    Returns
    -------
    torch.Tensor
        int64 [..., M, N].

    Raises
    ------
    RangeError
        If a sum might not fit 53 bits.
    """
    inner, term = a.shape[-1], max(largest_a * largest_b, 1)
    if inner * term >= 2**53:
        raise RangeError(
            "a matrix product may not fit 53 bits",
            why=f"its elements are bounded by {inner * term}",
            todo="use narrower operands",
        )
    run = (_EXACT - 1) // term
    # Many short products would take longer than one of twice the width.
    if run * 4 < inner or torch.get_float32_matmul_precision() != "highest":
        return (a.double() @ b.double()).to(torch.int64)
    left, right = a.float(), b.float()
    if inner <= run:
        return (left @ right).to(torch.int64)
    cuts = range(0, inner, -(-inner // -(-inner // run)))
    parts = [left[..., k : k + cuts.step] @ right[..., k : k + cuts.step, :] for k in cuts]
    return torch.stack([part.to(torch.int64) for part in parts]).sum(0)


class TensorNumbers:
    """Arrays are `TensorArray`.

    Parameters
    ----------
    device
        Of all tensors.
    """

    kind = np.int64

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def array(self, value: Entry, shape: tuple[int, ...]) -> Array:
        """Return the value as an array of a shape."""
        tensor = tensor_of(value, self.device)
        if not isinstance(tensor, torch.Tensor):
            tensor = torch.tensor(tensor, device=self.device)
        return cast(Array, TensorArray(tensor.to(torch.int64).expand(shape)))

    def product(self, a: Array, b: Array, largest_a: int, largest_b: int) -> Array:
        """Return the exact matrix product of two arrays within these magnitudes."""
        left, right = tensor_of(a, self.device), tensor_of(b, self.device)
        return cast(Array, TensorArray(exact_product(left, right, largest_a, largest_b)))

    def bounds(self, array: Array) -> tuple[int, int]:
        """Return the least and the greatest element."""
        low, high = torch.aminmax(tensor_of(array, self.device))
        return int(low), int(high)


class IntegerProgram:
    """A program with its constants on a device.

    Parameters
    ----------
    program
        Of the integer dialect, as lowering makes it.
    parameters
        Its constants.
    device
        Where it runs.
    """

    def __init__(
        self, program: Program, parameters: Mapping[str, NDArray[np.integer]], device: torch.device
    ) -> None:
        self.program = program
        self.device = device
        self._constants = {
            name: torch.from_numpy(parameters[name]).to(device) for name in program.parameters
        }

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute every value.

        Parameters
        ----------
        inputs
            Integers [batch, seq_len], and what else the program takes.

        Returns
        -------
        dict of str to torch.Tensor
            int64, by name of the step.

        Raises
        ------
        RangeError
            If an id is no row of its table.
        LoweringError
            If the program was prepared for the compiler.
        """
        values = dict(self._constants)
        values |= {name: inputs[name].to(self.device) for name in self.program.inputs}
        types = {**self.program.inputs, **self.program.parameters}
        for step in self.program.steps:
            dtypes = {name: types[value].dtype for name, value in step.operands.items()}
            operands = {name: values[value] for name, value in step.operands.items()}
            try:
                # Within torch's mixed precision products would not be exact.
                with torch.autocast(self.device.type, enabled=False):
                    values[step.name] = _run(step.operator, operands, dtypes, self.device)
            except CompilerError as error:
                raise error.at(step.operator.where) from None
            types[step.name] = step.type
        return {step.name: values[step.name] for step in self.program.steps}


def _run(
    operator: Operator,
    operands: Mapping[str, torch.Tensor],
    dtypes: Mapping[str, str],
    device: torch.device,
) -> torch.Tensor:
    if isinstance(operator, Serial):
        raise LoweringError(
            f"{operator.OP} cannot be evaluated with torch",
            operator.where,
            "it belongs to programs whose padding was left out, which only the compiler makes",
            "give the program as lowering made it",
        )
    numbers = TensorNumbers(device)
    arrays = {name: numbers.array(x, tuple(x.shape)) for name, x in operands.items()}
    return tensor_of(run_whole(operator, arrays, dtypes, numbers), device)
