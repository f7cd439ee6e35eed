"""Fuzzing of the parsers of untrusted files: ``python -m tests.fuzz --seconds 60``.

Every case has a number: ``--reader NAME --case N`` reads one again, and ``--keep FOLDER`` writes
its files. For the record, which goes on where it stopped: ``--output tests/fuzz/record.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz.reader import write_files
from tests.fuzz.readers import READERS
from tests.fuzz.run import fuzz
from tests.fuzz.worker import make_case, read_case

_PACKAGES = ("numpy", "onnx", "onnxruntime", "safetensors", "tokenizers", "transformers")


def versions() -> dict[str, str]:
    """What the files were read with."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}


def joined(before: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Counts of a reader in two runs; the first case that neither read is ``next``."""
    after = {**before}
    for key in ("cases", "refused", "accepted", "seconds", "findings"):
        after[key] = before[key] + result[key]
    after["peak_bytes"] = max(before["peak_bytes"], result["peak_bytes"])
    after["next"] = before["next"] + result["cases"]
    return after


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--reader", choices=READERS, action="append", help="by default all")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first case of a reader that the output does not have",
    )
    parser.add_argument("--count", type=int, default=10**9, help="at most so many cases of each")
    parser.add_argument("--output", type=Path, help="the counts as JSON, which go on")
    parser.add_argument("--case", type=int, help="read this case alone")
    parser.add_argument("--keep", type=Path, help="write the files of what was found here")
    arguments = parser.parse_args()
    names = arguments.reader or list(READERS)
    if arguments.case is not None:
        for name in names:
            if arguments.keep is not None:
                write_files(arguments.keep, make_case(name, arguments.case)[0])
            print(f"{name}: {read_case(name, arguments.case)}")
        return 0
    document: dict[str, Any] = {"readers": {}}
    if arguments.output is not None and arguments.output.is_file():
        document = json.loads(arguments.output.read_text())
    nothing = {"cases": 0, "refused": 0, "accepted": 0, "seconds": 0, "peak_bytes": 0}
    found = 0
    for name in names:
        before = document["readers"].get(
            name, {**nothing, "findings": [], "first": arguments.first, "next": arguments.first}
        )
        result = fuzz(name, arguments.seconds, before["next"], arguments.count)
        found += len(result["findings"])
        document["readers"][name] = joined(before, result)
        shown = {key: value for key, value in result.items() if key != "findings"}
        print(f"{name}: {json.dumps(shown)}", flush=True)
        for finding in result["findings"]:
            print(f"  case {finding['case']}: {finding['what'].strip()}", flush=True)
            if arguments.keep is not None:
                place = arguments.keep / name / str(finding["case"])
                write_files(place, make_case(name, finding["case"])[0])
        if arguments.output is not None:
            document["cases"] = sum(reader["cases"] for reader in document["readers"].values())
            document["versions"] = versions()
            arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
