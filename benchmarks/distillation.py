r"""MiniLM tuned with its integers on plain text, without labels, beside calibration alone.

    python -m benchmarks.distillation
    python -m benchmarks.distillation --preset paper --texts 4096 --train vectors,scales \
        --learning-rate 1e-3 --scale-learning-rate 3e-2

The float model teaches its own embeddings (`ibert_tvm.train.losses.embedding_loss`). It is tuned on
pieces of Python's documentation of 1 to 40 words, half of them of at most 6; which state is kept is
chosen on one half of texts of other sources (the held-out texts, short and odd strings), and the
fidelity that is written is measured on the other half. Every seed draws its own texts, pieces and
order; all start from the same calibration, with the project's texts, as `ibert quantize` does by
default.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .models import MODELS, calibration_texts, model_folder
from .report import machine_lines, table
from .store import new_result, save, save_with_text
from .texts import HALVES, documentation, texts

if TYPE_CHECKING:
    import torch

__all__ = ["main", "training_texts", "tune"]

LOG = logging.getLogger("benchmarks")
SETS = ("held-out", "short and odd")
"""Sources that nothing is learned of."""
_ALL = (*SETS, "all")
TRAINED = {
    "all": "all weights, biases and norms",
    "layers": "all of these but tables of embeddings",
    "vectors": "biases and norms",
    "scales": "scales of activations",
}
"""What can be trained, in words."""
_WORDS = (1, 40)
_SEQ_LEN = 64


def training_texts(count: int, seed: int) -> list[str]:
    """Pieces of paragraphs of documentation: some words from any place on.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        Which ones, and of which words.

    Returns
    -------
    list of str
        Without those that are measured on.
    """
    generator = np.random.default_rng([11, seed])
    measured = {text for name in SETS for text in texts(name)}
    found = []
    every = documentation()
    for place in generator.permutation(len(every)):
        words = every[place].split()
        count_words = int(math.exp(generator.uniform(*map(math.log, (_WORDS[0], _WORDS[1] + 1)))))
        first = int(generator.integers(max(len(words) - count_words, 0) + 1))
        text = " ".join(words[first : first + count_words])
        if text not in measured:
            found.append(text)
        if len(found) == count:
            return found
    raise ValueError(f"there are {len(found)} texts, not {count}")


class _Vectors:
    """Embeddings of some texts, in batches of like lengths, beside the float model's.

    Parameters
    ----------
    tokenizer : ibert_tvm.model.tokenization.Tokenizer
        Of the model.
    names : tuple of str
        Its inputs.
    teacher : torch.nn.Module
        The float model, with the same head.
    lines : sequence of str
        What is measured on.
    """

    _BATCH = 16

    def __init__(
        self, tokenizer: Any, names: tuple[str, ...], teacher: Any, lines: Sequence[str]
    ) -> None:
        by_length = sorted(range(len(lines)), key=lambda place: len(lines[place]))
        parts = [by_length[i : i + self._BATCH] for i in range(0, len(lines), self._BATCH)]
        self.order = np.argsort([place for part in parts for place in part])
        self.batches = [
            inputs_of(tokenizer, names, [lines[place] for place in part]) for part in parts
        ]
        self.reference = self.of(lambda given: teacher(**given))

    def of(self, embed: Callable[[dict[str, Any]], Any]) -> np.ndarray:
        """All vectors of a model, float64 [texts, channels]."""
        import torch

        with torch.no_grad():
            rows = [embed(given).double().numpy() for given in self.batches]
        return np.concatenate(rows)[self.order]


def inputs_of(tokenizer: Any, names: Sequence[str], lines: Sequence[str]) -> dict[str, Any]:
    """Texts as a model's inputs, int64 [texts, tokens of the longest]."""
    import torch

    arrays = tokenizer.encode(list(lines), _SEQ_LEN, allow_empty=True).inputs(names)
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def _choose_trained(model: Any, what: Sequence[str]) -> None:
    """Leave gradients to what of `TRAINED` is asked for."""
    import torch

    scales = {id(scale) for scale in model.log_scales.values()}
    embeddings = (part for part in model.modules() if isinstance(part, torch.nn.Embedding))
    tables = {id(part.weight) for part in embeddings}
    for parameter in model.parameters():
        is_scale = id(parameter) in scales
        chosen = {
            "all": not is_scale,
            "layers": not is_scale and id(parameter) not in tables,
            "vectors": not is_scale and parameter.ndim < 2,
            "scales": is_scale,
        }
        parameter.requires_grad_(any(chosen[name] for name in what))


