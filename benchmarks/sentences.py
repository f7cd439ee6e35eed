"""Strings in, vectors out: `Encoder` beside sentence-transformers, each backend, and fastembed.

    python -m benchmarks.sentences
    python -m benchmarks.sentences --backends-python peers/bin/python --threads 1,2 --rounds 20

Every peer gets strings and gives their vectors: tokenisation, sorting and everything else that its
own `encode` does is measured. The texts are the held-out ones, all of them in every turn, and
10,000 lines of documentation, which are divided among the turns. Each peer runs in a process of its
own, restricted to as many cores as it has threads, and they take turns in alternating order. Rows
of an earlier result that are not measured this time are kept, so that short runs add up.

The ONNX and OpenVINO backends need packages (optimum-onnx, optimum-intel) that ask for older
versions of transformers than this project imports models with: `--backends-python` names the Python
of an environment that has them. Their INT8 models are made as sentence-transformers makes them:
dynamic quantisation with ONNX Runtime, and NNCF on the texts that this project calibrates on.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["PEERS", "Peer", "main"]

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "ibert_tvm" / "data"
LOG = logging.getLogger("benchmarks")
_BATCH_SIZE = 32
_ONNX_INT8 = "onnx/model_qint8_avx512_vnni.onnx"
_OPENVINO_INT8 = "openvino/openvino_model_qint8_quantized.xml"
_FASTEMBED = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGES = (
    *("sentence-transformers", "transformers", "torch"),
    *("onnxruntime", "openvino", "fastembed"),
)

SETS = {"held-out": "the held-out texts", "documentation": "lines of documentation"}
_LINES = 10_000
_SAMPLE = 200
"""Texts whose vectors are compared with torch's."""

Encode = Callable[[list[str]], np.ndarray]


def _lines(name: str) -> list[str]:
    return [line for line in (DATA / name).read_text("utf-8").splitlines() if line.strip()]


@dataclass(frozen=True)
class Peer:
    """One way from strings to vectors.

    Attributes
    ----------
    title : str
        For the report.
    build : callable
        Makes what it needs in a folder, from the model's folder.
    load : callable
        Loads that, for a number of threads.
    apart : bool
        Whether it needs the environment with the backends.
    """

    title: str
    build: Callable[[Path, Path], None]
    load: Callable[[Path, Path, int], Encode]
    apart: bool = False


def _nothing(_source: Path, _folder: Path) -> None:
    pass


def _build_ibert(source: Path, folder: Path) -> None:
    from ibert_tvm import Encoder

    os.environ["XDG_CACHE_HOME"] = str(folder.resolve())
    Encoder(source)


def _load_ibert(source: Path, folder: Path, threads: int) -> Encode:
    from ibert_tvm import Encoder

    os.environ["XDG_CACHE_HOME"] = str(folder.resolve())
    encoder = Encoder(source, num_threads=threads)
    return lambda texts: encoder.encode(texts, batch_size=_BATCH_SIZE)


def _load_torch(source: Path, _folder: Path, threads: int) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(source), device="cpu")
    return lambda texts: model.encode(texts, batch_size=_BATCH_SIZE, show_progress_bar=False)


def _export(backend: str, source: Path, folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(source), device="cpu", backend=backend, model_kwargs={"export": True}
    )
    model.save_pretrained(str(folder))
    return model


def _build_onnx(source: Path, folder: Path) -> None:
    _export("onnx", source, folder)


def _build_onnx_int8(source: Path, folder: Path) -> None:
    from sentence_transformers import export_dynamic_quantized_onnx_model

    model = _export("onnx", source, folder)
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))


def _build_openvino(source: Path, folder: Path) -> None:
    _export("openvino", source, folder)


