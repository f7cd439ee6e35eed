"""Running a package on an emulated board, in the example firmware of `examples/firmware`.

The firmware reads all inputs from a file of the host and writes the outputs to another. Where the
board has a floating-point unit it stays off, so that one instruction of it ends the run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.strict_json import JsonObject

from ..description import TargetDescription
from ..emulation import find_emulator
from ..linking import Tools
from ..programs import run
from .verification import bare_metal

_PACKAGE = Path(__file__).resolve().parents[2]
_CFLAGS = ("-O2", "-std=c11", "-ffreestanding", "-ffunction-sections", "-fdata-sections")
_LINK = (
    *("-nostdlib", "-nostartfiles", "-Wl,--gc-sections", "-Wl,--enable-non-contiguous-regions"),
    *("-Wl,--no-warn-rwx-segments", "-Wl,-z,noexecstack"),
)
# Of the start-up code, main and semihosting.
_OWN_STACK = 1024
_SECONDS = 3600.0


def firmware_folder() -> Path:
    """Folder of the example: beside this package where it was installed, else of the checkout."""
    installed = _PACKAGE / "firmware"
    return installed if installed.is_dir() else _PACKAGE / "examples" / "firmware"


def link_firmware(
    document: JsonObject,
    header: str,
    objects: Sequence[Path],
    index: int,
    folder: Path,
    description: TargetDescription,
    weights: Path | None = None,
) -> Path:
    """Link the example firmware with a model.

    Parameters
    ----------
    document
        What the package says of itself.
    header
        Its C header.
    objects
        Its objects or library.
    index
        Number of the shape that is run.
    folder
        Where the firmware is made.
    description
        The target.
    weights
        Those that are not in the package's code; None if all are.

    Returns
    -------
    pathlib.Path
        The ELF file.

    Raises
    ------
    TargetError
        If a tool is missing or fails.
    """
    if description.emulator is None:
        raise TargetError(f"no board of target {description.name!r} is emulated")
    (folder / "ibert_model.h").write_text(_renamed(header, str(document["prefix"])))
    example = firmware_folder()
    stack = int(document["memory"]["ram"]["stack"]) + _OWN_STACK
    output = folder / f"firmware{index}.elf"
    sources = ["main.c", *bare_metal(description).start_up]
    if weights is not None:
        shutil.copyfile(weights, folder / "ibert_weights.bin")
        sources.append("external_weights.S")
    arguments = [
        *_CFLAGS,
        *(f"-I{folder}", f"-I{example}", f"-L{example}", f"-DSHAPE={index}"),
        *(str(example / name) for name in sources),
        *map(str, objects),
        f"-T{example / 'boards' / description.emulator.board}.ld",
        *_LINK,
        f"-Wl,--defsym=__stack_size={stack}",
        *("-lgcc", "-o", str(output)),
    ]
    Tools(description).compile(arguments, folder, "cannot link the package with firmware")
    return output


def run_firmware(
    elf: Path,
    document: JsonObject,
    index: int,
    inputs: Mapping[str, np.ndarray],
    description: TargetDescription,
) -> dict[str, np.ndarray]:
    """Run linked firmware on inputs.

    Parameters
    ----------
    elf
        As `link_firmware` gave it; files are made in its folder.
    document, index
        As for it.
    inputs
        By name.
    description
        The target.

    Returns
    -------
    dict of str to numpy.ndarray
        Integers of the outputs.

    Raises
    ------
    TargetError
        If there is no emulator, the processor faults, or the firmware reports an error.
    """
    program = find_emulator(description)
    emulator = description.emulator
    assert emulator is not None  # or it would not have been found
    command = emulator.on_board(elf, program)
    return run_on_files(command, document, index, inputs, elf.parent, description)


def run_on_files(
    command: Sequence[str],
    document: JsonObject,
    index: int,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    description: TargetDescription,
) -> dict[str, np.ndarray]:
    """Run a program that reads ``inputs.bin`` in a folder and writes ``outputs.bin`` there.

    Parameters
    ----------
    command
        The program.
    document, index, inputs, description
        As for `run_firmware`.
    folder
        Where the files are.

    Returns
    -------
    dict of str to numpy.ndarray
        Integers of the outputs.

    Raises
    ------
    TargetError
        If the program fails.
    """
    content = b"".join(
        inputs[one["name"]].astype(one["dtype"]).tobytes() for one in document["inputs"]
    )
    (folder / "inputs.bin").write_bytes(content)
    results = folder / "outputs.bin"
    results.unlink(missing_ok=True)
    done = run(command, folder, _SECONDS)
    if done.returncode or not results.is_file():
        emulator = description.emulator
        raise TargetError(
            "the package does not run on the emulated board",
            where=f"target {description.name!r}, {(emulator and emulator.board) or command[0]}",
            why=f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}",
            todo="compile it again; see `ibert doctor`",
        )
    function = document["functions"][index]
    sizes = {"batch": function["batch"], "seq_len": function["seq_len"]}
    data, outputs, offset = results.read_bytes(), {}, 0
    for one in document["outputs"]:
        shape = [int(sizes.get(axis, axis)) for axis in one["shape"]]
        count = int(np.prod(shape))
        outputs[one["name"]] = np.frombuffer(data, one["dtype"], count, offset).reshape(shape)
        offset += outputs[one["name"]].nbytes
    return outputs


def _renamed(header: str, prefix: str) -> str:
    """The header, and the names that the example calls the model by."""
    if prefix == "ibert":
        return header
    names = set(re.findall(rf"\b(?:{prefix}|{prefix.upper()})_\w+", header))
    own = ((name, re.sub(rf"^{prefix}", "ibert", name)) for name in sorted(names))
    lines = (f"#define {re.sub(rf'^{prefix.upper()}', 'IBERT', new)} {old}" for old, new in own)
    return "\n".join((header, *lines, ""))
