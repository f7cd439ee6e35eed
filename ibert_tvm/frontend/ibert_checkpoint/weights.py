"""The arrays of an `ibert` folder: float weights and calibrated ranges, nothing that is stale.

A checkpoint also holds integer weights and scales; they are what the last forward pass of training
left, or zeros, and are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...common.errors import error_lines
from ...common.extras import require
from ...common.types import Array, Floats
from ..errors import ModelSourceError

_PREFIX = "ibert."
_OLD_NAMES = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_KINDS = "float32, float64, float16 or bfloat16"


class CheckpointArrays:
    """Arrays by their names inside the encoder: without the prefix of models with a head.

    Parameters
    ----------
    where
        Where they come from, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._readers: dict[str, Callable[[], Array]] = {}

    @classmethod
    def of_files(cls, files: Iterable[Path]) -> CheckpointArrays:
        """Open weight files.

        Parameters
        ----------
        files
            safetensors, of which an array is read when it is asked for, or ``pytorch_model.bin``,
            which needs torch.

        Raises
        ------
        MissingExtraError
            If a ``.bin`` file is given and torch is not installed.
        ModelSourceError
            If a ``.bin`` file cannot be read.
        """
        from safetensors import safe_open

        files = tuple(files)
        result = cls(", ".join(str(file) for file in files))
        for file in files:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="numpy") as stream:
                    for key in stream.keys():  # noqa: SIM118 (it is no mapping)
                        result._add(key, partial(_read_safetensors, file, key))
            else:
                result._add_state(_load_bin(file))
        return result

    @classmethod
    def of_state(cls, state: Mapping[str, Any], where: str) -> CheckpointArrays:
        """Take the tensors of a torch module.

        Parameters
        ----------
        state : mapping of str to torch.Tensor
            Its ``state_dict()``.
        where
            The module, for messages.
        """
        result = cls(where)
        result._add_state(state)
        return result

    def _add(self, key: str, read: Callable[[], Array]) -> None:
        name = key.removeprefix(_PREFIX)
        for old, new in _OLD_NAMES:  # as transformers reads them
            name = name.replace(old, new)
        self._readers[name] = read

    def _add_state(self, state: Mapping[str, Any]) -> None:
        for key, tensor in state.items():
            if tensor.is_floating_point():
                self._add(str(key), partial(_to_numpy, tensor))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(self._readers)

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def require(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
        """Read arrays of known shapes.

        Parameters
        ----------
        shapes
            Shape by name.

        Returns
        -------
        dict of str to numpy.ndarray
            float32.

        Raises
        ------
        ModelSourceError
            If one is missing, has another shape or type, or holds infinities.
        """
        missing = [name for name in shapes if name not in self]
        if missing:
            raise ModelSourceError(
                f"the checkpoint lacks {len(missing)} arrays",
                where=self.where,
                why=f"there is no {', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}",
                todo="check that config.json and the head belong to these weights",
            )
        return {name: self._read(name, shape) for name, shape in shapes.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array that is there."""
        return tuple(self._readers[name]().shape)

    def _read(self, name: str, shape: tuple[int, ...]) -> Floats:
        raw = self._readers[name]()
        if raw.shape == () and shape == (1,):
            raw = raw.reshape(shape)
        if tuple(raw.shape) != shape:
            raise ModelSourceError(
                f"{name} has shape {list(raw.shape)}",
                where=self.where,
                why=f"config.json asks for {list(shape)}",
                todo="check that config.json belongs to these weights",
            )
        if raw.dtype.kind != "f" and raw.dtype.name != "bfloat16":
            raise ModelSourceError(
                f"{name} has dtype {raw.dtype}",
                where=self.where,
                why=f"float weights are {_KINDS}",
                todo="save the checkpoint in float32",
            )
        array = raw.astype(np.float32)
        if not np.isfinite(array).all():
            raise ModelSourceError(
                f"{name} holds a number that is not finite",
                where=self.where,
                why="training diverged, or the file is damaged",
                todo="check the checkpoint",
            )
        return array


def _to_numpy(tensor: Any) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array


def _read_safetensors(file: Path, key: str) -> Array:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as stream:
            array: Array = stream.get_tensor(key)
            return array
    except (SafetensorError, TypeError, AttributeError) as error:  # types of 8 bits or fewer
        raise ModelSourceError(
            f"{key} cannot be read",
            where=str(file),
            why=f"{error}; float weights are {_KINDS}",
            todo="save the checkpoint in float32",
        ) from error


def _load_bin(file: Path) -> dict[str, Any]:
    """Tensors of a pickle."""
    require(
        "torch",
        to=f"reading {file}, a pickle of torch tensors,",
        otherwise=", or convert the weights to safetensors",
    )
    import torch

    try:
        return dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many classes for what a file can hold
        raise ModelSourceError(
            f"the weight file {file.name} is damaged",
            where=str(file),
            why=error_lines(error)[0],
            todo="copy the file again: it is truncated, or a Git LFS pointer (git lfs pull)",
        ) from error
