"""Reading a Hugging Face model folder: configuration, weight files, pooling. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..common.files import files_sha256
from ..common.schema import STRING, either, one_of
from ..common.strict_json import JsonDict, JsonObject, shown
from ..model.heads import HEADS, PooledTokens, WholePipeline, head_of_class
from .errors import ModelSourceError
from .folder_files import hub_snapshot, not_a_model, read_json, stated_license, weight_files
from .post_processing import read_post_processing
from .sentence_pipeline import Pipeline, pipeline_settings, read_pipeline, transformer_place
from .source_tokenizer import SourceTokenizer, source_tokenizer

TESTED_ARCHITECTURES = (
    "bert",
    "camembert",
    "deit",
    "distilbert",
    "electra",
    "roberta",
    "vit",
    "xlm-roberta",
)
"""Values of ``model_type`` that the tests import and compare with transformers."""


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_NULL = one_of(None)
MAX_LAYERS = 1024
"""Of a model folder: what is built before its weights are looked at."""
_LAYERS = re.compile(r"(?:^|_)(?:layers?|depth)$")
_CONFIG = {
    "model_type?": either(STRING, _NULL),
    "architectures?": either((_is_names, "a list of strings"), _NULL),
}


@dataclass(frozen=True)
class HfFolder:
    """A model folder whose files were found and checked.

    Attributes
    ----------
    path
        The folder.
    model
        Where configuration and weights are: `path`, or the Transformer folder of a
        sentence-transformers model.
    config : dict
        ``config.json``.
    weights
        Weight files in name order.
    modules : object
        ``modules.json`` of a sentence-transformers model, else None.
    """

    path: Path
    model: Path
    config: JsonDict
    weights: tuple[Path, ...]
    modules: Any = None

    @property
    def model_type(self) -> str:
        """The architecture's name, ``model_type`` of the configuration."""
        return str(self.config["model_type"])

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """What follows the transformer of a sentence-transformers model, else None.

        Raises
        ------
        ModelSourceError
            If a part of it has no integer form.
        """
        return None if self.modules is None else read_pipeline(self.path, self.modules)

    @cached_property
    def tokenizer(self) -> SourceTokenizer:
        """The tokenizer, whose comparison with transformers begins when this is first asked for."""
        return SourceTokenizer(self.model, self.path)

    @property
    def pooling(self) -> str:
        """The mode of the source's pooling, ``mean`` if it has none.

        Raises
        ------
        ModelSourceError
            If it is not one mode.
        """
        found = None if self.pipeline is None else self.pipeline.pooling
        if found is None:
            return "mean"
        if len(found.modes) == 1:
            return found.modes[0]
        raise ModelSourceError(
            f"the source joins the poolings {', '.join(found.modes)}",
            where=str(self.path / "modules.json"),
            why="head='sentence_embedding' is one pooling",
            todo="choose head='sentence_transformer', the whole pipeline",
        )

    @property
    def default_head(self) -> str:
        """The head that the folder's files ask for."""
        if self.pipeline is not None and self.pipeline.steps:
            wanted = PooledTokens if self.pipeline.is_pooling else WholePipeline
            return next(h.name for h in HEADS.values() if isinstance(h.finish, wanted))
        return head_of_class(self.declared)

    @property
    def declared(self) -> str:
        """The transformers class that the configuration names; empty if it names none."""
        return str((self.config.get("architectures") or [""])[0])

    def provenance(self, head: str) -> JsonDict:
        """Return what `ibert_tvm.frontend.finish.described` notes of a model with this head."""
        return {
            "source": str(self.path),
            "description": f"{self.model_type} from {self.path.name}, head {head}",
            "sha256": files_sha256(self.weights),
            "tokenizer": self.tokenizer.files(),
            "notes": self._notes(head),
            "license": stated_license(self.path),
            **read_post_processing(self.config, self.settings, head, str(self.path)),
        }

    @property
    def settings(self) -> JsonDict:
        """What sentence-transformers reads of a folder with a ``modules.json``."""
        return {} if self.modules is None else pipeline_settings(self.path)

    def _notes(self, head: str) -> tuple[str, ...]:
        """What a caller must know of a model with this head."""
        finish = HEADS[head].finish
        if not isinstance(finish, PooledTokens | WholePipeline) or self.pipeline is None:
            return ()
        if isinstance(finish, PooledTokens) and not self.pipeline.is_pooling:
            note = "the source computes more of its embeddings; head='sentence_transformer' has it"
            return (note,)
        if isinstance(finish, WholePipeline) and not self.pipeline.pools:
            late = (
                "queries are not expanded by mask tokens, and vectors of all tokens of a document "
            )
            return (late + "are kept, where libraries of late interaction may do otherwise",)
        return ()

    @classmethod
    def read(cls, path: str | Path) -> HfFolder:
        """Read and check a folder.

        Parameters
        ----------
        path
            The folder, or an entry of the Hugging Face hub's cache that holds it.

        Returns
        -------
        HfFolder
            What was found.

        Raises
        ------
        ModelSourceError
            If the path does not exist, is no model folder, or has damaged files.
        """
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise not_a_model(folder)
        found = read_config(hub_snapshot(folder))
        config, file = found.config, found.model / "config.json"
        if not config.get("model_type"):
            raise ModelSourceError(
                "config.json names no model_type",
                where=str(file),
                why="it decides which transformers class the weights belong to",
                todo=f"add it; tested values: {', '.join(TESTED_ARCHITECTURES)}",
            )
        _check_layers(config, file)
        return replace(found, weights=weight_files(found.model))


