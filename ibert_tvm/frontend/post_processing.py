"""What a model's own library does with its outputs: read from a folder, compared with the library.

Reading needs no torch. The comparison runs where transformers and sentence-transformers are
installed; neither builds a network for it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..common.errors import error_lines
from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Floats
from ..model.heads import HEADS, WholePipeline
from ..model.model_info import PROBLEMS, ModelInfo, PostProcessing
from ..model.scores import FUNCTIONS, LATE, ranked_classes
from .errors import ModelSourceError, UnsupportedModelError

_logger = logging.getLogger(__name__)

_ACTIVATIONS = {
    "Identity": "none",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
    "ReLU": "relu",
}
"""Functions of a cross-encoder: classes of ``torch.nn``, looked up here and never imported."""

_DENSE = ("cosine", "dot", "euclidean", "manhattan")
_SIMILARITIES = {
    "SentenceTransformer": _DENSE,
    "SparseEncoder": ("dot", *_DENSE),
    "MultiVectorEncoder": LATE,
    "ColBERT": LATE,
}
"""How kinds of models may compare vectors, the default first; another name is not looked at."""

_MOST = 2.0**64
"""A larger number is no threshold."""
_TOLERANCE = 1e-5
_PROBES = 4
_COMPARED = (
    *("id2label", "num_labels", "problem_type"),
    *("sentence_transformers", "sbert_ce_default_activation_function"),
)


def read_post_processing(
    config: JsonObject, settings: JsonObject, head: str, where: str
) -> JsonDict:
    """Read what follows the network.

    Parameters
    ----------
    config
        ``config.json``.
    settings
        ``config_sentence_transformers.json`` of a folder with a ``modules.json``; empty for others,
        where sentence-transformers does not look at it.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    where
        The folder, for errors.

    Returns
    -------
    dict
        Fields of `ibert_tvm.model.model_info.ModelInfo`: ``post_processing``, ``prompts`` and
        ``default_prompt_name``.

    Raises
    ------
    ModelSourceError
        If a function is none of those that are known, or the default prompt does not exist.
    """
    kind, model_type = HEADS[head].kind, str(settings.get("model_type", "SentenceTransformer"))
    pairs = model_type == "CrossEncoder"
    if kind == "logits":
        own = settings if pairs else {}
        return {
            "post_processing": PostProcessing(
                classes=PROBLEMS.get(str(config.get("problem_type"))),
                pairs=_activation(config, own, where),
                thresholds=_thresholds(config),
            ),
            **_prompts(own, where),
        }
    if kind != "embedding" or pairs:
        return {}
    known = _SIMILARITIES.get(model_type, _DENSE)
    if isinstance(HEADS[head].finish, WholePipeline):
        settings = {**settings, "prompts": _with_prefixes(settings)}
    elif known is LATE:
        known = _DENSE  # one vector of a model that was made to give many
    named = settings.get("similarity_fn_name")
    similarity = named if named in known else known[0]
    return {
        "post_processing": PostProcessing(
            similarity=None if similarity == "cosine" else similarity,
            dimensions=_size(settings, "truncate_dim"),
            active=_size(settings, "max_active_dims"),
        ),
        **_prompts(settings, where),
    }


def class_names(config: JsonObject) -> dict[int, str]:
    """Names of the classes in a ``config.json``, by number; empty where it has none."""
    labels = config.get("id2label")
    pairs = labels.items() if isinstance(labels, Mapping) else ()
    numbered = ((str(key), str(name)) for key, name in pairs)
    return dict(sorted((int(k), name) for k, name in numbered if k.isdecimal() and len(k) < 10))


def stated_activation(config: JsonObject, settings: JsonObject) -> str | None:
    """The function that sentence-transformers' CrossEncoder reads, its newest place first."""
    older = config.get("sentence_transformers")
    if settings.get("activation_fn") is not None:
        named = settings["activation_fn"]
    elif isinstance(older, Mapping) and "activation_fn" in older:
        named = older["activation_fn"]
    else:
        named = config.get("sbert_ce_default_activation_function")
    return None if named is None else str(named)


def _activation(config: JsonObject, settings: JsonObject, where: str) -> str | None:
    named = stated_activation(config, settings)
    if named is None:
        return None
    path, _, name = named.rpartition(".")
    if path.split(".")[:2] != ["torch", "nn"] or name not in _ACTIVATIONS:
        raise ModelSourceError(
            f"the cross-encoder makes its scores with {named!r}",
            where=where,
            why=f"there are these functions, of torch.nn: {', '.join(_ACTIVATIONS)}",
            todo="set activation_fn to one of them, for example torch.nn.modules.linear.Identity, "
            "and apply your own function to the scores",
        )
    return _ACTIVATIONS[name]


def _thresholds(config: JsonObject) -> dict[str, float]:
    """Least scores of classes, as one number, one for each class, or by name."""
    names = list(class_names(config).values())
    said = config.get("thresholds", config.get("threshold"))
    if isinstance(said, Mapping):
        found = {name: said[name] for name in names if name in said}
    elif isinstance(said, list):
        found = dict(zip(names, said, strict=False)) if len(said) == len(names) else {}
    else:
        found = dict.fromkeys(names, said)
    numbers = all(type(n) in (int, float) and abs(n) < _MOST for n in found.values())
    return {name: float(value) for name, value in found.items()} if numbers else {}


