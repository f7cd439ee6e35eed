"""What is known about a kind of model to import: one record each, asked by every room.

Recognising a model looks at the names of files and at small documents, so that records need neither
TVM nor torch; their loaders import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.extras import require
from ...common.registry import Registry
from ..errors import ModelSourceError
from ..folder_files import not_a_model
from ..hf_folder import check_head
from ..model import CanonicalModel
from ..request import Request


@dataclass(frozen=True)
class ModelSource:
    """A kind of model to import.

    Parameters
    ----------
    name
        One word, for the record itself.
    what
        What a model is called in messages, with its article.
    recognises
        Whether an object, which is a `pathlib.Path` or a model in memory, is of this kind.
    load
        ``load(model, request)`` returns the canonical model.
    stands_for
        In the place of `load`: returns the model that the object leads to.
    packages, to_verify
        Optional packages that loading needs, and those that the comparison with the source needs.
    heads
        Whether it can have a head other than ``none``.
    inputs
        Which of a sequence and a mapping may say what its inputs are.
    files
        ``files(path)`` lists the files that the result depends on; None for models in memory.
    precedence
        Of several kinds that recognise a model it is of the one with the largest.

    Raises
    ------
    ValueError
        If a part is missing or contradicts another.
    """

    name: str
    what: str
    recognises: Callable[[object], bool]
    load: Callable[[Any, Request], CanonicalModel] | None = None
    stands_for: Callable[[Any], object] | None = None
    packages: tuple[str, ...] = ()
    to_verify: tuple[str, ...] = ()
    heads: bool = True
    inputs: tuple[type, ...] = ()
    files: Callable[[Path], Iterable[Path]] | None = None
    precedence: int = 0

    def __post_init__(self) -> None:
        rules = (
            (self.name.isidentifier(), "has no name that is one word"),
            (
                self.what.partition(" ")[0] in ("a", "an"),
                "is not called by a noun with its article",
            ),
            ((self.load is None) != (self.stands_for is None), "is loaded or leads to another one"),
            (not (self.stands_for and self.files), "has files of its own, and leads to others"),
        )
        wrong = next((why for holds, why in rules if not holds), None)
        if wrong is not None:
            raise ValueError(f"the model source {self.name!r} {wrong}")

    def check(self, request: Request) -> None:
        """Refuse what cannot be asked of a model of this kind, and missing packages.

        Raises
        ------
        ModelSourceError, MissingExtraError
            With the part of the request, or the package.
        """
        if check_head(request.head, "none") != "none" and not self.heads:
            raise ModelSourceError(
                f"the head {request.head} cannot be chosen for {self.what}",
                where="head",
                why="it returns what it returns",
                todo="leave head out; add the head to the module itself",
            )
        if request.inputs is not None and not isinstance(request.inputs, self.inputs):
            names = "a mapping such as {'input_mask': 'attention_mask'}"
            raise ModelSourceError(
                f"the inputs of {self.what} are not given as {type(request.inputs).__name__}",
                where="inputs",
                why="it names its inputs itself"
                + ("; only names that differ can be given" if self.inputs else ""),
                todo=f"give {names}, or leave it out" if self.inputs else "leave inputs out",
            )
        require(*self.packages, "tvm", to=f"importing {self.what}")
        if request.verify:
            require(
                *self.to_verify,
                to="comparing the import with its source",
                otherwise=", or load with verify=False",
            )


_registry: Registry[ModelSource] = Registry("model source")
SOURCES = _registry.records
"""Every kind of model to import by its name; a view."""
register_source, unregister_source = _registry.register, _registry.unregister


def source_of(model: object) -> ModelSource | None:
    """Return the kind of a model, a `pathlib.Path` or an object; None if it is of no known kind."""
    found = [source for source in SOURCES.values() if source.recognises(model)]
    return max(found, key=lambda source: source.precedence, default=None)


def is_source(path: Path) -> bool:
    """Tell whether a path is that of a model to import, and not of an artefact of ours."""
    return source_of(path) is not None


def resolved(model: object) -> tuple[ModelSource, Any]:
    """Return the kind of a model and the model itself, which a path may only lead to.

    Raises
    ------
    ModelSourceError
        If it is of no known kind, or leads nowhere.
    """
    source = source_of(model)
    if source is None and isinstance(model, Path):
        raise not_a_model(model)
    if source is None:
        raise ModelSourceError(
            f"a {type(model).__name__} is not a model",
            where="load",
            why="a model is a path (str or Path), a torch.nn.Module or an ExportedProgram",
            todo="pass one of these",
        )
    return (source, model) if source.stands_for is None else resolved(source.stands_for(model))


def ends_in(suffix: str) -> Callable[[object], bool]:
    """Return what recognises files by the end of their names, in any case."""
    return lambda model: isinstance(model, Path) and model.suffix.lower() == suffix
