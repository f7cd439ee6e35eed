"""Fuzzing of the readers of strangers' files: ``python -m tests.fuzz --seconds 60``.

Every case has a number: ``--reader NAME --case N`` reads one again, and ``--keep FOLDER`` writes
its files.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.readers import READERS, write_files
from tests.fuzz.run import fuzz
from tests.fuzz.worker import make_case, read_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--reader", choices=READERS, action="append", help="by default all")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=10**9, help="at most so many cases of each")
    parser.add_argument("--output", type=Path, help="write the counts as JSON")
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
    results = {}
    for name in names:
        results[name] = fuzz(name, arguments.seconds, arguments.first, arguments.count)
        shown = {key: value for key, value in results[name].items() if key != "findings"}
        print(f"{name}: {json.dumps(shown)}", flush=True)
        for finding in results[name]["findings"]:
            print(f"  case {finding['case']}: {finding['what'].strip()}", flush=True)
            if arguments.keep is not None:
                place = arguments.keep / name / str(finding["case"])
                write_files(place, make_case(name, finding["case"])[0])
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(result["findings"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
