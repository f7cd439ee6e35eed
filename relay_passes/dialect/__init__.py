"""What the dialects have in common: records of operators, types, and calls in Relax."""
