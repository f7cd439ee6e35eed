"""From a torch module to canonical form, through torch.export and TVM's importer."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from tvm import relax

from ..common.errors import error_lines
from ..common.types import Array
from ..model.model_info import REAL_INPUTS
from .canonicalise import Canonical, Revisit, canonicalise
from .errors import ModelSourceError, UnsupportedModelError
from .report import Origin
from .verify import Source

# Why a torch module cannot be traced, or its program not be translated, in words of the model.
#
# torch raises whatever the traced code raises, TVM's importer several classes, and neither says
# where in the model that was.

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


def in_float32(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module whose parameters are float32, exactly as they were in 16 bits.

    Parameters
    ----------
    module
        Left as it is.

    Returns
    -------
    torch.nn.Module
        A copy, or the module itself where nothing is float16 or bfloat16.

    Raises
    ------
    UnsupportedModelError
        If it cannot be copied.
    """
    tensors = (*module.parameters(), *module.buffers())
    if not any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors):
        return module
    try:
        return copy.deepcopy(module).float()
    except Exception as error:  # whatever the parts of a module raise
        raise UnsupportedModelError(
            "the module cannot be converted to float32",
            where=type(module).__name__,
            why=f"{type(error).__name__}: {error_lines(error)[0]}",
            todo="convert it first: model.float()",
        ) from error


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Have torch's own encoder layers compute as they are written while they are traced.

    In evaluation mode they may take a fused kernel with nested tensors instead, and they compare
    the mask that they are given with a causal one to tell kernels about it, which is a branch on
    data. Either changes nothing in the result.
    """
    layers = torch.nn.modules.transformer
    fast, detect = torch.backends.mha.get_fastpath_enabled(), layers._detect_is_causal_mask

    def told(_mask: Any, is_causal: bool | None = None, _size: int | None = None) -> bool:
        return bool(is_causal)

    torch.backends.mha.set_fastpath_enabled(False)
    layers._detect_is_causal_mask = told
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        layers._detect_is_causal_mask = detect


def import_module(
    module: torch.nn.Module,
    inputs: Sequence[str],
    outputs: Sequence[str],
    prefix: str = "",
    image_size: tuple[int, ...] | None = None,
    shape: tuple[int, int] = PROBE_SHAPE,
    *,
    revisit: Revisit | None = None,
) -> Canonical:
    """Trace a module and canonicalise it.

    Parameters
    ----------
    module
        In evaluation mode; called with keyword arguments, each [batch, seq_len] int64, or images
        [batch, planes, height, width] float32; returns one float tensor or a tuple of them.
    inputs
        Names of the arguments.
    outputs
        Names of the results, for messages; empty to number them.
    prefix
        Removed from the front of parameter names: the attribute under which a wrapper holds the
        model, with its dot.
    image_size
        Planes, height and width of ``pixel_values``, or planes and frames of ``input_features``.
    shape
        Batch and length at which it is traced.
    revisit
        See `ibert_tvm.frontend.canonicalise.canonicalise`.

    Returns
    -------
    Canonical
        The canonical module.

    Raises
    ------
    UnsupportedModelError
        If the module cannot be traced, or an operator has no canonical form.
    """
    _check_parameters(module, prefix)
    arguments = example(inputs, image_size, shape)
    exported = export(module, arguments, prefix)
    return import_exported(exported, inputs, outputs, prefix, revisit=revisit)


def example(
    inputs: Sequence[str],
    image_size: tuple[int, ...] | None = None,
    shape: tuple[int, int] = PROBE_SHAPE,
) -> dict[str, torch.Tensor]:
    """Return arguments to trace with.

    Parameters
    ----------
    inputs
        Names of the arguments.
    image_size
        Planes, height and width of ``pixel_values``, or planes and frames of ``input_features``.
    shape
        Batch and length.

    Returns
    -------
    dict of str to torch.Tensor
        Token tensors of ones; images and features of zeros.

    Raises
    ------
    ModelSourceError
        If images or features are asked for and their size is not known.
    """
    result = {}
    for name in inputs:
        if name not in REAL_INPUTS:
            result[name] = torch.ones(shape, dtype=torch.int64)
            continue
        real = REAL_INPUTS[name]
        if image_size is None or len(image_size) != len(real.axes.split(", ")):
            raise ModelSourceError(
                f"the size of the {real.what} is not known",
                where="image_size",
                why=f"a module does not say how large its {real.what} are, and there is one length "
                "of sequence per size",
                todo="give image_size=(planes, height, width), for example (3, 224, 224)"
                if real.what == "images"
                else f"give image_size=({real.axes}), for example (80, 3000)",
            )
        result[name] = torch.zeros((shape[0], *image_size))
    return result


def _check_parameters(module: torch.nn.Module, prefix: str) -> None:
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise UnsupportedModelError(
                f"the model's parameters are {str(parameter.dtype).removeprefix('torch.')}",
                where=f"parameter {name.removeprefix(prefix)}",
                why="calibration measures ranges in float32",
                todo="convert it first: model.float()",
            )


def import_exported(
    exported: torch.export.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    prefix: str = "",
    *,
    revisit: Revisit | None = None,
) -> Canonical:
    """Canonicalise a traced program of static shapes.

    Parameters
    ----------
    exported
        The program; its inputs are [batch, seq_len] int64 of one shape, or images.
    inputs
        Their canonical names.
    outputs
        Names of the results, for messages; empty to number them.
    prefix
        Removed from the front of parameter names.
    revisit
        See `ibert_tvm.frontend.canonicalise.canonicalise`.

    Returns
    -------
    Canonical
        The canonical module.

    Raises
    ------
    UnsupportedModelError
        If an operator has no canonical form.
    """
    imported, origins = _translate(exported, prefix)
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
        origins=origins,
        revisit=revisit,
    )


def _tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors of what a module returned, in the order in which tracing flattens it."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def as_source(module: torch.nn.Module) -> Source:
    """Return what runs a module on arrays by the names of its arguments, for the comparison."""

    def run(arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        with torch.no_grad():
            result = module(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        return tuple(tensor.detach().numpy() for tensor in _tensors_of(result))

    return run


def _array(tensor: tvm.runtime.Tensor) -> Array:
    array: Array = np.from_dlpack(tensor)
    return array


def export(
    module: torch.nn.Module, arguments: dict[str, torch.Tensor], prefix: str
) -> torch.export.ExportedProgram:
    """Trace a module, called with `arguments` by name; a refusal names the layer."""
    try:
        with quiet(), _traceable():
            return torch.export.export(module, (), kwargs=arguments)
    except Exception as error:  # torch.export raises whatever the traced code raises
        raise not_traced(module, arguments, error, prefix) from error


@functools.cache
def _decompositions() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What torch decomposes by default: composite operators, and others."""
    from torch.export.exported_program import _split_decomp_table_to_cia_and_python_decomp as split

    composite, others = split(torch.export.default_decompositions().materialize())
    return composite, others


def decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Give what `exported.run_decompositions` gives, in half of its time.

    That looks up all composite operators and overrides what each decomposes to, 0.15 s for each
    program. All but a few decompose to the same without; these are overridden here, with those that
    the program has, and with what those consist of.
    """
    try:
        from torch.export.exported_program import _decompose_exported_program

        composite, others = _decompositions()
    except ImportError:  # another torch than the one that was tested
        return exported.run_decompositions()
    used = {node.target for node in exported.graph.nodes} | {torch.ops.aten.matmul.default}
    return _decompose_exported_program(
        exported,
        cia_to_decomp={
            operator: decomposition
            for operator, decomposition in composite.items()
            if operator in used or not isinstance(decomposition, functools.partial)
        },
        python_decomp_table=dict(others),
        joint_loss_index=None,
        decompose_custom_triton_ops=False,
    )


def _translate(
    exported: torch.export.ExportedProgram, prefix: str
) -> tuple[tvm.IRModule, dict[str, Origin]]:
    """Translate a program with TVM, and tell which of its nodes each variable comes from."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    # What `from_exported_program` does; the importer itself remembers the variables of nodes.
    importer = ExportedProgramImporter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importer.from_exported_program(
                decomposed(exported),
                keep_params_as_input=True,
                unwrap_unit_return_tuple=True,
                no_bind_return_tuple=False,
                custom_convert_map=_OWN,
            )
    except Exception as error:  # the importer asserts, and raises several classes
        raise not_translated(exported, error) from error
    return module, _origins(module, importer, prefix)


def _amax(node: torch.fx.Node, importer: Any) -> relax.Var:
    """Translate ``torch.amax``, which TVM's importer does not know."""
    x = importer.env[node.args[0]]
    axes = list(node.args[1]) if len(node.args) > 1 else None
    keep = bool(node.args[2]) if len(node.args) > 2 else False
    return importer.block_builder.emit(relax.op.max(x, axes or None, keep))


def _true_divide(node: torch.fx.Node, importer: Any) -> relax.Var:
    """Translate ``a / b``, which TVM's importer leaves in integers where both are integers."""
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    operands = []
    for argument in node.args[:2]:
        value = importer.env.get(argument) if isinstance(argument, torch.fx.Node) else None
        if value is None:
            value = relax.const(argument, dtype)
        elif str(value.ty.dtype) != dtype:
            value = importer.block_builder.emit(relax.op.astype(value, dtype))
        operands.append(value)
    return importer.block_builder.emit(relax.op.divide(*operands))


def _joined(node: torch.fx.Node, importer: Any) -> relax.Var:
    """Translate ``torch.cat``, which may join empty tensors of one axis to others.

    A cache of keys and values is one, before its first token.
    """
    full = [part for part in node.args[0] if tuple(part.meta["val"].shape) != (0,)]
    parts = full or node.args[0]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    tensors = [importer.env[part] for part in parts]
    if len(tensors) == 1:
        return tensors[0]
    return importer.block_builder.emit(relax.op.concat(tensors, axis=axis))


_OWN = {"amax.default": _amax, "cat.default": _joined, "div.Tensor": _true_divide}
"""Translations that TVM's importer lacks or has otherwise."""


def _origins(module: tvm.IRModule, importer: Any, prefix: str) -> dict[str, Origin]:
    """Nodes by the variables that hold them, and by those on the way there."""
    nodes: dict[str, Any] = {}
    for node, value in importer.env.items():
        if isinstance(value, relax.Var) and node.op == "call_function":
            nodes.setdefault(value.name, node)  # later nodes that compute nothing share it
    result: dict[str, Origin] = {}
    pending: list[str] = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            pending.append(binding.var.name)
            node = nodes.get(binding.var.name)
            if node is not None:
                stack = list((node.meta.get("nn_module_stack") or {}).values())
                path = str(stack[-1][0]).removeprefix(prefix) if stack else ""
                label = f"{path}:{node.name}" if path else node.name
                origin = Origin(label, tensors=(node.name,))
                result.update((name, Origin(label)) for name in pending[:-1])
                result[binding.var.name] = origin
                pending = []
    return result
