"""Tasks with labels: files of data sets, their metrics, and intervals of differences."""

from .catalogue import TASKS, Options, Task, checked_columns, task_of
from .compare import MetricResult, evaluate_task, task_drop
from .errors import DataError
from .sides import Side, encoder_of, float_side, integer_side
