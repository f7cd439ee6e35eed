"""Executed instructions of kernels and models on ARM targets, counted under emulation."""
