"""Fidelity: measures between vectors, and the comparison of an integer model with its original."""
