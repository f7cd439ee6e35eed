"""`ibert demo`: the whole job on a real model, with all that can be said about the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from .result import CommandResult
from .tables import Table, table_of

if TYPE_CHECKING:
    from ..demo import DemoResult, Latency

# About what each step takes on two cores, in seconds.
_SHARES = {
    "import": 8,
    "quantize": 30,
    "compile": 20,
    "load": 1,
    "sentences": 1,
    "verify": 2,
    "latency": 12,
    "fidelity": 25,
}


def command(*, output: Path | None = None) -> CommandResult:
    """Import, calibrate, lower, compile and run MiniLM, and compare it with its float original.

    Parameters
    ----------
    output
        Keep minilm.ibert and minilm.so in this folder (created).

    Examples
    --------
    ibert demo
    """
    from ibert_tvm.targets.linking import LIBRARY

    from ..common.files import OutputKind, check_writable
    from ..model.artefact import ARTEFACT

    with ExitStack() as stack:
        if output is None:
            prefix = "ibert-demo-"
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        else:
            kept = OutputKind("a folder", Path.is_dir, folder=True)
            check_writable(output, kept).mkdir(exist_ok=True)
            check_writable(output / "minilm.ibert", ARTEFACT)
            check_writable(output / "minilm.so", LIBRARY)
            folder = output
        from ..demo import find_model, run_demo
        from ..progress import progress

        find_model()

        with progress(_SHARES) as line:
            result = run_demo(folder, line.step)
    document = result.to_json()
    document["kept"] = None if output is None else str(output)

    shown = [*_similarities(result), *_latency(result), "", *_conclusions(result)]
    if output is not None:
        shown.append(f"Kept minilm.ibert and minilm.so in {output}.")
    return CommandResult(document, shown)


def _conclusions(result: DemoResult) -> list[str]:
    from ..evaluation.agreements import Agreement

    sizes, agreement = result.bytes, result.fidelity.agreement
    assert isinstance(agreement, Agreement)  # of a sentence encoder
    facts = ", ".join(
        f"{value} {key.replace('_', ' ')}" for key, value in result.integer_only.items()
    )
    total = sum(result.seconds.values())
    steps = ", ".join(f"{name} {value:.1f}" for name, value in result.seconds.items())
    return [
        f"Size: {sizes['float_weights'] / 1e6:.1f} MB of float weights became a library of "
        f"{sizes['library'] / 1e6:.1f} MB, of which {sizes['library_weights'] / 1e6:.1f} MB are "
        f"integer weights; {sizes['float_weights'] / sizes['library']:.1f} times smaller.",
        f"Fidelity on {result.fidelity.texts} texts that calibration has not seen: cosine to the "
        f"float model {agreement.cosine_mean:.4f} on average, {agreement.cosine_min:.4f} at least; "
        f"Spearman of all pairs {agreement.spearman or 0:.4f}; same nearest neighbour for "
        f"{agreement.same_nearest_neighbour or 0:.1%}.",
        f"Checked: no float type is left in the compiled program ({facts}).",
        f"Checked: the library's outputs for the {len(result.sentences)} sentences equal the NumPy "
        "reference of the integer program, bit for bit.",
        f"Took {total:.0f} s ({steps}).",
    ]


def _similarities(result: DemoResult) -> list[str | Table]:
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
    return [
        "Cosine similarity of sentences: integer (float)\n",
        Table(("", *(str(i + 1) for i in range(count))), rows),
        *(f"  {index + 1}  {sentence}" for index, sentence in enumerate(result.sentences)),
    ]


def _latency(result: DemoResult) -> list[str | Table]:
    columns: dict[str, Callable[[Latency], str]] = {
        "batch x tokens": lambda item: f"{item.batch} x {item.seq_len}",
        "threads": lambda item: str(item.threads),
        "float ms": lambda item: f"{item.float_ms:.2f}",
        "integer ms": lambda item: f"{item.integer_ms:.2f}",
        "faster": lambda item: f"{item.speedup:.1f} times",
    }
    title = "\nLatency beside PyTorch in float, measured in turns\n"
    return [title, table_of(result.latencies, columns)]
