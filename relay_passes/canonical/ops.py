"""Registration of the `canonical.*` Relax operators and their type inference.

The table of operators is in docs/architecture.md. Type inference works with symbolic batch and
sequence length; a wrong operand is refused when the call is built, with the operator, the value's
canonical name and the rule that is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.ir import op as _tvm_op
from tvm.sym import Analyzer

from .errors import CanonicalError

FLOAT = "float32"
"""The only float type of the canonical form."""
INDEX = "int64"
"""Type of ids and of the attention mask."""


@dataclass(frozen=True)
class OpSpec:
    """One operator of the dialect.

    Parameters
    ----------
    name : str
        Full operator name, for example ``canonical.linear``.
    arguments : tuple of str
        Names of the operands, in order.
    attributes : tuple of str
        Attributes that every call carries, ``name`` first.
    infer : callable
        ``infer(call) -> relax.TensorType``.
    optional : int
        Trailing operands that a call may leave out.
    """

    name: str
    arguments: tuple[str, ...]
    attributes: tuple[str, ...]
    infer: Callable[[relax.Call], relax.TensorType]
    optional: int = 0


def value_name(call: relax.Call) -> str:
    """Return the canonical name of the value that `call` produces.

    Parameters
    ----------
    call : tvm.relax.Call
        A call of a ``canonical.*`` operator.

    Returns
    -------
    str
        The ``name`` attribute, or ``<unnamed>`` when it is missing (only in malformed calls).
    """
    attrs = call.attrs
    if attrs is None or "name" not in attrs.keys():  # noqa: SIM118 (DictAttrs is no dict)
        return "<unnamed>"
    return str(attrs["name"])


def is_canonical(expr: relax.Expr) -> bool:
    """Tell whether `expr` is a call of a canonical operator."""
    return (
        isinstance(expr, relax.Call)
        and isinstance(expr.op, Op)
        and str(expr.op.name).startswith("canonical.")
    )


def same_extent(left: object, right: object) -> bool:
    """Tell whether two dimensions (int or symbolic) are provably equal."""
    return bool(Analyzer().can_prove_equal(left, right))


def _refuse(call: relax.Call, what: str, why: str, todo: str) -> CanonicalError:
    return CanonicalError(what, where=f"{call.op.name} {value_name(call)!r}", why=why, todo=todo)


def _tensor(call: relax.Call, index: int, ndim: int | None, dtype: str) -> list[object]:
    """Return the dimensions of operand `index` after checking its rank and type."""
    spec = SPECS[call.op.name]
    label = spec.arguments[index]
    fewest = len(spec.arguments) - spec.optional
    if not fewest <= len(call.args) <= len(spec.arguments):
        takes = f"{len(spec.arguments)}: {', '.join(spec.arguments)}"
        if spec.optional:
            takes += f" (the last {spec.optional} may be left out)"
        raise _refuse(
            call,
            f"{call.op.name} got {len(call.args)} operands",
            f"it takes {takes}",
            "build the call with ibert_tvm.relay_passes.canonical.build",
        )
    kind = call.args[index].ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise _refuse(
            call,
            f"operand {label} has no known shape ({kind})",
            "shapes decide widths and kernels, so every canonical value has one",
            "give the variable a TensorType with dimensions (symbolic ones serve)",
        )
    if str(kind.dtype) != dtype:
        raise _refuse(
            call,
            f"operand {label} is {kind.dtype}, not {dtype}",
            "the canonical form has one float type and one index type",
            f"cast {label} to {dtype} before it reaches the operator",
        )
    shape = list(kind.shape.values)
    if ndim is not None and len(shape) != ndim:
        raise _refuse(
            call,
            f"operand {label} has {len(shape)} dimensions {_show(shape)}",
            f"{call.op.name} needs {ndim}",
            f"reshape {label} in the frontend",
        )
    return shape


def _extent(dim: object) -> str:
    """Text of a dimension: plain digits, not TVM's ``T.int64(8)``."""
    return str(dim.value) if isinstance(dim, tirx.IntImm) else str(dim)


