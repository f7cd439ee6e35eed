"""The loop of a training: steps, checkpoints, early stop, and going on where it was killed.

A training that was killed and goes on makes the same steps as one that was not: the order of the
data follows from seed and epoch, and a checkpoint has everything else that steps depend on (model,
optimiser, random numbers of dropout, what the dev set said).
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..common.errors import ModelError
from ..common.files import OutputKind, write_file
from .settings import FinetuneSettings

_logger = logging.getLogger(__name__)
_LARGEST_GRADIENT = 1.0
# In the folder of the training, which holds nothing else.
_CHECKPOINT = OutputKind("a checkpoint", Path.is_file)
_SORTED_TOGETHER = 16
"""Batches whose examples are sorted by length."""


def shuffled(random: np.random.Generator, lengths: Sequence[int], size: int) -> np.ndarray:
    """Return a random order whose batches hold examples of like lengths.

    A batch is padded to its longest example: of short texts with a few long ones most of it would
    be padding. Examples are shuffled, those of 16 batches sorted, and these batches shuffled.

    Parameters
    ----------
    random
        What decides.
    lengths
        Of the examples, in tokens.
    size
        Examples of a batch.

    Returns
    -------
    numpy.ndarray
        int64 [examples]; a last batch that is not full is the last of the order.
    """
    order = random.permutation(len(lengths))
    parts = []
    for start in range(0, len(order), _SORTED_TOGETHER * size):
        window = order[start : start + _SORTED_TOGETHER * size]
        window = window[np.argsort(np.asarray(lengths)[window], kind="stable")]
        full = len(window) // size
        parts += [window[i * size : (i + 1) * size] for i in random.permutation(full)]
        parts.append(window[full * size :])
    return np.concatenate(parts) if parts else order


@dataclass(frozen=True)
class Schedule:
    """When and how a stage is trained.

    Parameters
    ----------
    settings
        Of the fine-tuning.
    lengths
        Of the training examples, in tokens.
    epochs
        Of this stage.
    learning_rate
        The largest of this stage.
    seed
        Of the order of the examples.
    """

    settings: FinetuneSettings
    lengths: tuple[int, ...]
    epochs: int
    learning_rate: float
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimiser."""
        return -(-len(self.lengths) // self._size)

    @property
    def _size(self) -> int:
        """Examples of a step."""
        return self.settings.batch_size * self.settings.accumulation

    @property
    def steps(self) -> int:
        """Of all epochs."""
        return self.steps_per_epoch * self.epochs

    def share(self, step: int) -> float:
        """Learning rate of a step, as a share of the largest: up in a line, then down to 0."""
        warm = int(self.steps * self.settings.warmup)
        if step < warm:
            return (step + 1) / warm
        return (self.steps - step) / max(self.steps - warm, 1)

    def batches(self, step: int) -> list[np.ndarray]:
        """Indices of the examples of a step, by forward pass."""
        epoch, place = divmod(step, self.steps_per_epoch)
        size, rows = self._size, self.settings.batch_size
        order = shuffled(np.random.default_rng([self.seed, epoch]), self.lengths, size)
        chosen = order[place * size : (place + 1) * size]
        return [chosen[i : i + rows] for i in range(0, len(chosen), rows)]


@dataclass
class Tracked:
    """What a training has come to.

    Attributes
    ----------
    step
        Steps that were made.
    best, best_step : float, int
        The best score of the dev set, and when.
    waited
        Epochs since then.
    history
        Per epoch: loss of the training, score of the dev set.
    loss_sum
        Of the steps of this epoch.
    """

    step: int = 0
    best: float = float("-inf")
    best_step: int = 0
    waited: int = 0
    loss_sum: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def _group(parameters: list[torch.nn.Parameter], rate: float, decay: float = 0.0) -> dict[str, Any]:
    """Parameters of one rate, for the optimiser."""
    return {"params": parameters, "lr": rate, "largest": rate, "weight_decay": decay}


class Loop:
    """Trains a module.

    Parameters
    ----------
    module
        Its parameters that need gradients are trained.
    loss
        ``loss(indices) -> tensor``: mean over these examples.
    score
        ``score() -> float`` of the dev set, larger is better; called behind each epoch.
    schedule
        When and how.
    file : pathlib.Path
        The checkpoint.
    advance
        Called with steps done and steps there are.
    log_scales
        Those of the parameters that are logarithms of scales.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[[Sequence[int]], torch.Tensor],
        score: Callable[[], float],
        schedule: Schedule,
        file: Path,
        advance: Callable[[int, int], None],
        log_scales: Iterable[torch.nn.Parameter] = (),
    ) -> None:
        self.module, self.loss, self.score = module, loss, score
        self.schedule, self.file, self.advance = schedule, file, advance
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        ids = {id(p) for p in log_scales}
        others = [p for p in self.parameters if id(p) not in ids]
        scales = [p for p in self.parameters if id(p) in ids]
        rate, decay = schedule.learning_rate, schedule.settings.weight_decay
        self.optimiser = torch.optim.AdamW(
            [
                _group([p for p in others if p.ndim > 1], rate, decay),
                _group([p for p in others if p.ndim <= 1], rate),
                _group(scales, schedule.settings.scale_learning_rate),
            ]
        )
        self.tracked = Tracked()
        self.best: dict[str, torch.Tensor] | None = None

    def run(self) -> Tracked:
        """Train to the end, or until the dev set no longer gets better; keep the best weights.

        Returns
        -------
        Tracked
            What happened.
        """
        schedule, tracked = self.schedule, self.tracked
        self.resume()
        saved = time.monotonic()
        while tracked.step < schedule.steps and not self._stopped:
            self._step(tracked.step)
            tracked.step += 1
            self.advance(tracked.step, schedule.steps)
            ended = tracked.step % schedule.steps_per_epoch == 0
            if ended:
                self._measure()
            if ended or tracked.step % schedule.settings.checkpoint_steps == 0:
                self.save()
                _logger.info("checkpoint after %.0f s", time.monotonic() - saved)
                saved = time.monotonic()
        if self.best is not None:
            self.module.load_state_dict(self.best)
        return tracked

    @property
    def _stopped(self) -> bool:
        return 0 < self.schedule.settings.patience <= self.tracked.waited

    def _step(self, step: int) -> None:
        self.module.train()
        share = self.schedule.share(step)
        for group in self.optimiser.param_groups:
            group["lr"] = group["largest"] * share
        batches = self.schedule.batches(step)
        count = sum(len(batch) for batch in batches)
        for batch in batches:
            part = self.loss(batch.tolist()) * (len(batch) / count)
            part.backward()
            self.tracked.loss_sum += part.item()
        torch.nn.utils.clip_grad_norm_(self.parameters, _LARGEST_GRADIENT)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def _measure(self) -> None:
        tracked = self.tracked
        self.module.eval()
        with torch.no_grad():
            score = self.score()
        tracked.history.append(
            {"loss": tracked.loss_sum / self.schedule.steps_per_epoch, "score": score}
        )
        tracked.loss_sum = 0.0
        _logger.info("epoch %d: %s", len(tracked.history), tracked.history[-1])
        if score > tracked.best:
            tracked.best, tracked.best_step, tracked.waited = score, tracked.step, 0
            self.best = {name: x.clone() for name, x in self.module.state_dict().items()}
        else:
            tracked.waited += 1

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "tracked": dict(vars(self.tracked)),
            "best": self.best,
        }
        with write_file(self.file, _CHECKPOINT) as path:
            torch.save(state, path)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one.

        Raises
        ------
        ModelError
            If it cannot be read.
        """
        if not self.file.is_file():
            return
        try:
            state: dict[str, Any] = torch.load(self.file, weights_only=True)
            self.module.load_state_dict(state["module"])
            self.optimiser.load_state_dict(state["optimiser"])
            torch.set_rng_state(state["random"])
            self.best = state["best"]
            for name, value in state["tracked"].items():
                setattr(self.tracked, name, value)
        except (RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ModelError(
                f"cannot read {self.file}",
                why=str(error).splitlines()[0] if str(error) else type(error).__name__,
                todo="remove the folder of the training, and start again",
            ) from error
        _logger.info("going on behind step %d", self.tracked.step)
