"""How close integer models come to the float model, beside other INT8 runtimes.

    python -m benchmarks.fidelity
    python -m benchmarks.fidelity --models minilm --peers ibert-default,openvino-int8

Every runtime gets the same weights, the same calibration texts, and embeds the same texts, one at
a time and without padding; hidden states are mean-pooled. Figures are cosines to the vectors of
PyTorch in FP32, and the rank correlation of the similarities of all pairs of texts. With
``--half chosen-on`` the texts are those on which recipes may be chosen (`benchmarks.texts`).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ibert_tvm.quantization import FIDELITIES

from .models import MODELS, Cell, ModelSpec, calibration_texts, model_folder
from .peers import find_peer
from .report import machine_lines, table
from .store import new_result, save
from .texts import HALVES, SETS, texts

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
_CELL = Cell(1, 128)
_REFERENCE = "pytorch-fp32"
_OWN = {f"ibert-{level}": level for level in FIDELITIES}
_OTHERS = (
    "openvino-int8",
    *("onnxruntime-int8-static", "onnxruntime-int8-dynamic", "onnxruntime-int8-as-exported"),
)

Embed = Callable[[np.ndarray], np.ndarray]
"""Token ids int64 [1, n] to hidden states [1, n, C]."""


def _spec(model: str) -> tuple[ModelSpec, Path]:
    """A model of the benchmarks, or a Hugging Face folder."""
    if model in MODELS:
        return MODELS[model], model_folder(MODELS[model], ROOT / "build" / "bench")
    folder = Path(model)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    spec = ModelSpec(
        folder.name,
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["intermediate_size"],
        (),
        real=True,
    )
    return spec, folder


def _own(source: Path, level: str, folder: Path) -> Embed:
    """Quantise at a fidelity, compile for this machine, and return the library's run."""
    import ibert_tvm

    library_file = folder / "model.so"
    if not library_file.exists():
        model = ibert_tvm.load(source, head="none")
        quantised = ibert_tvm.quantize(model, calibration=calibration_texts(), fidelity=level)
        quantised.save(folder / "model.ibert")
        ibert_tvm.compile(quantised, shapes=[(1, _CELL.seq_len)]).export(library_file)
    library = ibert_tvm.load_library(library_file, num_threads=1)

    def embed(ids: np.ndarray) -> np.ndarray:
        padded = np.zeros((1, _CELL.seq_len), np.int32)
        padded[:, : ids.shape[1]] = ids
        mask = (np.arange(_CELL.seq_len) < ids.shape[1]).astype(np.int32)[None]
        outputs = library.run(input_ids=padded, attention_mask=mask)
        return np.asarray(next(iter(outputs.values())))[:, : ids.shape[1]]

    return embed


def _peer(name: str, spec: ModelSpec, source: Path, folder: Path) -> Embed:
    """Another runtime, with shapes that follow the text."""
    peer = find_peer(name)
    reason = peer.missing()
    if reason is not None:
        raise RuntimeError(reason)
    done = folder / "complete"
    if not done.exists():
        peer.build(spec, _CELL, source, folder, ROOT / "build" / "bench")
        done.write_text("")
    run = peer.load(folder, spec, None, 1)
    return lambda ids: run({"input_ids": ids, "attention_mask": np.ones_like(ids)})


def _vectors(embed: Embed, ids: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.asarray(embed(row), np.float64)[0].mean(axis=0) for row in ids])


def _token_ids(source: Path, lines: list[str]) -> list[np.ndarray]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_CELL.seq_len)
    return [np.array([tokenizer.encode(line).ids], np.int64) for line in lines]


