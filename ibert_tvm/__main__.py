"""`python -m ibert_tvm` is the command `ibert`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
