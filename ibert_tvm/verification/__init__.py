"""The certificate of an artefact: its promises, checked on the file itself.

===================  ============================================================================
digests              every file or section is unchanged since it was written
no floating point    every instruction was checked, on the processor and on a GPU
intervals            every value and intermediate of the program has an interval that fits it, and
                     none leaves it on the inputs below
same bits            the code gives what the integer specification gives, on random inputs
===================  ============================================================================
"""

from .artefacts import verify
from .certificate import FORMAT, VERSION, Certificate, Check
