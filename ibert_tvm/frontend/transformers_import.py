"""Importing transformers models: from a folder, or a model in memory."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
import transformers
from torch.utils._pytree import tree_leaves

from ..common.errors import error_lines
from ..common.strict_json import JsonDict
from ..model.heads import HEADS, PooledTokens, Returned, WholePipeline, head_of_class
from ..model.model_info import REAL_INPUTS
from .canonicalise import Canonical, Revisit
from .errors import ModelSourceError, UnsupportedModelError, more_than_encoder
from .finish import described, finish
from .heads import FeatureModelWithHead, ImageModelWithHead, ModelWithHead
from .hf_folder import LAYER, TESTED_ARCHITECTURES, HfFolder, check_all_layers, padding_id
from .model import CanonicalModel
from .post_processing import check_scores, read_post_processing
from .sentence_head import SentenceHead, pooling_head
from .source_model import build, model_config
from .torch_import import PROBE_SHAPE, as_source, evaluating, import_module, in_float32

_REAL_WRAPPERS = {"pixel_values": ImageModelWithHead, "input_features": FeatureModelWithHead}

_LEFT_OUT = (
    "",
    "FOR_PRETRAINING_",
    "FOR_MASKED_LM_",
    "FOR_CAUSAL_LM_",
    "FOR_NEXT_SENTENCE_PREDICTION_",
    "FOR_MASKED_IMAGE_MODELING_",
)
"""Of transformers' tables of classes, those whose folders are imported as encoders."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars; what matters is checked here."""
    log = transformers.utils.logging
    verbosity, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bar:
            log.enable_progress_bar()


def import_folder(folder: HfFolder, head: str | None, verify: bool) -> CanonicalModel:
    """Import the transformers model of a folder.

    Parameters
    ----------
    folder
        The checked folder.
    head
        One of `ibert_tvm.model.heads.HEADS`; None for the one that its files ask for.
    verify
        Compare with the source at another shape than the traced one.

    Returns
    -------
    CanonicalModel
        The model, with the folder's tokenizer.

    Raises
    ------
    ModelSourceError, UnsupportedModelError
        See `load_folder` and `import_transformers`.
    """
    chosen, head = head, head or folder.default_head
    after = _after(folder, head)
    model, missing = load_folder(folder, head)
    wrapper = wrap(model, head, after)
    if chosen is None and head == "none" and folder.modules is None:
        _check_class(folder, model)
        _check_no_head(model)
    result = _import(wrapper, model.config, missing, verify, lambda: folder.provenance(head))
    if verify:
        check_scores(result.info, model.config, folder.settings)
    return result


def float_module(folder: HfFolder, head: str) -> ModelWithHead:
    """Load the float model of a folder as a torch module with one output; see `import_folder`."""
    after = _after(folder, head)
    model, _ = load_folder(folder, head)
    return wrap(model, head, after).eval()


def _after(folder: HfFolder, head: str) -> SentenceHead | None:
    """What follows the model of a folder with this head."""
    finish = HEADS[head].finish
    if isinstance(finish, PooledTokens):
        return pooling_head(folder.pooling)
    if not isinstance(finish, WholePipeline):
        return None
    if folder.pipeline is None:
        raise ModelSourceError(
            f"{folder.path.name} has no head {head}",
            where=str(folder.path),
            why="it has no modules.json, in which sentence-transformers lists what follows a model",
            todo="choose head='sentence_embedding' for the mean over the tokens",
        )
    return SentenceHead(folder.pipeline)


def import_model(model: Any, head: str | None, verify: bool) -> CanonicalModel:
    """Import a transformers model in memory; parameters as for `wrap` and `import_folder`."""
    wrapper = wrap(in_float32(model), head)
    said = {
        "source": f"{type(model).__module__}.{type(model).__qualname__}",
        "description": f"{model.config.model_type} module in memory, head {wrapper.head}",
        **read_post_processing(model.config.to_dict(), {}, wrapper.head, type(model).__name__),
    }
    result = _import(wrapper, model.config, frozenset(), verify, lambda: said)
    if verify:
        check_scores(result.info, model.config, {})
    return result


def _import(
    wrapper: ModelWithHead,
    config: Any,
    missing: frozenset[str],
    verify: bool,
    provenance: Callable[[], JsonDict],
) -> CanonicalModel:
    """Import a model, and describe it while arithmetic compares it with its source."""

    def again(revisit: Revisit) -> Canonical:
        wait([said])  # tracing patches torch for all threads
        return import_transformers(wrapper, missing, revisit)

    with evaluating(wrapper), ThreadPoolExecutor(1) as beside:
        canonical = import_transformers(wrapper, missing)
        said = beside.submit(provenance)
        model = finish(
            canonical,
            as_source(wrapper) if verify else None,
            architecture=str(config.model_type),
            head=wrapper.head,
            outputs=[wrapper.output],
            pad_token_id=padding_id(getattr(config, "pad_token_id", None)) or 0,
            id2label=labels(wrapper),
            again=again,
            positions=positions(config),
        )
        return described(model, **said.result())


