"""Why a torch module cannot be traced, or its program not be translated, in words of the model.

torch raises whatever the traced code raises, TVM's importer several classes, and neither says where
in the model that was.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..common.errors import error_lines
from .errors import UnsupportedModelError

_MEANINGS = {
    "index": "it picks windows by tables of indices in two directions at once (unfold): "
    "convolutions have constant kernels here, none that are computed from the text",
    "scatter_reduce": "it sums up entries whose places depend on the inputs (segments of tokens): "
    "sums over tokens are taken by the padding mask alone",
    "expand": "TVM's importer of torch programs gives what it repeats another size than torch, as "
    "happens to tables of places that are counted by steps",
}
"""What an operator would be for, by its name in torch, where TVM's importer fails on it."""

_UNKNOWN = re.compile(r"'([\w.]+)'")
"""An operator in the message of TVM's importer that lists those it does not know."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from printing the graph of a module that it cannot trace, and its own traceback.

    What of it says anything to a user is in the refusal.
    """
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    own = [logger for logger in loggers if logger.name.partition(".")[0] == "torch"]
    handlers = {handler: handler.level for logger in own for handler in logger.handlers}
    try:
        for handler in handlers:
            handler.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler, level in handlers.items():
            handler.setLevel(level)


def not_traced(
    module: torch.nn.Module,
    arguments: Mapping[str, torch.Tensor],
    error: BaseException,
    prefix: str = "",
) -> UnsupportedModelError:
    """Return the refusal of a module that torch.export cannot follow.

    Parameters
    ----------
    module
        In evaluation mode.
    arguments
        What it was called with.
    error
        What torch.export raised.
    prefix
        Removed from the front of paths of its parts.
    """
    given = ", ".join(f"{name} {_tensor(tensor)}" for name, tensor in arguments.items())
    try:
        with torch.no_grad(), quiet():
            module(**arguments)
    except Exception as own:  # the code of the model
        return UnsupportedModelError(
            "the model does not run on the inputs that it is imported with",
            where=_part(module, own, prefix),
            why=f"of {given} it raises {type(own).__name__}: {error_lines(own)[0]}",
            todo="give a model that takes these inputs alone, at any batch size and length: one "
            "that needs others, or lengths that divide by something, can be wrapped in a module "
            "that makes or pads them",
        )
    where = _part(module, error, prefix)
    if isinstance(error, GuardOnDataDependentSymNode):
        return UnsupportedModelError(
            "torch.export cannot trace the model",
            where=where,
            why="what it computes next, or how large that is, depends on the values of its inputs, "
            "and an integer program does the same for all",
            todo="replace branches on values by masks, and tensors of only some tokens by all "
            "tokens and a mask",
        )
    return UnsupportedModelError(
        "torch.export cannot trace the model",
        where=where,
        why=f"{type(error).__name__}: {error_lines(error)[0]}",
        todo="make torch.export.export(model, (), kwargs=inputs) work: no branches on data, "
        "no inputs other than token tensors",
    )


def not_translated(
    exported: torch.export.ExportedProgram, error: BaseException
) -> UnsupportedModelError:
    """Return the refusal of a program that TVM's importer stops at.

    Parameters
    ----------
    exported
        The program.
    error
        What the importer raised.
    """
    where, why = _where(exported, error)
    return UnsupportedModelError(
        "an operator of the model is not known",
        where=where,
        why=why,
        todo="replace the operator by ones that are known: `ibert inspect` shows them for a "
        "model that imports",
    )


def _where(exported: torch.export.ExportedProgram, error: BaseException) -> tuple[str, str]:
    """Name the node that the importer stopped at, or whose operator its message names; and why."""
    node = _node_of(error)
    if node is not None:
        return _place(node), _reason(node)
    unknown = sorted(set(_UNKNOWN.findall(error_lines(error)[0])))
    # The importer decomposes some operators first, and names what they became.
    with quiet():
        programs = exported, exported.run_decompositions()
    for program in programs:
        for node in program.graph.nodes:
            if node.op == "call_function" and getattr(node.target, "__name__", "") in unknown:
                return _place(node), _reason(node)
    return "the traced program", "TVM's importer of torch programs fails on it"


def _reason(node: torch.fx.Node) -> str:
    """What of an operator has no form, as far as its result shows it."""
    values = [x for x in torch.utils._pytree.tree_leaves(node.meta.get("val")) if _is_tensor(x)]
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return "it draws random numbers, and an integer program computes the same every time"
    if any(value.dtype.is_complex for value in values):
        return "it computes complex numbers, which no integer operator does"
    if any(not isinstance(size, int) for value in values for size in value.shape):
        return (
            "how large its result is depends on the values of its inputs, and an integer program "
            "has one size for all"
        )
    meaning = _MEANINGS.get(_target(node).partition(".")[0])
    if meaning is not None:
        return meaning
    operands = ", ".join(filter(None, map(_shown, node.all_input_nodes))) or "no tensors"
    return f"TVM's importer of torch programs has no translation of it for {operands}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _shown(node: torch.fx.Node) -> str:
    """Type and shape of a tensor; empty for another value."""
    value = node.meta.get("val")
    return _tensor(value) if isinstance(value, torch.Tensor) else ""


def _tensor(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _frames(error: BaseException) -> Iterator[Mapping[str, Any]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_locals
        trace = trace.tb_next


def _part(module: torch.nn.Module, error: BaseException, prefix: str) -> str:
    """Name the innermost part of a module that was computing when it raised."""
    paths = {id(part): path for path, part in module.named_modules()}
    found = module
    for variables in _frames(error):
        part = variables.get("self")
        if isinstance(part, torch.nn.Module) and id(part) in paths:
            found = part
    path = f"{paths[id(found)]}.".removeprefix(prefix).removesuffix(".")
    return f"{type(found).__name__}, layer {path}" if path else type(found).__name__


def _node_of(error: BaseException) -> torch.fx.Node | None:
    """The node that was being translated when the importer raised."""
    found = None
    for variables in _frames(error):
        # Every converter of the importer takes the node as its argument `node`.
        node = variables.get("node")
        if isinstance(node, torch.fx.Node) and node.op == "call_function":
            found = node
    return found


def _target(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _place(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = [entry[0] for entry in stack.values()]
    return f"operator {_target(node)}, layer {path[-1] if path and path[-1] else 'root'}"
