"""From an ONNX file, with what lies beside it, to a canonical model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...common.errors import DocumentError
from ...common.files import files_sha256
from ...common.strict_json import JsonDict, JsonObject, read_json
from ...model.heads import HEADS
from ...model.tokenization import Tokenizer
from ..errors import ModelSourceError
from ..finish import described
from ..folder_files import MAX_BYTES, MAX_DEPTH
from ..hf_folder import given_tokenizer, padding_id
from ..model import CanonicalModel
from ..post_processing import check_scores, class_names, read_post_processing
from ..qdq.importing import import_quantised_onnx_model
from ..qdq.qoperator import is_quantised
from ..request import Request
from ..source_tokenizer import files_beside, source_tokenizer
from .importing import import_onnx_model
from .reading import data_files, read_model_files


def load_onnx(file: Path, request: Request) -> CanonicalModel:
    """Import an ONNX file, float or quantised.

    Parameters
    ----------
    file : pathlib.Path
        The file.
    request
        By default the head is what the names of the outputs say, the size of images what
        ``config.json`` says where the graph leaves it free, and the tokenizer that of the file's
        folder.

    Returns
    -------
    CanonicalModel
        The model. Class names and the padding token are those of a ``config.json`` beside the
        tokenizer or the file, where there is one. `given` holds the scales of a quantised file.

    Raises
    ------
    ModelSourceError, UnsupportedModelError, UsageError
        See `read_model_files` and `import_onnx_model`; also if there are no tokenizer files where
        the request says.
    """
    inputs = request.inputs
    assert inputs is None or isinstance(inputs, Mapping)  # as the record of the source says
    model, sources = read_model_files(file)
    folder = request.tokenizer or file.parent
    config = _document("config.json", file.parent, folder)
    settings = _document("config_sentence_transformers.json", file.parent, folder)
    files = given_tokenizer(folder) if request.tokenizer else source_tokenizer(folder)
    pad = padding_id(config.get("pad_token_id"))
    if files and pad is None:
        pad = Tokenizer(files).pad_id
    import_model = import_quantised_onnx_model if is_quantised(model) else import_onnx_model
    result = import_model(
        model,
        source=str(file),
        head=request.head,
        inputs=inputs,
        pad_token_id=pad,
        id2label=class_names(config),
        image_size=request.image_size or _image_size(config),
        verify=request.verify,
    )
    classes = HEADS[result.info.head].labelled
    result = described(
        result,
        source=str(file),
        description=f"ONNX model {file.name}, head {result.info.head}",
        sha256=files_sha256(sources),
        tokenizer=files,
        architecture=str(config.get("model_type") or "onnx"),
        id2label=result.info.id2label if classes else {},
        **read_post_processing(config, settings, result.info.head, str(file.parent)),
    )
    if request.verify and config:
        check_scores(result.info, config, settings)
    return result


def files_of(file: Path) -> list[Path]:
    """List what importing a file reads: it, the files of its data, and what lies beside it."""
    settings = file.parent / "config_sentence_transformers.json"
    beside = [*files_beside(file.parent), *([settings] if settings.is_file() else [])]
    return [*data_files(file), *beside]


def _document(name: str, *folders: Path) -> JsonDict:
    """Return the first document of that name; the import needs none, so that it may be missing."""
    for folder in folders:
        file = folder / name
        if file.is_file():
            try:
                content = read_json(file, MAX_BYTES, MAX_DEPTH)
            except DocumentError as error:
                raise ModelSourceError(
                    f"{name} cannot be read",
                    where=str(file),
                    why=error.what,
                    todo="copy it again, or remove it: the ONNX file does not need it",
                ) from error
            return content if isinstance(content, dict) else {}
    return {}


def _image_size(config: JsonObject) -> tuple[int, ...] | None:
    """Planes, height and width of images, or planes and frames of features; None if unsaid."""
    sides, planes = config.get("image_size"), config.get("num_channels", 3)
    sides = [sides, sides] if isinstance(sides, int) else sides
    if not isinstance(sides, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (planes, *sides)
    ):
        return None
    return (planes, *sides)
