"""The certificate of an artefact: what was promised of it, checked on the file itself.

===================  ============================================================================
digests              every file, or every section, is what it was when it was written
no floating point    of the code, on the processor and on a GPU, every instruction was looked at
intervals            every value and intermediate of the program has an interval that fits it, and
                     none leaves it on the inputs below
same bits            the code gives what the integer specification gives, on random inputs
===================  ============================================================================
"""

from .artefacts import verify
from .certificate import FORMAT, VERSION, Certificate, Check

__all__ = ["FORMAT", "VERSION", "Certificate", "Check", "verify"]
