"""`load`: any supported source to a canonical model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.heads import head_of_class
from ..model.trained_scales import FILE, read_scales
from .errors import ModelSourceError, require
from .hf_folder import HfFolder, check_head, given_tokenizer

if TYPE_CHECKING:
    import torch

    from ..model.trained_scales import TrainedScales
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
    source : path, torch.nn.Module or torch.export.ExportedProgram
        A local Hugging Face folder (also of sentence-transformers), an ONNX file (``*.onnx``), an
        exported torch program (``*.pt2``, or the program itself), a transformers model, or any
        module that takes token tensors [batch, seq_len] int64, images or features. Nothing is
        ever downloaded.
    head : str, optional
        One of `ibert_tvm.model.heads.HEADS`; by default what the folder's configuration, the
        model's class or the names of an ONNX file's outputs say. A checkpoint of a bare or
        masked-language model has the head ``none``. ``question_answering`` gives one output
        ``logits`` [batch, seq_len, 2]: start, end. ``sentence_transformer`` is all that
        ``modules.json`` lists, ``sentence_embedding`` its pooling alone, or the mean.
    inputs : sequence of str, or mapping of str to str, optional
        Argument names of a module that is no transformers model, or what each argument is by its
        name: a key of `ibert_tvm.frontend.torch_inputs.FORMS`. By default what the names in the
        signature say. For an ONNX file the canonical names by the file's own, where they differ.
    tokenizer : path, optional
        Folder of tokenizer files, for a model that has none; by default those in the model's
        folder, for an ONNX file those beside it.
    image_size : tuple of int, optional
        Planes, height and width of the images, for a plain module that takes ``pixel_values``;
        planes and frames for one that takes ``input_features``.
    verify : bool
        Compare the result with the source on a padded batch of another shape than the traced one,
        and at the longest sequence. Without it a window wider than the traced example (12 tokens to
        a side) is not noticed.
    trust : bool
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
    if isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".onnx":
        return _load_onnx(source, head, inputs, image_size, tokenizer, verify)
    if tokenizer is not None:
        files = given_tokenizer(tokenizer)
        result = load(
            source, head, inputs=inputs, image_size=image_size, verify=verify, trust=trust
        )
        info = replace(result.info, tokenizer_files=tuple(files))
        return replace(result, info=info, tokenizer=files)
    if isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".pt2":
        _require("torch")
        from .torch_load import load_exported_file

        _check_plain(head, "an exported program")
        return load_exported_file(Path(source).expanduser(), inputs, verify, trust)
    if isinstance(source, (str, Path)):
        folder = HfFolder.read(source)
        trained = _trained(folder)
        if trained is not None and head in (None, trained.head):
            return replace(_load_folder(folder, trained.head, verify), trained=trained)
        return _load_folder(
            folder, folder.default_head if head is None else check_head(head, "none"), verify
        )
    _require("torch")
    import torch

    if isinstance(source, torch.export.ExportedProgram):
        from .torch_load import load_exported

        _check_plain(head, "an exported program")
        return load_exported(source, inputs, verify)
    if not isinstance(source, torch.nn.Module):
        raise ModelSourceError(
            f"a {type(source).__name__} is not a model",
            where="load",
            why="a model is a path (str or Path), a torch.nn.Module or an ExportedProgram",
            todo="pass one of these",
        )
    # What `torch.compile` wraps: the wrapper takes any arguments, and says nothing of the model.
    inner = getattr(source, "_orig_mod", None)
    source = inner if isinstance(inner, torch.nn.Module) else source
    check_head(head, "none")
    if hasattr(source, "config") and hasattr(source, "base_model"):
        _require("transformers")
        if source.config.model_type == "ibert":
            from .ibert_checkpoint.load import load_ibert_module

            own = head_of_class(type(source).__name__)
            return load_ibert_module(source, check_head(head, own), verify)
        from .transformers_import import import_model

        return import_model(source, head, verify)
    _check_plain(head, type(source).__name__)
    from .torch_load import load_module

    return load_module(source, inputs, image_size, verify)


def _load_folder(folder: HfFolder, head: str, verify: bool) -> CanonicalModel:
    """Import the model of a folder with a head; see `load`."""
    if folder.model_type == "ibert":
        from .ibert_checkpoint.load import load_ibert

        return load_ibert(folder, head, verify)
    _require("torch", "transformers")
    from .transformers_import import import_folder

    return import_folder(folder, head, verify)


def _trained(folder: HfFolder) -> TrainedScales | None:
    """Scales of a model that was trained with integers."""
    file = folder.path / FILE
    if not file.exists():
        return None
    scales = read_scales(file)
    check_head(scales.head, "none")
    return scales


def _check_plain(head: str | None, what: str) -> None:
    if check_head(head, "none") != "none":
        raise ModelSourceError(
            f"the head {head} cannot be chosen for {what}",
            where="head",
            why="a plain module returns what it returns",
            todo="leave head out; add the head to the module itself",
        )


def _load_onnx(
    source: str | Path,
    head: str | None,
    inputs: Sequence[str] | Mapping[str, str] | None,
    image_size: Sequence[int] | None,
    tokenizer: str | Path | None,
    verify: bool,
) -> CanonicalModel:
    from .onnx.reading import require_onnx

    check_head(head, "none")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ModelSourceError(
            "the inputs of an ONNX file are no list",
            where="inputs",
            why="the file names its inputs itself; only names that differ can be given",
            todo="give a mapping such as {'input_mask': 'attention_mask'}, or leave it out",
        )
    require_onnx("onnx", *(["onnxruntime"] if verify else []))
    from .onnx.loading import load_onnx

    return load_onnx(
        source, head, inputs=inputs, image_size=image_size, tokenizer=tokenizer, verify=verify
    )


def _require(*packages: str) -> None:
    require(
        *packages,
        to="importing a model",
        why="torch and transformers are optional: a quantised model runs without them",
        todo="pip install 'ibert-tvm[torch]'",
    )
