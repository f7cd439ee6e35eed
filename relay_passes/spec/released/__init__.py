"""The arithmetic of the released I-BERT code, in integers, for checkpoints trained with it.

The released code emulates integers in floating point: fp32 tensors of whole numbers, and
requantisation in fp64. These modules are the integer functions that it emulates, evaluated exactly:
its floors, its rounding half to even, its fixed shifts, a multiplier and an exponent per channel.
Where the emulation needs more than 64 bits, the same number is computed by other steps, never
another number. Constants of the approximations are derived in the released order of operations.
"""

from .exponential import ReleasedExponential
from .gelu import released_gelu
from .layer_norm import ReleasedLayerNorm
from .rounding import ExactFactors, exact_factors, requantise_even, round_even
