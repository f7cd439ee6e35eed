"""Importing Hugging Face folders: known architectures from their weights, others by tracing them.

The first needs neither torch nor transformers. Tests compare the two, which give the same program.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..common.extras import require
from ..common.strict_json import shown
from ..common.types import Floats
from ..model.heads import HEADS, PooledTokens, WholePipeline
from ..model.model_info import PROBLEMS
from .encoder_builder import ENCODER_PARTS, WORDS, EncoderBuilder, EncoderConfig, builds, in_encoder
from .encoder_families import FAMILIES, Family, NeedsTransformersError
from .errors import ModelSourceError
from .finish import described, finish
from .hf_folder import HfFolder, check_all_layers
from .ibert_checkpoint.weights import CheckpointArrays
from .post_processing import class_names
from .sentence_pipeline import TOKEN_EMBEDDINGS, Dense, LayerNorm, Pipeline, Pooling, module_weights

if TYPE_CHECKING:
    from .model import CanonicalModel

_DEFAULT_LABELS = 2
_MOST_LABELS = 2**20
_SINGLE_LABEL = "single_label_classification"


def import_folder(folder: HfFolder, head: str | None, verify: bool) -> CanonicalModel:
    """Import the model of a folder.

    Parameters
    ----------
    folder
        The checked folder.
    head
        One of `ibert_tvm.model.heads.HEADS`; None for the one that its files ask for.
    verify
        Compare a traced model with its source. One that is built from its weights has no other.

    Returns
    -------
    CanonicalModel
        The model, with the folder's tokenizer.

    Raises
    ------
    MissingExtraError
        If it has to be traced, with the reason, and torch or transformers is not installed.
    ModelSourceError, UnsupportedModelError
        If it cannot be imported.
    """
    try:
        return import_encoder(folder, head)
    except NeedsTransformersError as reason:
        require("torch", "transformers", to=f"importing a Hugging Face folder {reason}")
    from . import transformers_import

    return transformers_import.import_folder(folder, head, verify)


def import_encoder(folder: HfFolder, head: str | None) -> CanonicalModel:
    """Import a folder of `FAMILIES` from its weights; see `import_folder`.

    Raises
    ------
    NeedsTransformersError
        If a part of it is not known here.
    """
    head = head or folder.default_head
    family = _family(folder)
    steps = family.steps(head)
    if steps is None:
        raise NeedsTransformersError(f"with the head {head}")
    config, labels = family.read(folder.config), _labels(folder, head)
    after = _after(folder, head, config.hidden_size)
    with ThreadPoolExecutor(1) as beside:
        said = beside.submit(folder.provenance, head)
        weights = _encoder_weights(folder, family, head, config, len(labels))
        for index, step in enumerate(after.steps):
            if isinstance(step, Dense | LayerNorm):
                arrays = module_weights(step)
                weights |= {f"after.steps.{index}.{name}": array for name, array in arrays.items()}
        model = finish(
            EncoderBuilder(config, weights, family.prefix_of(head)).run(steps, after.steps),
            None,
            architecture=family.model_type,
            head=head,
            outputs=[HEADS[head].public if after.pools or not after.steps else TOKEN_EMBEDDINGS],
            pad_token_id=config.pad_token_id,
            id2label=labels if HEADS[head].labelled else {},
        )
        return described(model, **said.result())


def _family(folder: HfFolder) -> Family:
    """The record of a folder's architecture, if its files are those of one."""
    family = FAMILIES.get(folder.model_type)
    if family is None:
        raise NeedsTransformersError(f"of the architecture {folder.model_type}")
    if folder.declared not in ("", *family.class_names):
        raise NeedsTransformersError(f"of the class {folder.declared}")
    if (folder.model / "adapter_config.json").exists():
        raise NeedsTransformersError("with an adapter")
    if any(file.suffix != ".safetensors" for file in folder.weights):
        raise NeedsTransformersError("whose weights are no safetensors")
    return family


def _labels(folder: HfFolder, head: str) -> dict[int, str]:
    """Classes of a head by number, as transformers names them; empty for heads without any."""
    config, named = folder.config, folder.config.get("id2label")
    if not HEADS[head].classes:
        return {}
    problem = config.get("problem_type")
    if named is None:
        count = config.get("num_labels", _DEFAULT_LABELS)
        usable = type(count) is int and 0 < count <= _MOST_LABELS
        labels = {index: f"LABEL_{index}" for index in range(count)} if usable else {}
    else:
        labels = class_names(config)
        usable = [*labels] == [*range(len(named))] == [int(key) for key in named]
        usable = usable and config.get("num_labels", len(labels)) == len(labels)
    if not usable or not labels or (problem == _SINGLE_LABEL and len(labels) == 1):
        raise NeedsTransformersError(f"whose classes are {shown(named)}")
    if problem not in (None, _SINGLE_LABEL, *PROBLEMS):
        raise NeedsTransformersError(f"whose problem_type is {shown(problem)}")
    return labels


def _after(folder: HfFolder, head: str, channels: int) -> Pipeline:
    """What follows the encoder with this head."""
    finish = HEADS[head].finish
    if isinstance(finish, PooledTokens):
        return Pipeline((Pooling((folder.pooling,)),))
    if not isinstance(finish, WholePipeline):
        return Pipeline(())
    if folder.pipeline is None or folder.pipeline.masked_lm:
        raise NeedsTransformersError(f"with the head {head}")
    for step in folder.pipeline.steps:
        if not builds(step, channels):
            raise NeedsTransformersError(f"with such a module {type(step).__name__}")
        channels = step.outputs if isinstance(step, Dense) else channels
    return folder.pipeline


def _encoder_weights(
    folder: HfFolder, family: Family, head: str, config: EncoderConfig, labels: int
) -> dict[str, Floats]:
    """Weights of an encoder and its head by their names in the model.

    The encoder's have a prefix in the files of a model with a head, whatever is imported of it.
    """
    arrays = CheckpointArrays.of_files(folder.weights)
    prefix, wanted = f"{family.prefix}.", family.prefix_of(head)
    if f"{prefix}{WORDS}.weight" not in arrays:
        prefix = ""
    if wanted and not prefix:
        raise NeedsTransformersError(f"that has no weights of the head {head}")
    shapes = {**config.shapes(), **config.head_shapes(family.steps(head) or (), labels)}
    stored = {name: f"{prefix if in_encoder(name) else ''}{name}" for name in shapes}
    layers = {f"{config.names.path.format(index)}." for index in range(config.num_hidden_layers)}
    unused = [name for name in arrays.names if name.removeprefix(prefix) not in shapes]
    check_all_layers(unused, prefix, layers, ENCODER_PARTS, folder.model)
    try:
        found = arrays.require({stored[name]: shape for name, shape in shapes.items()})
    except ModelSourceError as error:
        raise NeedsTransformersError(f"of which {error.what}") from error
    return {f"{wanted if in_encoder(name) else ''}{name}": found[stored[name]] for name in shapes}
