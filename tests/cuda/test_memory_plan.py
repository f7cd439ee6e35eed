"""The passes that make a function of kernels one that allocates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import relax

from ibert_tvm.targets.cuda.storage import ALLOCATE, KeepStorages, storage_bytes
from ibert_tvm.targets.cuda.workspaces import LiftWorkspaces

_TWO_SHAPES = Path(__file__).with_name("two_shapes.relax").read_text(encoding="utf-8")

_SHARED = Path(__file__).with_name("shared_storages.relax").read_text(encoding="utf-8")

_WORKSPACES = Path(__file__).with_name("workspaces.relax").read_text(encoding="utf-8")


_WITHOUT_BLOCKS = _WORKSPACES.replace("T.prim_func(s_tir=True)", "T.prim_func", 1).replace(
    """        total = T.sblock_alloc_buffer((8,), "int32")
        shared = T.sblock_alloc_buffer((8,), "int32", scope="shared")
        for i in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("total"):
                v = T.axis.spatial(8, i)
                total[v] = x[v, 0] + shared[v]
        for i in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("result"):
                v = T.axis.spatial(8, i)
                y[v] = total[v] + x[v, 1]
""",
    """        total = T.alloc_buffer((8,), "int32")
        shared = T.alloc_buffer((8,), "int32", scope="shared")
        for i in T.thread_binding(8, thread="threadIdx.x"):
            total[i] = x[i, 0] + shared[i]
        for i in T.thread_binding(8, thread="threadIdx.x"):
            y[i] = total[i] + x[i, 1]
""",
)


def _parse(text: str) -> tvm.IRModule:
    return tvm.script.from_source(text)


def test_functions_share_storages_by_rank() -> None:
    module = KeepStorages()(_parse(_TWO_SHAPES))
    tvm.ir.assert_structural_equal(module, _parse(_SHARED))
    assert storage_bytes(module) == 4096 + 16
    relax.analysis.well_formed(module)


def test_nothing_is_left_to_keep_the_second_time() -> None:
    once = KeepStorages()(_parse(_TWO_SHAPES))
    tvm.ir.assert_structural_equal(KeepStorages()(once), once)


def test_functions_that_allocate_nothing_stay_as_they_are() -> None:
    module = LiftWorkspaces()(_parse(_WORKSPACES))
    assert storage_bytes(module) == 0
    assert ALLOCATE not in {var.name_hint for var in KeepStorages()(module).get_global_vars()}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("form", [_WORKSPACES, _WITHOUT_BLOCKS])
def test_workspaces_become_results(form: str) -> None:
    module = LiftWorkspaces()(_parse(form))
    names = [[p.name for p in module[name].params] for name in ("sums", "plain")]
    assert names == [["x", "y", "total"], ["x", "y"]]
    text = module["sums"].script()
    assert text.count("alloc") == 1 and "shared" in text
    calls = {
        b.value.args[0].name_hint: b.value.ty_args[0]
        for b in module["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call)
    }
    vector = relax.TensorType((8,), "int32")
    tvm.ir.assert_structural_equal(calls["sums"], relax.TupleType([vector, vector]))
    tvm.ir.assert_structural_equal(calls["plain"], vector)
    relax.analysis.well_formed(module)
    tvm.ir.assert_structural_equal(LiftWorkspaces()(module), module)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("form", [_WORKSPACES, _WITHOUT_BLOCKS])
def test_memory_of_a_workspace_is_planned_with_all_other_values(form: str) -> None:
    passes = [
        LiftWorkspaces(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        KeepStorages(),
    ]
    module = tvm.transform.Sequential(passes)(_parse(form))
    assert storage_bytes(module) == 3 * 32  # what sums gives, what it works with, the result
