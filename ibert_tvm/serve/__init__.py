"""Compiled models behind HTTP, in the words that clients of such services know.

`batcher` puts the texts of many requests into one batch, `application` is the ASGI application,
`gate` what a request must pass before it is read, `documents` what requests hold, `metrics` what
Prometheus reads. `ibert serve` runs it.
"""
