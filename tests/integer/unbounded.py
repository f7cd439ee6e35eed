"""The check of intervals, where tests look for it."""

from ibert_tvm.relay_passes.integer.unbounded import check_unbounded

__all__ = ["check_unbounded"]
