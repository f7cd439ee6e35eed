"""Building a folder's model with transformers, without what its configuration says of code.

A configuration may name kernels, classes and quantisers that transformers fetches from a hub and
runs. So transformers sees a copy of config.json that holds numbers, plain names and labels, and has
no access to the hub meanwhile.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants

from ..common.strict_json import JsonDict, shown
from .errors import ModelSourceError
from .hf_folder import HfFolder

_PLAIN = re.compile(r"[\w.+-]*")
"""What a name of an activation, a kind of layer or a mode looks like; places and URLs do not."""
_TEXTS = ("id2label", "label2id", "architectures")
"""Settings that are names of the model's author, and name nothing to load."""
_CODE = re.compile(r"auto_map|custom_pipelines|.*_implementation(_internal)?")
_PLACES = ("name_or_path", "_name_or_path", "_commit_hash", "task_specific_params")
_PACKED = ("quantization_config", "compression_config")
"""Settings of weights that another library has packed, which transformers calls."""
_MOST_MISSING = 2**25
"""Parameters that a configuration may ask for beyond what the checkpoint can hold: 128 MiB."""
_OFFLINE = threading.RLock()


def model_config(folder: HfFolder, **settings: Any) -> Any:
    """Return the transformers configuration of a folder.

    Parameters
    ----------
    folder
        The checked folder.
    **settings
        Fields in the place of the folder's.

    Returns
    -------
    transformers.PreTrainedConfig
        Of the fields that describe the network.

    Raises
    ------
    ModelSourceError
        If the configuration asks for code or files beside the folder's.
    """
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING[folder.model_type]
    kept = _without_code(folder.config, known, folder.model / "config.json")
    with tempfile.TemporaryDirectory() as place, _offline():
        (Path(place) / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        config = transformers.AutoConfig.from_pretrained(
            place, local_files_only=True, trust_remote_code=False, **settings
        )
    config._name_or_path = str(folder.model)
    return config


def build(folder: HfFolder, auto_class: str, config: Any, **options: Any) -> Any:
    """Load the weights of a folder into the class that an ``Auto`` class of transformers chooses.

    Parameters
    ----------
    folder
        The checked folder.
    auto_class
        Name of the class of transformers.
    config : transformers.PreTrainedConfig
        Of `model_config`.
    **options
        Of its ``from_pretrained``.

    Returns
    -------
    transformers.PreTrainedModel
        What ``from_pretrained`` returns.

    Raises
    ------
    ModelSourceError
        If the folder holds an adapter: the weights would be those of another model. Or if the
        configuration asks for many more parameters than the folder has.
    """
    adapter = folder.model / "adapter_config.json"
    if adapter.exists():
        raise ModelSourceError(
            "the folder holds an adapter of another model",
            where=str(adapter),
            why="transformers loads the model that it names, wherever that is, instead of the "
            "folder's weights",
            todo="merge the adapter into its model (merge_and_unload of peft) and save that",
        )
    auto = getattr(transformers, auto_class)
    with _offline():
        _check_size(folder, auto, config)
        return auto.from_pretrained(
            folder.model, config=config, local_files_only=True, trust_remote_code=False, **options
        )


def _check_size(folder: HfFolder, auto: Any, config: Any) -> None:
    """Refuse a configuration that asks for far more than the checkpoint has, before it has memory.

    transformers gives random values to what is missing, as a pooler may be.
    """
    with torch.device("meta"):
        model = auto.from_config(copy.deepcopy(config), attn_implementation="eager")
    asked = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    held = sum(file.stat().st_size for file in folder.weights)  # a byte or more for each
    if asked > held + _MOST_MISSING:
        raise ModelSourceError(
            f"config.json asks for {asked} parameters",
            where=str(folder.model / "config.json"),
            why=f"the weights have {held} bytes, which cannot hold them",
            todo="check that config.json belongs to these weights",
        )


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers from the hub, which it asks for kernels even of local files.

    The switch is one of the process: by one thread at a time, or what it was could not be restored.
    """
    with _OFFLINE:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def _without_code(config: Mapping[str, Any], known: Any, file: Path) -> JsonDict:
    """The settings that describe a network, of those in a configuration."""
    kept = {}
    for key, value in config.items():
        if key in _PACKED and value:
            raise ModelSourceError(
                f"config.json has a {key}",
                where=str(file),
                why="its weights are packed by another library, which transformers calls",
                todo="give the model with plain weights (float32, float16 or bfloat16)",
            )
        if _CODE.fullmatch(key) or key in (*_PACKED, *_PLACES):
            continue
        declared = key in known.__dataclass_fields__
        if not declared and (callable(getattr(known, key, None)) or not _is_plain(value)):
            continue  # transformers would put it in the place of a method, or has no use for it
        kept[key] = value if key in _TEXTS else _plain(value, key, file)
    return kept


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str) or _PLAIN.fullmatch(value) is not None


def _plain(value: Any, key: str, file: Path) -> Any:
    """Numbers, names, and lists and objects of them; settings of code are left out."""
    if not _is_plain(value):
        raise ModelSourceError(
            f"config.json names something to load: {key}",
            where=str(file),
            why=f"{shown(value)} is no plain name, and may be a place on a hub or a disk",
            todo="remove the setting if the model does not need it",
        )
    if isinstance(value, list):
        return [_plain(item, key, file) for item in value]
    if isinstance(value, dict):
        return {
            name: item if name in _TEXTS else _plain(item, f"{key}.{name}", file)
            for name, item in value.items()
            if not _CODE.fullmatch(name) and name not in (*_PACKED, *_PLACES)
        }
    return value
