"""Emission: integer operators become plain loops, traced from the integer specification."""

from .layout import KernelLayout
