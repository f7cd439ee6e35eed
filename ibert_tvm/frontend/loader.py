"""`load`: any supported source to a canonical model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.frontend.errors import MissingExtraError, ModelSourceError
from ibert_tvm.frontend.hf_folder import HfFolder, check_head, given_tokenizer, head_of_class

if TYPE_CHECKING:
    import torch

    from ibert_tvm.frontend.canonicalise import Canonical
    from ibert_tvm.frontend.model import CanonicalModel

__all__ = ["load"]

_KINDS = {
    "none": "hidden_state",
    "pooled": "pooled",
    "sentence_embedding": "embedding",
    "sequence_classification": "logits",
    "token_classification": "token_logits",
    "question_answering": "span_logits",
    "image_classification": "logits",
}


def load(
    source: str | Path | torch.nn.Module | torch.export.ExportedProgram,
    head: str | None = None,
    *,
    inputs: Sequence[str] | Mapping[str, str] | None = None,
    tokenizer: str | Path | None = None,
    image_size: tuple[int, int, int] | None = None,
    verify: bool = True,
) -> CanonicalModel:
    """Import a model and bring it to canonical form.

    Parameters
    ----------
    source : path, torch.nn.Module or torch.export.ExportedProgram
        A local Hugging Face folder (also of sentence-transformers), an ONNX file (``*.onnx``), an
        exported torch program (``*.pt2``, or the program itself), a transformers model, or any
        module that takes token tensors [batch, seq_len] int64 or images. Nothing is ever
        downloaded.
    head : str, optional
        One of `ibert_tvm.model_info.HEADS`; by default what the folder's configuration, the
        model's class or the names of an ONNX file's outputs say. A checkpoint of a bare or
        masked-language model has the head ``none``. ``question_answering`` gives one output
        ``logits`` [batch, seq_len, 2]: start, end.
    inputs : sequence of str, or mapping of str to str, optional
        Argument names of a module that is no transformers model, or what each argument is by its
        name: a key of `ibert_tvm.frontend.torch_inputs.FORMS`. By default what the names in the
        signature say. For an ONNX file the canonical names by the file's own, where they differ.
    tokenizer : path, optional
        Folder of tokenizer files, for a model that has none; by default those in the model's
        folder, for an ONNX file those beside it.
    image_size : tuple of int, optional
        Planes, height and width of the images, for a plain module that takes ``pixel_values``.
    verify : bool
        Compare the result with the source on a padded batch of another shape than the traced one.

    Returns
    -------
    CanonicalModel
        The canonical module, its weights and what is known about it.

    Raises
    ------
    ModelSourceError
        If the source is missing, damaged or of an unknown kind.
    MissingExtraError
        If torch and transformers, or onnx and onnxruntime, are needed and not installed.
    UnsupportedModelError
        If a part of the model has no canonical form.
    """
    if isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".onnx":
        return _load_onnx(source, head, inputs, tokenizer, verify)
    if tokenizer is not None:
        files = given_tokenizer(tokenizer)
        result = load(source, head, inputs=inputs, image_size=image_size, verify=verify)
        info = replace(result.info, tokenizer_files=tuple(files))
        return replace(result, info=info, tokenizer=files)
    if isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".pt2":
        _require("torch")
        from ibert_tvm.frontend.torch_load import load_exported_file

        _check_plain(head, "an exported program")
        return load_exported_file(Path(source).expanduser(), inputs, verify)
    if isinstance(source, (str, Path)):
        folder = HfFolder.read(source)
        chosen = check_head(head, folder.default_head)
        if folder.model_type == "ibert":
            from ibert_tvm.frontend.ibert_checkpoint.load import load_ibert

            return load_ibert(folder, chosen, verify)
        _require("torch", "transformers")
        return _load_folder(folder, chosen, verify)
    _require("torch")
    import torch

    if isinstance(source, torch.export.ExportedProgram):
        from ibert_tvm.frontend.torch_load import load_exported

        _check_plain(head, "an exported program")
        return load_exported(source, inputs, verify)
    if not isinstance(source, torch.nn.Module):
        raise ModelSourceError(
            f"a {type(source).__name__} is not a model",
            where="load",
            why="a model is a path (str or Path), a torch.nn.Module or an ExportedProgram",
            todo="pass one of these",
        )
    if head is not None:
        check_head(head, "none")
    if hasattr(source, "config") and hasattr(source, "base_model"):
        _require("transformers")
        if source.config.model_type == "ibert":
            from ibert_tvm.frontend.ibert_checkpoint.load import load_ibert_module

            own = head_of_class(type(source).__name__)
            return load_ibert_module(source, check_head(head, own), verify)
        return _load_transformers(source, head, verify)
    _check_plain(head, type(source).__name__)
    from ibert_tvm.frontend.torch_load import load_module

    return load_module(source, inputs, image_size, verify)


def _check_plain(head: str | None, what: str) -> None:
    if head is not None:
        check_head(head, "none")
    if head not in (None, "none"):
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
    tokenizer: str | Path | None,
    verify: bool,
) -> CanonicalModel:
    from ibert_tvm.frontend.onnx.reading import require_onnx

    if head is not None:
        check_head(head, "none")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ModelSourceError(
            "the inputs of an ONNX file are no list",
            where="inputs",
            why="the file names its inputs itself; only names that differ can be given",
            todo="give a mapping such as {'input_mask': 'attention_mask'}, or leave it out",
        )
    require_onnx("onnx", *(["onnxruntime"] if verify else []))
    from ibert_tvm.frontend.onnx.loading import load_onnx

    return load_onnx(source, head, inputs=inputs, tokenizer=tokenizer, verify=verify)


def _require(*packages: str) -> None:
    from importlib.util import find_spec

    for package in packages:
        if find_spec(package) is None:
            raise MissingExtraError(
                f"importing a model needs {package}, which is not installed",
                where="ibert_tvm.load",
                why="torch and transformers are optional: a quantised model runs without them",
                todo="pip install 'ibert-tvm[torch]'",
            )


def _load_folder(folder: HfFolder, head: str, verify: bool) -> CanonicalModel:
    from ibert_tvm.frontend import transformers_import as hf
    from ibert_tvm.tokenization import tokenizer_files

    model, missing = hf.load_folder(folder, head)
    wrapper = hf.wrap(model, head, folder.pooling or "mean")
    result = _finish_transformers(wrapper, model.config, missing, verify)
    tokenizer = tokenizer_files(folder.model) or tokenizer_files(folder.path)
    notes = folder.notes if head == "sentence_embedding" else ()
    info = replace(
        result.info,
        source=str(folder.path),
        source_sha256=folder.sha256(),
        description=f"{folder.model_type} from {folder.path.name}, head {head}",
        tokenizer_files=tuple(tokenizer),
        notes=(*result.info.notes, *notes),
    )
    return replace(result, info=info, tokenizer=tokenizer)


def _load_transformers(model: Any, head: str | None, verify: bool) -> CanonicalModel:
    from ibert_tvm.frontend import transformers_import as hf

    wrapper = hf.wrap(model, head)
    result = _finish_transformers(wrapper, model.config, frozenset(), verify)
    info = replace(
        result.info,
        source=f"{type(model).__module__}.{type(model).__qualname__}",
        source_sha256=_hash(result.parameters),
        description=f"{model.config.model_type} module in memory, head {wrapper.head}",
    )
    return replace(result, info=info)


def _finish_transformers(
    wrapper: Any, config: Any, missing: frozenset[str], verify: bool
) -> CanonicalModel:
    from ibert_tvm.frontend import transformers_import as hf
    from ibert_tvm.frontend.torch_import import evaluating

    with evaluating(wrapper):
        canonical = hf.import_transformers(wrapper, missing)
        pad = getattr(config, "pad_token_id", None) or 0
        return _build(
            canonical,
            wrapper,
            architecture=str(config.model_type),
            head=wrapper.head,
            outputs=[(hf.output_name(wrapper.head), _KINDS[wrapper.head])],
            pad_token_id=int(pad),
            id2label=hf.labels(config, wrapper.head),
            verify=verify,
        )


def _build(
    canonical: Canonical,
    module: torch.nn.Module,
    *,
    architecture: str,
    head: str,
    outputs: Sequence[tuple[str, str]],
    pad_token_id: int | None,
    id2label: Mapping[int, str],
    verify: bool,
) -> CanonicalModel:
    import torch

    from ibert_tvm.frontend.finish import finish

    names = [name for name in canonical.inputs if name not in canonical.added_inputs]

    def run(arrays: Mapping[str, NDArray[np.int64]]) -> tuple[NDArray[np.float32], ...]:
        result = module(**{name: torch.from_numpy(arrays[name]) for name in names})
        many = result if isinstance(result, (tuple, list)) else (result,)
        return tuple(tensor.detach().numpy() for tensor in many)

    return finish(
        canonical,
        run if verify else None,
        architecture=architecture,
        head=head,
        outputs=outputs,
        pad_token_id=pad_token_id,
        id2label=id2label,
    )


def _hash(parameters: Mapping[str, NDArray[np.float32]]) -> str:
    from ibert_tvm.frontend.finish import parameter_hash

    return parameter_hash(parameters)
