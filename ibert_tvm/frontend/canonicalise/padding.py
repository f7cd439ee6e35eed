"""Leaving out that hidden values are set to 0 at padding, where nothing sees it.

Some encoders multiply their embeddings by the padding mask. A token that is padding takes part in
nothing but what is computed for itself: attention gives its key no weight, a pool leaves it out,
and outputs per token are 0 there. So the product only matters where something else meets it: a
token that is taken by its place, which may be padding, or a neighbour. Without it, programs can
leave padding out altogether.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ibert_tvm.relay_passes.canonical import (
    OPERATORS,
    canonical_calls,
    main_function,
    operands_of,
    output_fields,
    value_name,
)


def leave_out_masks(module: tvm.IRModule) -> tuple[tvm.IRModule, list[str]]:
    """Remove products with the padding mask that no output depends on.

    Parameters
    ----------
    module
        Canonical.

    Returns
    -------
    module
        With the same outputs at every token that is no padding, and for every sequence.
    names : list of str
        Canonical names of the products that are gone.
    """
    gone = [
        (variable, call)
        for variable, call in canonical_calls(module)
        if (mask := _masking(variable, call)) is not None
        and not _padding_is_seen(module, variable, mask)
    ]
    if not gone:
        return module, []
    function = main_function(module)
    values = {variable: call.args[0] for variable, call in gone}
    blocks = [
        type(block)(
            [
                relax.VarBinding(binding.var, values.get(binding.var, binding.value))
                for binding in block.bindings
            ]
        )
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    changed = relax.Function(
        function.params, body, function.ret_ty, function.is_pure, attrs=function.attrs
    )
    result = tvm.IRModule({"main": changed})
    return relax.transform.CanonicalizeBindings()(result), [value_name(call) for _, call in gone]


def _masking(variable: relax.Var, call: relax.Call) -> relax.Var | None:
    """The mask of an operator that only hides padding: per token, and of a mask it cannot lack."""
    record = OPERATORS[call.op.name]
    masks = [operand for operand in record.OPERANDS if operand.is_mask and not operand.optional]
    per_token = len(variable.ty.shape.values) == 3 and not record.BY_SEQUENCE
    return operands_of(call)[masks[0].name] if masks and per_token else None


def _padding_is_seen(module: tvm.IRModule, variable: relax.Var, mask: relax.Var) -> bool:
    """Whether anything but padding depends on what a value is at padding."""
    at_padding = {variable}
    for result, call in canonical_calls(module):
        operands = operands_of(call)
        if not at_padding.intersection(operands.values()):
            continue
        record = OPERATORS[call.op.name]
        masks = [operands.get(operand.name) for operand in record.OPERANDS if operand.is_mask]
        hidden = bool(masks) and all(other is not None and other.same_as(mask) for other in masks)
        per_token = len(result.ty.shape.values) == 3
        if not hidden and (record.BY_SEQUENCE or not per_token):
            return True
        if per_token:
            at_padding.add(result)
    # Outputs per token are 0 at padding by the mask of attention, where there is one.
    outputs = at_padding.intersection(output_fields(main_function(module)))
    return bool(outputs) and not _is_that_of_attention(module, mask)


def _is_that_of_attention(module: tvm.IRModule, mask: relax.Var) -> bool:
    masks = [
        operands_of(call).get(operand.name)
        for _, call in canonical_calls(module)
        for operand in OPERATORS[call.op.name].OPERANDS
        if operand.is_mask and OPERATORS[call.op.name].BY_SEQUENCE
    ]
    return bool(masks) and all(other is not None and other.same_as(mask) for other in masks)
