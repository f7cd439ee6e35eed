"""Options of a command, from the signature and the docstring of a plain function.

Positional parameters become arguments, keyword-only ones options. A parameter that is a frozen
dataclass stands for its fields: those of a group of options that commands share, or the settings of
a package's core. The help of each is its entry under ``Parameters`` or ``Attributes`` of the NumPy
docstring; whatever else typer has to know is annotated. The help shows those under ``Other
Parameters`` behind all others.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from typer import Argument, Option
from typer.models import OptionInfo, ParameterInfo

from ..common.strict_json import JsonObject

if TYPE_CHECKING:
    from .result import CommandResult

_RARE = "Less common"
_SHORT = {"output": ["-o"], "verbose": ["-v"]}


@dataclass(frozen=True)
class Choice:
    """The names that an option takes, as the records of the core have them."""

    names: Sequence[str]
    flag: str | None = None


@dataclass(frozen=True)
class Settings:
    """How fields of a core dataclass are options: those `without` are none.

    Attributes
    ----------
    annotated
        An `Option` or a `Choice`, by the field's name.
    """

    annotated: JsonObject
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Messages:
    """What every command takes.

    Attributes
    ----------
    json
        Print one JSON document on stdout and nothing else there.
    verbose
        Say more on stderr; tracebacks with errors.
    """

    panel = "Messages"

    json: bool = False
    verbose: bool = False


def sections(documented: object) -> dict[str, list[str]]:
    """Lines of a NumPy docstring by section; those before the first one by ``""``."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    lines = (inspect.getdoc(documented) or "").splitlines()
    for number, line in enumerate(lines):
        if lines[number + 1 : number + 2] == ["-" * len(line)] and line:
            found[name := line] = []
        elif line != "-" * len(name) or not name:
            found[name].append(line)
    return found


def examples(command: Callable[..., CommandResult]) -> list[str]:
    """Return the command lines that a docstring shows."""
    return [line for line in sections(command).get("Examples", ()) if line.startswith("ibert ")]


def _texts(documented: object, *names: str) -> dict[str, str]:
    """What sections of a docstring say of parameters and attributes."""
    found: dict[str, str] = {}
    name = ""
    parts = sections(documented)
    for line in [line for section in names for line in parts.get(section, ())]:
        if line.strip() and not line.startswith(" "):
            name = re.split(r"\W", line)[0]
        elif line.strip():
            found[name] = f"{found.get(name, '')} {line.strip()}".lstrip()
    return found


def command_of(function: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
    """Give a command the signature that typer reads; groups of options arrive as their dataclass.

    Parameters
    ----------
    function
        Its parameters are typed; those of `Messages` are added, and passed where it has them.
    """
    options: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    own = inspect.signature(function, eval_str=True).parameters
    rare = _texts(function, "Other Parameters")
    texts = _texts(function, "Parameters") | rare
    for name, parameter in own.items():
        kind, *extra = _parts(parameter.annotation)
        if is_dataclass(kind):
            found = _fields(kind, *extra)
            groups[name] = (cast("Callable[..., object]", kind), [option.name for option in found])
            options += found
        elif name != "verbose":
            argument = parameter.kind is not parameter.KEYWORD_ONLY
            if argument:
                extra.append(Argument())
            panel = _RARE if name in rare else ""
            options.append(_option(name, kind, extra, parameter.default, texts, panel))
    options.sort(key=lambda option: option.name in rare)
    options += _fields(Messages)

    def call(**given: Any) -> CommandResult:
        given = {n: v.expanduser() if isinstance(v, Path) else v for n, v in given.items()}
        made = {
            name: kind(**{field: given[field] for field in names})
            for name, (kind, names) in groups.items()
        }
        return function(**{name: (given | made)[name] for name in own})

    call.__doc__ = "\n".join(sections(function)[""])
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)


def _fields(kind: Any, settings: Settings = Settings({})) -> list[inspect.Parameter]:
    """Options of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    texts = {
        name: text
        for c in reversed(kind.__mro__)
        for name, text in _texts(c, "Parameters", "Attributes").items()
    }
    found = []
    for field in fields(kind):
        if field.name in settings.without:
            continue
        annotation, *extra = _parts(hints[field.name])
        extra.append(settings.annotated.get(field.name))
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        panel = getattr(kind, "panel", "")
        found.append(_option(field.name, annotation, extra, default, texts, panel))
    return found


def _option(
    name: str,
    kind: Any,
    extra: Sequence[Any],
    default: Any,
    texts: Mapping[str, str],
    panel: str = "",
) -> inspect.Parameter:
    infos = [copy(item) for item in extra if isinstance(item, ParameterInfo)]
    flags = [*_SHORT.get(name, ()), f"--{name.replace('_', '-')}"]
    info = infos[0] if infos else Option()
    for choice in extra:
        if isinstance(choice, Choice):
            chosen = Literal[tuple(choice.names)]  # type: ignore[valid-type]
            kind = chosen | None if type(None) in get_args(kind) else chosen
            flags = [choice.flag] if choice.flag else []
    if isinstance(info, OptionInfo) and info.default is ...:
        info.param_decls = flags
    if sys.flags.optimize < 2:  # else there are no docstrings, and no help
        info.help = info.help or texts[name]
    info.rich_help_panel = info.rich_help_panel or panel or None
    annotation = Annotated[kind, info]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
