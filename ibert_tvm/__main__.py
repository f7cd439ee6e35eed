"""`python -m ibert_tvm` is the command `ibert`."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