def load_folder(folder: HfFolder, head: str, **settings: Any) -> tuple[Any, frozenset[str]]:
    """Load the transformers model of a folder for a head.

    Parameters
    ----------
    folder
        The checked folder.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    **settings
        Fields of the configuration in the place of the folder's.

    Returns
    -------
    model : transformers.PreTrainedModel
        float32, eager attention, evaluation mode.
    missing : frozenset of str
        Parameters that the checkpoint does not have; transformers gave them random values.

    Raises
    ------
    ModelSourceError
        If the architecture is unknown, has no such head, or the weights do not fit.
    """
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if folder.model_type not in known:
        raise ModelSourceError(
            f"unknown architecture {folder.model_type!r}",
            where=str(folder.model / "config.json"),
            why=f"transformers {transformers.__version__} has no model_type of that name",
            todo=f"tested architectures: {', '.join(TESTED_ARCHITECTURES)}; others that "
            "transformers knows are tried",
        )
    pipeline = folder.pipeline if isinstance(HEADS[head].finish, WholePipeline) else None
    masked_lm = pipeline is not None and pipeline.masked_lm
    name = "AutoModelForMaskedLM" if masked_lm else HEADS[head].auto_class
    try:
        with _quiet():
            config = model_config(folder, **settings)
            model, loading = build(
                folder,
                name,
                config,
                attn_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
            )
    except ModelSourceError:
        raise
    except Exception as error:  # transformers raises many classes for what a folder can hold
        raise ModelSourceError(
            f"transformers cannot load the folder as {name}",
            where=str(folder.model),
            why=error_lines(error)[0],
            todo=f"check config.json and the head ({head}); tested architectures: "
            f"{', '.join(TESTED_ARCHITECTURES)}",
        ) from error
    prefix = f"{model.base_model_prefix}."
    base = getattr(model, model.base_model_prefix, model)
    built = {LAYER.match(name.removeprefix(prefix)) for name in model.state_dict()}
    check_all_layers(
        loading["unexpected_keys"],
        prefix,
        {found[0] for found in built if found},
        [name for name, _ in base.named_children()],
        folder.model,
    )
    return model.eval(), frozenset(loading["missing_keys"])


def wrap(model: Any, head: str | None, after: SentenceHead | None = None) -> ModelWithHead:
    """Wrap a transformers model in memory as a function of token tensors or images.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model.
    head
        One of `ibert_tvm.model.heads.HEADS`; None for what its class computes.
    after
        What follows the model; for ``sentence_embedding`` the mean over the tokens by default.

    Returns
    -------
    ModelWithHead or ImageModelWithHead
        The wrapper.

    Raises
    ------
    ModelSourceError
        If the model does not have the head.
    """
    name = type(model).__name__
    own = head_of_class(name, unlabelled=True)
    takes = inspect.signature(model.forward).parameters
    # Encoders alone may have the configuration of both.
    main = str(getattr(model, "main_input_name", "input_ids"))
    pair = getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
    if pair and (after is not None or (head == "none" and main in REAL_INPUTS)):
        # Modules follow an encoder alone; and where the two read inputs of different kinds, the
        # encoder is what can be meant.
        return wrap(model.get_encoder(), head, after)
    if pair:
        raise ModelSourceError(
            f"{type(model).__name__} is an encoder-decoder",
            where=type(model).__name__,
            why="only encoders have an integer form",
            todo="import its encoder as a module",
        )
    if main not in ("input_ids", *REAL_INPUTS):
        raise ModelSourceError(
            f"{type(model).__name__} takes {main}",
            where=type(model).__name__,
            why=f"its main input is {main}; models of token ids (input_ids), of images "
            "(pixel_values) and of features [channels, frames] (input_features) have an integer "
            "form",
            todo="import the encoder behind its inputs as a module of token ids, if it has one",
        )
    if head is None and own == "none":
        _check_no_head(model)
    head = head or own
    record = HEADS[head]
    if record.classes:
        if own != head:
            raise ModelSourceError(
                f"{type(model).__name__} has no head {head}",
                where="head",
                why=f"its class computes {own}",
                todo=f"load it as {record.auto_class}, or choose head={own!r}",
            )
        return _REAL_WRAPPERS.get(main, ModelWithHead)(model, head)
    encoder = _encoder(model, main)
    if record.finish == Returned("pooler_output") and not _pools(encoder, main):
        raise ModelSourceError(
            f"{type(model).__name__} has no pooler",
            where="head",
            why=f"{model.config.model_type} models, or this one, are built without it",
            todo="choose head='none' or head='sentence_embedding'",
        )
    if main in REAL_INPUTS:
        if not record.reals:
            raise ModelSourceError(
                f"{type(model).__name__} has no head {head}",
                where="head",
                why=f"{model.config.model_type} models take {REAL_INPUTS[main].what}",
                todo="choose head='none' or head='pooled'",
            )
        return _REAL_WRAPPERS[main](encoder, head)
    if isinstance(record.finish, WholePipeline) and after is None:
        raise ModelSourceError(
            f"{type(model).__name__} has no head {head}",
            where="head",
            why="only a folder says what follows its model, in modules.json",
            todo="give the folder, or choose head='sentence_embedding'",
        )
    logits = after is not None and after.pipeline.masked_lm
    return ModelWithHead(model if logits else encoder, head, after)


