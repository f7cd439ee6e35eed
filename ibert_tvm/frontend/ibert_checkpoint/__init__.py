"""Checkpoints of transformers' `ibert`: models that were trained with quantisation.

The float weights become a canonical module like those of any other source. The ranges that
training collected become a quantisation table of the preset ``released``, so that nothing is
calibrated again. transformers' quantised forward pass is never run.
"""
