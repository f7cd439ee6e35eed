"""Pack the tokens of a padded batch, so that padding is not computed."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from .. import integer
from ..integer.ops import attributes, operator_name
from .program import IntegerProgram, bindings, substitute, variables

PACKED = "ibert.packed"
"""Attribute of a function whose tokens are packed."""

# What works on every token by itself: where the token lies does not matter.
_PER_TOKEN = frozenset(
    f"integer.{name}"
    for name in (
        "embedding",
        "linear",
        "requantise",
        "requantise_even",
        "requantise_short",
        "gelu",
        "relu",
        "tanh",
        "add",
        "add_short",
        "layer_norm",
        "layer_norm_short",
        "released_layer_norm",
        "split_channels",
    )
)
_MASKED_READERS = frozenset({"integer.mean_pool", "integer.mask_tokens"})


class PackTokens:
    """Compute real tokens only: gather them before the first layer, and lay results out at the end.

    Expects ``main`` over ``integer.*`` operators. Where it can be applied, values per token
    ([batch, sequence, channels], unchanged in type) hold the kept tokens in their first rows
    afterwards, and anything behind them; ``integer.slot_starts`` says how many rows those are, so
    that kernels can skip the rest. Kept are the tokens that the attention mask keeps, and every
    position that is selected. Attention finds the rows of each sequence by ``slot_starts``, too.
    Results are unchanged bit for bit, and so are ranges::

        h = embedding(ids, table, m)           slots = token_slots(mask); rows = slot_tokens(slots)
        y = linear(h, w, b)               →    starts = slot_starts(slots)
        out = mask_tokens(y, mask)             h = embedding(pack_tokens(ids, rows), table, m)
                                               y = linear(h, w, b)
                                               out = mask_tokens(y, mask, slots)

    It can be applied if one mask, an input of the function, is that of all attention layers, pools
    and outputs, and every value per token comes from an operator that treats tokens alike. Outputs
    per token must be masked: what padding gives in an output is part of the program, and packed
    programs do not compute it. Otherwise the program stays as it is.
    """

    name = "pack_tokens"

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        # Without other names for one value.
        function = relax.transform.CanonicalizeBindings()(program.module)["main"]
        mask = _common_mask(function)
        if mask is None or not _packable(function):
            return program
        packed = _Packing(function, mask).run()
        return program.with_module(tvm.IRModule({"main": packed}))


def _per_token(expr: relax.Expr) -> bool:
    """Whether a value is [batch, sequence, channels]."""
    return isinstance(expr.ty, relax.TensorType) and len(expr.ty.shape.values) == 3


def _common_mask(function: relax.Function) -> relax.Var | None:
    """The input that all attention layers, pools and masked outputs read as their mask."""
    masks = []
    attention = False
    for binding in bindings(function):
        op, call = operator_name(binding.value), binding.value
        if op == "integer.attention":
            attention = True
            masks.append(call.args[3] if len(call.args) == 5 else None)
        elif op in _MASKED_READERS:
            masks.append(call.args[1] if len(call.args) == 2 else None)
    inputs = function.params[: int(function.attrs["num_input"])]
    mask = masks[0] if masks else None
    if not attention or not any(mask is not None and mask.same_as(var) for var in inputs):
        return None
    return mask if all(other is not None and other.same_as(mask) for other in masks) else None


def _packable(function: relax.Function) -> bool:
    """Whether every value per token may be packed; see the pass."""
    masked: set[relax.Var] = set()
    for binding in bindings(function):
        op = operator_name(binding.value)
        operands = [var for var in variables(binding.value) if _per_token(var)]
        if any(var in masked for var in operands):
            return False  # an operator behind an output finds tokens in place
        if op == "integer.attention" and binding.value.args[0] in binding.value.args[1:3]:
            return False  # a kernel finds queries and keys at different rows
        if op == "integer.mask_tokens":
            masked.add(binding.var)
        elif op == "":
            if not isinstance(binding.value, relax.Tuple):
                return False
        elif not _treats_tokens_alike(op, makes_tokens=_per_token(binding.var), reads=operands):
            return False
    inputs = [var for var in function.params if _per_token(var)]
    outputs = [var for var in _results(function) if _per_token(var)]
    return not inputs and all(var in masked for var in outputs)


def _treats_tokens_alike(op: str, makes_tokens: bool, reads: list[relax.Var]) -> bool:
    if makes_tokens:
        return op in _PER_TOKEN | {"integer.attention"}
    return not reads or op in {"integer.select_token", "integer.mean_pool"}


def _results(function: relax.Function) -> list[relax.Var]:
    """Variables that a function returns, also through a tuple that has a name."""
    tuples = {b.var: b.value for b in bindings(function) if isinstance(b.value, relax.Tuple)}
    body = function.body.body
    return variables(tuples.get(body, body))


class _Packing:
    """The rewriting of one function."""

    def __init__(self, function: relax.Function, mask: relax.Var) -> None:
        self.function = function
        self.mask = mask
        self.builder = relax.BlockBuilder()
        self.new: dict[relax.Var, relax.Expr] = {var: var for var in function.params}
        self.packed: dict[relax.Var, relax.Var] = {}

    def run(self) -> relax.Function:
        """Return the packed function."""
        function, builder = self.function, self.builder
        attrs = {**dict(function.attrs.items()), PACKED: 1}
        with builder.function("main", list(function.params), attrs=attrs):
            with builder.dataflow():
                self._count()
                for binding in bindings(function):
                    self._rewrite(binding)
                body = substitute(function.body.body, self.new)
                output = builder.emit_output(body)
            builder.emit_func_output(output)
        return builder.get()["main"]

    def _count(self) -> None:
        selected = {
            attributes(binding.value).index
            for binding in bindings(self.function)
            if operator_name(binding.value) == "integer.select_token"
        }
        emit = self.builder.emit
        positions = tuple(sorted(selected))
        slots = integer.token_slots(self.mask, name="packing.slots", selected=positions)
        self.slots = emit(slots)
        self.tokens = emit(integer.slot_tokens(self.slots, name="packing.tokens"))
        # Emission passes it to every kernel on packed rows.
        self.starts = emit(integer.slot_starts(self.slots, name="packing.starts"))

    def _rewrite(self, binding: relax.VarBinding) -> None:
        value = binding.value
        rewrite: Callable[[relax.Call, str], relax.Expr] | None = {
            "integer.embedding": self._embedding,
            "integer.attention": self._attention,
            "integer.mean_pool": self._placed,
            "integer.select_token": self._placed,
            "integer.mask_tokens": self._placed,
        }.get(operator_name(value))
        moved = substitute(value, self.new)
        if rewrite is not None:
            moved = rewrite(moved, str(value.attrs["name"]))
        self.new[binding.var] = self.builder.emit(moved)

    def _embedding(self, call: relax.Call, _name: str) -> relax.Call:
        return relax.Call(call.op, [self._packed(call.args[0]), *call.args[1:]], call.attrs)

    def _packed(self, numbers: relax.Var) -> relax.Var:
        """Pack ids, positions or the mask, each of them once."""
        if numbers not in self.packed:
            name = f"packing.operand.{len(self.packed)}"
            call = integer.pack_tokens(numbers, self.tokens, name=name)
            self.packed[numbers] = self.builder.emit(call)
        return self.packed[numbers]

    def _attention(self, call: relax.Call, _name: str) -> relax.Call:
        *operands, mask, multiplier = call.args
        return relax.Call(
            call.op, [*operands, self._packed(mask), multiplier, self.starts], call.attrs
        )

    def _placed(self, call: relax.Call, _name: str) -> relax.Call:
        return relax.Call(call.op, [*call.args, self.slots], call.attrs)