def weighted_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """``1 - cos`` of embeddings [batch, C], in which each counts by its own error."""
    from torch.nn.functional import cosine_similarity

    errors = 1 - cosine_similarity(student, teacher)
    return (errors * errors.detach() / errors.detach().mean()).mean()


def tune(start: Path, source: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Tune a calibrated model with one seed.

    Parameters
    ----------
    start : pathlib.Path
        What `prepare` saved.
    source : pathlib.Path
        The float model.
    options : argparse.Namespace
        `texts`, `epochs`, `batch`, `learning_rate`, `scale_learning_rate`, `train`, `weighted`.
    seed : int
        Of texts and order.

    Returns
    -------
    dict
        Fidelity by set, ``before`` and ``after``; what was seen of the half that is chosen on.
    """
    import torch

    from ibert_tvm.evaluation.agreements import Agreement
    from ibert_tvm.frontend.hf_folder import HfFolder
    from ibert_tvm.frontend.transformers_import import float_module
    from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
    from ibert_tvm.train import prepare
    from ibert_tvm.train.loop import Loop, Schedule
    from ibert_tvm.train.losses import embedding_loss
    from ibert_tvm.train.settings import FinetuneSettings

    torch.manual_seed(seed)
    model = prepare(start, learn_scales="scales" in options.train)
    _choose_trained(model, options.train)
    info = model.info
    teacher = float_module(HfFolder.read(source), info.head).eval()
    tokenizer = Tokenizer(tokenizer_files(source))
    lines = training_texts(options.texts, seed)
    halves = {
        half: {name: _Vectors(tokenizer, info.inputs, teacher, texts(name, half)) for name in SETS}
        for half in HALVES
    }
    output = info.outputs[0].name

    def loss(indices: Sequence[int]) -> torch.Tensor:
        given = inputs_of(tokenizer, info.inputs, [lines[i] for i in indices])
        with torch.no_grad():
            wanted = teacher(**given)
        found = model(**given)[output]
        return weighted_loss(found, wanted) if options.weighted else embedding_loss(found, wanted)

    def measured(half: str) -> dict[str, dict[str, float]]:
        model.eval()
        pairs = {
            name: (vectors.reference, vectors.of(lambda given: model(**given)[output]))
            for name, vectors in halves[half].items()
        }
        pairs["all"] = tuple(np.concatenate(rows) for rows in zip(*pairs.values(), strict=True))
        return {name: asdict(Agreement.of(*pair)) for name, pair in pairs.items()}

    def score() -> float:
        found = measured(HALVES[0])["all"]
        LOG.info("seed %d: mean %.6f, min %.5f", seed, found["cosine_mean"], found["cosine_min"])
        return found["cosine_mean"]

    before = measured(HALVES[1])
    settings = FinetuneSettings(
        batch_size=options.batch,
        accumulation=1,
        scale_learning_rate=options.scale_learning_rate,
        weight_decay=0.0,
        warmup=0.1,
        patience=0,
        checkpoint_steps=10**9,
    )
    lengths = tuple(len(tokenizer.encode([text], _SEQ_LEN).input_ids[0]) for text in lines)
    schedule = Schedule(settings, lengths, options.epochs, options.learning_rate, seed)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        scales = model.log_scales.values()
        file = Path(folder) / "checkpoint"
        loop = Loop(model, loss, score, schedule, file, lambda *_: None, scales)
        with torch.no_grad():
            loop.tracked.best = score()
        loop.best = {name: x.clone() for name, x in model.state_dict().items()}
        tracked = loop.run()
    return {
        "seed": seed,
        "texts": len(lines),
        "steps": tracked.step,
        "best_step": tracked.best_step,
        "history": tracked.history,
        "processor_seconds": time.process_time() - started,
        "before": before,
        "after": measured(HALVES[1]),
    }


def _start(source: Path, preset: str, folder: Path) -> Path:
    """Calibrate as `ibert quantize` does; once."""
    from ibert_tvm.train import prepare

    if not folder.exists():
        LOG.info("calibrating")
        started = time.process_time()
        prepare(source, preset, calibration=calibration_texts()).save(folder)
        LOG.info("%.0f s of processor time", time.process_time() - started)
    return folder


def _cell(found: dict[str, float]) -> str:
    return f"{found['cosine_mean']:.5f} / {found['cosine_min']:.4f}"


def _markdown(result: dict[str, Any]) -> str:
    rows = [["calibrated", *(_cell(result["seeds"][0]["before"][name]) for name in _ALL)]]
    for seed in result["seeds"]:
        rows.append([f"seed {seed['seed']}", *(_cell(seed["after"][name]) for name in _ALL)])
    settings, counts = result["settings"], result["counts"]
    tuned = [seed["after"]["all"] for seed in result["seeds"]]
    mean, least = (
        statistics.mean(found[key] for found in tuned) for key in ("cosine_mean", "cosine_min")
    )
    head = [
        "# MiniLM tuned with its integers on plain text",
        "",
        f"Preset {settings['preset']}; {settings['texts']} texts of at most {_WORDS[1]} words, "
        f"{settings['epochs']} epochs in batches of {settings['batch']}, learning rate "
        f"{settings['learning_rate']:g} (scales: {settings['scale_learning_rate']:g}), trained: "
        f"{', '.join(TRAINED[name] for name in settings['train'])}"
        f"{'; the weighted loss' * settings['weighted']}. Cosine to FP32, mean / minimum, on texts "
        "of other sources.",
        "",
    ]
    lines = table(["", *(f"{name} ({counts[name]})" for name in _ALL)], rows)
    end = f"Mean of the seeds: {mean:.5f} / {least:.4f}."
    return "\n".join([*head, *lines, "", end, "", *machine_lines(result)]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Tune and write the result; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.distillation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--preset", choices=("accurate", "paper"), default="accurate")
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--scale-learning-rate", type=float, default=1e-2)
    parser.add_argument(
        "--train",
        default="layers",
        help="comma-separated; " + "; ".join(f"{name}: {said}" for name, said in TRAINED.items()),
    )
    parser.add_argument(
        "--weighted", action="store_true", help="weigh each text by its own error in the loss"
    )
    root = Path(__file__).parents[1]
    parser.add_argument("--cache", type=Path, default=root / "build" / "distillation")
    parser.add_argument(
        "--output", type=Path, default=root / "benchmarks" / "results" / "distillation.json"
    )
    options = parser.parse_args(arguments)
    options.train = options.train.split(",")
    if not TRAINED.keys() >= {*options.train}:
        parser.error(f"--train: choose of {', '.join(TRAINED)}")
    import torch

    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    source = model_folder(MODELS["minilm"], options.cache)
    settings = {
        name: getattr(options, name)
        for name in (
            *("preset", "texts", "epochs", "batch", "learning_rate", "scale_learning_rate"),
            *("train", "weighted"),
        )
    }
    result = new_result([], settings)
    result["counts"] = {name: len(texts(name, HALVES[1])) for name in SETS}
    result["counts"]["all"] = sum(result["counts"].values())
    result["seeds"] = []
    start = _start(source, options.preset, options.cache / options.preset)
    for seed in map(int, options.seeds.split(",")):
        result["seeds"].append(tune(start, source, options, seed))
        save(result, options.output)
    text = _markdown(result)
    save_with_text(result, text, options.output.with_suffix(""))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