def _build_openvino_int8(source: Path, folder: Path) -> None:
    import nncf
    import openvino

    tokenizer = _export("openvino", source, folder).tokenizer
    graph = openvino.Core().read_model(folder / "openvino" / "openvino_model.xml")
    batches = [dict(tokenizer(text, return_tensors="np")) for text in _lines("calibration.txt")]
    quantized = nncf.quantize(
        graph,
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    openvino.save_model(quantized, folder / _OPENVINO_INT8)


def _build_fastembed(source: Path, folder: Path) -> None:
    _export("onnx", source, folder)
    (folder / "onnx" / "model.onnx").rename(folder / "model.onnx")


def _load_fastembed(folder: Path, threads: int) -> Encode:
    """The model is the exported one: its own come from a hub."""
    from fastembed import TextEmbedding

    model = TextEmbedding(_FASTEMBED, threads=threads, specific_model_path=str(folder))
    return lambda texts: np.stack(list(model.embed(texts, batch_size=_BATCH_SIZE)))


def _load_onnx(folder: Path, threads: int, file: str) -> Encode:
    import onnxruntime
    from sentence_transformers import SentenceTransformer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = SentenceTransformer(
        str(folder),
        device="cpu",
        backend="onnx",
        model_kwargs={
            "file_name": file,
            "provider": "CPUExecutionProvider",
            "session_options": options,
        },
    )
    return lambda texts: model.encode(texts, batch_size=_BATCH_SIZE, show_progress_bar=False)


def _load_openvino(folder: Path, threads: int, file: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    settings = {"INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY"}
    model = SentenceTransformer(
        str(folder),
        device="cpu",
        backend="openvino",
        model_kwargs={"file_name": file, "ov_config": settings},
    )
    return lambda texts: model.encode(texts, batch_size=_BATCH_SIZE, show_progress_bar=False)


PEERS = {
    "ibert": Peer("ibert_tvm, `Encoder`", _build_ibert, _load_ibert),
    "torch": Peer("sentence-transformers, torch FP32", _nothing, _load_torch),
    "onnx": Peer(
        "sentence-transformers, ONNX FP32",
        _build_onnx,
        lambda _source, folder, threads: _load_onnx(folder, threads, "onnx/model.onnx"),
        apart=True,
    ),
    "onnx-int8": Peer(
        "sentence-transformers, ONNX INT8",
        _build_onnx_int8,
        lambda _source, folder, threads: _load_onnx(folder, threads, _ONNX_INT8),
        apart=True,
    ),
    "openvino": Peer(
        "sentence-transformers, OpenVINO (bf16 where the processor has it)",
        _build_openvino,
        lambda _s, folder, threads: _load_openvino(folder, threads, "openvino/openvino_model.xml"),
        apart=True,
    ),
    "openvino-int8": Peer(
        "sentence-transformers, OpenVINO INT8",
        _build_openvino_int8,
        lambda _source, folder, threads: _load_openvino(folder, threads, _OPENVINO_INT8),
        apart=True,
    ),
    "fastembed": Peer(
        "fastembed, ONNX FP32",
        _build_fastembed,
        lambda _source, folder, threads: _load_fastembed(folder, threads),
        apart=True,
    ),
}


def _texts(cache: Path, name: str) -> list[str]:
    """Texts of a set; what takes long to gather is kept."""
    if name == "held-out":
        return _lines("heldout.txt")
    kept = cache / "documentation.json"
    if not kept.is_file():
        from .texts import documentation

        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(documentation(_LINES)), encoding="utf-8")
    return list(json.loads(kept.read_text(encoding="utf-8")))


def _work(name: str, source: Path, folder: Path, threads: int, texts: list[str]) -> None:
    """The process of a peer: one line of JSON per turn, and the vectors first."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what runtimes print
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    encode = PEERS[name].load(source, folder, threads)
    vectors = np.asarray(encode(texts[:_SAMPLE]), dtype=np.float64)
    versions = _versions()
    print(json.dumps({"vectors": vectors.tolist(), "versions": versions}), file=out, flush=True)
    for line in sys.stdin:
        encode(texts[:_BATCH_SIZE])  # others have used the caches
        times = []
        turn = json.loads(line)
        chosen = texts[turn["first"] :: turn["step"]]
        for _ in range(turn["passes"]):
            started, used = time.perf_counter(), time.process_time()
            encode(chosen)
            clock, processor = time.perf_counter() - started, time.process_time() - used
            times.append((clock, processor, len(chosen)))
        print(json.dumps({"times": times}), file=out, flush=True)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _command(options: argparse.Namespace, name: str, *words: object) -> list[str]:
    python = options.backends_python if PEERS[name].apart else sys.executable
    places = ["--cache", options.cache, "--model", options.model]
    return [str(python), "-m", "benchmarks.sentences", *map(str, [*places, *words, name])]


def _built(options: argparse.Namespace, name: str) -> str | None:
    """Build what a peer needs, once; the reason if that fails."""
    if PEERS[name].apart and options.backends_python is None:
        return "--backends-python was not given"
    folder = options.cache / name
    stamp = folder / "built"
    if stamp.is_file() and name != "ibert":  # which keeps, and checks, what it made itself
        return None
    folder.mkdir(parents=True, exist_ok=True)
    command = _command(options, name, "--build")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    stamp.touch()
    return None


def _measure(
    options: argparse.Namespace, names: list[str], kind: str, threads: int
) -> list[dict[str, Any]]:
    from .measure import busy_seconds
    from .process import Served, WorkerError

    rows = {name: {"peer": name, "texts": kind, "threads": threads, "passes": []} for name in names}
    divided = kind == "documentation"
    with ExitStack() as stack:
        workers = {}
        for name in names:
            command = _command(options, name, "--work", threads, kind)
            try:
                workers[name] = stack.enter_context(Served(command))
            except WorkerError as error:
                rows[name]["failed"] = str(error)
                LOG.warning("%s: %s", name, error)
        started, busy = time.perf_counter(), busy_seconds()
        used = 0.0
        for number in range(options.rounds):
            order = list(workers)
            for name in order if number % 2 == 0 else reversed(order):
                turn = {"first": number, "step": options.rounds, "passes": 1}
                if not divided:
                    turn = {"first": 0, "step": 1, "passes": options.passes}
                answer = workers[name].ask(turn, timeout=1200)
                rows[name]["passes"] += answer["times"]
                used += sum(processor for _, processor, _ in answer["times"])
        elapsed = time.perf_counter() - started
        others = (busy_seconds() - busy - used) / elapsed
        reference = np.array(workers["torch"].hello["vectors"]) if "torch" in workers else None
        for name, worker in workers.items():
            row = rows[name]
            row |= {
                "texts_per_second": round(
                    statistics.median(count / clock for clock, _, count in row["passes"]), 1
                ),
                "processor_ms_per_text": round(
                    1e3 * statistics.median(used / count for _, used, count in row["passes"]), 3
                ),
                "versions": worker.hello["versions"],
                "other_load_cores": round(max(others, 0.0), 2),
            }
            if reference is not None:
                row |= _agreement(reference, np.array(worker.hello["vectors"]))
            LOG.info(
                "%-14s %d threads  %-14s %8.1f texts/s",
                *(kind, threads, name, row["texts_per_second"]),
            )
    return list(rows.values())


def _agreement(reference: np.ndarray, vectors: np.ndarray) -> dict[str, float]:
    """Cosines of a peer's vectors with those of torch."""
    lengths = np.linalg.norm(reference, axis=1) * np.linalg.norm(vectors, axis=1)
    cosines = (reference * vectors).sum(axis=1) / lengths
    return {
        "cosine_mean": round(float(cosines.mean()), 5),
        "cosine_min": round(float(cosines.min()), 5),
    }


def _markdown(result: dict[str, Any]) -> str:
    from .report import machine_lines, table

    settings = result["settings"]
    lines = [
        "# Strings to vectors",
        "",
        *machine_lines(result),
        f"- Other processes kept {max(row['other_load_cores'] for row in _done(result)):.1f} cores "
        "busy at most meanwhile: only ratios mean something, and processor time, which hardly "
        "depends on it.",
        "",
        f"{settings['model']}, strings, batches of {settings['batch_size']}, cut off at the "
        f"model's 256 tokens. Texts per second are those of the median pass, of "
        f"{settings['rounds']} rounds; passes over the held-out texts, per round: "
        f"{settings['passes']}. A pass is over all "
        f"{settings['held-out']} held-out texts, or over a part of the "
        f"{settings['documentation']} lines of documentation. *ms* is the processor time per text "
        "of all threads of the process. *times* is what `ibert_tvm` is ahead by. *cosine* is with "
        f"torch's vectors of {_SAMPLE} texts, mean and least.",
    ]
    for kind, threads in _panels(result):
        rows = _panel(result, kind, threads)
        own = next((row for row in rows if row["peer"] == "ibert"), None)
        body = []
        for row in rows:
            faster, less = "–", "–"
            if own is not None:
                faster = f"{own['texts_per_second'] / row['texts_per_second']:.2f}"
                less = f"{row['processor_ms_per_text'] / own['processor_ms_per_text']:.2f}"
            speed, used = f"{row['texts_per_second']:.0f}", f"{row['processor_ms_per_text']:.2f}"
            cosine = "–"
            if "cosine_mean" in row:
                cosine = f"{row['cosine_mean']:.4f}, {row['cosine_min']:.4f}"
            body.append([PEERS[row["peer"]].title, speed, faster, used, less, cosine])
        title = f"{SETS[kind].capitalize()}, {threads} thread{'s' * (threads != 1)}"
        lines += ["", f"## {title}", ""]
        lines += table(["", "texts per second", "times", "ms", "times", "cosine"], body)
    apart = next((row["versions"] for row in _done(result) if PEERS[row["peer"]].apart), None)
    if apart is not None:
        listed = ", ".join(f"{name} {number}" for name, number in apart.items())
        lines += ["", f"The ONNX and OpenVINO backends: {listed}."]
    left = [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    left += [f"- `{r['peer']}`: {r['failed']}" for r in result["rows"] if "failed" in r]
    if left:
        lines += ["", "Not measured:", "", *left]
    return "\n".join(lines) + "\n"


def _panels(result: dict[str, Any]) -> list[tuple[str, int]]:
    """Sets and threads that were measured, in order."""
    found = {(row["texts"], row["threads"]) for row in _done(result)}
    return sorted(found, key=lambda panel: (list(SETS).index(panel[0]), panel[1]))


def _panel(result: dict[str, Any], kind: str, threads: int) -> list[dict[str, Any]]:
    rows = _done(result)
    order = list(PEERS)
    chosen = [row for row in rows if (row["texts"], row["threads"]) == (kind, threads)]
    return sorted(chosen, key=lambda row: order.index(row["peer"]))


def _add_earlier(result: dict[str, Any], document: Path) -> None:
    """Take over rows that were not measured this time, of the same machine and settings."""
    if not document.is_file():
        return
    earlier = json.loads(document.read_text(encoding="utf-8"))
    if earlier["settings"] != result["settings"] or any(
        earlier["machine"][key] != result["machine"][key] for key in ("processor", "cores")
    ):
        LOG.warning("%s is of other settings or of another machine: not continued", document)
        return
    measured = {(row["texts"], row["threads"], row["peer"]) for row in result["rows"]}
    result["rows"] += [
        row
        for row in earlier["rows"]
        if (row["texts"], row["threads"], row["peer"]) not in measured
    ]


def draw(result: dict[str, Any], path: Path) -> bool:
    """Draw texts per second as a PNG; False without matplotlib, or without anything to draw."""
    panels = _panels(result)
    if find_spec("matplotlib") is None or not panels:
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(
        len(panels), 1, figsize=(7.5, 0.6 + 2.1 * len(panels)), squeeze=False
    )
    for axes, (kind, threads) in zip(every[:, 0], panels, strict=True):
        rows = _panel(result, kind, threads)
        speeds = [row["texts_per_second"] for row in rows]
        colours = ["C0" if row["peer"] == "ibert" else "0.7" for row in rows]
        titles = [PEERS[row["peer"]].title.replace(" (bf16", "\n(bf16") for row in rows]
        axes.barh(range(len(rows)), speeds, color=colours)
        axes.set_yticks(range(len(rows)), titles, fontsize=7)
        for place, speed in enumerate(speeds):
            axes.annotate(f" {speed:.0f}", (speed, place), va="center", fontsize=7)
        axes.invert_yaxis()
        axes.set_title(f"{SETS[kind]}, {threads} thread{'s' * (threads != 1)}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("texts per second, strings to vectors", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _done(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if "failed" not in row]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sentences",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--texts", default=",".join(SETS), help="comma-separated")
    parser.add_argument("--threads", default="1,2" if cores > 1 else "1", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each (default: 10)")
    parser.add_argument("--passes", type=int, default=3, help="passes of a turn (default: 3)")
    parser.add_argument("--backends-python", type=Path, help="Python with optimum's packages")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "sentences",
        help="path of the result without suffix; .md, .json and .png are written",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench" / "sentences")
    parser.add_argument("--model", type=Path, help="model folder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--build", metavar="PEER", help=argparse.SUPPRESS)
    parser.add_argument(
        "--work", nargs=3, metavar=("THREADS", "TEXTS", "PEER"), help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    options.cache = options.cache.absolute()
    options.peers = options.peers.split(",")
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers: {unknown[0]!r} is not valid; known: {', '.join(PEERS)}")
    options.texts = options.texts.split(",")
    unknown = [name for name in options.texts if name not in SETS]
    if unknown:
        parser.error(f"--texts: {unknown[0]!r} is not valid; known: {', '.join(SETS)}")
    counts = options.threads.split(",")
    if not all(text.isdigit() and 1 <= int(text) <= cores for text in counts):
        parser.error(f"--threads: {options.threads!r} is not a list of numbers from 1 to {cores}")
    options.threads = [int(text) for text in counts]
    if options.rounds < 1 or options.passes < 1:
        parser.error("--rounds and --passes must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    if options.build:
        PEERS[options.build].build(options.model, options.cache / options.build)
        return 0
    if options.work:
        threads, kind, name = options.work
        texts = _texts(options.cache, kind)
        _work(name, options.model, options.cache / name, int(threads), texts)
        return 0
    from ibert_tvm.demo import find_model

    from .machine import describe_machine, describe_software
    from .store import save_with_text

    given = options.model
    options.model = (given or find_model()).absolute()

    result: dict[str, Any] = {
        "machine": describe_machine(),
        "software": describe_software(),
        "settings": {
            "model": "all-MiniLM-L6-v2" if given is None else options.model.name,
            "rounds": options.rounds,
            "passes": options.passes,
            "batch_size": _BATCH_SIZE,
            "held-out": len(_lines("heldout.txt")),
            "documentation": _LINES,
        },
        "skipped": {},
        "rows": [],
    }
    ready = []
    for name in options.peers:
        reason = _built(options, name)
        if reason is None:
            ready.append(name)
        else:
            LOG.warning("%s: %s", name, reason)
            result["skipped"][name] = reason
    document = options.output.with_name(options.output.name + ".json")
    for kind in options.texts:
        _texts(options.cache, kind)
        for threads in options.threads:
            result["rows"] += _measure(options, ready, kind, threads)
    _add_earlier(result, document)
    files = save_with_text(result, _markdown(result), options.output)
    draw(result, options.output.with_name(options.output.name + ".png"))
    LOG.info("wrote %s and %s", *files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
