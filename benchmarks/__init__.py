"""Measurements of the compiler's output beside other runtimes, and of the machine's limits."""
