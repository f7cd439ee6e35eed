"""Compare golden digests, or write them anew.

    python -m tests.golden.update [MODEL ...]            compare
    python -m tests.golden.update --update [MODEL ...]   write digests.json
    python -m tests.golden.update --tables [MODEL ...]   calibrate anew: tables.json
    python -m tests.golden.update --names MODEL ...      print a digest for every name

Run from the root of the checkout. Tables are written before digests that depend on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ibert_tvm.quantization import calibrate
from tests.golden import sources
from tests.golden.digests import DIGESTS, differences, specification, stored
from tests.golden.models import (
    MODELS,
    RANGES,
    TABLES,
    TRAINED,
    calibration,
    canonical,
    stored_activations,
    tables,
)


def write(path: Path, document: dict[str, Any]) -> None:
    """JSON with a line for every entry of a model."""
    models = []
    for name, sections in document.items():
        parts = []
        for section, entries in sections.items():
            lines = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in entries.items())
            parts.append(
                f"  {json.dumps(section)}: " + ("{\n" + lines + "\n  }" if lines else "{}")
            )
        models.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    path.write_text("{\n" + ",\n".join(models) + "\n}\n", encoding="utf-8")


def update_tables(names: list[str]) -> None:
    """Calibrate models and write the activations down."""
    document = tables() if TABLES.exists() else {}
    ranges = document.setdefault(RANGES, {})
    for name in names:
        golden = MODELS[name]
        if golden.scales == TRAINED:
            ranges[golden.source] = sources.train_ranges(sources.checkpoint(golden.source))
    write(TABLES, document)
    tables.cache_clear()
    for name in names:
        golden = MODELS[name]
        if not golden.scales and not golden.scales_of:
            model = canonical(golden.source)
            table, _ = calibrate(model, calibration(name), golden.preset, golden.options)
            document[name] = stored_activations(table, smoothing=name != "bert-base")
            print(f"{name}: calibrated", flush=True)
    order = [RANGES, *(name for name in MODELS if name in document)]
    write(TABLES, {name: document[name] for name in order})
    tables.cache_clear()


def main() -> int:
    """Return 1 if a digest differs and was not to be written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="; ".join(MODELS))
    parser.add_argument("--update", action="store_true", help="write digests.json")
    parser.add_argument("--tables", action="store_true", help="write tables.json")
    parser.add_argument("--names", action="store_true", help="print, to compare two checkouts")
    arguments = parser.parse_args()
    names = arguments.models or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if arguments.tables:
        update_tables(names)
        return 0
    if arguments.names:
        for name in names:
            for section, entries in specification(name, by_name=True).items():
                for key, digest in entries.items():
                    print(name, section, key, digest)
        return 0
    document = stored() if DIGESTS.exists() else {}
    failed = False
    for name in names:
        digests = specification(name)
        lines = differences(document.get(name, {}), digests)
        print(f"{name}: " + ("\n  ".join(["", *lines]) if lines else "equal"), flush=True)
        failed |= bool(lines)
        document[name] = digests
    if arguments.update:
        write(DIGESTS, {name: document[name] for name in MODELS if name in document})
        return 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
