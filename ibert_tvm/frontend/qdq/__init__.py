"""Quantised ONNX models: QDQ, and QOperator where it is static.

`qoperator` turns operators on integers into float ones between DequantizeLinear and QuantizeLinear,
`strip` takes these out and lists them, the float graph is imported like any other, and `place` says
of every scale which value of the canonical module it belongs to. The result is a canonical model
with the scales that it came with; `ibert_tvm.quantize` uses them instead of estimating any.
"""