def _show(shape: Sequence[object]) -> str:
    return "(" + ", ".join(_extent(dim) for dim in shape) + ")"


def _match(call: relax.Call, left: object, right: object, what: str) -> None:
    if not same_extent(left, right):
        raise _refuse(
            call,
            f"{what} differ: {_extent(left)} and {_extent(right)}",
            "the operator contracts or adds along them",
            "check which tensor was passed",
        )


def _infer_embedding(call: relax.Call) -> relax.TensorType:
    table = _tensor(call, 0, 2, FLOAT)
    ids = _tensor(call, 1, 2, INDEX)
    return relax.TensorType([*ids, table[1]], FLOAT)


def _infer_position_ids(call: relax.Call) -> relax.TensorType:
    ids = _tensor(call, 0, 2, INDEX)
    if str(call.attrs["kind"]) not in POSITION_KINDS:
        raise _refuse(
            call,
            f"unknown kind {str(call.attrs['kind'])!r}",
            f"allowed kinds: {', '.join(POSITION_KINDS)}",
            "use one of them",
        )
    return relax.TensorType(ids, INDEX)


def _infer_patches(call: relax.Call) -> relax.TensorType:
    batch, channels, *image = _tensor(call, 0, 4, FLOAT)
    patch = [int(call.attrs[f"patch_{side}"]) for side in ("height", "width")]
    counts = [
        int(extent) // size if size > 0 else 0  # type: ignore[call-overload]
        for extent, size in zip(image, patch, strict=True)
    ]
    if min(counts) < 1:
        raise _refuse(
            call,
            f"patches of {patch[0]} x {patch[1]} of an image of {_show(image)}",
            "an image holds at least one whole patch",
            "check the patch size and the image size",
        )
    width = int(channels) * patch[0] * patch[1]  # type: ignore[call-overload]
    return relax.TensorType([batch, counts[0] * counts[1], width], FLOAT)


def _infer_prepend_tokens(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, 3, FLOAT)
    tokens = _tensor(call, 1, 2, FLOAT)
    _match(call, tokens[1], x[2], "the channels of tokens and value")
    return relax.TensorType([x[0], x[1] + tokens[0], x[2]], FLOAT)  # type: ignore[operator]


def _infer_add_positions(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, 3, FLOAT)
    table = _tensor(call, 1, 2, FLOAT)
    _match(call, table[0], x[1], "the rows of the table and the tokens")
    _match(call, table[1], x[2], "the channels of table and value")
    return relax.TensorType(x, FLOAT)


def _infer_linear(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, None, FLOAT)
    weight = _tensor(call, 1, 2, FLOAT)
    bias = _tensor(call, 2, 1, FLOAT)
    _match(call, x[-1], weight[1], "the input's channels and the weight's columns")
    _match(call, bias[0], weight[0], "the bias's length and the weight's rows")
    return relax.TensorType([*x[:-1], weight[0]], FLOAT)


def _infer_attention(call: relax.Call) -> relax.TensorType:
    q, k, v = (_tensor(call, index, 3, FLOAT) for index in range(3))
    for label, other in (("keys", k), ("values", v)):
        for axis, what in enumerate(("batch", "sequence length", "channels")):
            _match(call, q[axis], other[axis], f"the {what} of queries and {label}")
    if len(call.args) > 3:
        mask = _tensor(call, 3, 2, INDEX)
        for axis, what in enumerate(("batch", "sequence length")):
            _match(call, q[axis], mask[axis], f"the {what} of queries and mask")
    heads = int(call.attrs["num_heads"])
    if heads < 1 or int(q[2]) % heads:  # type: ignore[call-overload]
        raise _refuse(
            call,
            f"{_extent(q[2])} channels do not divide by {heads} heads",
            "every head has the same number of channels",
            "check num_heads",
        )
    return relax.TensorType(q, FLOAT)


