"""`load`: any supported source to a canonical model."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .hf_folder import given_tokenizer
from .request import Request
from .sources import resolved

if TYPE_CHECKING:
    import torch

    from .model import CanonicalModel


def load(
    source: str | Path | torch.nn.Module | torch.export.ExportedProgram,
    head: str | None = None,
    *,
    inputs: Sequence[str] | Mapping[str, str] | None = None,
    tokenizer: str | Path | None = None,
    image_size: tuple[int, ...] | None = None,
    verify: bool = True,
    trust: bool = False,
) -> CanonicalModel:
    """Import a model and bring it to canonical form.

    Parameters
    ----------
    source
        A local Hugging Face folder (also of sentence-transformers), an ONNX file (``*.onnx``), an
        exported torch program (``*.pt2``, or the program itself), a transformers model, or any
        module that takes token tensors [batch, seq_len] int64, images or features. Nothing is
        ever downloaded.
    head
        One of `ibert_tvm.model.heads.HEADS`; by default what the folder's configuration, the
        model's class or the names of an ONNX file's outputs say. A checkpoint of a bare or
        masked-language model has the head ``none``. ``question_answering`` gives one output
        ``logits`` [batch, seq_len, 2]: start, end. ``sentence_transformer`` is all that
        ``modules.json`` lists, ``sentence_embedding`` its pooling alone, or the mean.
    inputs
        Argument names of a module that is no transformers model, or what each argument is by its
        name: a key of `ibert_tvm.frontend.torch_load.FORMS`. By default what the names in the
        signature say. For an ONNX file the canonical names by the file's own, where they differ.
    tokenizer
        Folder of tokenizer files, for a model that has none; by default those in the model's
        folder, for an ONNX file those beside it.
    image_size
        Planes, height and width of the images, for a plain module that takes ``pixel_values``;
        planes and frames for one that takes ``input_features``.
    verify
        Compare the result with the source on a padded batch of another shape than the traced one,
        and at the longest sequence; folders whose program is built from weights have no other
        source. Without it a window wider than the traced example (12 tokens to a side) is not
        noticed.
    trust
        Read an exported torch program (``*.pt2``): torch unpickles parts of such a file and
        evaluates expressions in it, so that reading one can run code.

    Returns
    -------
    CanonicalModel
        The canonical module, its weights and what is known about it.

    Raises
    ------
    ModelSourceError
        If the source is missing, damaged, of an unknown kind, or one that has to be trusted.
    MissingExtraError
        If torch and transformers, or onnx and onnxruntime, are needed and not installed.
    UnsupportedModelError
        If a part of the model has no canonical form.
    """
    if isinstance(source, str):
        source = Path(source)
    place = source.expanduser() if isinstance(source, Path) else source
    files = None if tokenizer is None else given_tokenizer(tokenizer)
    known, model = resolved(place)
    request = Request(
        head,
        inputs,
        image_size,
        None if tokenizer is None else Path(tokenizer).expanduser(),
        verify,
        trust,
    )
    known.check(request)
    assert known.load is not None  # what leads elsewhere was resolved
    # Importers make millions of objects that stay; looking through them again and again takes a
    # tenth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        result = known.load(model, request)
    finally:
        if collecting:
            if not gc.get_freeze_count():
                # Old at once, they are not looked through as they get older either.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
    if files is None:
        return result
    info = replace(result.info, tokenizer_files=tuple(files))
    return replace(result, info=info, tokenizer=files)
