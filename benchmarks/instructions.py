"""Count the instructions of libraries for AVX-512 VNNI, on whatever machine.

    ibert compile minilm.ibert -o new.so --target x86-avx512-vnni --seq-len 32,128
    python -m benchmarks.instructions old.so new.so --shapes 1x32,1x128

Every library is called once for each shape on a PC that Bochs emulates; the first is what the
others are compared with. Instructions are no cycles: those of a product's loop, of which the
processor computes one `vpdpbusd` or two a cycle, cost less than others. But they are exact, and
need no quiet machine, nor one with AVX-512.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from tests.pc.machine import EMULATOR, ICE_LAKE, MachineError, call_library

from .machine import describe_software
from .report import table

__all__ = ["main"]

_TITLE = """\
# Instructions of one call, AVX512-VNNI

Counted on an Ice Lake that Bochs emulates; in parentheses the share of the first column. They are
no cycles: a loop of products waits for `vpdpbusd`, of which a processor computes one or two a
cycle, so that what else is in it takes less time than its number says.

"""
_OUTPUTS = 4
_OUTPUT_BYTES = 16 << 20
# Every model has that many words; how many instructions it takes does not depend on them.
_VOCABULARY = 30
_FUNCTION = "_find_shape"


def count(library: Path, shape: tuple[int, int], inputs: int) -> int:
    """Instructions of one call, on texts that fill the shape.

    Parameters
    ----------
    library
        What `ibert compile --runtime none` wrote, of this version or of one whose interface had
        version 1.
    shape
        Batch and sequence length.
    inputs
        How many the model has: ids, mask, types.

    Raises
    ------
    MachineError, ValueError
        If it cannot be called.
    """
    with library.open("rb") as stream:
        try:
            symbols = ELFFile(stream).get_section_by_name(".dynsym")
        except ELFError as error:
            raise ValueError(f"{library} is no ELF file: {error}") from error
        names = [one.name for one in symbols.iter_symbols()] if symbols else []
    prefixes = [name.removesuffix(_FUNCTION) for name in names if name.endswith(_FUNCTION)]
    if len(prefixes) != 1:
        raise ValueError(f"{library} is no library of plain C functions")
    ids = np.random.default_rng(0).integers(1, _VOCABULARY, shape).astype(np.int32)
    arrays = [ids, np.ones(shape, np.int32), np.zeros(shape, np.int32)][:inputs]
    # How large outputs are, the library of another version need not say; none is printed.
    return call_library(
        library, prefixes[0], shape, arrays, [_OUTPUT_BYTES] * _OUTPUTS, ICE_LAKE, printed=False
    ).instructions


def main(arguments: list[str] | None = None) -> int:
    """Count, print the table and write it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("libraries", nargs="+", type=_named, metavar="[NAME=]LIBRARY")
    parser.add_argument("--shapes", required=True, type=_shapes, help="BATCHxLENGTH, with commas")
    parser.add_argument("--inputs", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--output", type=Path, help="path without suffix; .md and .json")
    options = parser.parse_args(arguments)
    names = [name for name, _path in options.libraries]
    if len({"shape", *names}) <= len(names):
        parser.error(f"two columns have one name: {', '.join(names)}; give others, NAME=LIBRARY")
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(f"there is no folder {options.output.parent}")
    rows: list[dict[str, Any]] = []
    try:
        for shape in options.shapes:
            row: dict[str, Any] = {"shape": "{}x{}".format(*shape)}
            row |= {n: count(path, shape, options.inputs) for n, path in options.libraries}
            rows.append(row)
    except (MachineError, ValueError, OSError) as error:
        sys.stderr.write(f"cannot count: {error}\n")
        return 1
    text = "\n".join(_report(names, rows)) + "\n"
    sys.stdout.write(text)
    if options.output is not None:
        result = {"emulator": f"{EMULATOR} {ICE_LAKE}", "software": describe_software()}
        document, markdown = (
            options.output.with_name(options.output.name + suffix) for suffix in (".json", ".md")
        )
        document.write_text(json.dumps(result | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
        markdown.write_text(_TITLE + text, encoding="utf-8")
    return 0


def _report(names: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """A line for each shape; in parentheses what it is of the first library's instructions."""
    lines = [
        [row["shape"], *(f"{row[name]:,} ({row[name] / row[names[0]]:.3f})" for name in names)]
        for row in rows
    ]
    return table(["batch x seq", *names], lines)


def _named(word: str) -> tuple[str, Path]:
    name, _, path = word.rpartition("=")
    return name or Path(path).stem, Path(path)


def _shapes(words: str) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,4})", word) for word in words.split(",")]
    if None in found:
        raise argparse.ArgumentTypeError(f"{words!r} is not BATCHxLENGTH, with commas")
    return [(int(one[1]), int(one[2])) for one in found if one]


if __name__ == "__main__":
    sys.exit(main())