def read_config(folder: Path) -> HfFolder:
    """Read the documents of a folder, without looking for weights.

    Raises
    ------
    ModelSourceError
        If they are not there, or cannot be read.
    """
    listed = folder / "modules.json"
    modules = read_json(listed, folder, [{}]) if listed.is_file() else None
    model = folder if modules is None else transformer_place(folder, modules)
    return HfFolder(folder, model, read_json(model / "config.json", folder, _CONFIG), (), modules)


def _check_layers(config: JsonObject, file: Path) -> None:
    """Refuse a number of layers that would take hours and all memory to build."""
    for key, value in config.items():
        if _LAYERS.search(key) and type(value) in (int, float) and value > MAX_LAYERS:
            raise ModelSourceError(
                "config.json asks for too many layers",
                where=str(file),
                why=f"{key} is {shown(value)}; {MAX_LAYERS} are allowed",
                todo="correct the file",
            )


LAYER = re.compile(r".*?\.\d+\.")
"""Of a weight's name, up to the number of its layer."""


def check_all_layers(
    unused: Iterable[str], prefix: str, layers: Container[str], parts: Container[str], folder: Path
) -> None:
    """Refuse a checkpoint with more layers than its configuration builds, or one that builds none.

    Other weights that the model has no use for are those of heads that were not asked for.

    Parameters
    ----------
    unused
        Names of weights in the files that it has no use for.
    prefix
        Of the encoder's, in some files.
    layers
        What `LAYER` finds in the names of those that it has.
    parts
        Modules of the encoder.
    folder
        The model, for the message.
    """
    left = [
        name
        for name in sorted(unused)
        if (found := LAYER.match(name.removeprefix(prefix)))
        and found[0] not in layers
        and found[0].partition(".")[0] in parts
    ]
    if left:
        raise ModelSourceError(
            "the checkpoint has more layers than config.json says",
            where=str(folder),
            why=f"{len(left)} weights would be left out, {left[0]} for one",
            todo="set the number of layers in config.json to that of the checkpoint, or save the "
            "shorter model without the other layers",
        )


def padding_id(said: object) -> int | None:
    """A configuration's ``pad_token_id``; None where it is none: several models have -1 there."""
    return said if type(said) is int and said >= 0 else None


def check_head(head: str | None, default: str) -> str:
    """Return `head`, or `default` if it is None.

    Raises
    ------
    ModelSourceError
        If there is no such head.
    """
    if head is None:
        return default
    if head not in HEADS:
        raise ModelSourceError(
            f"there is no head {head!r}",
            where="head",
            why=f"known heads: {', '.join(HEADS)}",
            todo="use one of them, or leave it out to follow the model's configuration",
        )
    return head


def given_tokenizer(path: str | Path) -> dict[str, bytes]:
    """Read the tokenizer files of a folder that was named for them.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    dict of str to bytes
        File contents by name.

    Raises
    ------
    ModelSourceError
        If there are none.
    """
    folder = Path(path).expanduser()
    files = source_tokenizer(folder)
    if not files:
        raise ModelSourceError(
            f"there is no tokenizer in {folder}",
            where=str(folder),
            why="it has no file that transformers makes a tokenizer of"
            if folder.is_dir()
            else "it is not a folder",
            todo="give the folder that holds the model's tokenizer files",
        )
    return files
