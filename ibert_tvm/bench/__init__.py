"""Measuring a compiled library: latency, throughput, and where the time goes."""
