"""Meaning of tensors that depend on the model's inputs only: token ids, positions, padding masks.

Exporters build masks and positions from long chains of arange, comparison, indexing and where,
each library in its own way and with the probe shape written into it. What such a chain computes is
decided here by running it (with TVM) on probe inputs: all tokens, no token, one padded token at
every place, random masks, random ids. A tensor that follows `attention_mask` in every one of them
is that mask, whatever it was made of, and the constants of the probe shape disappear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
from tvm import relax

from ...common.errors import error_lines
from ...common.types import Array, Longs
from .mismatch import Mismatch
from .operands import static_shape

TOKEN_IDS = "input_ids"
"""The input that holds token ids."""

# Tokens of a probe shape up to which each is padded alone in one run.
_EVERY_PLACE = 64

# Runs with one padded token, and with random masks, at a shape that is only probed for distances.
_FEW_PLACES = 3


@dataclass(frozen=True, eq=False)
class Probes:
    """Inputs of the probe runs.

    Parameters
    ----------
    names
        Names of the inputs that hold tokens.
    batch, seq_len
        The probe shape, in which source tensors are laid out; `seq_len` is 0 for images.
    few
        Whether a few runs serve, since the same graph was probed at a shorter length before.
    compared
        Ids that the graph compares its token ids with: one more run has them.
    absent_id
        A token id that no run may have: the vocabulary is cut there.
    """

    names: tuple[str, ...]
    batch: int
    seq_len: int
    few: bool = False
    compared: tuple[int, ...] = ()
    absent_id: int | None = None

    @cached_property
    def runs(self) -> list[dict[str, Longs]]:
        """The inputs of every run."""
        runs, absent = list(self._make()), self.absent_id
        if absent is not None:
            for run in runs:
                run[TOKEN_IDS] = np.where(run[TOKEN_IDS] == absent, absent - 1, run[TOKEN_IDS])
        return runs

    def _make(self) -> Iterator[dict[str, Longs]]:
        shape = (self.batch, self.seq_len)
        random = np.random.default_rng(0)
        ones = {name: np.ones(shape, np.int64) for name in self.names}
        yield ones
        yield {name: np.zeros(shape, np.int64) for name in self.names}
        places = list(np.ndindex(shape))
        more = 3
        if len(places) > _EVERY_PLACE:
            # Long sequences, of models for one length: masks are as large as the square of it.
            # Which place a wrong mask shows at is then left to many random masks.
            more = _FEW_PLACES if self.few else _EVERY_PLACE
            places = [places[i] for i in random.permutation(len(places))[:more]]
        for name in self.names:
            for place in places:
                flipped = ones[name].copy()
                flipped[place] = 0
                yield {**ones, name: flipped}
        for high in (*(2,) * more, 7, 7, 7):
            yield {name: random.integers(0, high, shape) for name in self.names}
        if self.compared:
            yield {name: random.choice([*self.compared, 2, 3], shape) for name in self.names}
        ramp = np.arange(self.batch * self.seq_len).reshape(shape) + 100
        yield {name: ramp + 1000 * index for index, name in enumerate(self.names)}

    def binary(self, name: str) -> list[int]:
        """Return the runs in which input `name` holds only 0 and 1."""
        return [i for i, run in enumerate(self.runs) if run[name].max() <= 1]


@dataclass(frozen=True, eq=False)
class InputGraph:
    """The part of a source function that depends on inputs and constants only.

    Parameters
    ----------
    inputs
        Input parameters of the source function.
    bindings
        Bindings that depend on nothing else, in order.
    wanted
        Variables whose values are asked for.
    probes
        The probe runs.
    """

    inputs: Sequence[relax.Var]
    bindings: Sequence[relax.Binding]
    wanted: Sequence[relax.Var]
    probes: Probes

    @cached_property
    def variables(self) -> frozenset[relax.Var]:
        """All variables whose values it could compute."""
        return frozenset([*self.inputs, *(binding.var for binding in self.bindings)])

    def samples(self, variable: relax.Var) -> list[Array]:
        """Return the values of `variable` in every run.

        Raises
        ------
        Mismatch
            If TVM cannot compile or run the chain.
        """
        group = self._small
        if variable not in group:
            group = (variable,)
        if group not in self._known:
            self._known[group] = self._values(group)
        return self._known[group][variable]

    @cached_property
    def _known(self) -> dict[tuple[relax.Var, ...], dict[relax.Var, list[Array]]]:
        return {}

    @cached_property
    def _small(self) -> tuple[relax.Var, ...]:
        """What is computed at once: all, or at a long shape what has no entry by pair of tokens."""
        if not self.probes.few:
            return tuple(self.wanted)
        pairs = self.probes.seq_len**2
        return tuple(var for var in self.wanted if np.prod(static_shape(var)) < pairs)

    def _values(self, wanted: Sequence[relax.Var]) -> dict[relax.Var, list[Array]]:
        try:
            return self._evaluate(wanted)
        except Exception as error:  # TVM raises several classes for what it cannot compile
            line = error_lines(error)[-1]
            raise Mismatch(f"TVM cannot evaluate the mask or position chain: {line}") from error

    def _evaluate(self, wanted: Sequence[relax.Var]) -> dict[relax.Var, list[Array]]:
        outputs = [relax.Var(f"out{index}", var.ty) for index, var in enumerate(wanted)]
        pairs = zip(outputs, wanted, strict=True)
        copies = [relax.VarBinding(out, var) for out, var in pairs]
        block = relax.DataflowBlock([*map(_filled, self.bindings), *copies])
        function = relax.Function(
            self.inputs,
            relax.SeqExpr([block], relax.Tuple(outputs)),
            relax.TupleType([var.ty for var in outputs]),
        ).with_attr("global_symbol", "main")
        module = relax.transform.DeadCodeElimination()(tvm.IRModule({"main": function}))
        # It runs a few times on small tensors: optimising takes longer than it saves, and so do
        # checks of the arguments, which are two thirds of the code.
        target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
        result: dict[relax.Var, list[Array]] = {var: [] for var in wanted}
        for run in self.probes.runs:
            arguments = [
                tvm.runtime.tensor(run[name].astype(str(var.ty.dtype)))
                for name, var in zip(self.probes.names, self.inputs, strict=True)
            ]
            for var, tensor in zip(wanted, machine["main"](*arguments), strict=True):
                result[var].append(tensor.numpy())
        return result


def _filled(binding: relax.Binding) -> relax.Binding:
    """Write a tensor of one number out: TVM 0.27 cannot compile one of infinities."""
    call = binding.value
    if not isinstance(call, relax.Call) or call.op.name != "relax.full":
        return binding
    number, dtype = call.args[1], str(binding.var.ty.dtype)
    if not isinstance(number, tvm.ir.GenericConst):
        return binding
    array = np.full(static_shape(binding.var), number.value.numpy(), dtype)
    return relax.VarBinding(binding.var, relax.const(array, dtype))


def _as_tokens(array: Array, probes: Probes) -> Array | None:
    """View `array` as [batch, seq_len], or [1, seq_len] where the batch is missing."""
    if array.size == probes.batch * probes.seq_len:
        return array.reshape(probes.batch, probes.seq_len)
    if array.size == probes.seq_len:
        return array.reshape(1, probes.seq_len)
    return None


@dataclass(frozen=True)
class Ids:
    """Meaning of a tensor of indices.

    Parameters
    ----------
    kind
        ``input`` (an input as it is), ``absolute``, ``roberta`` (positions) or ``constant`` (one
        index everywhere).
    input
        The input it is, or depends on.
    value
        Offset of absolute positions, padding index of RoBERTa's, or the constant index.
    has_batch
        False if the tensor has no batch axis.
    """

    kind: str
    input: str = ""
    value: int = 0
    has_batch: bool = True


def as_ids(arrays: Sequence[Array], shape: tuple[int, ...], probes: Probes) -> Ids:
    """Tell what indices a tensor holds.

    Parameters
    ----------
    arrays
        Its values in every run.
    shape
        Its shape in the source.
    probes
        The probe runs.

    Returns
    -------
    Ids
        Its meaning.

    Raises
    ------
    Mismatch
        If it is nothing known, or an index into the probe shape.
    """
    constant = all(np.array_equal(array, arrays[0]) for array in arrays)
    first = arrays[0]
    if constant and first.size and np.all(first == first.flat[0]):
        has_batch = first.size != probes.seq_len
        return Ids("constant", value=int(first.flat[0]), has_batch=has_batch)
    tokens = [_as_tokens(array, probes) for array in arrays]
    kept = [array for array in tokens if array is not None]
    if first.size == probes.seq_len**2:
        raise Mismatch("its indices are one per pair of tokens, and depend on the inputs")
    if len(kept) != len(tokens):
        raise Mismatch(f"indices of shape {shape} are not one per token")
    has_batch = kept[0].shape[0] == probes.batch
    if constant:
        offset = int(kept[0].flat[0])
        if np.all(kept[0] == offset + np.arange(probes.seq_len)):
            return Ids("absolute", value=offset, has_batch=has_batch)
        raise Mismatch(
            "its indices are constants that are neither one row nor consecutive positions, so "
            "they hold only for the shape that was exported"
        )
    for name in probes.names:
        inputs = [run[name] for run in probes.runs]
        if all(np.array_equal(a, b) for a, b in zip(kept, inputs, strict=True)):
            return Ids("input", input=name)
        padding = int(kept[-1].flat[0]) - 1
        if all(np.array_equal(a, _roberta(b, padding)) for a, b in zip(kept, inputs, strict=True)):
            return Ids("roberta", input=name, value=padding)
    raise Mismatch(
        "its indices depend on the inputs, but are neither an input itself nor positions counted "
        "from its tokens that are not padding"
    )


def _roberta(ids: Longs, padding: int) -> Longs:
    token = (ids != padding).astype(np.int64)
    return np.cumsum(token, axis=1) * token + padding


def compared_id(condition: Sequence[Array], probes: Probes) -> int | None:
    """Return the id that a token has where a condition holds in every run, or None."""
    if TOKEN_IDS not in probes.names:
        return None
    found = [_as_tokens(array, probes) for array in condition]
    for number in probes.compared:
        if all(
            array is not None and np.array_equal(array != 0, run[TOKEN_IDS] == number)
            for array, run in zip(found, probes.runs, strict=True)
        ):
            return number
    return None
