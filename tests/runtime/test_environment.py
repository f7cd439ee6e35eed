"""What `ibert doctor` says of a GPU's driver, as if there were one."""

from __future__ import annotations

import pytest

from ibert_tvm.runtime.environment import environment
from ibert_tvm.targets.cuda import driver


@pytest.mark.parametrize(
    ("cuda", "state", "todo"),
    [
        ((11, 8), "failed", "install a driver of series 525 or later (CUDA 12.0)"),
        (
            (12, 4),
            "ok",
            "install a driver of series 580 or later (CUDA 13.0), or compile with --runtime none",
        ),
        ((13, 1), "ok", ""),
    ],
    ids=["too-old", "too-old-for-tvm", "new"],
)
def test_which_drivers_do(
    cuda: tuple[int, int], state: str, todo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (driver.FoundGpu("Tesla T4", 75, 40),)
    monkeypatch.setattr(driver, "find_driver", lambda: driver.Driver(cuda, gpus))
    (found,) = (check for check in environment() if check.name == "NVIDIA GPU")
    assert (found.state, found.todo) == (state, todo)
    assert found.found == f"Tesla T4 (sm_75); the driver serves CUDA {cuda[0]}.{cuda[1]}"
