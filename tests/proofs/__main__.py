"""Exhaustive checks for the record, which go on where they stopped.

nice -n 15 python -m tests.proofs --output tests/proofs/record.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tests.programs.__main__ import commit, write

from .roots import wrong_roots

NUMBERS = 2**32
_PART = 2**26


def main() -> None:
    """Check the root of every number of 32 bits; write what was found after each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("proofs.json"))
    output = parser.parse_args().output
    document: dict[str, Any] = {"numbers": NUMBERS, "next": 0, "wrong": [], "processor_seconds": 0}
    document |= {"commits": []}
    if output.is_file():
        document = json.loads(output.read_text())["square_roots"]
    now = commit()
    if document["next"] < NUMBERS and now not in document["commits"]:
        document["commits"].append(now)
    while document["next"] < NUMBERS:
        first, begun = document["next"], time.process_time()
        document["wrong"] += wrong_roots(first, first + _PART)
        document["next"] = first + _PART
        document["processor_seconds"] += round(time.process_time() - begun)
        write(output, {"square_roots": document})
    print(document)


if __name__ == "__main__":
    main()
