"""A package without code: a document with what is read of one, and a manifest."""

from __future__ import annotations

import json
from pathlib import Path

from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.targets.bare_metal.document import DOCUMENT, KIND, FileNames


def small_package(folder: Path, **changes: object) -> Path:
    document = {
        "kind": KIND,
        "prefix": "tiny",
        "emit": "objects",
        "target": {"name": "cortex-m4"},
        "functions": [{"symbol": "tiny_run_b1_s8", "batch": 1, "seq_len": 8, "kernels": []}],
        "inputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
        "outputs": [{"name": "hidden", "scale": 0.5}],
        "info": {},
        "source_sha256": "",
        "memory": {
            "flash": {"total": 10, "weights": 5, "code": 3, "constants": 2},
            "ram": {"total": 9, "arena": 6, "stack": 3, "peak": {"layer": "encoder.0"}},
        },
        "verified": {"instructions": 1234},
        **changes,
    }
    folder.mkdir()
    (folder / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")
    names = FileNames(str(document["prefix"]))
    for name in (names.header, names.library):
        (folder / Path(name).name).write_bytes(b"")
    write_manifest(folder)
    return folder
