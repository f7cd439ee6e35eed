"""Machine code of matrix products: tensor cores, no floating point, registers, the main loop."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping

import pytest

from ibert_tvm.schedules.cuda.gemm_tile import choose_tile
from ibert_tvm.targets import get_target
from tests.cuda.linear_kernels import LinearCase, linear_function
from tests.cuda.machine_code import MachineCode, machine_code

# BERT-Base at 8 x 256: one kernel of each of a layer's matrix products, and one of odd sizes.
CASES = {
    "projections": LinearCase("short", 2048, 768, 2304),
    "attention_output": LinearCase("residual", 2048, 768, 768),
    "intermediate": LinearCase("gelu", 2048, 768, 3072),
    "output": LinearCase("residual", 2048, 3072, 768),
    "odd": LinearCase("released", 130, 100, 88),
    "halves": LinearCase("gelu", 2048, 768, 3072, halves=True),
}
BACKWARDS = re.compile(r"BRA[\w.]*\s+`?\((\.L_x_\d+)\)")
LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


@functools.cache
def compiled(target: str) -> MachineCode:
    """`CASES` for one architecture."""
    return compiled_cases(target, CASES)


def compiled_cases(target: str, cases: Mapping[str, LinearCase]) -> MachineCode:
    """Kernels of matrix products, all of which use tensor cores."""
    description = get_target(target)
    made = machine_code(
        target, {name: linear_function(description, case) for name, case in cases.items()}
    )
    assert all(audit.matrix > 0 for audit in made.audits.values())
    return made


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
@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
def test_matrix_products_use_tensor_cores_and_registers_only(target: str) -> None:
    made, loops = compiled(target), main_loops(compiled(target).listing)
    description = get_target(target)
    for name, case in CASES.items():
        depth = -(-case.depth // 16) * 16
        tile = choose_tile(case.rows, case.columns, depth, description.gpu)
        # The model that chooses tiles counts on so many blocks per multiprocessor.
        assert made.audits[name].registers <= tile.registers(description.gpu.capability) + 16, name
        shared = tile.shared_bytes_of_halves if case.halves else tile.shared_bytes
        assert made.launches[name].dynamic_shared_bytes == shared, name
        if name == "odd":  # has one stage, and no loop
            continue
        # One ldmatrix for four matrices of 8 rows and a depth of 16: nothing is loaded twice.
        loop = loops[name]
        step = 16 if target == "t4" and not case.halves else 32
        steps = tile.stage_depth // tile.warp_depths // step
        instructions = step // 8 if target == "t4" else 1
        products = tile.warp_rows // 16 * (tile.warp_columns // 8) * instructions
        assert loop["IMMA"] == steps * products, name
        columns = tile.warp_columns // (2 if case.halves else 1)
        loads = sum(-(-size * step // 512) for size in (tile.warp_rows, columns))
        assert loop["LDSM"] == steps * loads, name


@pytest.mark.slow
def test_main_loops_on_a_t4_are_bounded_by_tensor_cores() -> None:
    # IMMA.8816 takes four cycles of a partition, everything else a slot of these. Warp tiles of
    # 64 x 64, and of 64 x 32, leave two thirds of the slots to other blocks' epilogues.
    loops = main_loops(compiled("t4").listing)
    halves = loops.pop("halves")
    shares = {name: loop["IMMA"] / loop.total() for name, loop in loops.items()}
    assert min(shares.values()) > 0.7
    assert shares["intermediate"] > 0.8
    # Shared memory gives 64 bytes in a cycle; an ldmatrix x4 takes 512, a store of 16 bytes too.
    moved = {name: 512 * (loop["LDSM"] + loop["STS"]) / 64 for name, loop in loops.items()}
    assert moved["intermediate"] / loops["intermediate"]["IMMA"] < 0.8
    # What widens half bytes fits in half of the slots that a product leaves.
    assert halves.total() - halves["IMMA"] < 1.5 * halves["IMMA"]


# Hidden and feed-forward sizes of BERT-Base and BERT-Large, and the rows of the paper's 16 cells.
WIDTHS = {"base": (768, 3072), "large": (1024, 4096)}
ROWS = (128, 256, 512, 1024, 2048)


@pytest.mark.record
@pytest.mark.parametrize("model", WIDTHS)
@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
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
    compiled_cases(target, cases)
