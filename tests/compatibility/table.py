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
from tests.compatibility.architectures import ARCHITECTURES, Architecture

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"

_CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "image_classification": "AutoModelForImageClassification",
}
_LEVELS = (1e-5, 1e-4)

_INTRODUCTION = """# Which models can be imported

Written by `make compatibility`, which builds every architecture below from its transformers
configuration with random weights, imports it, and compares the canonical form with torch on padded
batches of two other lengths than the traced one (images: another batch); a test fails when what it
finds differs from this page. Names are the `model_type` of `config.json`. An architecture that is
not listed is tried all the same: what is matched is the arithmetic, not the name, and what has no
integer form is refused with the operator, the layer and the reason.

What can be expressed: absolute or RoBERTa-like positions, post-norm and pre-norm blocks, GELU (erf
or tanh), SiLU, quick-GELU, ReLU, tanh, sigmoid, gated layers, LayerNorm, RMSNorm, attention in
which every token sees all others that are not padding, or those in a range of distances from it
(causal, sliding windows), capped scores, a bias on scores that depends on head and distance, or of
images on head, query and key, heads of queries that share keys, norms of heads, rotary embeddings
(of an image's patches alone, too), shared layers, projected embeddings, patches of images, learned
tokens before a sequence or among those, the mean of a part of it, what one learned query sees of
it, joined channels, neighbours' embeddings, convolutions of images or features and along a
sequence, factors and rows by channel, clipped lines (ReLU6, hard swish), leaky ReLU, products with
the padding mask, poolings and vectors of length 1.
"""


_MISSING = """What it would take, where the reason alone does not say it, and what to use instead:

- convbert: its dynamic convolution weighs neighbours by a softmax of the text (kernels are
  computed, not learned): a product of windows and weights for each token, which no integer operator
  is. ELECTRA and MPNet are close to it and supported.
- tapas: positions within a cell of a table and the mean of cells need sums by segment, whose number
  depends on the text. A BERT that reads the table as text has none.
- funnel: tokens are pooled between blocks, so sequences get shorter from block to block, with their
  padding masks and relative positions. Integer programs have one length of sequence.
- longformer, nystromformer, mra: attention over chunks whose number depends on the length, or is
  padded to it. ModernBERT has windows that are supported.
- swin, sam, vitdet: windows of two directions. DINOv2 and ViT are supported.
- bloom, ctrl, opt, xglm: positions or biases that are made from the mask, or for one length.
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
        own = architecture.model is not None and head == "none"
        try:
            loaded = load(model, head=None if own else head)
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
    supported = [finding.row() for finding in found if finding.heads]
    refused = [finding.row() for finding in found if not finding.heads]
    return "\n".join(
        [
            _INTRODUCTION,
            "## Supported",
            "",
            "| architecture | heads that were tried | largest difference from torch | refused |",
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
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


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
