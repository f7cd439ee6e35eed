"""`ibert quantize`: a float model and texts to a quantised model."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..errors import OutputError
from .options import (
    Head,
    InputNames,
    JsonFlag,
    TrustFlag,
    VerboseFlag,
    parse_inputs,
    parse_size,
    read_texts,
)
from .result import CommandResult
from .source_scales import artefact_lines
from .tables import Table

if TYPE_CHECKING:
    from ..frontend import CanonicalModel


class Observer(str, Enum):
    """How the range of an 8-bit activation is chosen."""

    mse = "mse"
    minmax = "minmax"
    percentile = "percentile"


class Fidelity(str, Enum):
    """How close the integers are to come to the float model."""

    fast = "fast"
    default = "default"


class Preset(str, Enum):
    """Names of the numerics presets."""

    accurate = "accurate"
    paper = "paper"
    released = "released"


def command(
    model: Annotated[
        Path,
        Argument(help="A Hugging Face folder, an ONNX file, or an exported torch program (.pt2)."),
    ],
    output: Annotated[Path, Option("-o", "--output", help="The folder to write, NAME.ibert.")],
    calibration: Annotated[
        Path | None,
        Option(
            help="Texts like those of later use, one per line, or token arrays by input name "
            "(.npz); by default English texts of many kinds, and none for a model that came with "
            "its scales."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, Option(help="Folder of the tokenizer files; by default the model's.")
    ] = None,
    preset: Annotated[
        Preset | None,
        Option(
            help="accurate; the formulas and constants of the paper; or the arithmetic of the code "
            "that was released with it, for I-BERT checkpoints. [default: accurate; released for a "
            "checkpoint that was trained with quantisation]"
        ),
    ] = None,
    fidelity: Annotated[
        Fidelity | None,
        Option(
            help="How close to come to the float model, preset accurate: fast is 1 to 3% faster at "
            "run time, with twice the error. [default: default]"
        ),
    ] = None,
    observer: Annotated[
        Observer | None,
        Option(help="How the ranges of activations are chosen. [default: as the fidelity says]"),
    ] = None,
    seq_len: Annotated[
        str, Option(help="Truncate the calibration texts to this many tokens.")
    ] = "128",
    head: Annotated[
        Head, Option(help="Which head to import; auto takes what the model has.")
    ] = Head.auto,
    widen: Annotated[
        bool,
        Option(
            "--widen",
            help="Of a quantised model: keep sums, LayerNorm and GELU's input in 16 bits over the "
            "range that the file gives them, instead of rounding them to its 8 bits.",
        ),
    ] = False,
    limit: Annotated[int | None, Option(min=1, help="Use only the first texts.")] = None,
    inputs: InputNames = None,
    trust: TrustFlag = False,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Import a model, choose scales by running texts through it, and lower it to integers."""
    from ..artefact import is_artefact
    from ..files import check_writable
    from ..texts import data_file
    from .progress import progress

    length = parse_size("--seq-len", seq_len)
    names = parse_inputs(inputs)
    data = None if calibration is None else _read(calibration, limit)
    check_writable(output)
    if output.exists() and not is_artefact(output) and not _is_empty_folder(output):
        raise OutputError(
            f"cannot write {output}",
            why="something is there already, and it is not an .ibert artefact",
            todo="choose another output, or remove it yourself",
        )

    started = time.perf_counter()
    with progress({"importing the model": 1, "calibrating": 4}) as line:
        from ..frontend import load
        from ..quantization import quantize

        source = load(
            model,
            head=None if head is Head.auto else head.value,
            inputs=names,
            tokenizer=tokenizer,
            trust=trust,
        )
        if data is None and not _has_scales(source, preset):
            data = _read(data_file("calibration.txt"), limit)
        line.step("calibrating")
        quantized = quantize(
            source,
            calibration=data,
            preset=None if preset is None else preset.value,
            seq_len=length,
            fidelity=None if fidelity is None else fidelity.value,
            observer=None if observer is None else observer.value,
            widen=widen,
            progress=line.advance,
        )
    quantized.save(output)
    chosen = quantized.quantization["calibration"]
    document: dict[str, Any] = {
        "output": str(output),
        "preset": quantized.preset,
        "fidelity": chosen.get("fidelity"),
        "observer": chosen.get("options", {}).get("observer"),
        "head": quantized.info.head,
        "architecture": quantized.info.architecture,
        "calibration_texts": _sequences(data),
        "notes": list(quantized.info.notes),
        "seq_len": length,
        "parameter_bytes": quantized.num_bytes,
        "seconds": round(time.perf_counter() - started, 3),
    }

    source_scales = quantized.quantization.get("source_scales")
    if source_scales is not None:
        document["source_scales"] = source_scales

    info = quantized.info
    shown: list[str | Table] = [
        f"wrote {output}: {info.architecture}, {info.num_layers} layers, head {info.head}, "
        f"{quantized.num_bytes / 1e6:.1f} MB of integers, preset {quantized.preset}, "
        f"{_sequences(data)} calibration sequences, in {document['seconds']:.1f} s",
        *(f"note: {note}" for note in info.notes),
    ]
    if source_scales is not None:
        shown.append(Table((), artefact_lines(source_scales, verbose)))
    return CommandResult(document, shown)


def _read(file: Path, limit: int | None) -> Any:
    """Read calibration data: batches of token arrays, or texts."""
    if file.suffix == ".npz":
        from ..quantization.batch_file import read_batches

        return read_batches(file, limit)
    return read_texts("--calibration", file, limit)


def _sequences(data: Any) -> int:
    if data is None:
        return 0
    return sum(1 if isinstance(item, str) else len(item[next(iter(item))]) for item in data)


def _has_scales(source: CanonicalModel, preset: Preset | None) -> bool:
    """Tell whether a model came with scales that `preset` uses, so that nothing is estimated."""
    if source.given is not None:
        return True
    if source.trained is not None and preset in (None, source.trained.preset):
        return True
    return source.released is not None and preset in (None, Preset.released)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
