"""The report of executed instructions: kernels and models are compared before they are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.arm import __main__ as command
from benchmarks.arm.cmsis_nn import count_linear
from benchmarks.arm.errors import CountingError
from benchmarks.arm.kernels import CASES
from benchmarks.arm.models import count_model
from benchmarks.arm.report import goals, role, write_report
from benchmarks.arm.running import count_kernel
from benchmarks.models import Cell
from ibert_tvm.targets import get_target
from tests.arm import row_kernels
from tests.arm.small_bert import small_bert
from tests.arm.tools import board, needs
from tests.examples import examples
from tests.snapshots import Messages

# What the issue of this benchmark demands.
GOALS = {
    ("linear 128x384->384", "cortex-m0"): (118_000_000, 0.8),
    ("linear 128x384->384", "cortex-m3"): (49_400_000, 0.9),
    ("linear 128x384->384", "cortex-m4"): (28_700_000, 0.75),
    ("linear 128x384->384", "cortex-m55"): (3_930_000, 1.0),
    ("linear 128x384->384", "rv32imc"): (82_400_000, 0.63),
    ("linear 128x384->384, 4-bit weights", "cortex-m0"): (148_900_000, 1.0),
    ("linear 128x384->384, 4-bit weights", "cortex-m3"): (63_400_000, 1.0),
    ("linear 128x384->384, 4-bit weights", "cortex-m4"): (58_400_000, 1.0),
    ("linear 128x384->384, 4-bit weights", "cortex-m55"): (6_170_000, 1.0),
    ("linear 128x768->768", "aarch64-dotprod"): (128 * 768 * 768 // 16, 1.5),
    ("softmax 128x128", "cortex-m4"): (630_000, 1.0),
    ("GELU 128x384", "cortex-m4"): (1_200_000, 1.0),
    ("LayerNorm 128x384", "cortex-m4"): (2_000_000, 1.0),
}


def test_the_goals_are_those_of_the_project() -> None:
    found = {
        (case.name, target): (bar.instructions, bar.goal)
        for case in CASES
        for target, bar in case.bars.items()
        if bar.goal is not None
    }
    assert found == GOALS


def result(**row: Any) -> dict[str, Any]:
    """A document with one kernel and one model."""
    kernel = {
        "kernel": "linear",
        "target": "cortex-m4",
        "note": "",
        "bar": {"source": "others", "instructions": 1000, "goal": 0.75},
        "instructions": 750,
        "floating_point": 0,
        "unknown": 0,
        "entries": 10,
        "macs": 100,
        **row,
    }
    calls = [
        {
            "layer": f"layer.{i}.dense",
            "kind": "linear",
            "kernel": "k",
            "macs": 10,
            "instructions": n,
        }
        for i, n in enumerate((30, 40))
    ]
    model = {
        **{"model": "small", "shape": "1x8", "target": "cortex-m4", "instructions": 100},
        **{"floating_point": 0, "unknown": 0, "macs": 20, "calls": calls},
    }
    return {
        "machine": {"processor": "some"},
        "software": {
            **{"python": "3.11", "packages": {"numpy": "2"}, "commit": "abc"},
            **{"modified": False, "time": "now"},
        },
        "tools": {"qemu-arm": "7.2"},
        "kernels": [kernel],
        "models": [model],
    }


@pytest.mark.parametrize(("instructions", "met"), [(750, True), (751, False)])
def test_a_goal_is_met_up_to_its_last_instruction(instructions: int, met: bool) -> None:
    (row,) = goals(result(instructions=instructions))
    assert (row["ratio"], row["met"]) == (instructions / 1000, met)


def test_a_bar_without_goal_and_a_failure_are_no_goals() -> None:
    bar = {"source": "others", "instructions": 1000, "goal": None}
    assert goals(result(bar=bar)) == []
    failed = result(failed="wrong")
    del failed["kernels"][0]["instructions"]
    assert goals(failed) == []


def test_the_report_groups_equal_layers_and_names_what_failed(tmp_path: Path) -> None:
    assert role("encoder.layer.11.output.dense") == "encoder.layer.*.output.dense"
    document = result()
    document["kernels"].append(
        {"kernel": "linear", "target": "rpi4", "note": "", "bar": None, "failed": "no compiler"}
    )
    _, text = write_report(document, tmp_path / "arm")
    lines = text.read_text().splitlines()
    assert "| layer.*.dense | linear | 2 | 0.000M | 70.0% | 3.500 |" in lines
    assert "| (others, driver) |  |  | 0.000M | 30.0% | – |" in lines
    assert "- linear on rpi4: no compiler" in lines


def test_a_kernel_that_is_wrong_has_no_count(messages: Messages) -> None:
    target = board("cortex-m3")
    needs("llvm-objdump-14")
    kernel = row_kernels.requantise(target, 2, 8)
    right = count_kernel(kernel, target)
    assert right.instructions > 0
    assert right == count_kernel(kernel, target)
    (wanted,) = kernel.outputs
    other = wanted.copy()
    other[0, 0] += 1
    with messages.raises(CountingError):
        count_kernel(replace(kernel, outputs=[other]), target)


@pytest.mark.slow
def test_kernels_of_linux_boards_are_counted_alike() -> None:
    target = board("armv6-softfloat")
    needs("llvm-objdump-14")
    counts = count_kernel(row_kernels.residual_add(target, 2, 8), target)
    assert counts.instructions == counts.by_symbol["ibert_kernel_counted"]
    assert (counts.floating_point, counts.unknown) == (0, 0)


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", examples(command.TARGETS, "rpi4", "cortex-m4", otherwise="record"))
def test_whole_models_execute_no_floating_point_instruction(name: str, tmp_path: Path) -> None:
    """Two layers of BERT on every target, compared with the specification first."""
    target = board(name)
    needs("llvm-objdump-14")
    path = tmp_path / "small.ibert"
    small_bert(layers=2).save(path)
    counted = count_model("small", path, Cell(1, 16), target)
    assert (counted["floating_point"], counted["unknown"]) == (0, 0)
    inside = sum(call["instructions"] for call in counted["calls"])
    # The driver checks its arguments and calls kernels: little more than nothing.
    assert 0.98 * counted["instructions"] < inside < counted["instructions"]
    kinds = [call["kind"] for call in counted["calls"]]
    assert kinds.count("attention") == 2
    assert np.all([call["macs"] > 0 for call in counted["calls"] if call["kind"] == "linear"])


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--targets", "cortex-m9"])
    assert "unknown targets cortex-m9; there are rpi4, aarch64-dotprod" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--models", "gpt:1x8"])
    assert "unknown model 'gpt'; there are minilm, bert-tiny" in capsys.readouterr().err


def test_kernels_of_others_are_counted_where_there_are_any(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.sizes)
    bar = case.bars["cortex-m4"]
    assert bar.peer == "mat_mult_nt_t_s8" and case.bars["cortex-m0"].peer == ""
    with pytest.raises(CountingError) as caught:
        count_linear(tmp_path, bar.peer, case.sizes, get_target("cortex-m4"))
    source = tmp_path / "Source" / "NNSupportFunctions" / "arm_nn_mat_mult_nt_t_s8.c"
    assert str(caught.value) == (
        "this folder has no kernel of CMSIS-NN\n"
        f"  where: {source} on cortex-m4\n"
        "  why: the file does not exist\n"
        "  what to do: give a checkout of https://github.com/ARM-software/CMSIS-NN"
    )


def test_every_target_of_a_case_exists() -> None:
    for case in CASES:
        for name in {*case.targets, *case.bars}:
            assert get_target(name).name == name
