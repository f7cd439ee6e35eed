"""What is known of an encoder, for those who are given it: the README.md of a saved one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.strict_json import JsonDict
from ..model.heads import KINDS
from ..runtime.metadata import LibraryMetadata

_CARD = """---
library_name: ibert-tvm
pipeline_tag: {task}
tags:
- ibert-tvm
- integer-only
- quantized
---
# {name}

{description}, compiled to a library that computes with integers alone.

```python
from ibert_tvm import Encoder

# trust_remote_code runs the library of this repository
encoder = Encoder.from_pretrained({quoted}, local_files_only=False, trust_remote_code=True)
```

{tables}
"""


@dataclass
class Measurements:
    """What was measured of an encoder.

    Attributes
    ----------
    metrics
        Numbers by name.
    """

    metrics: dict[str, float] = field(default_factory=dict)

    def add(self, document: Mapping[str, Any]) -> None:
        """Keep the numbers of a document, such as ``fidelity(...).to_json()``."""
        numbers = {k: v for k, v in document.items() if isinstance(v, int | float)}
        self.metrics.update({name: float(value) for name, value in numbers.items()})

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: Mapping[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        """Keep what an evaluator of sentence-transformers found; it calls this itself."""
        self.add(metrics)


def model_card(
    name: str,
    metadata: LibraryMetadata,
    settings: Mapping[str, Any],
    measurements: Measurements,
    certificate: JsonDict | None,
) -> str:
    """Text of a model card, in the hub's form.

    Parameters
    ----------
    name
        Of the model.
    metadata
        Of the library.
    settings
        Of the encoder.
    measurements
        What is known of its quality and speed.
    certificate
        What `ibert verify` found, if it was asked.
    """
    info = metadata.info
    longest = max(function.batch for function in metadata.functions)
    facts = {
        "architecture": f"{info.architecture}, {info.num_layers} layers, head {info.head}",
        "outputs": ", ".join(
            f"{o.kind.replace('_', ' ')} [{', '.join(map(str, o.shape))}]" for o in metadata.outputs
        ),
        "file": f"{metadata.file_bytes / 1e6:.1f} MB, weights {metadata.weight_bytes / 1e6:.1f} MB",
        "compiled for": metadata.target["name"],
        "processor features": ", ".join(metadata.required_cpu_features) or "none",
        "longest text": f"{metadata.max_seq_len} tokens, in batches of at most {longest}",
        **{key.replace("_", " "): value for key, value in settings.items() if value},
        "versions": ", ".join(f"{k} {v}" for k, v in sorted(metadata.versions.items())),
        "SHA-256 of the library's seal": metadata.digest,
        "SHA-256 of the source's weights": metadata.source_sha256,
    }
    sections = {
        "The library": facts,
        "Measured": {key: f"{value:.6g}" for key, value in measurements.metrics.items()},
        "Certificate of `ibert verify`": {}
        if certificate is None
        else {
            "passed": "yes" if certificate["passed"] else "no",
            "complete": "yes" if certificate["complete"] else "no",
            **{check["name"]: _outcome(check) for check in certificate["checks"]},
        },
    }
    tables = [
        "\n".join([f"## {title}", "| | |", "| --- | --- |", *map(_row, rows, rows.values())])
        for title, rows in sections.items()
        if rows
    ]
    return _CARD.format(
        task=KINDS[metadata.outputs[0].kind].task if metadata.outputs else "",
        name=_plain(name),
        quoted=json.dumps(name),
        description=_plain(info.description or info.architecture),
        tables="\n\n".join(tables),
    )


def _outcome(check: JsonDict) -> str:
    return "passed" if check["passed"] else check["not_run"] or "failed"


def _row(key: str, value: object) -> str:
    return f"| {_plain(key)} | {_plain(value)} |"


def _plain(value: object) -> str:
    """Text of a source in one cell of a table, where it can begin no markup of its own."""
    words = " ".join(str(value).split())
    return "".join(f"\\{char}" if char in "\\|<>[]`*#" else char for char in words)
