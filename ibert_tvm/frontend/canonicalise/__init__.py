"""From imported Relax to canonical form.

`canonicalise` takes a Relax function at a static probe shape from any importer and returns a
canonical module with symbolic batch and sequence length, or an error that names the operator, the
layer and the reason. See `engine` for how it works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from ...common.types import Array
from ...runtime.threads import configure_threads, default_threads
from ..errors import UnsupportedModelError
from ..report import Origin
from .builder import Revisit
from .engine import Canonical, Canonicaliser


def canonicalise(
    module: tvm.IRModule,
    parameters: Mapping[str, Array],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    origins: Mapping[str, Origin] | None = None,
    revisit: Revisit | None = None,
) -> Canonical:
    """Rewrite an imported Relax module to canonical form.

    Parameters
    ----------
    module
        A module with one function ``main`` of static shapes; its first parameters are the inputs,
        each [batch, seq_len] of one probe shape (unequal, seq_len above 1), or float32 images
        [batch, channels, height, width] or features [batch, channels, frames] (batch above 1).
    parameters
        Values of the other parameters by variable name.
    inputs
        Canonical names of the inputs in order.
    outputs
        Names of the outputs in order, for messages; empty to number them.
    names
        Source names of parameters by variable name; the variable names themselves if absent.
    origins
        Nodes and tensors of the source by variable name, for the report, and the variables that
        stand for what the importer could not translate, with the reason.
    revisit
        What is wanted, if the source was canonicalised at a shorter length before.

    Returns
    -------
    Canonical
        The canonical module, its parameters and a report.

    Raises
    ------
    UnsupportedModelError
        If an output depends on something that has no canonical form; its `report` holds what
        was matched up to there.
    """
    # Before TVM runs anything: probing starts its thread pool, which cannot grow afterwards.
    configure_threads(default_threads())
    module = relax.transform.DeadCodeElimination(["main"])(module)
    given = (parameters, names or {}, origins or {})
    walk = Canonicaliser(module["main"], inputs, *given, revisit=revisit)
    try:
        return walk.run(outputs)
    except UnsupportedModelError:
        if walk.c.chosen_id is None:
            raise
    # What depends on whether a text has that id is constant without it.
    absent = walk.c.chosen_id
    walk = Canonicaliser(module["main"], inputs, *given, revisit=revisit, absent_id=absent)
    return walk.run(outputs)
