"""From scheduled kernels to an executable: what TVM does after our passes."""

from __future__ import annotations

import tvm
from tvm import relax

from .description import TargetDescription
from .pipeline import cpu_pipeline


def build_executable(module: tvm.IRModule, description: TargetDescription) -> relax.VMExecutable:
    """Build a module whose Relax functions consist of ``call_tir`` on scheduled kernels.

    The Relax pipeline is spelled out: the stock one would first legalise operators, and with that
    could bring back what the integer-only check has ruled out.

    Parameters
    ----------
    module
        Lowered and scheduled.
    description
        Target to generate code for.

    Returns
    -------
    tvm.relax.VMExecutable
        Not yet linked.
    """
    passes = [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    target = tvm.target.Target(dict(description.tvm_target))
    with target:
        return relax.build(
            module,
            target,
            relax_pipeline=tvm.transform.Sequential(passes),
            tir_pipeline=cpu_pipeline(description),
        )
