"""Find out which architectures import, and write `docs/compatibility.md`.

``python -m tests.compatibility.table`` writes the table anew; `test_table.py` compares it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError, load
from ibert_tvm.model.heads import head_of_class
from tests.compatibility.architectures import ARCHITECTURES, Architecture

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"

_CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "image_classification": "AutoModelForImageClassification",
}
_LEVELS = (1e-5, 1e-4)

_INTRODUCTION = Path(__file__).with_name("introduction.md").read_text(encoding="utf-8")


_MISSING = """Where the reason alone does not say what is missing, and what to use instead:

- convbert: kernels of its convolution are computed from the text. Use ELECTRA or MPNet.
- tapas: sums over segments whose number depends on the text. A BERT that reads the table as text
  has none.
- funnel: the sequence gets shorter from block to block; integer programs have one length.
- longformer, nystromformer, mra: attention over chunks whose number depends on the length. Use
  ModernBERT, whose sliding windows are supported.
- swin, sam, vitdet: windows in two directions. Use DINOv2 or ViT.
- bloom, ctrl, opt, xglm: positions or biases are computed from the mask, or for one length.
"""


@dataclass(frozen=True)
class Finding:
    """What became of one architecture.

    Parameters
    ----------
    label : str
        Name in the table.
    heads : tuple of str
        Heads that import, the bare model as ``none``.
    level : float
        Power of ten above the largest difference from torch; 0 if nothing imports.
    where, why : str
        Of the refusal; empty if everything that was tried imports.
    """

    label: str
    heads: tuple[str, ...]
    level: float
    where: str = ""
    why: str = ""

    def row(self) -> str:
        """Return the line of the table."""
        if self.heads:
            notes = f"{self.where}: {self.why}" if self.why else ""
            cells = (self.label, ", ".join(self.heads), f"< {self.level:.0e}", notes)
        else:
            cells = (self.label, self.where, self.why)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def investigate(architecture: Architecture) -> Finding:
    """Import one architecture with every head that is tried."""
    heads: list[str] = []
    worst, where, why = 0.0, "", ""
    for head in ("none", *architecture.heads):
        model = build(architecture, head)
        own = head_of_class(architecture.model or "") if head == "none" else head
        try:
            loaded = load(model, head=own)
        except (UnsupportedModelError, ModelSourceError) as error:
            where, why = error.where, error.why
            if head == "none":
                break
            where = f"head {head}"
            continue
        heads.append(loaded.info.head)
        assert loaded.verified_error is not None
        worst = max(worst, loaded.verified_error)
    level = next((level for level in _LEVELS if worst < level), float("inf")) if heads else 0.0
    return Finding(architecture.label, tuple(heads), level, where, why)


def build(architecture: Architecture, head: str) -> Any:
    """A model with weights that are large enough for errors to show."""
    torch.manual_seed(0)
    config = architecture.config()
    if head in _CLASSES:
        config.num_labels = 3
    own = architecture.classes.get(head) or architecture.model
    auto = getattr(transformers, _CLASSES.get(head, "AutoModel"))
    model = (getattr(transformers, own)(config) if own else auto.from_config(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2)
            elif "norm" not in name.lower():
                parameter.normal_(0, 0.1)
    return model


def render(findings: Iterable[Finding]) -> str:
    """Return the document."""
    found = list(findings)
    # One row for all architectures of which the same is said.
    alike: dict[str, list[str]] = {}
    for finding in found:
        if finding.heads:
            rest = finding.row().removeprefix(f"| {finding.label} ")
            alike.setdefault(rest, []).append(finding.label)
    supported = [f"| {', '.join(labels)} {rest}" for rest, labels in alike.items()]
    refused = [finding.row() for finding in found if not finding.heads]
    return "\n".join(
        [
            _INTRODUCTION,
            "## Supported",
            "",
            "| architectures | heads that were tried | largest difference from torch | refused |",
            "| --- | --- | --- | --- |",
            *supported,
            "",
            "## Refused",
            "",
            "The message of the error, word for word: where, and why.",
            "",
            "| architecture | where | why |",
            "| --- | --- | --- |",
            *refused,
            "",
            _MISSING,
        ]
    )


def rows(text: str) -> dict[str, str]:
    """Lines of the document's tables by architecture."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| "):
            labels, rest = line.removeprefix("| ").split(" | ", 1)
            found.update({label: f"| {label} | {rest}" for label in labels.split(", ")})
    return found


def main() -> None:
    """Write the document."""
    transformers.logging.set_verbosity_error()
    findings = []
    for architecture in ARCHITECTURES:
        findings.append(investigate(architecture))
        print(findings[-1].row(), file=sys.stderr, flush=True)
    DOCUMENT.write_text(render(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
