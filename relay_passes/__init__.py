"""Passes on Relax, the successor of Relay, that turn a float model into an integer-only one.

The folder keeps the historical name of TVM's graph language; everything in it works on Relax and
TIR. It holds the canonical float dialect, the integer specification
(`ibert_tvm.relay_passes.spec`), the integer dialect (`ibert_tvm.relay_passes.integer`), the
lowering between them, and the passes that emit, fuse and check integer TIR. Of
`ibert_tvm` only `common` is imported here, and no schedules or targets.
"""
