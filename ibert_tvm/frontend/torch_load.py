"""Importing torch modules that are no transformers models, and exported programs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..common.errors import error_lines
from ..model.model_info import REAL_INPUTS
from .canonicalise import Canonical, Revisit
from .errors import ModelSourceError, UnsupportedModelError
from .finish import described, finish
from .model import CanonicalModel
from .torch_import import (
    PROBE_SHAPE,
    as_source,
    evaluating,
    import_exported,
    import_module,
    in_float32,
)
from .torch_inputs import Arguments, AsCanonical, arguments_of, named_arguments

Inputs = Sequence[str] | Mapping[str, str] | None


def load_module(
    module: torch.nn.Module, inputs: Inputs, image_size: tuple[int, ...] | None, verify: bool
) -> CanonicalModel:
    """Import a module.

    Parameters
    ----------
    module
        The module; its modes are restored.
    inputs : sequence of str, mapping of str to str, or None
        See `ibert_tvm.frontend.torch_inputs.arguments_of`.
    image_size
        Planes, height and width, for a module that takes images; planes and frames for one that
        takes features.
    verify
        Compare with the module at another shape than the traced one.

    Returns
    -------
    CanonicalModel
        The model.

    Raises
    ------
    ModelSourceError
        If it is not clear how the module is called.
    UnsupportedModelError
        If a part of it has no canonical form.
    """
    module = in_float32(module)
    arguments = arguments_of(module, inputs)
    wrapped = module if arguments.plain else AsCanonical(module, arguments)
    with evaluating(wrapped):
        prefix = "" if arguments.plain else "module."

        def trace(**shape: Any) -> Canonical:
            names = arguments.canonical
            return import_module(wrapped, names, [], prefix, image_size=image_size, **shape)

        return _finish(
            trace(),
            wrapped if verify else None,
            type(module).__name__,
            again=lambda revisit: trace(shape=(PROBE_SHAPE[0], revisit.length), revisit=revisit),
            source=f"{type(module).__module__}.{type(module).__qualname__}",
            description=f"torch module {type(module).__name__}",
        )


def load_exported_file(path: Path, inputs: Inputs, verify: bool, trust: bool) -> CanonicalModel:
    """Import a program that ``torch.export.save`` wrote.

    Parameters
    ----------
    path
        The file, ``*.pt2``.
    inputs, verify
        As for `load_exported`.
    trust
        Whether the file may run code.

    Returns
    -------
    CanonicalModel
        The model.

    Raises
    ------
    ModelSourceError
        If the file is missing, damaged or not trusted.
    UnsupportedModelError
        If a part of it has no canonical form.
    """
    if not path.is_file():
        raise ModelSourceError(
            f"there is no file {path.name}",
            where=str(path),
            why="the path does not exist" if not path.exists() else "it is a folder",
            todo="give a file that torch.export.save wrote",
        )
    if not zipfile.is_zipfile(path):
        raise ModelSourceError(
            f"{path.name} is not an exported program",
            where=str(path),
            why=f"it is no archive ({path.stat().st_size} bytes): truncated, or something else",
            todo="give a file that torch.export.save(torch.export.export(...), path) wrote",
        )
    if not trust:
        raise ModelSourceError(
            f"{path.name} is not read unless you trust it",
            where=str(path),
            why="torch unpickles parts of an exported program and evaluates expressions in it, so "
            "that reading the file can run code of whoever wrote it",
            todo="if you do, say so (--trust; ibert_tvm.load(..., trust=True)), or export to ONNX",
        )
    try:
        program = torch.export.load(path)
    except Exception as error:  # torch raises many classes for what an archive can hold
        raise ModelSourceError(
            f"torch cannot read {path.name}",
            where=str(path),
            why=f"{type(error).__name__}: {error_lines(error)[0]}",
            todo="give a file that torch.export.save wrote with this version of torch "
            f"({torch.__version__}), not one of torch.save or torch.jit.save",
        ) from error
    result = load_exported(program, inputs, verify)
    return replace(result, info=replace(result.info, source=str(path)))


def load_exported(
    program: torch.export.ExportedProgram, inputs: Inputs, verify: bool
) -> CanonicalModel:
    """Import an exported program.

    One with dynamic dimensions is traced again at the probe shape; one with static dimensions is
    taken as it is, and compared at that shape only.

    Parameters
    ----------
    program
        The program.
    inputs : sequence of str, mapping of str to str, or None
        What its inputs are, in their order or by their names; by default what their names say.
    verify
        Compare with the program.

    Returns
    -------
    CanonicalModel
        The model.

    Raises
    ------
    ModelSourceError
        If it is not clear what its inputs are.
    UnsupportedModelError
        If its shapes do not serve, or a part of it has no canonical form.
    """
    placeholders = _user_inputs(program)
    arguments = _arguments(program, list(placeholders), inputs)
    shape, dynamic, image_size = _shapes(placeholders, arguments)
    module = program.module(check_guards=False)
    wrapped = AsCanonical(module, arguments)

    def trace(shape: tuple[int, int], **options: Any) -> Canonical:
        names = arguments.canonical
        return import_module(
            wrapped, names, [], "module.", image_size=image_size, shape=shape, **options
        )

    with torch.no_grad():
        if dynamic or arguments.forms != arguments.canonical:
            canonical = trace(shape)
        else:
            canonical = import_exported(program, arguments.canonical, [])
        name = type(program.graph_module).__name__
        return _finish(
            canonical,
            wrapped if verify else None,
            "exported program" if name == "GraphModule" else name,
            source="torch.export.ExportedProgram",
            description="exported torch program",
            shape=None if dynamic else shape,
            again=(
                (lambda revisit: trace((shape[0], revisit.length), revisit=revisit))
                if dynamic
                else None
            ),
        )


def _user_inputs(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Example values of the inputs that are no weights, by name."""
    names = set(program.graph_signature.user_inputs)
    return {
        node.name: node.meta.get("val")
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
    }