def _measure(model: str, options: argparse.Namespace, result: dict[str, Any]) -> None:
    from ibert_tvm.evaluation.agreements import Agreement

    spec, source = _spec(model)
    ids = {name: _token_ids(source, texts(name, options.half)) for name in SETS}
    result["texts"][spec.name] = {name: len(rows) for name, rows in ids.items()}
    reference: dict[str, np.ndarray] = {}
    for name in (_REFERENCE, *options.peers):
        folder = options.cache / spec.name / name
        folder.mkdir(parents=True, exist_ok=True)
        LOG.info("%s: %s", spec.name, name)
        try:
            embed = (
                _own(source, _OWN[name], folder)
                if name in _OWN
                else _peer(name, spec, source, folder)
            )
        except (RuntimeError, ValueError, ImportError) as error:
            result["skipped"][f"{name} on {spec.name}"] = str(error).splitlines()[0]
            LOG.warning("%s: %s", name, error)
            continue
        vectors = {key: _vectors(embed, rows) for key, rows in ids.items()}
        if name == _REFERENCE:
            reference = vectors
            continue
        for key in (*SETS, "all"):
            pair = [
                np.concatenate(list(item.values())) if key == "all" else item[key]
                for item in (reference, vectors)
            ]
            agreement = asdict(Agreement.of(*pair))
            row = {"model": spec.name, "peer": name, "set": key, **agreement}
            result["rows"].append(row)
            LOG.info(
                "  %-14s mean %.5f, min %.4f, Spearman %.4f",
                *(key, row["cosine_mean"], row["cosine_min"], row["spearman"]),
            )


def _markdown(result: dict[str, Any]) -> str:
    lines = ["# Fidelity to the float model", "", *machine_lines(result)]
    titles = {**result["peers"]}
    for model, counts in result["texts"].items():
        sets = [*counts, "all"]
        total = sum(counts.values())
        rows = [
            [
                titles[peer],
                *(
                    f"{row['cosine_mean']:.5f} / {row['cosine_min']:.4f}"
                    for key in sets
                    for row in result["rows"]
                    if (row["model"], row["peer"], row["set"]) == (model, peer, key)
                ),
                *(
                    f"{row['spearman']:.4f}"
                    for row in result["rows"]
                    if (row["model"], row["peer"], row["set"]) == (model, peer, "all")
                ),
            ]
            for peer in dict.fromkeys(
                row["peer"] for row in result["rows"] if row["model"] == model
            )
        ]
        head = [f"{key} ({counts.get(key, total)})" for key in sets]
        lines += [
            *("", f"## {model}", ""),
            "Cosine to FP32, mean / minimum, and Spearman's correlation over all pairs of texts.",
            "",
            *table(["", *head, "Spearman"], rows),
        ]
    if result["skipped"]:
        lines += ["", "Not measured:", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    return "\n".join(lines) + "\n"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*_OWN, *_OTHERS]
    parser.add_argument("--models", default="minilm", help="names or folders, comma-separated")
    parser.add_argument("--peers", default=",".join(names), help="comma-separated")
    parser.add_argument("--half", choices=HALVES, default="published", help="of each set of texts")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "fidelity",
        help="path of the result without suffix; .md and .json are written",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "fidelity", help="where artefacts are kept"
    )
    options = parser.parse_args(arguments)
    options.models = options.models.split(",")
    options.peers = options.peers.split(",")
    for name in options.peers:
        if name not in names:
            parser.error(f"--peers: {name!r} is not valid; known: {', '.join(names)}")
    for model in options.models:
        if model not in MODELS and not (Path(model) / "config.json").exists():
            parser.error(f"--models: {model!r} is no model of {', '.join(MODELS)} and no folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    result = new_result([], {"half": options.half, "longest": _CELL.seq_len})
    result["peers"] = {
        **{name: f"ibert_tvm, fidelity {level}" for name, level in _OWN.items()},
        **{name: find_peer(name).title for name in _OTHERS},
    }
    result["texts"] = {}
    for name in SETS:
        texts(name)  # before a peer can change what they are taken from
    document = options.output.with_name(options.output.name + ".json")
    for model in options.models:
        _measure(model, options, result)
        save(result, document)
    document.with_suffix(".md").write_text(_markdown(result), encoding="utf-8")
    json.dump({"written": [str(document), str(document.with_suffix(".md"))]}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
