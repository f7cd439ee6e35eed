"""What the arguments of a torch module mean: canonical inputs, and masks in other forms.

The compiled model always takes ``input_ids``, ``attention_mask`` (1 for tokens) and
``token_type_ids``, or one of `REAL_INPUTS`. A module may call them otherwise, and take its mask in
one of the forms below; a thin wrapper makes its arguments from the canonical ones, so that the
conversion is traced with the module and recognised like any other mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..model.model_info import REAL_INPUTS
from .errors import ModelSourceError

_CANONICAL = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)
_LOWEST = torch.finfo(torch.float32).min


def _additive(mask: torch.Tensor) -> torch.Tensor:
    return (1.0 - mask[:, None, None, :].to(torch.float32)) * _LOWEST


FORMS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    **{name: (name, lambda value: value) for name in _CANONICAL},
    "boolean_mask": ("attention_mask", lambda value: value != 0),
    "padding_mask": ("attention_mask", lambda value: value == 0),
    "additive_mask": ("attention_mask", _additive),
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