def _size(settings: JsonObject, key: str) -> int | None:
    value = settings.get(key)
    return value if type(value) is int and value > 0 else None


def _with_prefixes(settings: JsonObject) -> JsonDict:
    """Prompts behind the prefixes that PyLate puts before queries and documents."""
    said = settings.get("prompts")
    prompts = dict(said) if isinstance(said, Mapping) else {}
    for name in ("query", "document"):
        if isinstance(prefix := settings.get(f"{name}_prefix"), str):
            prompts[name] = prefix + str(prompts.get(name) or "").removeprefix(prefix)
    return prompts


def _prompts(settings: JsonObject, where: str) -> JsonDict:
    """What may be put before texts; a prompt that is empty is none."""
    said, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = said if isinstance(said, Mapping) else {}
    known = isinstance(default, str) and default in {*prompts, "query", "document"}
    if default is not None and not known:
        raise ModelSourceError(
            f"there is no prompt {default!r}, the default",
            where=f"{where}/config_sentence_transformers.json",
            why=f"its prompts are {', '.join(map(str, prompts)) or '(none)'}",
            todo="correct default_prompt_name; sentence-transformers refuses it too",
        )
    texts = {str(name): str(text) for name, text in prompts.items() if text}
    return {"prompts": texts, "default_prompt_name": default if default in texts else None}


def check_scores(info: ModelInfo, config: Any, settings: JsonObject) -> None:
    """Compare scores of a few logits with those of the model's own library.

    Parameters
    ----------
    info
        The model.
    config : transformers.PretrainedConfig or mapping
        Its configuration.
    settings
        As `read_post_processing` takes.

    Raises
    ------
    UnsupportedModelError
        If they differ.
    """
    if HEADS[info.head].kind != "logits" or info.real_input is not None or not info.id2label:
        return
    if find_spec("transformers") is None or find_spec("torch") is None:
        return
    if isinstance(config, Mapping):
        config = _configuration(config)
    count = len(info.id2label)
    probes = np.random.default_rng(5).normal(size=(_PROBES, count)).astype(np.float32) * 3
    _check_classes(info, config, probes)
    stated = stated_activation(config.to_dict(), settings)
    if count == 1 and stated is not None and find_spec("sentence_transformers") is not None:
        _check_pairs(info, config, settings, probes)


def _configuration(config: JsonObject) -> Any:
    """What transformers makes of the part of ``config.json`` that counts here."""
    from transformers import PretrainedConfig

    try:
        return PretrainedConfig.from_dict({k: config[k] for k in _COMPARED if k in config})
    except Exception as error:  # transformers raises many classes for what a file can hold
        raise ModelSourceError(
            "transformers cannot use config.json",
            where="config.json",
            why=error_lines(error)[0],
            todo="correct it, or remove it where a file needs none",
        ) from error


def _check_classes(info: ModelInfo, config: Any, probes: Floats) -> None:
    import torch
    from transformers.pipelines.text_classification import TextClassificationPipeline

    pipeline = TextClassificationPipeline.__new__(TextClassificationPipeline)
    pipeline.model = SimpleNamespace(config=config)
    labels = [info.label(index) for index in range(probes.shape[1])]
    found = ranked_classes(probes, labels, None, info.post_processing.classes)
    for row, own in zip(probes, found, strict=True):
        logits = {"logits": torch.from_numpy(row[None])}
        wanted = pipeline.postprocess(logits, top_k=None, _legacy=False)
        same = [c["label"] for c in wanted] == [c["label"] for c in own]
        _agree("transformers' pipeline", row, _scores(wanted), _scores(own), same)


def _scores(classes: Sequence[JsonObject]) -> list[float]:
    return [float(one["score"]) for one in classes]


def _check_pairs(info: ModelInfo, config: Any, settings: JsonObject, probes: Floats) -> None:
    import torch
    from sentence_transformers import CrossEncoder

    copied = copy.deepcopy(config)  # a key of it is deleted

    class Rules(CrossEncoder):
        """The rules of a CrossEncoder for its function, without its network."""

        config, num_labels = copied, 1

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.activation_fn = self.default_prompt_name = self.keep_in_fp32_modules = None
            self.prompts: dict[str, str] = {}
            self.trust_remote_code = False

    try:
        rules = Rules()
        if settings:
            rules._parse_model_config(dict(settings))
        function = rules.activation_fn or rules.get_default_activation_fn()
    except AttributeError as error:
        _logger.warning("scores of pairs were not compared with sentence-transformers: %s", error)
        return
    wanted = function(torch.from_numpy(probes))[:, 0].tolist()
    found = FUNCTIONS[info.post_processing.pairs or "sigmoid"](probes)[:, 0].tolist()
    _agree("sentence-transformers' CrossEncoder", probes[:, 0], wanted, found, True)


def _agree(
    library: str, logits: Floats, wanted: Sequence[float], found: Sequence[float], same: bool
) -> None:
    if same and np.allclose(wanted, found, rtol=0, atol=_TOLERANCE):
        return
    raise UnsupportedModelError(
        f"the scores are not those of {library}",
        where="config.json",
        why=f"of the logits {_shown(logits)} it makes {_shown(wanted)}, and the function that was "
        f"read makes {_shown(found)}",
        todo="report it with the model's config.json",
    )


def _shown(values: Sequence[float] | Floats) -> str:
    return ", ".join(f"{value:.5g}" for value in list(values)[:8])
