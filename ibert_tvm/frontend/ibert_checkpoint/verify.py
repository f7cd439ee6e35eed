"""transformers' `ibert` in its float mode, as the reference of an imported float model."""

from __future__ import annotations

import copy
from typing import Any

from ...model.heads import HEADS, PooledTokens
from ..hf_folder import HfFolder
from ..verify import Source


def float_folder(folder: HfFolder, head: str) -> Source:
    """Load the source model with ``quant_mode`` off.

    Its quantised forward pass hands every layer the scale of the embeddings, so that it is no
    reference for anything.

    Parameters
    ----------
    folder
        The source.
    head
        Its head.

    Returns
    -------
    callable
        Runs the model on arrays by input name.
    """
    from .. import transformers_import as hf

    model, _ = hf.load_folder(folder, head, quant_mode=False)
    return _source(model, head, folder.pooling if _pools(head) else "mean")


def float_module(module: Any, head: str) -> Source:
    """Copy a model in memory with ``quant_mode`` off.

    Parameters
    ----------
    module : transformers.IBertPreTrainedModel
        The source.
    head
        The head to be compared.

    Returns
    -------
    callable
        See `float_folder`.
    """
    settings = copy.deepcopy(module.config)
    settings.quant_mode = False
    twin = type(module)(settings)
    twin.load_state_dict(module.state_dict())
    return _source(twin.float(), head, "mean")


def _pools(head: str) -> bool:
    return isinstance(HEADS[head].finish, PooledTokens)


def _source(model: Any, head: str, pooling: str) -> Source:
    from .. import transformers_import as hf
    from ..sentence_head import pooling_head
    from ..torch_import import as_source

    after = pooling_head(pooling) if _pools(head) else None
    return as_source(hf.wrap(model, head, after).eval())
