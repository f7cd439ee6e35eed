"""`ibert run`: run a compiled library on texts, token ids, images or features."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from ..common.errors import DocumentError, UsageError
from ..common.files import marked
from ..common.strict_json import JsonDict
from ..model.model_info import REAL_INPUTS
from ..texts import read_texts
from .options import Board, DeviceOption, MaybeOne, check_device
from .result import CommandResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..common.types import Array

# What shows that this command wrote a file: an archive's comment, and the length of a header, which
# NumPy pads to a multiple of 64 bytes and no further.
_NPZ = b"written by ibert_tvm"
_NPY_HEADER = 1014
_NPY = b"\x93NUMPY\x01\x00" + _NPY_HEADER.to_bytes(2, "little")
_ARRAYS = marked("arrays that `ibert run` wrote", _NPZ, _NPY)
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_REAL = " or ".join(REAL_INPUTS)


def command(
    library: Path,
    *,
    text: list[str] | None = None,
    pair: list[str] | None = None,
    texts: Path | None = None,
    inputs: Annotated[
        Path | None, Option(help=f"An .npz file with {', '.join(_INPUTS)}; or with {_REAL}.")
    ] = None,
    output: Path | None = None,
    integers: bool = False,
    threads: MaybeOne = None,
    device: DeviceOption = None,
    emulate: bool = False,
    model: Path | None = None,
    board: Board,
) -> CommandResult:
    """Run a compiled library on texts, on token ids, on images or on features.

    Parameters
    ----------
    library
        A library that `ibert compile` wrote; with --emulate a package as well.
    text
        A text; may be repeated.
    pair
        The second text of each --text, for models of pairs.
    texts
        A file with one text per line.
    output
        Write the outputs to a file: .npz, or .npy for the array of a model's only output.
    integers
        Give integers and their scale, not real values.
    threads
        Threads; by default all processors.
    emulate
        Run a library of another machine (--runtime none) under its emulator, or a package for a
        microcontroller on its emulated board.
    model
        The NAME.ibert folder that a package was compiled from, for its tokenizer.

    Examples
    --------
    ibert run minilm.so --text "The cat sat on the mat."
    ibert run minilm.so --texts lines.txt -o vectors.npz
    ibert run firmware --emulate --model minilm.ibert --text "The cat sat."
    """
    import numpy as np

    from ..common.files import check_writable
    from ..encoder.readings import run_and_read

    address = board.address
    check_device(device, board.rpc)
    if emulate and address is not None:
        raise UsageError(
            "both --emulate and --rpc were given",
            why="a library runs under an emulator here, or on a board",
            todo="give one of them",
        )
    items = _items(text, pair, texts)
    if (inputs is None) == (items is None):
        raise UsageError(
            "nothing to run on" if items is None else "both texts and --inputs were given",
            todo="give --text TEXT (repeatable), --texts FILE, or --inputs FILE.npz",
        )
    if output is not None:
        check_writable(output, _ARRAYS)
    given = None if inputs is None else _read_inputs(inputs)
    package = _is_package(library, emulate, items is not None, model)

    with ExitStack() as stack:
        if package:
            from ..progress import progress
            from ..runtime.package_engine import emulated_package

            loaded = stack.enter_context(emulated_package(library, model))
            stack.enter_context(progress("running the package"))
        elif address is None:
            from ..runtime import load_library

            loaded = load_library(library, num_threads=threads, emulate=emulate, device=device)
        else:
            from ..progress import progress
            from ..runtime.remote_engine import load_remote

            stack.enter_context(progress(f"loading on {address}"))
            loaded = stack.enter_context(load_remote(library, address, threads, board.rpc_timeout))
        results, reading, found = run_and_read(loaded, items, given)
        used = loaded.device
    document: JsonDict = {"library": str(library), "outputs": {}}
    document |= {"device": used} if address is None else {"board": str(address)}
    lines = []
    arrays: dict[str, Any] = {}
    for name, result in results.items():
        values = arrays[name] = result.values if integers else result.dequantize()
        described = {"dtype": str(values.dtype), "shape": list(values.shape)}
        document["outputs"][name] = {**described, "scale": result.scale}
        lines.append(f"{name}: {values.dtype} {list(values.shape)}, scale {result.scale:.6g}")
        if output is None:
            document["outputs"][name]["values"] = values.tolist()
            lines.append(_preview(values))
        if integers:
            arrays[f"{name}.scale"] = np.array(result.scale)
    if reading is not None:
        document[reading.name] = found
        lines += [f"text {index}: {reading.shown(each)}" for index, each in enumerate(found)]
        if reading.name == "classes" and any(len(each) > 1 for each in found):  # one is a score
            document["labels"] = [classes[0]["label"] for classes in found]
    if output is not None:
        _write(output, arrays)
        document["written"] = str(output)
        lines.append(f"written to {output}")
    return CommandResult(document, lines)


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays, with what shows later that this command wrote them."""
    import zipfile

    import numpy as np

    from ..common.files import write_file

    if path.suffix == ".npy" and len(arrays) > 1:
        raise UsageError(
            f"bad value for --output: {path}",
            why=f"an .npy file holds one array, and these are {', '.join(arrays)}",
            todo="give a name that ends in .npz",
        )
    with write_file(path, _ARRAYS) as temporary:
        if path.suffix == ".npy":
            (values,) = map(np.ascontiguousarray, arrays.values())
            described = repr(np.lib.format.header_data_from_array_1_0(values))
            header = f"{described:<{_NPY_HEADER - 1}}\n".encode()
            temporary.write_bytes(_NPY + header + values.tobytes())
            return
        with temporary.open("wb") as stream:  # savez appends .npz to any other name
            np.savez(stream, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = _NPZ


def _is_package(path: Path, emulate: bool, texts: bool, model: Path | None) -> bool:
    """Whether a package is run, which is done under an emulator alone."""
    from ibert_tvm.targets.bare_metal import is_package

    package = path.is_dir() and is_package(path)
    if package and not emulate:
        raise UsageError(
            f"{path} is a package for a microcontroller or for browsers",
            why="it does not run on this machine by itself",
            todo="give --emulate, to run it on its emulated board or in Node.js",
        )
    if package and texts and model is None:
        raise UsageError(
            f"texts were given to a package alone: {path}",
            why="it holds no tokenizer",
            todo="give the NAME.ibert folder that it was compiled from, with --model; or token "
            "ids, with --inputs FILE.npz",
        )
    if model is not None and not package:
        raise UsageError(
            "--model was given without a package",
            where=str(path),
            why="a library holds its tokenizer",
            todo="leave --model out",
        )
    return package


def _items(
    text: list[str] | None, pair: list[str] | None, file: Path | None
) -> list[str | tuple[str, str]] | None:
    """Texts, or pairs of texts, from the options; None if there are none."""
    given: list[str | tuple[str, str]] = list(text or [])
    if pair:
        if len(pair) != len(given):
            raise UsageError(
                f"--pair was given {len(pair)} times and --text {len(given)} times",
                todo="give one --pair for each --text",
            )
        given = list(zip(text or [], pair, strict=True))
    if file is not None:
        given += read_texts("--texts", file)
    return given if text or file is not None else None


def _read_inputs(path: Path) -> dict[str, Array]:
    from ..common.array_file import read_arrays

    try:
        arrays = read_arrays(path)
    except DocumentError as error:
        raise _bad_inputs(path, error.what) from error
    unknown = sorted(set(arrays) - set(_INPUTS))
    alone = len(arrays) == 1 and set(arrays) <= set(REAL_INPUTS)
    if not alone and (unknown or "input_ids" not in arrays):
        why = f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
        raise _bad_inputs(path, why)
    return arrays


def _bad_inputs(path: Path, why: str) -> UsageError:
    return UsageError(
        "cannot read the file of --inputs",
        where=str(path),
        why=why,
        todo=f"give an .npz file with input_ids, and optionally {' and '.join(_INPUTS[1:])}, "
        f"each [batch, length]; or with "
        + " or ".join(f"{name} [batch, {real.axes}]" for name, real in REAL_INPUTS.items()),
    )


def _preview(values: NDArray[np.generic]) -> str:
    import numpy as np

    return np.array2string(values, precision=4, threshold=24, edgeitems=3, max_line_width=120)
