"""Importing torch modules that are no transformers models, and exported programs."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

# What the arguments of a torch module mean: canonical inputs, and masks in other forms.
#
# The compiled model always takes ``input_ids``, ``attention_mask`` (1 for tokens) and
# ``token_type_ids``, or one of `REAL_INPUTS`. A module may call them otherwise, and take its mask
# in one of the forms below; a thin wrapper makes its arguments from the canonical ones, so that the
# conversion is traced with the module and recognised like any other mask.

_CANONICAL = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)
_LOWEST = torch.finfo(torch.float32).min


FORMS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    **{name: (name, lambda value: value) for name in _CANONICAL},
    "boolean_mask": ("attention_mask", lambda value: value != 0),
    "padding_mask": ("attention_mask", lambda value: value == 0),
    "additive_mask": (
        "attention_mask",
        lambda value: (1.0 - value[:, None, None, :].to(torch.float32)) * _LOWEST,
    ),
}
"""Form of an argument: the canonical input that it is made from, and how.

``boolean_mask`` is True for tokens, ``padding_mask`` is True for padding (torch's
``src_key_padding_mask``), ``additive_mask`` is float [batch, 1, 1, seq_len]: 0 for tokens and the
lowest number for padding.
"""

# Names that say what an argument is. Others have to be told.
_KNOWN = {
    "input_ids": "input_ids",
    "ids": "input_ids",
    "tokens": "input_ids",
    "token_ids": "input_ids",
    "src": "input_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_type_ids",
    "segment_ids": "token_type_ids",
    "pixel_values": "pixel_values",
    "pixels": "pixel_values",
    "images": "pixel_values",
    "input_features": "input_features",
    "src_key_padding_mask": "padding_mask",
    "key_padding_mask": "padding_mask",
    "padding_mask": "padding_mask",
}


@dataclass(frozen=True)
class Arguments:
    """The arguments with which a module is called.

    Parameters
    ----------
    names
        Argument names, in order.
    forms
        Form of each, a key of `FORMS`.
    positional
        How many of them are passed by position.

    Raises
    ------
    ModelSourceError
        If a form is unknown, or none is `input_ids` or one of `REAL_INPUTS`.
    """

    names: tuple[str, ...]
    forms: tuple[str, ...]
    positional: int = 0

    def __post_init__(self) -> None:
        for name, form in zip(self.names, self.forms, strict=True):
            if form not in FORMS:
                raise ModelSourceError(
                    f"the argument {name} cannot be {form!r}",
                    where="inputs",
                    why=f"known forms: {', '.join(FORMS)}",
                    todo="name one of them",
                )
        if not {"input_ids", *REAL_INPUTS} & set(self.forms):
            raise ModelSourceError(
                f"no argument is input_ids or {' or '.join(REAL_INPUTS)}",
                where="inputs",
                why=f"the arguments are {_list(self.names, self.forms) or 'none'}",
                todo="say which argument holds the token ids: inputs={'NAME': 'input_ids'}",
            )

    @property
    def canonical(self) -> tuple[str, ...]:
        """Canonical inputs that they are made from, each once, in order."""
        return tuple(dict.fromkeys(FORMS[form][0] for form in self.forms))

    @property
    def plain(self) -> bool:
        """Whether the module takes the canonical inputs themselves, as keywords."""
        return self.names == self.forms == self.canonical and not self.positional


def _list(names: Sequence[str], forms: Sequence[str]) -> str:
    return ", ".join(f"{name} ({form})" for name, form in zip(names, forms, strict=True))


class AsCanonical(torch.nn.Module):
    """A module as a function of canonical inputs.

    Parameters
    ----------
    module
        The module.
    arguments
        How it is called.
    """

    def __init__(self, module: torch.nn.Module, arguments: Arguments) -> None:
        super().__init__()
        self.module = module
        self.arguments = arguments

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Call the module on canonical inputs, [batch, seq_len] int64, images or features."""
        values = []
        for form in self.arguments.forms:
            source, convert = FORMS[form]
            values.append(convert(inputs[source]))
        count = self.arguments.positional
        named = dict(zip(self.arguments.names[count:], values[count:], strict=True))
        return self.module(*values[:count], **named)


def arguments_of(
    module: torch.nn.Module, inputs: Sequence[str] | Mapping[str, str] | None
) -> Arguments:
    """Tell how a module is called.

    Parameters
    ----------
    module
        The module.
    inputs
        Argument names that are what they are called; or the form of each by its name; by default
        what the signature of `forward` says.

    Returns
    -------
    Arguments
        The arguments.

    Raises
    ------
    ModelSourceError
        If that is not clear.
    """
    if isinstance(inputs, Mapping):
        return Arguments(tuple(inputs), tuple(inputs.values()))
    if inputs is not None:
        return named_arguments(tuple(inputs), frozenset(inputs), type(module).__name__)
    parameters = inspect.signature(module.forward).parameters.values()
    by_name = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = frozenset(p.name for p in by_name if p.default is p.empty)
    names = tuple(p.name for p in by_name if p.name in needed or p.name in _KNOWN)
    return named_arguments(names, needed, type(module).__name__)


def named_arguments(
    names: Sequence[str], needed: frozenset[str], where: str, positional: int = 0
) -> Arguments:
    """Tell what arguments are by their names.

    Parameters
    ----------
    names
        The names.
    needed
        Those that have no default.
    where
        For messages.
    positional
        How many are passed by position.

    Returns
    -------
    Arguments
        The arguments; one that is not needed and not understood is left out.

    Raises
    ------
    ModelSourceError
        If a needed one says nothing.
    """
    forms = {name: _KNOWN.get(name, "") for name in names}
    unknown = [name for name, form in forms.items() if not form and name in needed]
    # One argument alone can only be the tokens.
    if len(names) == 1 and unknown:
        forms, unknown = {names[0]: "input_ids"}, []
    if unknown:
        raise ModelSourceError(
            f"it is not clear what the argument {unknown[0]} is",
            where=where,
            why=f"its arguments are {', '.join(names)}",
            todo=f"say what each is: inputs={{{unknown[0]!r}: FORM, ...}}, with FORM one of "
            f"{', '.join(FORMS)}",
        )
    kept = {name: form for name, form in forms.items() if form}
    return Arguments(tuple(kept), tuple(kept.values()), positional)


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
        See `arguments_of`.
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
