"""Which target a library is of that was compiled on the machine that it is for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ibert_tvm.runtime.emulated_engine import target_of
from ibert_tvm.targets.catalogue import BUILT_IN
from ibert_tvm.targets.description import TargetDescription
from ibert_tvm.targets.host import host_target
from ibert_tvm.targets.machines.x86_64 import X86_64

X86 = [one for one in BUILT_IN if one.machine is X86_64 and one.gpu is None]


@pytest.mark.parametrize("target", X86, ids=lambda target: target.name)
def test_a_library_of_the_host_is_one_of_its_target(target: TargetDescription) -> None:
    host = host_target(frozenset(target.required_features), "x86_64")
    metadata: Any = SimpleNamespace(
        target={**host.tvm_target, "name": host.name}, required_cpu_features=host.required_features
    )
    assert target_of(metadata) == target