def _encoder(model: Any, main: str) -> Any:
    """The model without its head; some name a part of that their base."""
    base = model.base_model
    return base if main in inspect.signature(base.forward).parameters else model


def _check_class(folder: HfFolder, model: Any) -> None:
    """Refuse a folder of a class with a head that `AutoModel` leaves out.

    Heads of pretraining are left out: their folders are what encoders are published as.
    """
    mappings = transformers.models.auto.modeling_auto
    tables = [dict(getattr(mappings, f"MODEL_{kind}MAPPING_NAMES")) for kind in _LEFT_OUT]
    if folder.declared not in ("", type(model).__name__, *tree_leaves(tables)):
        raise more_than_encoder(folder.declared, str(folder.model / "config.json"))


def _check_no_head(model: Any) -> None:
    """Refuse to leave out what nobody said to leave out: a part, or the output of the class."""
    main = str(model.main_input_name)
    base = _encoder(model, main)
    others = [
        name
        for name, part in model.named_children()
        if part is not base and base is not model and any(True for _ in part.parameters())
    ]
    name = type(model).__name__
    if others:
        raise more_than_encoder(name, ", ".join(others))
    leaves = {key: value.detach().requires_grad_() for key, value in model.named_parameters()}
    try:
        with evaluating(model), torch.enable_grad():
            result = torch.func.functional_call(model, leaves, kwargs=_probe(model, main))
    except Exception as error:  # whatever a model raises that wants other inputs, too
        wanted = [
            item for item in REAL_INPUTS if item in inspect.signature(model.forward).parameters
        ]
        if main in REAL_INPUTS or not wanted:
            return  # tracing it says what is wrong
        raise ModelSourceError(
            f"{name} takes {wanted[0]} beside {main}",
            where=name,
            why="a model with an integer form has inputs of one kind",
            todo="import its part for texts, or for images, as a module",
        ) from error
    first = next(iter(result))
    if first != "last_hidden_state":
        raise more_than_encoder(name, first, "pooler_output" in result)
    if main in REAL_INPUTS:
        return  # what these pool is asked for with head='pooled'
    kept, used = (_used(outputs) for outputs in (result[first], result.to_tuple()))
    parts = dict.fromkeys(
        key.partition(".")[0] for key, leaf in leaves.items() if id(leaf) in used - kept
    )
    if parts.keys() - {"pooler"}:
        raise more_than_encoder(name, ", ".join(parts), "pooler_output" in result)


def _used(outputs: Any) -> set[int]:
    """Identities of the parameters that tensors depend on."""
    seen: set[Any] = set()
    nodes = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    return {id(node.variable) for node in seen if hasattr(node, "variable")}


def _probe(model: Any, main: str) -> dict[str, torch.Tensor]:
    """The smallest inputs that say what a model returns."""
    if main in REAL_INPUTS:
        return {main: torch.zeros((1, *(real_size(model) or ())), dtype=model.dtype)}
    tokens = torch.ones((1, PROBE_SHAPE[1]), dtype=torch.int64)
    return {"input_ids": tokens, "attention_mask": tokens}


def real_input(model: Any) -> str:
    """Return the name of the one input, if a transformers model takes real numbers; "" if not."""
    main = str(getattr(model, "main_input_name", ""))
    return main if main in REAL_INPUTS else ""


