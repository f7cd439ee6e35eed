"""Compiled models behind HTTP, with the interfaces of OpenAI and Cohere.

`batcher` puts the texts of many requests into one batch, in the order of `turns`, `application` is
the ASGI application, `gate` admits requests before they are read, `documents` defines request
bodies, `metrics` serves Prometheus. `ibert serve` runs it.
"""
