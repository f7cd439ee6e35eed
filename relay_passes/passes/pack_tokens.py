"""Unpadding: pack the tokens of a padded batch, so that padding is not computed."""

from __future__ import annotations

from tvm import relax

from .. import integer
from ..dialect.calls import operands_of, with_operands
from ..dialect.record import Operand
from ..integer.operators.tokens import MaskTokens
from ..integer.relax_ops import calls, is_integer_op, operator_of, traits_of
from .program import IntegerProgram, Rewriter, bindings, substitute, variables

PACKED = "ibert.packed"
"""Attribute of a function whose tokens are packed: which of its inputs is the mask, and the
positions that are kept whatever it says."""


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

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        # Without other names for one value.
        function = relax.transform.CanonicalizeBindings()(program.module)["main"]
        mask = _common_mask(function)
        if mask is None or not _packable(function):
            return program
        return program.with_module(_Packing(program, function, mask).run())


def _per_token(expr: relax.Expr) -> bool:
    """Whether a value is [batch, sequence, channels]."""
    return isinstance(expr.ty, relax.TensorType) and len(expr.ty.shape.values) == 3


def _reads(call: relax.Call) -> dict[str, Operand]:
    """Operands that the operator of a call may have, by name."""
    return {operand.name: operand for operand in operator_of(call).OPERANDS}


def _common_mask(function: relax.Function) -> relax.Var | None:
    """The input that all operators that can read a mask do read."""
    masks = []
    meets = False
    for binding in bindings(function):
        if is_integer_op(binding.value):
            operands = operands_of(binding.value)
            reads = _reads(binding.value)
            meets |= traits_of(binding.value).by_sequence
            masks += [operands.get(name) for name, operand in reads.items() if operand.is_mask]
    inputs = function.params[: int(function.attrs["num_input"])]
    mask = masks[0] if masks else None
    if not meets or not any(mask is not None and mask.same_as(var) for var in inputs):
        return None
    return mask if all(other is not None and other.same_as(mask) for other in masks) else None


def _packable(function: relax.Function) -> bool:
    """Whether every value per token may be packed; see the pass."""
    masked: set[relax.Var] = set()
    for binding in bindings(function):
        call = binding.value
        operands = [var for var in variables(call) if _per_token(var)]
        if any(var in masked for var in operands):
            return False  # an operator behind an output finds tokens in place
        if not is_integer_op(call):
            if not isinstance(call, relax.Tuple):
                return False
            continue
        traits, found = traits_of(call), operands_of(call)
        views = [found[name] for name in traits.reads_views]
        if len(set(views)) < len(views):
            return False  # a kernel finds queries and keys at different rows
        if calls(call, MaskTokens):
            masked.add(binding.var)
        elif not _treats_tokens_alike(call, _per_token(binding.var), bool(operands)):
            return False
    inputs = [var for var in function.params if _per_token(var)]
    outputs = [var for var in _results(function) if _per_token(var)]
    return not inputs and all(var in masked for var in outputs)


def _treats_tokens_alike(call: relax.Call, makes_tokens: bool, reads_tokens: bool) -> bool:
    """Whether an operator works on tokens wherever they lie, or can be told where."""
    traits, known = traits_of(call), _reads(call)
    if makes_tokens:
        return traits.per_token or (traits.by_sequence and "starts" in known)
    return not reads_tokens or "slots" in known


def _results(function: relax.Function) -> list[relax.Var]:
    """Variables that a function returns, also through a tuple that has a name."""
    tuples = {b.var: b.value for b in bindings(function) if isinstance(b.value, relax.Tuple)}
    body = function.body.body
    return variables(tuples.get(body, body))


class _Packing(Rewriter):
    def __init__(self, program: IntegerProgram, function: relax.Function, mask: relax.Var) -> None:
        selected = {
            position
            for binding in bindings(function)
            if is_integer_op(binding.value)
            for position in operator_of(binding.value).selected_tokens()
        }
        self.selected = sorted(selected)
        place = next(i for i, var in enumerate(function.params) if var.same_as(mask))
        super().__init__(program, function, attrs={PACKED: [place, *self.selected]})
        self.mask = mask
        self.packed: dict[relax.Var, relax.Var] = {}

    def begin(self) -> None:
        """Count the tokens."""
        emit = self.builder.emit
        positions = ",".join(map(str, self.selected))
        slots = integer.token_slots(self.mask, name="packing.slots", selected=positions)
        self.slots = emit(slots)
        self.tokens = emit(integer.slot_tokens(self.slots, name="packing.tokens"))
        # Emission passes it to every kernel on packed rows.
        self.starts = emit(integer.slot_starts(self.slots, name="packing.starts"))

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr:
        """Have the operator read packed operands, and be told where tokens lie."""
        call = substitute(binding.value, self.new)
        if is_integer_op(binding.value):
            per_token = _per_token(binding.var) or any(map(_per_token, variables(binding.value)))
            known, given = _reads(binding.value), operands_of(call)
            changes = {
                name: self._packed(given[name])
                for name, operand in known.items()
                if operand.by_token and name in given and per_token
            }
            told = {"slots": self.slots, "starts": self.starts}
            if operator_of(binding.value).needs_places(given):
                told["tokens"] = self.tokens
            changes |= {name: var for name, var in told.items() if name in known and per_token}
            if changes:
                call = with_operands(call, **changes)
        return self.builder.emit(call)

    def _packed(self, numbers: relax.Var) -> relax.Var:
        """Pack ids, positions or the mask, each of them once."""
        if numbers not in self.packed:
            name = f"packing.operand.{len(self.packed)}"
            call = integer.pack_tokens(numbers, self.tokens, name=name)
            self.packed[numbers] = self.builder.emit(call)
        return self.packed[numbers]
