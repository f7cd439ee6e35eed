"""Accuracy on the real tasks: float, integer after quantisation alone, integer fine-tuned.

And the ablation: the float model with each of the approximations of GELU in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks.build import TASKS as BUILT
from ..tasks.finetune import LONGEST

__all__ = ["ablation", "accuracy"]

LOG = logging.getLogger("benchmarks")
_CALIBRATION = 512
"""Training samples that scales are chosen on."""
_BATCH = 32


def _test_file(name: str, data: Path) -> Path:
    return data / name / ("test.tsv" if BUILT[name].columns else "test.conll")


def _options(name: str) -> Any:
    from ibert_tvm.tasks import Options

    columns = BUILT[name].columns
    return Options(columns={column: column for column in columns})


def _calibration(name: str, model: Any, data: Path) -> list[Any]:
    """The first training texts, or batches of pairs, which calibration does not take as texts."""
    from ibert_tvm.model.tokenization import Tokenizer
    from ibert_tvm.tasks import TASKS

    path = Path(str(_test_file(name, data)).replace("test.", "train."))
    samples = TASKS[BUILT[name].kind].read(path, _options(name))
    texts = samples.texts if BUILT[name].columns else [" ".join(w) for w in samples.words]
    texts = list(texts[:_CALIBRATION])
    if isinstance(texts[0], str):
        return texts
    tokenizer = Tokenizer(model.tokenizer)
    parts = (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))
    return [tokenizer.encode(part, LONGEST).inputs(model.info.inputs) for part in parts]


def _quantised(name: str, model: Path, data: Path) -> Path:
    """Quantise with the task's own training texts; once."""
    import ibert_tvm

    output = model.with_name(f"{model.name}.ibert")
    if not output.exists():
        LOG.info("%s: quantising", name)
        floating = ibert_tvm.load(model)
        calibration = _calibration(name, floating, data)
        ibert_tvm.quantize(floating, calibration=calibration, seq_len=LONGEST).save(output)
    return output


def accuracy(name: str, data: Path, models: Path) -> dict[str, Any]:
    """Evaluate a task's models on its test set.

    Parameters
    ----------
    name : str
        Of `benchmarks.tasks.finetune.TRAINED`.
    data, models : pathlib.Path
        Where the tasks and the fine-tuned float models are. ``NAME-integer.ibert`` beside a model,
        if it is there, is the integer fine-tuned one.

    Returns
    -------
    dict
        Metrics by column: ``quantised``, and ``finetuned`` where there is one.
    """
    import ibert_tvm
    from ibert_tvm.tasks import TASKS, evaluate_task, float_side, integer_side

    task, options = TASKS[BUILT[name].kind], _options(name)
    samples = task.read(_test_file(name, data), options)
    model = models / name
    candidates = {"quantised": _quantised(name, model, data)}
    finetuned = models / f"{name}-integer.ibert"
    if finetuned.exists():
        candidates["finetuned"] = finetuned
    row: dict[str, Any] = {"task": name, "samples": len(samples), "seq_len": LONGEST}
    known: dict[bytes, Any] = {}
    for column, folder in candidates.items():
        LOG.info("%s: evaluating %s", name, folder.name)
        encoder = ibert_tvm.Encoder(folder, max_seq_length=LONGEST)
        integers = integer_side(encoder)
        reference = float_side(ibert_tvm.load(model, head=integers.info.head), integers)
        reference = replace(reference, run=_once(reference.run, known))
        results = evaluate_task(task, samples, integers, reference, options)
        row[column] = [result.to_json() for result in results]
        encoder.close()
    return row


def _once(run: Callable[[Any], Any], known: dict[bytes, Any]) -> Callable[[Any], Any]:
    """The float model's outputs of the same tokens, computed for the first candidate alone."""

    def remembered(tokens: Any) -> Any:
        ids = tokens.input_ids
        key = repr(ids.shape).encode() + ids.tobytes() + tokens.token_type_ids.tobytes()
        if key not in known:
            known[key] = run(tokens)
        return known[key]

    return remembered


def _replace_gelu(model: Any, curve: Callable[[Any], Any]) -> None:
    """Put a function from and to float64 arrays in GELU's place in all layers of a BERT."""
    import torch

    class Activation(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(np.asarray(curve(x.double().numpy()), np.float32))

    for layer in model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = Activation()


def ablation(name: str, data: Path, models: Path, curves: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a float model with each approximation in GELU's place, without training it again.

    Parameters
    ----------
    name : str
        Of `benchmarks.tasks.finetune.TRAINED`.
    data, models : pathlib.Path
        Where the tasks and the fine-tuned float models are.
    curves : mapping of str to callable
        Approximations of GELU: from and to float64 arrays.

    Returns
    -------
    dict
        Accuracy (of texts, or of words), its difference from the exact GELU and the interval.
    """
    import torch
    import transformers

    from ibert_tvm.tasks.compare import difference_intervals
    from ibert_tvm.tasks.measures import mean

    from ..tasks.finetune import predicted_right

    head = "Sequence" if BUILT[name].columns else "Token"
    model = getattr(transformers, f"AutoModelFor{head}Classification").from_pretrained(
        models / name
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / name)
    torch.set_num_threads(1)
    exact = mean("accuracy", predicted_right(name, model, tokenizer, _test_file(name, data)))
    row: dict[str, Any] = {"task": name, "samples": exact.samples, "float": exact.value}
    row["approximations"] = {}
    for label, curve in curves.items():
        LOG.info("%s: %s", name, label)
        _replace_gelu(model, curve)
        found = mean("accuracy", predicted_right(name, model, tokenizer, _test_file(name, data)))
        (interval,) = difference_intervals([(exact, found)])
        row["approximations"][label] = {
            "accuracy": found.value,
            "difference": found.value - exact.value,
            "interval": interval,
        }
    return row
