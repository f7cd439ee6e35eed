"""Tuning the kernels of a model on the processor that will run them; see docs/tuning.md."""

from .options import TuneOptions
from .records import TunedKernels, packaged_database
from .tuner import TuneResult, tune
