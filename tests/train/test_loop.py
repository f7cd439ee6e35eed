"""The loop of a training: a killed one goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ibert_tvm.common.errors import ModelError
from ibert_tvm.train.loop import Loop, Schedule, shuffled
from ibert_tvm.train.settings import FinetuneSettings
from tests.examples import examples

SETTINGS = FinetuneSettings(
    batch_size=4, accumulation=2, scale_learning_rate=1e-3, warmup=0.2, checkpoint_steps=2
)
SCHEDULE = Schedule(SETTINGS, tuple((7 * i) % 23 for i in range(23)), 3, 1e-2, seed=5)


class Killed(Exception):
    """Stands for the end of a process."""


def loop(
    file: Path,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
    schedule: Schedule = SCHEDULE,
    scores: list[float] | None = None,
) -> Loop:
    """Of a small network with dropout, on fixed random data."""
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((23, 3), generator=generator)

    def loss(indices: list[int]) -> torch.Tensor:
        return ((module(x[indices]) - x[indices].sum(1, keepdim=True)) ** 2).mean()

    def score() -> float:
        return scores.pop(0) if scores else -float(loss(list(range(23))))

    return Loop(module, loss, score, schedule, file, advance)


def test_every_example_is_seen_once_an_epoch() -> None:
    for epoch in range(2):
        first = epoch * SCHEDULE.steps_per_epoch
        steps = range(first, first + SCHEDULE.steps_per_epoch)
        seen = [i for step in steps for batch in SCHEDULE.batches(step) for i in batch.tolist()]
        assert sorted(seen) == list(range(23))
    assert SCHEDULE.batches(0)[0].tolist() != SCHEDULE.batches(3)[0].tolist()


def test_batches_hold_examples_of_like_lengths() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 65, 1003).tolist()
    orders = [shuffled(np.random.default_rng(seed), lengths, 10) for seed in (0, 0, 1)]
    assert sorted(orders[0].tolist()) == list(range(1003))
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()

    def padded(order: np.ndarray) -> int:
        batches = [order[start : start + 10] for start in range(0, len(order), 10)]
        return sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)

    # Of the tokens that are computed few are padding, and long batches do not come together.
    assert padded(orders[0]) < 1.1 * sum(lengths) < 0.7 * padded(random.permutation(1003))
    longest = [
        max(lengths[i] for i in orders[0][start : start + 10]) for start in range(0, 160, 10)
    ]
    assert longest != sorted(longest)


def test_the_learning_rate_grows_and_falls() -> None:
    shares = [SCHEDULE.share(step) for step in range(SCHEDULE.steps)]
    assert max(shares) == 1
    assert shares[-1] == pytest.approx(1 / 8)
    assert shares[1:] == sorted(shares[1:], reverse=True)


def test_scales_have_a_rate_of_their_own(tmp_path: Path) -> None:
    """AdamW's first step changes each parameter by its rate."""
    module = torch.nn.Module()
    module.bias = torch.nn.Parameter(torch.zeros(3))
    module.log_scale = torch.nn.Parameter(torch.zeros(()))
    schedule = replace(SCHEDULE, settings=replace(SETTINGS, warmup=0.0), lengths=(1,) * 8, epochs=1)

    def loss(_indices: list[int]) -> torch.Tensor:
        return module.bias.sum() + module.log_scale

    trained = Loop(
        module, loss, lambda: 0.0, schedule, tmp_path / "x.pt", lambda *_: None, [module.log_scale]
    )
    trained.run()
    assert module.bias.tolist() == pytest.approx([-1e-2] * 3)
    assert module.log_scale.item() == pytest.approx(-1e-3)


@pytest.mark.parametrize("killed_at", examples([1, 2, 3, 5, 8], 3))
def test_a_killed_training_ends_with_the_same_numbers(killed_at: int, tmp_path: Path) -> None:
    whole = loop(tmp_path / "whole.pt")
    whole.run()

    def advance(done: int, _total: int) -> None:
        if done == killed_at:
            raise Killed

    file = tmp_path / "killed.pt"
    with pytest.raises(Killed):
        loop(file, advance).run()
    torch.manual_seed(99)  # another process has other random numbers
    again = loop(file)
    tracked = again.run()
    assert tracked == whole.tracked
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name


def test_accumulated_passes_are_one_step(tmp_path: Path) -> None:
    small = replace(SCHEDULE, epochs=1, lengths=SCHEDULE.lengths[:16])
    large = replace(small, settings=replace(SETTINGS, batch_size=8, accumulation=1))
    modules = []
    for number, schedule in enumerate((small, large)):
        run = loop(tmp_path / f"{number}.pt", schedule=schedule)
        run.module[2].p = 0.0
        run.run()
        modules.append(run.module)
    for a, b in zip(*(module.parameters() for module in modules), strict=True):
        torch.testing.assert_close(a, b)


def test_it_stops_early_with_the_best_weights(tmp_path: Path) -> None:
    patient = replace(SCHEDULE, epochs=9, settings=replace(SETTINGS, patience=2))
    run = loop(tmp_path / "a.pt", schedule=patient, scores=[0.1, 0.7, 0.5, 0.6, 0.9])
    tracked = run.run()
    assert [entry["score"] for entry in tracked.history] == [0.1, 0.7, 0.5, 0.6]
    assert tracked.best == 0.7 and tracked.best_step == 2 * patient.steps_per_epoch
    assert run.best is not None
    for name, tensor in run.module.state_dict().items():
        assert torch.equal(tensor, run.best[name])


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    file.write_bytes(b"PK\x03\x04 no checkpoint")
    with pytest.raises(ModelError) as caught:
        loop(file).run()
    assert caught.value.what == f"cannot read {file}"
    assert caught.value.todo == "remove the folder of the training, and start again"
