"""Tuning the kernels of a model on the processor that will run them; see docs/tuning.md."""

from .records import TunedKernels
from .tuner import TuneOptions, TuneResult, tune

__all__ = ["TuneOptions", "TuneResult", "TunedKernels", "tune"]
