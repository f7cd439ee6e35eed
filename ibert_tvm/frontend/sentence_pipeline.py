"""The modules of a sentence-transformers folder behind its transformer. Needs no torch.

``modules.json`` lists them in order. What one of them computes is either reproduced or refused:
an embedding without a part of its pipeline is another embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Floats
from .errors import ModelSourceError
from .folder_files import inside, read_json, weight_files
from .ibert_checkpoint.weights import CheckpointArrays

_POOLING_KEYS = {
    "cls": "_token",
    "max": "_tokens",
    "mean": "_tokens",
    "mean_sqrt_len": "_tokens",
    "weightedmean": "_tokens",
    "lasttoken": "",
}
"""How keys of older folders end, by mode, in the order in which their vectors are joined."""
POOLINGS = (*_POOLING_KEYS,)
"""Modes of pooling."""

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
"""Functions of a dense layer: classes of ``torch.nn``, looked up here and never imported."""

_PACKAGES = ("sentence_transformers", "pylate")
_INSTEAD = "import with head='none' and compute the rest outside of the compiled model"
_LARGEST = 2**20
_CLASSIFICATION = "sequence-classification"
"""Task of a reranker, whose scores nothing follows."""
_IDLE = ("Dropout", "MultiVectorMask")
"""Modules that change no vector; the second chooses tokens whose vectors are compared."""

_TRANSFORMER_SETTINGS = (
    "bert",
    "roberta",
    "distilbert",
    "camembert",
    "albert",
    "xlm-roberta",
    "xlnet",
)
"""Names of sentence-transformers' settings of a transformer, in its order of looking."""

_OUTPUTS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "fill-mask": ("logits", "token_embeddings"),
    _CLASSIFICATION: ("logits", "scores"),
}
"""Tasks of a transformer, with the output that it takes and the name that this is given."""

_ARGUMENTS = ("model_args", "model_kwargs", "config_args", "config_kwargs")
_HARMLESS = {
    *("attn_implementation", "dtype", "torch_dtype", "revision", "trust_remote_code"),
    *("unpad_inputs", "use_cache", "use_memory_efficient_attention"),
}
"""Those that change how a transformer is computed, and not what."""


TOKEN_EMBEDDINGS = ("token_embeddings", "hidden_state")
"""Name and kind of the output of a pipeline that does not pool."""


@dataclass(frozen=True)
class Pooling:
    """One vector per text, or several joined.

    Parameters
    ----------
    modes
        Of `POOLINGS`.
    """

    modes: tuple[str, ...]


@dataclass(frozen=True)
class Dense:
    """A linear layer and a function.

    Parameters
    ----------
    weights
        Files with ``linear.weight`` and, with a bias, ``linear.bias``.
    inputs, outputs
        Channels.
    bias
        Whether it has one.
    activation
        Of `ACTIVATIONS`.
    """

    weights: tuple[Path, ...]
    inputs: int
    outputs: int
    bias: bool
    activation: str

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its weights by name."""
        bias = {"linear.bias": (self.outputs,)} if self.bias else {}
        return {"linear.weight": (self.outputs, self.inputs), **bias}


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNorm with torch's own epsilon.

    Parameters
    ----------
    weights
        Files with ``norm.weight`` and ``norm.bias``.
    channels
        Of its input.
    """

    weights: tuple[Path, ...]
    channels: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its weights by name."""
        return {f"norm.{name}": (self.channels,) for name in ("weight", "bias")}


@dataclass(frozen=True)
class Normalize:
    """Every vector, or every token's, scaled to length 1."""


@dataclass(frozen=True)
class Splade:
    """``log(1 + relu(logits))`` of a masked-language model, its maximum over the tokens."""


Step = Pooling | Dense | LayerNorm | Normalize | Splade


@dataclass(frozen=True)
class Pipeline:
    """What follows a transformer.

    Parameters
    ----------
    steps
        In order.
    masked_lm
        Whether it takes the logits of a masked-language model, not the hidden state.
    """

    steps: tuple[Step, ...]
    masked_lm: bool = False

    @property
    def pools(self) -> bool:
        """Whether it ends in one vector per text."""
        return any(isinstance(step, Pooling | Splade) for step in self.steps)

    @property
    def is_pooling(self) -> bool:
        """Whether it is one pooling and nothing else."""
        pooling = self.pooling
        return len(self.steps) == 1 and pooling is not None and len(pooling.modes) == 1

    @property
    def pooling(self) -> Pooling | None:
        """Its pooling; None if it has none."""
        return next((step for step in self.steps if isinstance(step, Pooling)), None)


