"""Checkpoints of transformers' `ibert`: models that were trained with quantisation.

The float weights become a canonical module like those of any other source. The ranges that
training collected become a quantisation table of the preset ``released``, so that nothing is
calibrated again. transformers' quantised forward pass is never run.
"""

from ibert_tvm.frontend.ibert_checkpoint.load import MODEL_TYPE, load_ibert, load_ibert_module
from ibert_tvm.frontend.ibert_checkpoint.quantization import IbertQuantization

__all__ = ["MODEL_TYPE", "IbertQuantization", "load_ibert", "load_ibert_module"]
