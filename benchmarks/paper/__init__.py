"""The tables of the I-BERT paper again, one command each: ``python -m benchmarks.paper``."""
