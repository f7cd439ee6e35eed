"""Group each kernel with the elementwise operations around it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..dialect.calls import operands_of
from ..integer.operators.tokens import Embedding
from ..integer.relax_ops import calls, is_integer_op, operator_of, rows_per_token, traits_of
from ..names import identifier
from .program import IntegerProgram, bindings, relax_functions, substitute, variables


@dataclass
class _Group:
    """Bindings that become one kernel; `anchor` is the position at which the kernel runs."""

    anchor: int
    members: list[int] = field(default_factory=list)


class FuseEpilogues:
    """Fuse requantisation, activation and residual addition into the kernel before them.

    Expects a module of shape-specialised functions over ``integer.*`` operators. Afterwards each
    function calls only private functions with the attribute ``Primitive``; the body of each is one
    kernel: an anchor (``integer.linear``, ``integer.attention``, a row operation, or an elementwise
    operation that nothing produces) followed by the elementwise operations that join it. Values are
    unchanged.

    An operation joins the kernel of its operand when its other operands exist before that kernel
    runs. Where the rows of a kernel are heads, it has no constants by channel, either.
    Runs of the sums of a matrix product join its kernel, whose epilogue reads several columns then.
    What needs a whole row, its largest entry for example, joins a kernel that keeps rows.
    Of the two operands of a residual addition, the one computed last brings the kernel; the
    other one's requantisation, if nothing else uses it, moves into the addition::

        a = linear(x, w, b)          fused(x, w, b, h, m1, m2):
        r = requantise(a, m1)    →     a = linear(x, w, b);  r = requantise(a, m1)
        s = requantise(h, m2)          s = requantise(h, m2); return add(r, s)
        y = add(r, s)

    With `into_norms`, a kernel of elementwise operations that only one LayerNorm reads becomes part
    of the LayerNorm's: the embeddings of a text model. That is right where a kernel keeps a row in
    registers, and each kernel costs a launch; elsewhere the row would be computed again for every
    pass over it::

        p = position_ids(ids)          fused(ids, words, positions, gain, ...):
        e = embedding(ids, words)        p = position_ids(ids);  e = embedding(ids, words)
        f = embedding(p, positions)  →   f = embedding(p, positions)
        n = layer_norm(add(e, f))        return layer_norm(add(e, f))

    Parameters
    ----------
    into_norms
        Whether LayerNorm takes in what only it reads.
    columns
        What runs of a product's columns must be multiples of to join its kernel; 0 where none can.
    """

    def __init__(self, into_norms: bool = False, columns: int = 0) -> None:
        self.into_norms = into_norms
        self.columns = columns

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        builder = relax.BlockBuilder()
        for name, function in relax_functions(program.module).items():
            _FunctionFuser(self, builder, name, function).run()
        return program.with_module(builder.get())


class _FunctionFuser:
    def __init__(
        self, fuse: FuseEpilogues, builder: relax.BlockBuilder, name: str, function: relax.Function
    ) -> None:
        self.into_norms, self.columns = fuse.into_norms, fuse.columns
        self.builder, self.name, self.function = builder, name, function
        self.bindings = bindings(function)
        self.position = {binding.var: index for index, binding in enumerate(self.bindings)}
        self.traits = [traits_of(b.value) for b in self.bindings]
        self.users: dict[relax.Var, list[int]] = defaultdict(list)
        for index, binding in enumerate(self.bindings):
            for operand in variables(binding.value):
                self.users[operand].append(index)
        self.escaping = set(variables(function.body.body))

    # -- grouping -------------------------------------------------------------------------------

    def _private(self, index: int) -> bool:
        """Tell whether exactly one binding uses the value of binding `index`."""
        var = self.bindings[index].var
        return len(self.users[var]) == 1 and var not in self.escaping

    def _fits_rows(self, index: int, anchor: int) -> bool:
        """Whether a binding can work on the rows of a kernel, which may be heads of a token.

        Constants by channel, and what has one entry per token, lie otherwise then.
        """
        if rows_per_token(self.bindings[anchor].value) == 1:
            return True
        value = self.bindings[index]
        shapes = [list(var.ty.shape.values) for var in variables(value.value)]
        own = list(value.var.ty.shape.values)
        return all(shape in (own, [1]) for shape in shapes)

    def _accepts(self, group: _Group, index: int) -> bool:
        """Whether a kernel goes on with what a binding computes of its result."""
        if self.traits[index].elementwise or self._halves(index):
            return self.traits[group.anchor].takes_epilogue
        anchor = self.bindings[group.anchor].value
        return self.traits[group.anchor].row_statistics and rows_per_token(anchor) == 1

    def _halves(self, index: int) -> bool:
        """Whether a binding is a run of a product's sums that its kernel can find by itself.

        Nothing but runs of one width, of whole vectors, may be read of them.
        """
        if not self.columns or not self.traits[index].view:
            return False
        (operand,) = variables(self.bindings[index].value)
        product = self.position.get(operand, -1)
        users = self.users[operand]
        if product < 0 or not self.traits[product].matrix_product or operand in self.escaping:
            return False
        if not all(self.traits[user].view for user in users):
            return False
        channels = int(operand.ty.shape.values[-1])
        views: list[Any] = [operator_of(self.bindings[user].value) for user in users]
        runs = [view.run_of(channels) for view in views]
        whole = all(size % self.columns == 0 for run in runs for size in run)
        return whole and len({width for _first, width in runs}) == 1

    def _root(self, var: relax.Var) -> int:
        """Position of the operation that the elementwise chain ending in `var` starts from.

        -1 where it starts from inputs of the function: such a chain can run anywhere.
        """
        index = self.position.get(var, -1)
        while index >= 0 and self.traits[index].elementwise:
            operands = [
                self.position[operand]
                for operand in variables(self.bindings[index].value)
                if operand in self.position
            ]
            index = max(operands, default=-1)
        return index

    def _absorbed(self) -> dict[int, int]:
        """Bindings that move into what they feed: a change of scale → sum, a view → its reader."""
        owner: dict[int, int] = {}
        for index, traits in enumerate(self.traits):
            if not is_integer_op(self.bindings[index].value):
                continue
            operands = operands_of(self.bindings[index].value)
            for name in traits.reads_views:
                at = self.position.get(operands[name])
                if at is not None and self.traits[at].view and self._private(at):
                    owner[at] = index
            if not traits.sums:
                continue
            left, right = operands.values()
            candidates = [left if self._root(left) < self._root(right) else right]
            made = [self.position[side] for side in (left, right) if side in self.position]
            if all(calls(self.bindings[at].value, Embedding) for at in made):
                candidates = [left, right]
            for var in candidates:
                at = self.position.get(var)
                if at is not None and self._private(at) and self.traits[at].rescales:
                    owner[at] = index
        return owner

    def _groups(self) -> list[_Group]:
        owner = self._absorbed()
        groups: list[_Group] = []
        group_of: dict[int, _Group] = {}
        absorbed_of: dict[int, list[int]] = defaultdict(list)
        for index, addition in owner.items():
            absorbed_of[addition].append(index)

        def outside(index: int, group: _Group) -> list[int]:
            """Positions of operands of `index` (and of what it absorbs) that `group` lacks."""
            positions = []
            for member in (index, *absorbed_of[index]):
                for operand in variables(self.bindings[member].value):
                    at = self.position.get(operand)
                    known = {*absorbed_of[index], *group.members}
                    if at is not None and at not in known:
                        positions.append(at)
            return positions

        for index, traits in enumerate(self.traits):
            if index in owner or not is_integer_op(self.bindings[index].value):
                continue
            group = None
            if traits.elementwise or traits.joins_rows or self._halves(index):
                producers = [
                    self.position[operand]
                    for operand in variables(self.bindings[index].value)
                    if operand in self.position and self.position[operand] not in absorbed_of[index]
                ]
                for producer in sorted(producers, reverse=True):
                    candidate = group_of[producer]
                    joins = self._accepts(candidate, index) and all(
                        self._fits_rows(member, candidate.anchor)
                        for member in (index, *absorbed_of[index])
                    )
                    if joins and all(at < candidate.anchor for at in outside(index, candidate)):
                        group = candidate
                        break
            if group is None:
                group = _Group(anchor=index)
                groups.append(group)
            for member in (*absorbed_of[index], index):
                group.members.append(member)
                group_of[member] = group
        if self.into_norms:
            groups = self._merged_into_norms(groups)
        return sorted(groups, key=lambda group: group.anchor)

    def _merged_into_norms(self, groups: list[_Group]) -> list[_Group]:
        """Move groups whose values only a LayerNorm's group reads into that."""
        norms = [group for group in groups if self.traits[group.anchor].row_statistics]
        rest = [group for group in groups if group not in norms]
        for norm in norms:
            # The last first: one that another feeds must be inside before that is looked at.
            for group in sorted(rest, key=lambda one: -one.anchor):
                fit = all(self._fits_rows(at, norm.anchor) for at in group.members)
                if fit and self._feeds_only(group, norm):
                    norm.members += group.members
                    rest.remove(group)
        return [*norms, *rest]

    def _feeds_only(self, group: _Group, norm: _Group) -> bool:
        """Whether a group computes entry by entry, and nothing but another group reads them."""
        inside = {*group.members, *norm.members}
        own = [self.bindings[at].var for at in group.members]
        return (
            all(self._by_entry(at) for at in group.members)
            and not any(var in self.escaping for var in own)
            and all(user in inside for var in own for user in self.users[var])
            and any(user in norm.members for var in own for user in self.users[var])
        )

    def _by_entry(self, index: int) -> bool:
        """Whether any kernel may compute an entry: positions do not depend on the tokens, too."""
        traits = self.traits[index]
        counts_places = operator_of(self.bindings[index].value).needs_no_operand
        return traits.elementwise or traits.gathers or counts_places

    # -- rewriting ------------------------------------------------------------------------------

    def _emit_kernel(
        self, group: _Group
    ) -> tuple[tvm.ir.GlobalVar, list[relax.Var], list[relax.Var]]:
        """Build the private function of a group; return it, its arguments and its results."""
        members = sorted(group.members)
        inside = {self.bindings[index].var for index in members}
        views = {at for at in members if self.traits[at].view}
        views = {at for at in views if self.bindings[at].value.args[0] not in inside}
        split = {self.bindings[at].value.args[0] for at in views}
        arguments: list[relax.Var] = []
        for index in members:
            for operand in variables(self.bindings[index].value):
                # Each run of channels is an argument of its own: attention finds queries, keys and
                # values at different rows of the same tensor.
                again = index in views
                if operand not in inside and (again or operand not in arguments):
                    arguments.append(operand)
        results = [
            self.bindings[index].var
            for index in members
            if self.bindings[index].var in self.escaping
            or any(user not in members for user in self.users[self.bindings[index].var])
        ]
        anchor = self.bindings[group.anchor].value
        params = [relax.Var(self._value_name(var), var.ty) for var in arguments]
        renamed: dict[relax.Var, relax.Var] = dict(zip(arguments, params, strict=True))
        runs = iter([param for var, param in zip(arguments, params, strict=True) if var in split])
        name = identifier(str(anchor.attrs["name"]))
        attrs = {
            "Primitive": True,
            "ibert.kernel": str(anchor.op.name).removeprefix("integer."),
            "ibert.layer": str(anchor.attrs["name"]),
        }
        kernel = relax.BlockBuilder()
        with kernel.function("kernel", params, attrs=attrs, private=True):
            with kernel.dataflow():
                for index in members:
                    call = self.bindings[index].value
                    operands = [renamed.get(arg, arg) for arg in call.args]
                    if index in views:
                        operands = [next(runs)]
                    moved = relax.Call(call.op, operands, call.attrs)
                    var = self.bindings[index].var
                    renamed[var] = (kernel.emit_output if var in results else kernel.emit)(moved)
                outputs = [renamed[var] for var in results]
            kernel.emit_func_output(outputs[0] if len(outputs) == 1 else outputs)
        # Equal kernels of several shapes become one function.
        shared = self.builder.add_func(kernel.get()["kernel"], f"{self.name}_{name}")
        return shared, arguments, results

    def _value_name(self, var: relax.Var) -> str:
        """Canonical name of a value: the operator's ``name``, or the parameter's own name."""
        index = self.position.get(var)
        return str(var.name) if index is None else str(self.bindings[index].value.attrs["name"])

    def run(self) -> None:
        """Add the fused function, and the kernels it calls, to the builder's module."""
        kernels = [(self._emit_kernel(group)) for group in self._groups()]
        new: dict[relax.Var, relax.Expr] = {var: var for var in self.function.params}
        builder = self.builder
        with builder.function(
            self.name, list(self.function.params), attrs=dict(self.function.attrs.items())
        ):
            with builder.dataflow():
                for kernel, arguments, results in kernels:
                    value = builder.emit(relax.Call(kernel, [new[var] for var in arguments]))
                    if len(results) == 1:
                        new[results[0]] = value
                    else:
                        for index, var in enumerate(results):
                            new[var] = builder.emit(relax.TupleGetItem(value, index))
                body = self.function.body.body
                for binding in self.bindings:  # a tuple bound to a variable, an alias
                    if not is_integer_op(binding.value):
                        new[binding.var] = substitute(binding.value, new)
                output = builder.emit_output(substitute(body, new))
            builder.emit_func_output(output)
