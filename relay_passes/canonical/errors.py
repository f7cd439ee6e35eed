"""Errors of the canonical dialect."""

from tvm.error import register_error

from ..errors import CompilerError


# Type inference is called through TVM's FFI, which gives a registered class back as itself, made
# from the text alone, and turns any other into RuntimeError.
@register_error
class CanonicalError(CompilerError):
    """A call or a module breaks a rule of canonical form."""
