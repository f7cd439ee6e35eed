"""Figures in the documents: measured here, or taken from a table of results, and written there.

    python -m benchmarks.arm.published               # measure, keep, and write into the documents
    python -m benchmarks.arm.published --documents   # write what was measured into the documents

Measurements go to ``benchmarks/results/published.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_software
from benchmarks.models import Cell
from ibert_tvm.targets import TargetDescription, get_target
from ibert_tvm.targets.bare_metal.options import C_SOURCES, OBJECTS, PackageOptions
from tests.arm import packages
from tests.arm.tools import with_vectors

from .counting import Counting
from .kernels import CASES
from .memory import ROOT
from .models import SPECS, count_model, quantise
from .running import count_kernel

__all__ = ["FIGURES", "count", "main", "rewritten", "stored", "whole_models"]

RESULTS = ROOT / "benchmarks" / "results"
VOCABULARY = 30522
TOKENS = {"cortex-m4": (1, 6, 16, 32), "rv32imc": (32,)}
VECTOR_BITS = (128, 256, 512)
IN_C = "cortex-m4"
"""Whose package of sources is counted for 32 tokens, as its Makefile compiles it: GCC -O2."""
ARENAS = ("x86-avx512-vnni", ((1, 32), (1, 128), (8, 128)))
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """Numbers of a document.

    Attributes
    ----------
    document
        Its path.
    pattern
        Expression whose groups are the numbers.
    values
        The numbers, as the document has them, of all results.
    """

    document: str
    pattern: str
    values: Callable[[Results], Sequence[str]]


def _millions(results: Results, target: str) -> list[str]:
    counts = results["published"]["minilm"][target]
    return [str(round(counts[str(tokens)] / 1e6)) for tokens in TOKENS[target]]


def _in_c(results: Results) -> list[str]:
    published = results["published"]
    counts = (published["minilm_in_c"], published["minilm"][IN_C])
    return [str(round(each["32"] / 1e6)) for each in counts]


def _memory(results: Results) -> list[str]:
    (row,) = (
        row
        for row in results["arm-memory"]["packages"]
        if (row["model"], row["target"], row["shape"]) == ("minilm", "cortex-m4", "1x32")
    )
    return [str(round(row[key] / 1000)) for key in ("code", "ram")]


def _arenas(results: Results) -> list[str]:
    small, middle, large = results["published"]["arenas"]
    return [str(round(small / 1000)), str(round(middle / 1000)), f"{large / 1e6:.1f}"]


def _boards(results: Results, what: str) -> list[str]:
    """Of 64-bit RISC-V, without vectors and with those of each length."""
    counts = [f"{count / 1e6:#.3g}" for count in results["published"]["riscv64"][what]]
    return [text.removesuffix(".") for text in counts]


FIGURES = (
    Figure("README.md", r"(\d+) KB of code, (\d+) KB of\s+RAM at 32 tokens", _memory),
    Figure(
        "docs/bare-metal.md",
        r"executes (\d+),\s+(\d+), (\d+) and (\d+) million for 1, 6, 16 and 32",
        lambda results: _millions(results, "cortex-m4"),
    ),
    Figure(
        "docs/bare-metal.md",
        r"MiniLM for\s+32 tokens executes (\d+) million",
        lambda results: _millions(results, "rv32imc"),
    ),
    Figure(
        "docs/arm.md",
        r"linear layer 128x384->384" + r" \| ([\d.]+)M" * (1 + len(VECTOR_BITS)),
        lambda results: _boards(results, "linear"),
    ),
    Figure(
        "docs/arm.md",
        r"MiniLM, 32 tokens" + r" \| ([\d.]+)M" * (1 + len(VECTOR_BITS)),
        lambda results: _boards(results, "minilm"),
    ),
    Figure(
        "docs/bare-metal.md",
        r"(\d+) million instructions on a Cortex-M4 where\s+the library takes (\d+)",
        _in_c,
    ),
    Figure(
        "docs/c-api.md",
        r"with VNNI is (\d+) KB for 32 tokens, (\d+) KB for 128, and ([\d.]+) MB for 8 x 128",
        _arenas,
    ),
)


def stored() -> Results:
    """All results that figures are taken from, by the name of their file."""
    names = ("published", "arm-memory", "arm")
    return {name: json.loads((RESULTS / f"{name}.json").read_text("utf-8")) for name in names}


def rewritten(text: str, figure: Figure, results: Results) -> str:
    """A document with the numbers of a figure.

    Raises
    ------
    ValueError
        If its sentence is not there, or is there more than once.
    """
    found = list(re.finditer(figure.pattern, text))
    if len(found) != 1:
        raise ValueError(f"{figure.document}: {len(found)} places of {figure.pattern!r}")
    (match,) = found
    for group, value in reversed(list(enumerate(figure.values(results), 1))):
        text = text[: match.start(group)] + value + text[match.end(group) :]
    return text


def count(
    quantised: Path, target: str, numbers: Sequence[int], emit: str = OBJECTS
) -> dict[str, int]:
    """Executed instructions of texts of some lengths in a package for 32 tokens, by length."""
    import ibert_tvm
    from ibert_tvm.model.artefact import QuantizedModel

    model = QuantizedModel.load(quantised)
    options = PackageOptions(emit)
    compiled = ibert_tvm.compile(
        model, target=target, shapes=[(1, 32)], runtime="none", emit=options.kernels
    )
    counts = {}
    with tempfile.TemporaryDirectory(prefix="published.") as scratch:
        folder = Path(scratch)
        package = compiled.export(folder / "package", options)
        if emit != OBJECTS:
            subprocess.run(["make", "-C", str(package)], check=True, capture_output=True)
        elf = packages.link_package(package, folder)
        for tokens in numbers:
            inputs = packages.inputs_for(model.input_names, 32, 1, VOCABULARY, tokens)
            with Counting(elf, get_target(target), [], within="ibert_run") as counting:
                run = packages.run_package(
                    package, elf, inputs, folder, plugin=counting.argument, timeout=3600
                )
                packages.assert_bit_exact(model, inputs, run.outputs)
                counts[str(tokens)] = counting.counts().instructions
    return counts


def _riscv64_targets() -> list[TargetDescription]:
    """In the order of `_boards`."""
    return [get_target("rv64gc"), *map(with_vectors, VECTOR_BITS)]


def _riscv64(quantised: Path) -> dict[str, list[int]]:
    """Executed instructions of a linear layer and of a whole model, in the order of `_boards`."""
    targets, linear = _riscv64_targets(), CASES[0]
    whole = [count_model("minilm", quantised, Cell(1, 32), target) for target in targets]
    return {
        "linear": [count_kernel(linear.build(one), one).instructions for one in targets],
        "minilm": [row["instructions"] for row in whole],
    }


def whole_models(results: Results) -> Iterator[tuple[str, str, int, Callable[[Path], int]]]:
    """Every whole model whose executed instructions are published.

    Yields
    ------
    tuple
        What it is, its target, the stored number of instructions, and how to count them again with
        models that are quantised in a folder.
    """
    published = results["published"]

    def of_tokens(target: str, tokens: str, emit: str, cache: Path) -> int:
        quantised = quantise(SPECS["minilm"], cache)
        return count(quantised, target, (int(tokens),), emit)[tokens]

    def of_shape(name: str, shape: str, target: TargetDescription, cache: Path) -> int:
        quantised = quantise(SPECS[name], cache)
        return int(count_model(name, quantised, Cell.parse(shape), target)["instructions"])

    packages = [(*item, OBJECTS) for item in published["minilm"].items()]
    packages.append((IN_C, published["minilm_in_c"], C_SOURCES))
    for target, counts, emit in packages:
        for tokens, number in counts.items():
            again = partial(of_tokens, target, tokens, emit)
            yield f"minilm-{target}-{emit}-{tokens} tokens", target, number, again
    for board, number in zip(_riscv64_targets(), published["riscv64"]["minilm"], strict=True):
        what = f"minilm-{board.name}-{board.emulated}"
        yield what, board.name, number, partial(of_shape, "minilm", "1x32", board)
    for row in results["arm"]["models"]:
        name, shape, target = row["model"], row["shape"], row["target"]
        again = partial(of_shape, name, shape, get_target(target))
        yield f"{name}-{target}-{shape}", target, row["instructions"], again


def _arena_bytes(quantised: Path) -> list[int]:
    import ibert_tvm
    from ibert_tvm.model.artefact import QuantizedModel

    target, shapes = ARENAS
    model = QuantizedModel.load(quantised)
    compiled = ibert_tvm.compile(model, target=target, shapes=list(shapes), runtime="none")
    assert compiled.bare is not None
    return [compiled.bare.arena_bytes[shape] for shape in shapes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure unless told not to, and write all figures into the documents."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--documents", action="store_true", help="measure nothing")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench")
    options = parser.parse_args(arguments)
    if not options.documents:
        quantised = quantise(SPECS["minilm"], options.cache)
        measured = {
            "schema": 1,
            "software": describe_software(),
            "minilm": {name: count(quantised, name, each) for name, each in TOKENS.items()},
            "riscv64": _riscv64(quantised),
            "arenas": _arena_bytes(quantised),
            "minilm_in_c": count(quantised, IN_C, (32,), C_SOURCES),
        }
        text = json.dumps(measured, indent=1) + "\n"
        (RESULTS / "published.json").write_text(text, encoding="utf-8")
    results = stored()
    for figure in FIGURES:
        path = ROOT / figure.document
        text = rewritten(path.read_text(encoding="utf-8"), figure, results)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{figure.document}: {', '.join(figure.values(results))}\n")


if __name__ == "__main__":
    main()
