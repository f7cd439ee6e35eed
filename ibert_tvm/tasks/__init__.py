"""Tasks with labels: files of data sets, their metrics, and intervals of differences."""

from .catalogue import TASKS, Options, Task
from .compare import MetricResult, evaluate_task
from .drop import task_drop
from .errors import DataError
from .sides import Side, float_side, integer_side

__all__ = [
    "TASKS",
    "DataError",
    "MetricResult",
    "Options",
    "Side",
    "Task",
    "evaluate_task",
    "float_side",
    "integer_side",
    "task_drop",
]
