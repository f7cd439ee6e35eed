"""The tables of a diagnosis."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from ibert_tvm.cli.eval import _shown, _spread
from ibert_tvm.cli.process import interrupting
from ibert_tvm.cli.tables import Table
from ibert_tvm.cli.why import shown
from ibert_tvm.diagnosis import Diagnosis, Loss, Suggestion, ValueLoss, WorstText
from ibert_tvm.evaluation.agreements import LabelAgreement
from ibert_tvm.evaluation.evaluate import Fidelity, LayerFidelity

DIAGNOSIS = Diagnosis(
    texts=8,
    tokens=141,
    output="sentence_embedding",
    error=0.002,
    error_max=0.0033,
    rounding=0.0013,
    computing=0.0009,
    losses=(
        Loss("rounding", "gelu → linear → add", 6, 0.007, 0.0007, 0.0014, 0.0015),
        Loss("operator", "attention", 6, 0.001, 0.00003, 0.00005),
        Loss("operator", "layer_norm", 13, 1e-7),
    ),
    values=(
        ValueLoss("up", "native", None, 41.0, 22.5, 0.0, 0.0),
        ValueLoss("up.gelu", "matmul", 28.5, 50.04, 22.3, 0.0015, 0.04, 0.0001, 0.0021),
    ),
    worst=(WorstText("w" * 70, 0.0033, "rounding", "gelu", 0.0014, "up.gelu", "up.gelu", 0.002),),
    suggestions=(Suggestion("half the step", 0.0016),),
    complete=True,
)


def test_what_is_shown() -> None:
    head, parts, _, losses, rest, _, values, _, texts, _, tried = shown(DIAGNOSIS)
    assert head == (
        "8 texts, 141 tokens, output sentence_embedding; errors are 1 - cosine to the float model, "
        "in 1e-4"
    )
    assert isinstance(parts, Table)
    assert [row[1] for row in parts.rows] == ["20.00", "33.00", "13.00", "9.00", "-2.00"]
    assert isinstance(losses, Table)
    assert [list(row) for row in losses.rows] == [
        ["rounding", "gelu → linear → add", "6", "7.00", "14.00", "+5.00"],
        ["operator", "attention", "6", "0.30", "0.50", "-"],
    ]
    assert rest == "1 more cost less: --all shows those that were measured, --json all"
    assert isinstance(values, Table)
    assert [list(row) for row in values.rows] == [
        ["up.gelu (matmul)", "28.5", "50.0", "22.3", "0.15%", "4%", "1.00", "-1.00"]
    ]
    assert isinstance(texts, Table)
    assert [list(row) for row in texts.rows] == [
        ["w" * 57 + "...", "33.00", "rounding: gelu (14.00)", "up.gelu", "up.gelu 0.20%"]
    ]
    assert isinstance(tried, Table)
    assert tried.headers == ("error", "tried instead of 20.00")
    assert [list(row) for row in tried.rows] == [["16.00", "half the step"]]


@pytest.mark.parametrize(("every", "count"), [(False, 5), (True, 26)])
def test_the_largest_causes_are_shown_or_all(every: bool, count: int) -> None:
    losses = tuple(replace(DIAGNOSIS.losses[0], where=str(n)) for n in range(26))
    table = shown(replace(DIAGNOSIS, losses=losses), every)[3]
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == [str(n) for n in range(count)]


def test_ctrl_c_is_caught_by_what_gives_the_rest() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupting(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)
    assert signal.getsignal(signal.SIGINT) == before


def test_the_furthest_layers_are_shown_or_all() -> None:
    layers = tuple(LayerFidelity(str(n), 1 - n / 1000, None) for n in range(80))
    agreement = LabelAgreement(1.0, 0.0, 0.0, 0.0)
    result = Fidelity(8, 16, "logits", agreement, 0.0, (0.0,), layers)
    for every, count in ((False, 5), (True, 80)):
        table = next(x for x in _shown(result, every)[2:] if isinstance(x, Table))
        assert len(table.rows) == count and ("79" in [row[0] for row in table.rows])


def test_what_was_interrupted_is_shown_as_far_as_it_is_known() -> None:
    unknown = {"rounding": None, "computing": None, "losses": DIAGNOSIS.losses[2:], "values": ()}
    empty = replace(DIAGNOSIS, **unknown, worst=(), suggestions=(), complete=False)
    lines = shown(empty)
    assert lines[-1] == "interrupted: not everything was measured"
    assert isinstance(lines[1], Table)
    assert [row[1] for row in lines[1].rows] == ["20.00", "33.00", "-", "-"]
    assert len(lines) == 4


def test_texts_are_taken_from_the_whole_file() -> None:
    assert _spread([str(n) for n in range(20)], 4) == ["0", "5", "10", "15"]
    assert _spread(["a", "b"], 4) == ["a", "b"]
