"""Measurements that come with the package: found by target, and used where none are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ibert_tvm as ibert
from ibert_tvm.schedules.tuning import Trial, TuningDatabase, tile_space, workload_key
from ibert_tvm.targets import get_target
from ibert_tvm.tuning import packaged_database, records
from ibert_tvm.tuning.tuner import find_tasks
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import images_for_stand_in
from tests.rpc.small_model import small_model

MEASURED = "cuda:sm_75"


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's folder, with a database of T4s and one of a processor."""
    monkeypatch.setattr(records, "data_file", lambda name: tmp_path / name)
    for target in ("x86-64-v3", MEASURED):
        TuningDatabase.create(tmp_path / "tuned" / target.replace(":", "-"), get_target(target))
    return tmp_path / "tuned"


def test_measurements_are_found_by_what_decides_how_fast_a_kernel_is(tuned: Path) -> None:
    for target in ("t4", MEASURED):  # two names of one target
        assert packaged_database(get_target(target)) == tuned / "cuda-sm_75"
    for target in ("a100", "t4+a100", "x86-avx-vnni"):
        assert packaged_database(get_target(target)) is None
    # Of the same architecture with other sizes.
    t4 = get_target("t4")
    assert t4.gpu is not None
    other = replace(t4, gpu=replace(t4.gpu, multiprocessors=t4.gpu.multiprocessors + 1))
    assert packaged_database(other) is None


@pytest.mark.slow
def test_they_are_used_by_default(tuned: Path) -> None:
    needs("g++")
    model, target = small_model(), get_target("t4")
    (task,) = find_tasks(model, target, [(1, 8)])
    default, better = tile_space(task.function, target)[:2]
    key = workload_key(task.function)
    database = TuningDatabase.open(tuned / "cuda-sm_75", target)
    with database.writing():
        for tile, seconds in ((default, 2e-6), (better, 1e-6)):
            database.append(Trial(key, "linear", task.layer, tile, (seconds,), board="T4"))
    with images_for_stand_in():
        report = ibert.compile(model, "t4", [(1, 8)]).report["tuning"]
        other = ibert.compile(model, "a100", [(1, 8)])
    assert (report["database"], report["hits"], report["misses"]) == ("cuda-sm_75", 1, 0)
    assert report["kernels"][0]["faster"] == 2.0
    assert "tuning" not in other.report
