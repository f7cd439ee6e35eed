"""Sentences of real lengths in a bucket of 128 tokens: what padding costs each runtime.

    python -m benchmarks.lengths
    python -m benchmarks.lengths --models minilm --threads 1 --batches 8

The project's own texts, eight at a time in their order, go through a library or model made for
8x128. This project skips padding by packing the real tokens of a batch; it is compared with itself
when all tokens count as real, and with other runtimes on the same padded batches as well as with
dynamic shapes, where each batch is as long as its longest sentence. Counted are real tokens per
second.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .effort import Effort
from .models import DATA, MODELS, Cell, ModelSpec, model_folder
from .peers import find_peer
from .process import Worker, WorkerError, build_artefact
from .report import machine_lines, table
from .store import new_result, save

__all__ = ["BUCKET", "VARIANTS", "Variant", "batches_for", "main", "sentence_lengths"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
BUCKET = Cell(8, 128)
_TEXTS = ("calibration.txt", "heldout.txt")

Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Variant:
    """One way of running the batches.

    Attributes
    ----------
    peer : str
        The runtime.
    form : str
        ``masked``: padded to the bucket, with its mask; ``full``: the same, but every token counts
        as real; ``dynamic``: padded to the longest sentence of the batch.
    title : str
        For the report.
    """

    peer: str
    form: str
    title: str

    @property
    def static(self) -> bool:
        """Whether every batch has the bucket's shape."""
        return self.form != "dynamic"


VARIANTS = {
    "ibert": Variant("ibert", "masked", "ibert_tvm, 8x128, padding skipped"),
    "ibert-all-tokens": Variant("ibert", "full", "ibert_tvm, 8x128, all tokens computed"),
    "ibert-buckets": Variant(
        "ibert-buckets", "dynamic", "ibert_tvm, 8x32, 8x64 and 8x128 in one library"
    ),
    **{
        f"{peer}-{form}": Variant(peer, form, f"{title}, {shape}")
        for peer, title in (
            ("openvino-int8", "OpenVINO INT8"),
            ("openvino-int8-bf16", "OpenVINO INT8 and bf16"),
            ("onnxruntime-int8-dynamic", "ONNX Runtime INT8, dynamic quantisation"),
        )
        for form, shape in (("masked", "8x128"), ("dynamic", "as long as the longest sentence"))
    },
}


def _token_ids(folder: Path) -> list[list[int]]:
    """Token ids of every text, at most as many as the bucket is long."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(BUCKET.seq_len)
    lines = [line for name in _TEXTS for line in (DATA / name).read_text("utf-8").splitlines()]
    return [list(tokenizer.encode(line).ids) for line in lines if line.strip()]


def sentence_lengths(folder: Path) -> list[int]:
    """Tokens of every text."""
    return [len(ids) for ids in _token_ids(folder)]


def batches_for(folder: Path, form: str, count: int) -> tuple[list[Inputs], int]:
    """Batches of the texts.

    Parameters
    ----------
    folder : Path
        Folder with a tokenizer.
    form : str
        As in `Variant`.
    count : int
        How many batches, spread evenly over the texts.

    Returns
    -------
    batches, tokens
        Inputs by name, int64 [8, length]; and the real tokens of all batches together.
    """
    ids = _token_ids(folder)
    groups = [ids[i : i + BUCKET.batch] for i in range(0, len(ids), BUCKET.batch)]
    whole = [group for group in groups if len(group) == BUCKET.batch]
    chosen = [whole[int(i)] for i in np.linspace(0, len(whole) - 1, min(count, len(whole)))]
    batches = []
    for group in chosen:
        longest = max(len(row) for row in group)
        shape = (BUCKET.batch, longest if form == "dynamic" else BUCKET.seq_len)
        inputs = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask")}
        for number, row in enumerate(group):
            inputs["input_ids"][number, : len(row)] = row
            inputs["attention_mask"][number, : len(row)] = 1
        if form == "full":
            inputs["attention_mask"][:] = 1
        batches.append(inputs)
    return batches, sum(len(row) for group in chosen for row in group)


def _measure(
    spec: ModelSpec, threads: int, names: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All variants in turns; one run is a pass over all batches."""
    rows: dict[str, dict[str, Any]] = {
        name: {"model": spec.name, "cell": str(BUCKET), "threads": threads, "peer": name}
        for name in names
    }
    effort = Effort(rounds=options.rounds, rare_ms=float("inf"))
    passes: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        workers = {}
        for name, row in rows.items():
            try:
                workers[name] = stack.enter_context(
                    Worker(spec, name, BUCKET, threads, options.cache, f"lengths:{options.batches}")
                )
            except WorkerError as error:
                row["failed"] = str(error)
                LOG.warning("%s, %d threads, %s: %s", spec.name, threads, name, error)
        for number in range(effort.rounds):
            order = list(workers)
            for name in order if number % 2 == 0 else reversed(order):
                if "failed" in rows[name]:
                    continue
                turn = effort.turn(workers[name].hello["estimate_ms"])
                try:
                    answer = workers[name].turn(turn.seconds, turn.warm_up, turn.least)
                except (WorkerError, BrokenPipeError) as error:
                    rows[name]["failed"] = str(error)
                    continue
                passes[name] += answer["times_ms"]
        for name, worker in workers.items():
            row, times = rows[name], passes[name]
            if "failed" not in row and times:
                tokens = worker.hello["tokens"]
                row.update(
                    median_ms=round(statistics.median(times), 3),
                    min_ms=round(min(times), 3),
                    runs=len(times),
                    tokens=tokens,
                    tokens_per_second=round(tokens / statistics.median(times) * 1e3, 1),
                )
                LOG.info(
                    "%-10s %d threads  %-34s %9.0f tokens/s", spec.name, threads, name,
                    row["tokens_per_second"],
                )  # fmt: skip
    return list(rows.values())