def module_weights(step: Dense | LayerNorm) -> dict[str, Floats]:
    """Read the arrays of a module, all of those that it has and no others.

    Raises
    ------
    ModelSourceError
        If they are not those that its configuration asks for.
    """
    arrays, shapes = CheckpointArrays.of_files(step.weights), step.shapes
    unknown = sorted(set(arrays.names) - set(shapes))
    if unknown:
        raise ModelSourceError(
            f"{unknown[0]} belongs to no layer of the module",
            where=arrays.where,
            why=f"its config.json asks for {', '.join(shapes)}",
            todo="check that config.json belongs to these weights",
        )
    return arrays.require(shapes)


def transformer_place(folder: Path, modules: Any) -> Path:
    """Return the folder of the transformer that ``modules.json`` names.

    Raises
    ------
    ModelSourceError
        If the document is no list of modules, names a place outside of the folder, or lists no
        transformer where there is none beside it.
    """
    listed = _modules(folder, modules)
    for kind, place, _ in listed:
        if kind in ("Transformer", "MLMTransformer"):
            return place
    if listed and not (folder / "config.json").is_file():
        why = "it comes first, and only a Transformer has a form"
        raise _refused(listed[0][0], str(folder / "modules.json"), why)
    return folder


def transformer_settings(folder: Path) -> JsonDict:
    """What sentence-transformers reads beside the transformer of a folder with a ``modules.json``.

    Empty where there is no such file.

    Raises
    ------
    ModelSourceError
        If a file is damaged, or names a place outside of the folder.
    """
    place = transformer_place(folder, read_json(folder / "modules.json", folder, [{}]))
    for name in _TRANSFORMER_SETTINGS:
        file = place / f"sentence_{name}_config.json"
        settings: JsonDict = read_json(file, folder) if file.is_file() else {}
        if settings:  # an empty one counts as none
            return settings
    return {}


def read_pipeline(folder: Path, modules: Any) -> Pipeline:
    """Read the modules behind the transformer.

    Parameters
    ----------
    folder
        A sentence-transformers folder.
    modules : object
        Its ``modules.json``.

    Returns
    -------
    Pipeline
        All of them.

    Raises
    ------
    ModelSourceError
        If one of them has no integer form, is unknown, or is damaged.
    """
    where = str(folder / "modules.json")
    steps: list[Step] = []
    pooled = masked_lm = late = False
    transformers, task = 0, ""
    for kind, place, package in _modules(folder, modules):
        if package not in _PACKAGES:
            why = "it is code of the model's own, which is not run"
            raise _refused(f"{package}.{kind}".lstrip("."), where, why)
        late |= package == "pylate"
        if kind in ("Transformer", "MLMTransformer"):
            transformers += 1
            task = _task(folder)
            masked_lm = kind == "MLMTransformer" or task == "fill-mask"
            if transformers > 1 or steps:
                raise _refused(kind, where, "it is not the first module, and the only transformer")
        elif kind == "Pooling":
            if pooled:
                raise _refused(kind, where, "a module before it has pooled the tokens already")
            steps.append(_pooling(place))
            pooled = True
        elif kind == "SpladePooling":
            steps.append(_splade(place, masked_lm and not steps))
            pooled = True
        elif kind in _READERS:
            steps += _READERS[kind](place, pooled)
        elif kind not in _IDLE:
            known = ", ".join(("Pooling", "SpladePooling", *_IDLE, *_READERS))
            raise _refused(kind, where, f"only these can follow a transformer: {known}")
    if not transformers:
        raise _refused("modules.json", where, "it lists no transformer")
    if task == _CLASSIFICATION and steps:
        raise _refused("Transformer", where, f"its task is {task!r}, and modules follow it")
    if masked_lm and not any(isinstance(step, Splade) for step in steps):
        raise _refused("MLMTransformer", where, "only SpladePooling has a form behind its logits")
    if late and not pooled and Normalize() not in steps:
        steps.append(Normalize())  # PyLate does so when it encodes, unless it is told not to
    return Pipeline(tuple(steps), masked_lm)


def _modules(folder: Path, modules: Any) -> list[tuple[str, Path, str]]:
    """Class, place and package of every module."""
    where = str(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(item, Mapping) for item in modules):
        raise ModelSourceError(
            "modules.json is no list of modules",
            where=where,
            why="sentence-transformers lists them with a type and a path each",
            todo="copy the model folder again",
        )
    result = []
    for item in modules:
        path, _, kind = str(item.get("type", "")).rpartition(".")
        package = path.partition(".")[0]
        result.append((kind, inside(folder, str(item.get("path", "")), "modules.json"), package))
    return result


def _task(folder: Path) -> str:
    """What newer folders say that their transformer computes, with no other output than usual."""
    settings = transformer_settings(folder)
    task = settings.get("transformer_task") or "feature-extraction"
    taken, given = _OUTPUTS.get(str(task), ("", ""))
    texts = _mapping(_mapping(settings, "modality_config"), "text")
    found: dict[str, tuple[Any, list[Any]]] = {
        "task": (task, [*_OUTPUTS]),
        "module_output_name": (settings.get("module_output_name"), [None, given]),
        "method_output_name": (texts.get("method_output_name"), [None, taken]),
        "method": (texts.get("method"), [None, "forward"]),
    }
    for name, (value, known) in found.items():
        if value not in known:
            raise _refused("Transformer", str(folder), f"its {name} is {value!r}")
    for name in _ARGUMENTS:
        if changed := sorted(_mapping(settings, name).keys() - _HARMLESS):
            raise _refused("Transformer", str(folder), f"its {name} set {', '.join(changed)}")
    return str(task)


