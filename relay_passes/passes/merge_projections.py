"""Compute linear layers of one activation that meet later in one matrix product."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from .. import integer
from ..dialect.calls import operands_of, with_attributes, with_operands
from ..integer.relax_ops import is_integer_op, operator_of, traits_of
from .program import IntegerProgram, Rewriter, bindings, substitute, variables, with_live_parameters


@dataclass(frozen=True)
class _Projection:
    """A linear layer and what follows it up to a requantisation, which is only read in place."""

    steps: tuple[relax.VarBinding, ...]

    @property
    def requantised(self) -> relax.VarBinding:
        """The last step."""
        return self.steps[-1]

    @property
    def linear(self) -> relax.VarBinding:
        """The first step."""
        return self.steps[0]

    @property
    def source(self) -> relax.Var:
        """What is projected."""
        return operands_of(self.linear.value)["x"]

    @property
    def weights(self) -> list[dict[str, relax.Var]]:
        """Constants by channel of each step, by operand."""
        return [_operands(binding.value, constants=True) for binding in self.steps]

    @property
    def matrix(self) -> relax.Var:
        """The weight."""
        return self.weights[0]["weight"]

    @property
    def settings(self) -> tuple[object, ...]:
        """What must agree: operations, their attributes but the names, and numbers of rows."""
        found: list[object] = []
        for binding in self.steps:
            record = operator_of(binding.value)
            others = _operands(binding.value, constants=False)
            numbers = [var for name, var in others.items() if name != "x"]
            found += [type(record), *sorted(replace(record, name="").to_dict().items()), *numbers]
        return tuple(found)

    @property
    def channels(self) -> int:
        """Rows of the matrix."""
        return int(self.matrix.ty.shape.values[0])


def _operands(call: relax.Call, constants: bool) -> dict[str, relax.Var]:
    """Operands that are constants of the model, or those that are not, by name."""
    kinds = {operand.name: operand.is_constant for operand in operator_of(call).OPERANDS}
    return {name: var for name, var in operands_of(call).items() if kinds[name] == constants}


class MergeProjections:
    """Merge the linear layers that make queries, keys and values, or both sides of a gate.

    Expects ``main`` over ``integer.*`` operators. Where two or three operands of an attention layer
    are linear layers of the same activation, requantised with the same attributes (and before that
    scaled by the same magnitudes of rows), they are rows of one layer afterwards, and each operand
    is a run of its channels, which costs nothing: attention reads it in place, or what lies between
    reads it so (a rotation). Keys and values may be narrower than queries (`integer.channel_run`,
    where runs of one width are `integer.split_channels`). Values and ranges are unchanged; the
    merged layer takes the name of the attention layer with ``.projections``::

        q = requantise_short(linear(x, wq, bq), mq)    y = requantise_short(linear(x, w, b), m)
        k = requantise_short(linear(x, wk, bk), mk)  → q, k, v = split_channels(y, 0..2)
        v = requantise_short(linear(x, wv, bv), mv)    c = attention(q, k, v, ...)
        c = attention(q, k, v, ...)

    Two layers of one activation and of equal width are rows of one as well if what is computed of
    their sums entry by entry meets in one operation, the product of a gate. The kernel of that
    layer finds both sums in its registers, and nothing of them is stored::

        g = linear(x, wg, bg)                          y = linear(x, w, b)
        u = linear(x, wu, bu)                       →  g, u = split_channels(y, 0..1)
        z = multiply(silu(requantise(g)),              z = multiply(silu(requantise(g)),
                     requantise(u))                                 requantise(u))

    A weight that some other layer reads as well stays where it is, and its layer too.

    Parameters
    ----------
    columns
        What the width of two layers that meet must be a multiple of; 0 where kernels cannot find
        two sums at once.
    """

    def __init__(self, columns: int = 0) -> None:
        self.columns = columns

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        return _Merger(program, self.columns).merged()


class _Merger(Rewriter):
    def __init__(self, program: IntegerProgram, columns: int) -> None:
        super().__init__(program)
        self.columns = columns
        self.makers = {binding.var: binding for binding in bindings(self.function)}
        self.in_place: dict[relax.Var, int] = defaultdict(int)
        for value in filter(is_integer_op, self.made_by.values()):
            operands = operands_of(value)
            for name in traits_of(value).reads_views:
                self.in_place[operands[name]] += 1
        self.joined: dict[tuple[str, ...], relax.Var] = {}
        self.groups = self._groups()
        # The runs of channels that parts become, and how many readers have got theirs.
        self.runs: dict[relax.Var, tuple[relax.Call, int]] = {}
        # A merged layer is emitted where the first of its parts was: a rotation of the first may
        # come before the others.
        self.first = {group[0].requantised.var: name for name, group in self.groups.items()}
        self.dropped = {
            var
            for group in self.groups.values()
            for part in group
            for var in (binding.var for binding in part.steps)
        }

    def merged(self) -> IntegerProgram:
        """Return the rewritten program; the same one where nothing can be merged."""
        if not self.groups:
            return self.program
        return with_live_parameters(self.run()["main"], self.parameters)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var in self.first:
            name = self.first[binding.var]
            self._emit(name, self.groups[name])
        if binding.var in self.dropped:
            return None
        for operand in variables(binding.value):
            if operand in self.runs:
                self.new[operand] = self.builder.emit(self._run_of_its_own(operand))
        return super().rewrite(binding)

    def _run_of_its_own(self, operand: relax.Var) -> relax.Call:
        """A run of channels for one more reader: it joins the kernel of the only one it has."""
        run, readers = self.runs[operand]
        self.runs[operand] = run, readers + 1
        own = str(run.attrs["name"])
        return with_attributes(run, name=f"{own}.{readers}") if readers else run

    def _groups(self) -> dict[str, list[_Projection]]:
        """Layers to be merged, in the order of the program, by name of the merged one."""
        position = {binding.var: index for index, binding in enumerate(bindings(self.function))}
        groups: dict[str, list[_Projection]] = {}
        for binding in bindings(self.function):
            found: dict[tuple[object, ...], list[_Projection]] = defaultdict(list)
            for operand in self._read_in_place(binding):
                part = self._projection(operand)
                if part is not None:
                    found[(part.source, *part.settings)].append(part)
            for parts in found.values():
                if len(parts) > 1:
                    name = f"{binding.value.attrs['name']}.projections"
                    groups[name] = sorted(parts, key=lambda part: position[part.requantised.var])
            meeting = self._meeting(binding) if self.columns else []
            if meeting:
                name = f"{binding.value.attrs['name']}.projections"
                groups[name] = sorted(meeting, key=lambda part: position[part.linear.var])
        return self._without_shared_weights(groups)

    def _read_in_place(self, binding: relax.VarBinding) -> list[relax.Expr]:
        """What a binding, and what makes its operands from such an operand, reads in place."""
        operands = operands_of(binding.value) if is_integer_op(binding.value) else {}
        found: list[relax.Expr] = []
        for name in traits_of(binding.value).reads_views:
            maker = self.makers.get(operands[name])
            further = [] if maker is None else self._read_in_place(maker)
            found += further or [operands[name]]
        return found

    def _meeting(self, binding: relax.VarBinding) -> list[_Projection]:
        """Both layers whose sums an elementwise operation brings together; none elsewhere."""
        if not traits_of(binding.value).elementwise:
            return []
        values = _operands(binding.value, constants=False).values()
        found = [self._sums_behind(value) for value in values]
        parts = [part for part in found if part is not None]
        alike = len({(part.source, part.channels) for part in parts}) == 1
        whole = all(part.channels % self.columns == 0 for part in parts)
        return parts if len(parts) == len(found) == 2 and alike and whole else []

    def _sums_behind(self, value: relax.Expr) -> _Projection | None:
        """Layer of whose sums a value is computed entry by entry, and nothing else is."""
        maker = self.makers.get(value)
        while maker is not None and self.readers[maker.var] == 1:
            traits = traits_of(maker.value)
            if not (traits.matrix_product or traits.elementwise):
                return None
            if traits.matrix_product:
                return _Projection((maker,))
            maker = self.makers.get(operands_of(maker.value).get("x"))
        return None

    def _projection(self, operand: relax.Expr) -> _Projection | None:
        requantised = self.makers.get(operand)
        if requantised is None or not traits_of(requantised.value).merges:
            return None
        steps = [requantised]
        while traits_of(steps[0].value).merges:
            source = self.makers.get(operands_of(steps[0].value)["x"])
            if source is None or self.readers[source.var] != 1:
                return None
            steps.insert(0, source)
        in_place = self.in_place[operand] == self.readers[operand]
        product = traits_of(steps[0].value).matrix_product
        return _Projection(tuple(steps)) if in_place and product else None

    def _without_shared_weights(
        self, groups: dict[str, list[_Projection]]
    ) -> dict[str, list[_Projection]]:
        """Drop groups with a matrix that is read elsewhere: it would be stored twice.

        Layers that share all their matrices (ALBERT) share the merged one.
        """
        merged: dict[relax.Var, int] = defaultdict(int)
        together: dict[relax.Var, set[tuple[relax.Var, ...]]] = defaultdict(set)
        for parts in groups.values():
            matrices = tuple(part.matrix for part in parts)
            for matrix in matrices:
                merged[matrix] += 1
                together[matrix].add(matrices)
        return {
            name: parts
            for name, parts in groups.items()
            if all(
                merged[part.matrix] == self.readers[part.matrix] and len(together[part.matrix]) == 1
                for part in parts
            )
        }

    def _emit(self, name: str, parts: list[_Projection]) -> None:
        emit, new = self.builder.emit, self.new
        value = new.get(parts[0].source, parts[0].source)
        for index, binding in enumerate(parts[0].steps):
            constants = {
                operand: self._joined([part.weights[index][operand] for part in parts], parts)
                for operand in parts[0].weights[index]
            }
            # The other operands are the same of all parts.
            step = with_operands(substitute(binding.value, new), x=value, **constants)
            last = index == len(parts[0].steps) - 1
            label = f"{name}.matmul" if last else f"{name}.{index}"
            label = label if index else name
            value = emit(with_attributes(step, name=label))
        requantised = value
        equal = len({part.channels for part in parts}) == 1
        first = 0
        for index, part in enumerate(parts):
            own = str(part.requantised.value.attrs["name"])
            if equal:
                run = integer.split_channels(requantised, name=own, index=index, parts=len(parts))
            else:
                place = {"first": first, "channels": part.channels}
                run = integer.channel_run(requantised, name=own, **place)
            self.runs[part.requantised.var] = run, 0
            first += part.channels

    def _joined(self, variables_: list[relax.Var], parts: list[_Projection]) -> relax.Var:
        """Parameter with the rows of several; one entry for all channels is repeated."""
        names = tuple(str(var.name) for var in variables_)
        if names not in self.joined:
            arrays = [
                np.repeat(array, part.channels if len(array) == 1 else 1, 0)
                for part, array in zip(parts, map(self.parameters.__getitem__, names), strict=True)
            ]
            label = f"{names[0]}.with.{len(names) - 1}.more"
            self.joined[names] = self.parameter(label, np.concatenate(arrays))
        return self.joined[names]