def real_size(model: Any) -> tuple[int, ...] | None:
    """Return the size of the images or features that a model takes; None if it takes tokens.

    Raises
    ------
    ModelSourceError
        If its configuration does not say.
    """
    name = real_input(model)
    if not name:
        return None
    return image_size(model.config) if name == "pixel_values" else feature_size(model)


def feature_size(model: Any) -> tuple[int, int]:
    """Return planes and frames of the features that a model takes.

    Its positions count what convolutions leave of the frames.

    Raises
    ------
    ModelSourceError
        If its configuration does not say.
    """
    fields = ("num_mel_bins", "max_source_positions")
    planes, positions = (getattr(model.config, name, None) for name in fields)
    if not isinstance(planes, int) or not isinstance(positions, int):
        raise ModelSourceError(
            f"the size of the features is {planes} x {positions}",
            where=f"{' and '.join(fields)} in the configuration of {model.config.model_type}",
            why="there is one length of sequence per number of frames",
            todo="give a module whose features are [batch, channels, frames], and image_size",
        )
    strides = [part.stride[0] for part in model.modules() if isinstance(part, torch.nn.Conv1d)]
    return planes, positions * math.prod(strides)


def _pools(encoder: Any, main: str) -> bool:
    """Whether an encoder has a pooled output: what makes it has many names."""
    if getattr(encoder, "pooler", None) is not None:
        return True
    with evaluating(encoder), torch.no_grad():
        result = encoder(**_probe(encoder, main), return_dict=True)
    return getattr(result, "pooler_output", None) is not None


def image_size(config: Any) -> tuple[int, int, int]:
    """Return planes, height and width of the images that a configuration describes.

    Raises
    ------
    ModelSourceError
        If it does not say.
    """
    size = getattr(config, "image_size", None)
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ModelSourceError(
            f"the size of the images is {size}",
            where=f"image_size in the configuration of {config.model_type}",
            why="there is one length of sequence per size of the images",
            todo="set image_size to a number of pixels, or to height and width",
        )
    return int(getattr(config, "num_channels", 3)), int(sides[0]), int(sides[1])


def input_names(model: Any) -> tuple[str, ...]:
    """Return the inputs that `model` takes: token types only where it has more than one."""
    if name := real_input(model):
        return (name,)
    names = ["input_ids", "attention_mask"]
    takes = inspect.signature(model.forward).parameters
    if "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    return tuple(names)


def import_transformers(
    wrapper: ModelWithHead, missing: frozenset[str], revisit: Revisit | None = None
) -> Canonical:
    """Import a wrapped model, with eager attention while it is traced.

    Parameters
    ----------
    wrapper
        The model, in evaluation mode.
    missing
        Names of parameters that hold random values.
    revisit
        What is wanted, if the source was canonicalised at a shorter length before.

    Returns
    -------
    Canonical
        The canonical module.

    Raises
    ------
    UnsupportedModelError
        If it cannot be imported, or needs a parameter that the checkpoint does not have.
    """
    model = wrapper.model
    with _eager(model):
        canonical = import_module(
            wrapper,
            input_names(model),
            [wrapper.output[0]],
            prefix="model.",
            image_size=real_size(model),
            shape=PROBE_SHAPE if revisit is None else (PROBE_SHAPE[0], revisit.length),
            revisit=revisit,
        )
    lost = sorted(missing & set(canonical.parameters))
    if lost:
        raise UnsupportedModelError(
            f"the checkpoint has no weights for {lost[0]}"
            + (f" and {len(lost) - 1} more" if len(lost) > 1 else ""),
            where=f"head {wrapper.head}",
            why="transformers would fill them with random numbers",
            todo="choose a head that the checkpoint was trained with, for example head='none'",
        )
    return canonical


@contextlib.contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Use transformers' plain attention: the fused ones hide the softmax from the importer."""
    config = model.config
    # A decoder would also return its keys and values for the next token.
    cache = getattr(config, "use_cache", None)
    before = getattr(config, "_attn_implementation", None)
    change = before not in (None, "eager")
    if cache:
        config.use_cache = False
    if change:
        with _quiet():
            model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if cache:
            config.use_cache = cache
        if change:
            with _quiet():
                model.set_attn_implementation(before)


def positions(config: Any) -> int | None:
    """Return the longest sequence that a configuration speaks of; None if it does not."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def labels(wrapper: ModelWithHead) -> Mapping[int, str]:
    """Return the class names of a classification head, empty for others."""
    computed = head_of_class(type(wrapper.model).__name__)  # not those of pretraining classes
    if not wrapper.record.labelled or computed != wrapper.head:
        return {}
    return {int(key): str(value) for key, value in wrapper.model.config.id2label.items()}