def _mapping(settings: JsonObject, name: str) -> JsonObject:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}


def _refused(what: str, where: str, why: str) -> ModelSourceError:
    return ModelSourceError(
        f"the source's module {what} is not supported here", where=where, why=why, todo=_INSTEAD
    )


def _pooling(place: Path) -> Pooling:
    file = place / "config.json"
    config = _config(place)
    named = config.get("pooling_mode")  # if it is there, older keys do not count
    chosen = {f"pooling_mode_{mode}{suffix}": mode for mode, suffix in _POOLING_KEYS.items()}
    found = [mode for key, mode in chosen.items() if config.get(key)] if named is None else named
    names = found if isinstance(found, list) else [found]
    modes = tuple(str(name).removesuffix("_tokens") for name in names)
    if not modes or not {*modes} <= {*POOLINGS}:
        raise ModelSourceError(
            f"the sentence embedding pools by {', '.join(sorted(modes)) or 'nothing'}",
            where=str(file),
            why=f"there are these modes: {', '.join(POOLINGS)}",
            todo=_INSTEAD,
        )
    if config.get("include_prompt", True) is not True:
        raise ModelSourceError(
            "the pooling leaves the tokens of prompts out",
            where=str(file),
            why="include_prompt is false, and the compiled model does not know which they are",
            todo=_INSTEAD,
        )
    return Pooling(modes)


def _splade(place: Path, of_logits: bool) -> Splade:
    config = _config(place) if (place / "config.json").is_file() else {}
    strategy, function = config.get("pooling_strategy", "max"), config.get("activation_function")
    if not of_logits:
        why = "it takes the logits of a masked-language model"
    elif strategy != "max":
        why = f"it pools by {strategy!r}, and only a maximum has a form"
    elif function not in (None, "relu"):
        why = f"its function is {function!r}, and only log(1 + relu) has a form"
    else:
        return Splade()
    raise _refused("SpladePooling", str(place / "config.json"), why)


def _dense(place: Path, pooled: bool) -> list[Step]:
    config, file = _config(place), str(place / "config.json")
    _takes(config, "Dense", file, pooled)
    if config.get("use_residual", False) is not False:
        raise _refused("Dense", file, "it adds its input to its output")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    path, _, activation = name.rpartition(".")
    if path.split(".")[:2] != ["torch", "nn"] or activation not in ACTIVATIONS:
        raise ModelSourceError(
            f"the activation function of a dense layer is {name!r}",
            where=file,
            why=f"there are these, of torch.nn: {', '.join(ACTIVATIONS)}",
            todo=_INSTEAD,
        )
    inputs, outputs = (_size(config, key, file) for key in ("in_features", "out_features"))
    bias = config.get("bias", True) is not False
    return [Dense(weight_files(place), inputs, outputs, bias, activation)]


def _layer_norm(place: Path, pooled: bool) -> list[Step]:
    file = str(place / "config.json")
    if not pooled:
        raise _refused("LayerNorm", file, "it comes before the pooling")
    return [LayerNorm(weight_files(place), _size(_config(place), "dimension", file))]


def _normalize(place: Path, pooled: bool) -> list[Step]:
    file = place / "config.json"
    # In the transformer's own folder that name is the transformer's configuration.
    alone = file.is_file() and not (place / "modules.json").is_file()
    _takes(_config(place) if alone else {}, "Normalize", str(file), pooled)
    return [Normalize()]


def _takes(config: JsonObject, kind: str, file: str, pooled: bool) -> None:
    """Refuse a module that newer folders say takes something else than what there is."""
    given = "sentence_embedding" if pooled else "token_embeddings"
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, given):
            raise _refused(kind, file, f"its {key} is {config[key]!r}, not {given!r}")


_READERS: dict[str, Callable[[Path, bool], Sequence[Step]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
}


def _config(place: Path) -> JsonDict:
    return read_json(place / "config.json", place)


def _size(config: JsonObject, key: str, file: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 < value <= _LARGEST:
        raise ModelSourceError(
            f"{key} is {value!r}",
            where=file,
            why=f"a number of channels is a whole number from 1 to {_LARGEST}",
            todo="copy the model folder again",
        )
    return value


def pipeline_settings(folder: Path) -> JsonDict:
    """``config_sentence_transformers.json``; empty where there is none."""
    file = folder / "config_sentence_transformers.json"
    return read_json(file, folder) if file.is_file() else {}
