"""Machine code of matrix products: tensor cores, no floating point, registers, the main loop."""

from __future__ import annotations

import functools
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import tvm

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda.gemm_tile import choose_tile
from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda.audit import KernelAudit
from ibert_tvm.targets.cuda.compile import compile_device_code, kernel_roles, source_modules
from ibert_tvm.targets.cuda.launches import Launch
from ibert_tvm.targets.cuda.pipeline import gpu_pipeline
from tests.cuda.linear_kernels import LinearCase, linear_function
from tests.cuda.tools import cuda_toolchain
from tests.examples import examples

# BERT-Base at 8 x 256: one kernel of each of a layer's matrix products, and one of odd sizes.
CASES = {
    "projections": LinearCase("short", 2048, 768, 2304),
    "attention_output": LinearCase("residual", 2048, 768, 768),
    "intermediate": LinearCase("gelu", 2048, 768, 3072),
    "output": LinearCase("residual", 2048, 3072, 768),
    "odd": LinearCase("released", 130, 100, 88),
}
BACKWARDS = re.compile(r"BRA[\w.]*\s+`?\((\.L_x_\d+)\)")
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


@dataclass(frozen=True)
class Code:
    """Device code of `CASES` for one architecture."""

    audits: dict[str, KernelAudit]
    launches: dict[str, Launch]
    loops: dict[str, Counter[str]]


@functools.cache
def compiled(target: str) -> Code:
    """Compile all of `CASES`."""
    return compiled_cases(target, CASES)


def compiled_cases(target: str, cases: Mapping[str, LinearCase]) -> Code:
    """Compile kernels with the CUDA compiler; the audit of the build looks at them."""
    cuda_toolchain()
    description = get_target(target)
    functions = {
        name: schedule_kernel(name, linear_function(description, case), description).with_attr(
            "global_symbol", name
        )
        for name, case in cases.items()
    }
    module = tvm.IRModule(functions)
    roles = kernel_roles(module)
    launches: dict[str, Launch] = {}
    with source_modules():
        executable = tvm.compile(
            module,
            target=tvm.target.Target(dict(description.tvm_target)),
            tir_pipeline=gpu_pipeline(description, launches),
        )
    with tempfile.TemporaryDirectory() as folder:
        code = compile_device_code(executable, description, roles, launches, Path(folder))
        (listing,) = Path(folder).glob("*.sass")
        loops = main_loops(listing.read_text(encoding="utf-8"))
    return Code(
        {audit.kernel: audit for audit in code.audits},
        {name.removesuffix("_kernel"): launch for name, launch in launches.items()},
        loops,
    )


def main_loops(listing: str) -> dict[str, Counter[str]]:
    """Opcodes of each kernel's smallest loop with a product, by the kernel's name."""
    loops: dict[str, Counter[str]] = {}
    name, labels, body = "", {}, []
    for line in listing.splitlines():
        if line.startswith(".text."):
            name, labels, body = line[len(".text.") :].rstrip(":").removesuffix("_kernel"), {}, []
        elif label := LABEL.match(line):
            labels[label[1]] = len(body)
        elif instruction := INSTRUCTION.match(line):
            body.append(instruction[1].split(".")[0])
            branch = BACKWARDS.search(line)
            if branch is not None and branch[1] in labels:
                loop = Counter(body[labels[branch[1]] :])
                if loop["IMMA"] and name not in loops:
                    loops[name] = loop
    return loops


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    ["t4", "a100", "h100"],
)
def test_matrix_products_use_tensor_cores_and_registers_only(target: str) -> None:
    made = compiled(target)
    description = get_target(target)
    assert set(made.audits) == set(CASES)
    for name, case in CASES.items():
        audit = made.audits[name]
        assert audit.matrix > 0, name
        assert (audit.local, audit.stack_bytes) == (0, 0), name
        assert audit.floating == () == audit.unknown, name
        depth = -(-case.depth // 16) * 16
        tile = choose_tile(case.rows, case.columns, depth, description.gpu)
        # The model that chooses tiles counts on so many blocks per multiprocessor.
        assert audit.registers <= tile.registers(description.gpu.capability) + 16, name
        assert made.launches[name].dynamic_shared_bytes == tile.shared_bytes, name
        if name == "odd":  # has one stage, and no loop
            continue
        # One ldmatrix for four matrices of 8 rows and a depth of 16: nothing is loaded twice.
        loop = made.loops[name]
        step = 16 if target == "t4" else 32
        steps = tile.stage_depth // tile.warp_depths // step
        fragments = 2 if target == "t4" else 1
        products = tile.warp_rows // 16 * (tile.warp_columns // 8) * fragments
        assert loop["IMMA"] == steps * products, name
        loads = sum(-(-size * step // 512) for size in (tile.warp_rows, tile.warp_columns))
        assert loop["LDSM"] == steps * loads, name


@pytest.mark.slow
def test_main_loops_on_a_t4_are_bounded_by_tensor_cores() -> None:
    # IMMA.8816 takes four cycles of a partition, everything else a slot of these. Warp tiles of
    # 64 x 64, and of 64 x 32, leave two thirds of the slots to other blocks' epilogues.
    loops = compiled("t4").loops
    shares = {name: loop["IMMA"] / loop.total() for name, loop in loops.items()}
    assert min(shares.values()) > 0.7
    assert shares["intermediate"] > 0.8
    # Shared memory gives 64 bytes in a cycle; an ldmatrix x4 takes 512, a store of 16 bytes too.
    moved = {name: 512 * (loop["LDSM"] + loop["STS"]) / 64 for name, loop in loops.items()}
    assert moved["intermediate"] / loops["intermediate"]["IMMA"] < 0.8


# Hidden and feed-forward sizes of BERT-Base and BERT-Large, and the rows of the paper's 16 cells.
WIDTHS = {"base": (768, 3072), "large": (1024, 4096)}
ROWS = (128, 256, 512, 1024, 2048)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "model"),
    examples(
        itertools.product(["t4", "a100", "h100"], WIDTHS),
        ("t4", "base"),
        otherwise="record",
        unpack=True,
    ),
)
def test_linear_layers_of_the_papers_cells_stay_in_registers(target: str, model: str) -> None:
    hidden, inner = WIDTHS[model]
    cases = {}
    for rows in ROWS:
        cases |= {
            f"projections_{rows}": LinearCase("short", rows, hidden, 3 * hidden),
            f"output_{rows}": LinearCase("residual", rows, hidden, hidden),
            f"up_{rows}": LinearCase("gelu", rows, hidden, inner),
            f"down_{rows}": LinearCase("residual", rows, inner, hidden),
        }
    made = compiled_cases(target, cases)
    assert set(made.audits) == set(cases)
    assert [name for name, audit in made.audits.items() if audit.spills] == []
    assert all(audit.matrix > 0 for audit in made.audits.values())
