"""From a torch module to canonical form, through torch.export and TVM's importer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from numpy.typing import NDArray
from tvm import relax

from ibert_tvm.frontend.canonicalise import Canonical, canonicalise
from ibert_tvm.frontend.errors import UnsupportedModelError

__all__ = ["PROBE_SHAPE", "evaluating", "import_module"]

PROBE_SHAPE = (2, 13)
"""Batch and length of the traced example: unequal, and 13 divides no usual width."""


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put `module` in evaluation mode without gradients, and restore the modes of all its parts."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def import_module(
    module: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str], prefix: str = ""
) -> Canonical:
    """Trace a module and canonicalise it.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode; called with keyword arguments, each [batch, seq_len] int64; returns
        one float tensor or a tuple of them.
    inputs : sequence of str
        Names of the arguments.
    outputs : sequence of str
        Names of the results, for messages; empty to number them.
    prefix : str
        Removed from the front of parameter names: the attribute under which a wrapper holds the
        model, with its dot.

    Returns
    -------
    Canonical
        The canonical module.

    Raises
    ------
    UnsupportedModelError
        If the module cannot be traced, or an operator has no canonical form.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"the model's parameters are {str(parameter.dtype).removeprefix('torch.')}",
                where=f"parameter {name.removeprefix(prefix)}",
                why="calibration measures ranges in float32",
                todo="convert it first: model.float()",
            )
    arguments = {name: torch.ones(PROBE_SHAPE, dtype=torch.int64) for name in inputs}
    exported = _export(module, arguments)
    imported = _translate(exported)
    function = imported["main"]
    count = int(function.attrs["num_input"])
    if count != len(inputs):
        raise UnsupportedModelError(
            f"the traced program has {count} inputs",
            where="torch.export",
            why=f"the module was called with {', '.join(inputs)}",
            todo="pass every tensor that the model reads as an argument or a buffer",
        )
    values = {
        variable.name: _array(tensor)
        for variable, tensor in zip(function.params[count:], function.attrs["params"], strict=True)
    }
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    # Integer buffers (position ids) are constants of the graph, not weights.
    constants = {k: v for k, v in values.items() if not np.issubdtype(v.dtype, np.floating)}
    imported["main"] = function.without_attr("params")
    if constants:
        imported = relax.transform.BindParams("main", constants)(imported)
    return canonicalise(
        imported,
        {k: v for k, v in values.items() if k not in constants},
        inputs=inputs,
        outputs=outputs,
        names={key: name.removeprefix(prefix) for key, name in names.items()},
    )


def _array(tensor: tvm.runtime.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = np.from_dlpack(tensor)
    return array


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def _export(
    module: torch.nn.Module, arguments: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, (), kwargs=arguments)
    except Exception as error:  # torch.export raises whatever the traced code raises
        raise UnsupportedModelError(
            "torch.export cannot trace the model",
            where=type(module).__name__,
            why=f"{type(error).__name__}: {_last_line(error)}",
            todo="make torch.export.export(model, (), kwargs=inputs) work: no branches on data, "
            "no inputs other than token tensors",
        ) from error


def _translate(exported: torch.export.ExportedProgram) -> tvm.IRModule:
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_exported_program(
                exported, keep_params_as_input=True, unwrap_unit_return_tuple=True
            )
    except Exception as error:  # the importer asserts, and raises several classes
        reason = _last_line(error)
        raise UnsupportedModelError(
            "TVM's importer does not know an operator of the model",
            where=_where(exported, reason),
            why=reason,
            todo="replace the operator by ones that TVM imports",
        ) from error


def _where(exported: torch.export.ExportedProgram, reason: str) -> str:
    """Module paths of the nodes whose operator the importer's message names."""
    places = []
    for node in exported.graph.nodes:
        target = getattr(node.target, "__name__", "")
        if node.op == "call_function" and target and f"'{target}'" in reason:
            stack = node.meta.get("nn_module_stack") or {}
            path = [entry[0] for entry in stack.values()]
            places.append(f"operator {target}, layer {path[-1] if path and path[-1] else 'root'}")
    return places[0] if places else "the traced program"
