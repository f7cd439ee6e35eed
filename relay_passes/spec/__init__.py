"""The integer specification: what every integer operation means, written once.

Each operation is a function over *values* (`ibert_tvm.relay_passes.spec.values`), which are NumPy
int64 arrays or intervals that carry a TIR expression. Evaluated on arrays it is the reference;
traced with expressions it is what the compiler emits. The two agree bit for bit by construction.
"""
