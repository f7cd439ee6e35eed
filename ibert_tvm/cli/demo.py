"""`ibert demo`: the whole job on a real model, with all that can be said about the result."""

from __future__ import annotations

import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibert_tvm.cli.options import JsonFlag, VerboseFlag
from ibert_tvm.cli.result import CommandResult
from ibert_tvm.cli.tables import table

if TYPE_CHECKING:
    from rich.console import Console

    from ibert_tvm.demo import DemoResult

_logger = logging.getLogger(__name__)


def command(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Keep minilm.ibert and minilm.so in this folder (created)."
        ),
    ] = None,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Import, calibrate, lower, compile and run MiniLM, and compare it with its float original."""
    from ibert_tvm.files import check_writable

    with ExitStack() as stack:
        if output is None:
            prefix = "ibert-demo-"
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        else:
            check_writable(output).mkdir(exist_ok=True)
            check_writable(output / "minilm.so")
            folder = output
        from ibert_tvm.demo import find_model, run_demo

        find_model()

        result = run_demo(folder, _step)
    document = result.to_json()
    document["kept"] = None if output is None else str(output)

    def render(console: Console) -> None:
        _render(console, result, document)

    return CommandResult(document, render)


def _step(text: str) -> None:
    """Show what is being done, on a terminal; elsewhere with -v only."""
    if sys.stderr.isatty():
        print(f"... {text}", file=sys.stderr, flush=True)
    else:
        _logger.info("%s", text)


def _render(console: Console, result: DemoResult, document: dict[str, Any]) -> None:
    _similarities(console, result)
    _latency(console, result)
    sizes = result.bytes
    console.print()
    console.print(
        f"Size: {sizes['float_weights'] / 1e6:.1f} MB of float weights became a library of "
        f"{sizes['library'] / 1e6:.1f} MB, of which {sizes['library_weights'] / 1e6:.1f} MB are "
        f"integer weights; {sizes['float_weights'] / sizes['library']:.1f} times smaller."
    )
    agreement = result.fidelity.agreement
    console.print(
        f"Fidelity on {result.fidelity.texts} texts that calibration has not seen: cosine to the "
        f"float model {agreement.cosine_mean:.4f} on average, {agreement.cosine_min:.4f} at least; "
        f"Spearman of all pairs {agreement.spearman or 0:.4f}; same nearest neighbour for "
        f"{agreement.same_nearest_neighbour or 0:.1%}."
    )
    facts = ", ".join(
        f"{value} {key.replace('_', ' ')}" for key, value in result.integer_only.items()
    )
    console.print(f"Checked: no float type is left in the compiled program ({facts}).")
    console.print(
        f"Checked: the library's outputs for the {len(result.sentences)} sentences equal the NumPy "
        "reference of the integer program, bit for bit."
    )
    total = sum(result.seconds.values())
    steps = ", ".join(f"{name} {value:.1f}" for name, value in result.seconds.items())
    console.print(f"Took {total:.0f} s ({steps}).")
    if document["kept"]:
        console.print(f"Kept minilm.ibert and minilm.so in {document['kept']}.")


def _similarities(console: Console, result: DemoResult) -> None:
    console.print("Cosine similarity of sentences: integer (float)\n")
    count = len(result.sentences)
    rows = [
        (
            str(row + 1),
            *(
                f"{result.integer_similarities[row, column]:.2f} "
                f"({result.float_similarities[row, column]:.2f})"
                for column in range(row)
            ),
        )
        for row in range(count)
    ]
    console.print(table(("", *(str(i + 1) for i in range(count))), rows))
    for index, sentence in enumerate(result.sentences):
        console.print(f"  {index + 1}  {sentence}", markup=False)


def _latency(console: Console, result: DemoResult) -> None:
    console.print("\nLatency beside PyTorch in float, measured in turns\n")
    rows = [
        (
            f"{item.batch} x {item.seq_len}",
            str(item.threads),
            f"{item.float_ms:.2f}",
            f"{item.integer_ms:.2f}",
            f"{item.speedup:.1f} times",
        )
        for item in result.latencies
    ]
    console.print(table(("batch x tokens", "threads", "float ms", "integer ms", "faster"), rows))
