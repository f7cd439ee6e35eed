"""What this processor can run, and how to run kernels on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from ibert_tvm.schedules.rule import Rule
from ibert_tvm.schedules.stages import NotElementwise
from ibert_tvm.targets import TargetDescription
from tests.twins import runnable_target

TARGETS = ("x86-avx512-vnni", "x86-avx-vnni", "x86-64-v3", "x86-64")


runnable = runnable_target


class Kernels:
    """Kernels compiled for a target, by name."""

    def __init__(self, functions: dict[str, tirx.PrimFunc], target: TargetDescription) -> None:
        named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
        self.library = tvm.compile(
            tvm.IRModule(named), target=tvm.target.Target(dict(target.tvm_target))
        )

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        """Run a kernel whose last argument is its result; return that."""
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        self.library[name](*tensors)
        return tensors[-1].numpy()

    @property
    def assembly(self) -> str:
        """Assembly text of all kernels."""
        return str(self.library.mod.inspect_source("asm"))


def refusal(rule: Rule[Any], func: tirx.PrimFunc, target: TargetDescription) -> str:
    """Why a rule does not take a kernel."""
    with pytest.raises(NotElementwise) as caught:
        rule.schedule(func, target)
    return str(caught.value)
