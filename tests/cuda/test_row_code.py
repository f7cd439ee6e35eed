"""What row operations and the rest compile to for a GPU, read off their machine code."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import tvm

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda.audit import KernelAudit
from ibert_tvm.targets.cuda.compile import compile_device_code, kernel_roles, source_modules
from ibert_tvm.targets.cuda.launches import Launch
from ibert_tvm.targets.cuda.pipeline import gpu_pipeline
from tests.arm.row_kernels import KERNELS
from tests.cuda.tools import cuda_toolchain


@dataclass(frozen=True)
class Compiled:
    """Device code of all row kernels for one architecture."""

    source: str
    audits: dict[str, KernelAudit]


@functools.cache
def compiled(target: str) -> Compiled:
    """Compile all row kernels with the CUDA compiler; the audit of the build looks at them."""
    cuda_toolchain()
    description = get_target(target)
    functions = {}
    for name, make in KERNELS.items():
        scheduled = schedule_kernel(name, make(description, 128, 768).func, description)
        functions[name] = scheduled.with_attr("global_symbol", name)
    module = tvm.IRModule(functions)
    roles = kernel_roles(module)
    launches: dict[str, Launch] = {}
    with source_modules():
        executable = tvm.compile(
            module,
            target=tvm.target.Target(dict(description.tvm_target)),
            tir_pipeline=gpu_pipeline(description, launches),
        )
    code = compile_device_code(executable, description, roles, launches)
    return Compiled(code.source, {audit.kernel: audit for audit in code.audits})


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
def test_machine_code_has_no_floating_point_and_keeps_numbers_in_registers(target: str) -> None:
    made = compiled(target)
    assert set(made.audits) == set(KERNELS)
    for name, audit in made.audits.items():
        assert (audit.local, audit.stack_bytes) == (0, 0), name
        assert audit.floating == () == audit.unknown, name
    # Half the registers of a thread that still lets two thousand run in a multiprocessor.
    assert made.audits["layer_norm"].registers <= 64
    assert "ibert::store_packed<int8_t, " in made.source
    assert "ibert::copy_bytes<16>" in made.source


# Instructions of a thread for 8 channels (GELU, LayerNorm) of 768, as measured and a tenth more:
# what is spelled with one clamp, shift or division too many shows here.
MOST_INSTRUCTIONS = {"gelu": 211, "requantise": 106, "layer_norm": 343, "embedding": 97}


@pytest.mark.slow
def test_machine_code_takes_no_more_instructions_than_it_needs() -> None:
    audits = compiled("t4").audits
    found = {name: audits[name].instructions for name in MOST_INSTRUCTIONS}
    assert {name: found[name] for name in found if found[name] > MOST_INSTRUCTIONS[name]} == {}
