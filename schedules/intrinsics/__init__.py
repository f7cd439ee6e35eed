"""Tensor intrinsics: what one instruction computes, and the instruction itself.

Every intrinsic is a pair of functions over the same buffers: the *description* states its integer
semantics with plain loops (this is what tensorisation matches and what the tests compare with), the
*implementation* is the instruction. Both are parsed from text on first use: decorating functions at
import time costs seconds when torch is installed.

``dot`` holds the dot products, with one file per family of instructions, ``matrix`` those that
multiply several rows at once; ``reduction``, ``packing`` and ``zipping`` are written in what LLVM
has for every processor.
"""