def _infer_layer_norm(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, None, FLOAT)
    for index, what in ((1, "gamma"), (2, "beta")):
        _match(call, _tensor(call, index, 1, FLOAT)[0], x[-1], f"the length of {what} and channels")
    return relax.TensorType(x, FLOAT)


def _infer_elementwise(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(_tensor(call, 0, None, FLOAT), FLOAT)


def _infer_gelu(call: relax.Call) -> relax.TensorType:
    if str(call.attrs["form"]) not in GELU_FORMS:
        raise _refuse(
            call,
            f"unknown form {str(call.attrs['form'])!r}",
            f"allowed forms: {', '.join(GELU_FORMS)}",
            "use one of them",
        )
    return _infer_elementwise(call)


def _infer_add(call: relax.Call) -> relax.TensorType:
    a = _tensor(call, 0, None, FLOAT)
    b = _tensor(call, 1, len(a), FLOAT)
    for axis, (left, right) in enumerate(zip(a, b, strict=True)):
        _match(call, left, right, f"axis {axis} of the two terms")
    return relax.TensorType(a, FLOAT)


def _infer_mean_pool(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, 3, FLOAT)
    if len(call.args) > 1:
        mask = _tensor(call, 1, 2, INDEX)
        _match(call, x[0], mask[0], "the batch of value and mask")
        _match(call, x[1], mask[1], "the sequence length of value and mask")
    return relax.TensorType([x[0], x[2]], FLOAT)


def _infer_select_token(call: relax.Call) -> relax.TensorType:
    x = _tensor(call, 0, 3, FLOAT)
    return relax.TensorType([x[0], x[2]], FLOAT)


POSITION_KINDS = ("absolute", "roberta")
GELU_FORMS = ("erf", "tanh")

SPECS: dict[str, OpSpec] = {
    spec.name: spec
    for spec in (
        OpSpec("canonical.embedding", ("table", "ids"), ("name",), _infer_embedding),
        OpSpec(
            "canonical.position_ids",
            ("input_ids",),
            ("name", "kind", "offset", "padding_index"),
            _infer_position_ids,
        ),
        OpSpec(
            "canonical.patches",
            ("pixel_values",),
            ("name", "patch_height", "patch_width"),
            _infer_patches,
        ),
        OpSpec("canonical.prepend_tokens", ("x", "tokens"), ("name",), _infer_prepend_tokens),
        OpSpec("canonical.add_positions", ("x", "table"), ("name",), _infer_add_positions),
        OpSpec("canonical.linear", ("x", "weight", "bias"), ("name",), _infer_linear),
        OpSpec(
            "canonical.attention",
            ("q", "k", "v", "attention_mask"),
            ("name", "num_heads", "scale"),
            _infer_attention,
            optional=1,
        ),
        OpSpec(
            "canonical.layer_norm", ("x", "gamma", "beta"), ("name", "epsilon"), _infer_layer_norm
        ),
        OpSpec("canonical.gelu", ("x",), ("name", "form"), _infer_gelu),
        OpSpec("canonical.relu", ("x",), ("name",), _infer_elementwise),
        OpSpec("canonical.tanh", ("x",), ("name",), _infer_elementwise),
        OpSpec("canonical.add", ("a", "b"), ("name",), _infer_add),
        OpSpec(
            "canonical.mean_pool",
            ("x", "attention_mask"),
            ("name",),
            _infer_mean_pool,
            optional=1,
        ),
        OpSpec("canonical.select_token", ("x",), ("name", "index"), _infer_select_token),
    )
}
"""Every operator of the dialect by its full name."""


def _register() -> None:
    for spec in SPECS.values():
        _tvm_op._ffi_api.RegisterOp(spec.name, f"canonical form, see {__name__}")
        infer = spec.infer
        tvm.ir.register_op_attr(
            spec.name, "FInferType", lambda call, _builder, infer=infer: infer(call)
        )
        tvm.ir.register_op_attr(spec.name, "FPurity", True)


_register()
