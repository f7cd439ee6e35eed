"""Where an integer model loses quality, measured place by place."""

from .measurements import diagnose
from .report import Diagnosis, Loss, Suggestion, ValueLoss, WorstText
