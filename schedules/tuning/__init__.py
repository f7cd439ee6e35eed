"""Tuning: trying other decisions of a schedule rule on the processor, and remembering the best.

``space`` lists the decisions that a kernel allows, ``workload`` names a kernel by what it computes,
``database`` remembers what was measured, ``search`` says what to measure next. What compiles and
measures is given by the caller (``ibert_tvm.tuning``).
"""

from .database import DatabaseError, Trial, TuningDatabase
from .search import Candidate, Search
from .space import default_decisions, tile_space
from .workload import workload_key
