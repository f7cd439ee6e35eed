"""Options of commands that compile kernels for shapes: ``--batch``, ``--seq-len``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ..common.errors import UsageError
from ..model.model_info import ModelInfo
from .options import parse_sizes

BatchOption = Annotated[
    str, Option("--batch", help="Batch sizes, with commas; all with all lengths.")
]
SeqLenOption = Annotated[
    str | None,
    Option(
        "--seq-len",
        help="Sequence lengths in tokens, with commas. [default: 128, or all that the "
        "model has positions for]",
    ),
]


def check_sizes(batch: str, seq_len: str | None) -> None:
    """Refuse what is no list of sizes with a `UsageError`, before anything is known of a model."""
    parse_sizes("--batch", batch)
    if seq_len is not None:
        parse_sizes("--seq-len", seq_len)


def parse_shapes(
    model: Path, batch: str, seq_len: str | None, info: ModelInfo | None = None
) -> list[tuple[int, int]]:
    """Parse what ``--batch`` and ``--seq-len`` were given for a model.

    Parameters
    ----------
    model : pathlib.Path
        A NAME.ibert folder, or what was imported.
    batch, seq_len : str or None
        Sizes with commas; None for the length that suits the model.
    info : ModelInfo, optional
        Of a model that was imported just now, for which there is no such folder.

    Returns
    -------
    list of (int, int)
        (batch, tokens): every batch size with every length, the shortest first.

    Raises
    ------
    UsageError
        If something is no size, or the model has no positions for a length.
    ArtefactError
        If the model cannot be read.
    """
    from ..model.artefact import read_document

    batches = parse_sizes("--batch", batch)
    lengths = None if seq_len is None else parse_sizes("--seq-len", seq_len)
    document = read_document(model) if info is None else {"info": info.to_json()}
    if lengths is None:
        lengths = [_default_length(document)]
    shapes = [(b, s) for s in lengths for b in batches]
    _check_positions(document, shapes, model)
    return shapes


def _default_length(document: dict[str, Any]) -> int:
    """Return the sequence length to compile for where none is given.

    Parameters
    ----------
    document : dict
        Content of the artefact's `quantization.json`.

    Returns
    -------
    int
        128 tokens, or what the model has positions for if they are fewer; what images become.
    """
    info = document.get("info", {})
    longest = info.get("max_sequence_length")
    if info.get("image_size"):
        return int(longest)
    return 128 if longest is None else min(128, int(longest))


def _check_positions(
    document: dict[str, Any], shapes: list[tuple[int, int]], where: Path | str
) -> None:
    """Refuse sequence lengths for which the model has no positions.

    Parameters
    ----------
    document : dict
        Content of the artefact's `quantization.json`.
    shapes : list of (int, int)
        (batch, tokens) to compile.
    where : path
        The model, for the error.

    Raises
    ------
    UsageError
        If a sequence is longer than the model's positions.
    """
    longest = document.get("info", {}).get("max_sequence_length")
    asked = max(length for _, length in shapes)
    size = document.get("info", {}).get("image_size")
    if size and any(length != longest for _, length in shapes):
        what = "images" if len(size) == 3 else "features"
        raise UsageError(
            f"cannot compile for {asked} tokens",
            where=str(where),
            why=f"{what} of {' x '.join(map(str, size))} become {longest} tokens",
            todo="leave --seq-len out",
        )
    if longest is not None and asked > longest:
        raise UsageError(
            f"cannot compile for {asked} tokens",
            where=str(where),
            why=f"the model has positions for {longest} tokens",
            todo=f"give a --seq-len of at most {longest}",
        )