def _markdown(result: dict[str, Any]) -> str:
    lengths = result["lengths"]
    ordered = sorted(lengths)
    share = sum(lengths) / (len(lengths) * BUCKET.seq_len)
    lines = [
        "# Sentences of real lengths",
        "",
        *machine_lines(result),
        "",
        f"{len(lengths)} sentences ({', '.join(_TEXTS)}), {ordered[0]} to {ordered[-1]} tokens, "
        f"median {statistics.median(ordered):.0f}, mean {statistics.fmean(ordered):.1f}: of a "
        f"bucket of {BUCKET.seq_len} tokens {share:.0%} are real. Batches of {BUCKET.batch} in "
        f"the order of the files, {result['settings']['batches']} of them. Real tokens per second; "
        "in parentheses how many times as fast `ibert` is.",
    ]
    keys = list(dict.fromkeys((row["model"], row["threads"]) for row in result["rows"]))
    found = {
        (row["model"], row["threads"], row["peer"]): row["tokens_per_second"]
        for row in result["rows"]
        if "tokens_per_second" in row
    }
    body = []
    for name, variant in VARIANTS.items():
        cells = []
        for key in keys:
            value, own = found.get((*key, name)), found.get((*key, "ibert"))
            faster = f" ({own / value:.2f})" if value and own else ""
            cells.append("–" if value is None else f"{value:.0f}{faster}")
        body.append([variant.title, *cells])
    header = [f"{model}, {count} thread{'s' * (count != 1)}" for model, count in keys]
    lines += ["", *table(["", *header], body)]
    failed = [
        f"- `{row['peer']}` on {row['model']}, {row['threads']} threads: {row['failed']}"
        for row in result["rows"]
        if "failed" in row
    ]
    failed += [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    if failed:
        lines += ["", "Not measured:", "", *failed]
    return "\n".join(lines) + "\n"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lengths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--models", default="minilm,bert-base", help="comma-separated")
    parser.add_argument("--threads", default="1,2" if cores > 1 else "1", help="comma-separated")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated")
    parser.add_argument("--batches", type=int, default=16, help="batches per pass (default: 16)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "lengths",
        help="path of the result without suffix; .md and .json are written",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="where artefacts are kept"
    )
    parser.add_argument("--build-only", action="store_true", help="build what is missing and stop")
    options = parser.parse_args(arguments)
    for option, known in (("models", MODELS), ("variants", VARIANTS)):
        names = [name for name in getattr(options, option).split(",") if name]
        for name in names:
            if name not in known:
                parser.error(f"--{option}: {name!r} is not valid; known: {', '.join(known)}")
        setattr(options, option, names)
    counts = options.threads.split(",")
    if not all(text.isdigit() and 1 <= int(text) <= cores for text in counts):
        parser.error(f"--threads: {options.threads!r} is not a list of numbers from 1 to {cores}")
    options.threads = [int(text) for text in counts]
    if options.batches < 1 or options.rounds < 1:
        parser.error("--batches and --rounds must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    result = new_result([], {"rounds": options.rounds, "batches": options.batches})
    result["peers"] = {name: VARIANTS[name].title for name in options.variants}
    document = options.output.with_name(options.output.name + ".json")
    try:
        for model in options.models:
            spec, ready = MODELS[model], []
            result["lengths"] = sentence_lengths(model_folder(spec, options.cache))
            for name in options.variants:
                peer = VARIANTS[name].peer
                try:
                    reason = find_peer(peer).missing()
                    if reason is not None:
                        raise WorkerError(reason)
                    build_artefact(spec, peer, BUCKET, options.cache)
                    ready.append(name)
                except WorkerError as error:
                    LOG.warning("%s, %s: %s", model, name, error)
                    result["skipped"][f"{name} on {model}"] = str(error)
            if options.build_only:
                continue
            for threads in options.threads:
                result["rows"] += _measure(spec, threads, ready, options)
                save(result, document)
    except KeyboardInterrupt:
        LOG.error("interrupted; what is finished is in %s", document)
        return 130
    if not options.build_only:
        report = options.output.with_name(options.output.name + ".md")
        report.write_text(_markdown(result), encoding="utf-8")
        json.dump({"written": [str(document), str(report)]}, sys.stdout)
        sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
