"""Importing float ONNX models of any exporter.

`reading` reads and checks a file, `importing` brings a model in memory to the canonical form: nodes
become plain Relax at a probe shape (`translator`, `operators`), and the canonicaliser does the
rest, as it does for torch. Importing this package imports neither TVM nor onnx.
"""