def _arguments(
    program: torch.export.ExportedProgram, names: list[str], inputs: Inputs
) -> Arguments:
    positional, keywords = program.call_spec.in_spec.children()
    count = positional.num_children
    called = [*names[:count], *(str(key) for key in keywords.context)]
    if len(called) != len(names):
        raise UnsupportedModelError(
            f"the exported program has {len(names)} inputs",
            where="torch.export",
            why=f"it is called with {len(called)} arguments, so some of them hold several tensors",
            todo="export the model with one tensor per argument",
        )
    if isinstance(inputs, Mapping):
        unknown = sorted(set(inputs) - set(called))
        if unknown:
            raise ModelSourceError(
                f"the exported program has no input {unknown[0]}",
                where="inputs",
                why=f"its inputs are {', '.join(called)}",
                todo="use these names",
            )
        forms = [inputs.get(name, name) for name in called]
        return Arguments(tuple(called), tuple(forms), count)
    if inputs is not None and len(inputs) != len(called):
        raise ModelSourceError(
            f"{len(inputs)} names were given for {len(called)} inputs",
            where="inputs",
            why=f"the inputs of the exported program are {', '.join(called)}",
            todo="say what each is",
        )
    if inputs is not None:
        return Arguments(tuple(called), tuple(inputs), count)
    return named_arguments(called, frozenset(called), "the exported program", count)


def _shapes(
    placeholders: Mapping[str, Any], arguments: Arguments
) -> tuple[tuple[int, int], bool, tuple[int, ...] | None]:
    """Return (batch, length) to import at, whether the batch is free, and the size of images."""
    tensors = dict(zip(arguments.forms, placeholders.values(), strict=True))
    real = next((name for name in REAL_INPUTS if name in tensors), "")
    first = tensors.get("input_ids", tensors.get(real))
    if first is None or not isinstance(first, torch.Tensor):
        raise UnsupportedModelError(
            "the exported program does not say what its inputs look like",
            where="torch.export",
            why="their example values are missing",
            todo="export the model again",
        )
    static = [int(size) if isinstance(size, int) else None for size in first.shape]
    if real and len(static) == 1 + len(REAL_INPUTS[real].axes.split(", ")):
        size = tuple(extent for extent in static[1:] if extent is not None)
        if None in static[1:]:
            what = REAL_INPUTS[real].what
            raise UnsupportedModelError(
                f"the exported program takes {what} of any size",
                where="torch.export",
                why=f"there is one length of sequence per size of the {what}",
                todo="export it with a dynamic batch only",
            )
        batch = static[0] or PROBE_SHAPE[0]
        _check_static(batch, None, tuple(first.shape))
        return (batch, 0), static[0] is None, size
    if real or len(static) != 2:
        raise UnsupportedModelError(
            f"the input has {len(static)} dimensions",
            where="torch.export",
            why="token ids are [batch, seq_len], images [batch, channels, height, width], features "
            "[batch, channels, frames]",
            todo="export the model with such inputs",
        )
    batch, length = (size or probe for size, probe in zip(static, PROBE_SHAPE, strict=True))
    dynamic = None in static
    _check_static(batch, length, tuple(first.shape))
    return (batch, length), dynamic, None


def _check_static(batch: int, length: int | None, shape: tuple[Any, ...]) -> None:
    if batch < 2 or (length is not None and (length < 2 or length == batch)):
        shown = ", ".join(str(size) for size in shape)
        raise UnsupportedModelError(
            f"the exported program takes inputs of [{shown}] only",
            where="torch.export",
            why="with a batch of 1, or one that is as long as the sequence, its axes cannot be "
            "told apart",
            todo="export it with dynamic_shapes for batch and sequence length, or with a batch of "
            "2 and another length",
        )


def _finish(
    canonical: Any,
    module: torch.nn.Module | None,
    architecture: str,
    *,
    source: str,
    description: str,
    shape: tuple[int, int] | None = None,
    again: Callable[[Revisit], Canonical] | None,
) -> CanonicalModel:
    ranks = [rank for _, rank in canonical.outputs]
    names = ["output"] if len(ranks) == 1 else [f"output{i}" for i in range(len(ranks))]
    result = finish(
        canonical,
        None if module is None else as_source(module),
        architecture=architecture,
        head="none",
        outputs=[
            (name, "hidden_state" if rank == 3 else "pooled")
            for name, rank in zip(names, ranks, strict=True)
        ],
        shape=shape,
        again=again,
    )
    notes = []
    if shape is not None:
        size = f"{shape[0]} x {shape[1]}" if shape[1] else f"batch {shape[0]}"
        notes.append(f"the source has static shapes: it was compared at {size} only")
    return described(result, source=source, description=description, notes=notes)
