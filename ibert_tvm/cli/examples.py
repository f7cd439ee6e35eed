"""What the help of each command shows as examples; a test parses them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "finetune": (
        "ibert finetune MODEL --data train.tsv --dev dev.tsv -o tuned",
        "ibert finetune MODEL --data texts.txt --distill embeddings -o tuned",
    ),
    "quantize": (
        "ibert quantize MODEL -o minilm.ibert --calibration texts.txt",
        "ibert quantize model.onnx -o minilm.ibert --max-drop 0.002",
    ),
    "compile": (
        "ibert compile minilm.ibert -o minilm.so --batch 1,8 --seq-len 32,128",
        "ibert compile minilm.ibert -o board.so --target armv7-neon --seq-len 32",
        "ibert compile minilm.ibert -o firmware --target cortex-m4 --seq-len 32",
    ),
    "tune": (
        "ibert tune minilm.ibert --database trials --trials 200 --seq-len 128",
        "ibert compile minilm.ibert -o minilm.so --seq-len 128 --database trials",
    ),
    "run": (
        'ibert run minilm.so --text "The cat sat on the mat."',
        "ibert run minilm.so --texts lines.txt -o vectors.npz",
        'ibert run firmware --emulate --model minilm.ibert --text "The cat sat."',
    ),
    "serve": (
        "ibert serve minilm.so --port 8000",
        "ibert serve minilm.so reranker.so --workers 2",
    ),
    "eval": (
        "ibert eval minilm.so --against MODEL --text texts.txt",
        "ibert eval minilm.ibert --against MODEL --why",
        "ibert eval minilm.so --task sts-b --data STS-B --against MODEL",
    ),
    "bench": (
        "ibert bench minilm.so --threads 1,2 --per-layer",
        "ibert bench minilm.so --texts lines.txt --against MODEL",
    ),
    "inspect": (
        "ibert inspect minilm.so",
        "ibert inspect model.onnx",
    ),
    "verify": (
        "ibert verify minilm.so --model minilm.ibert",
        "ibert verify firmware --model minilm.ibert --emulate -o verify.json",
    ),
    "sign": ("ibert sign minilm.so --key private.pem",),
    "report": (
        "ibert report minilm.so --model minilm.ibert --against MODEL -o page.html",
        "ibert report new.so --model new.ibert --compare old.so",
        "ibert report minilm.ibert --graph minilm.onnx",
    ),
    "targets": ("ibert targets --verbose",),
    "doctor": ("ibert doctor --verbose",),
    "demo": ("ibert demo",),
}
"""By command, in the order in which they are shown; each fits a terminal of 80 columns."""


def epilog(command: str) -> str:
    """Return the end of a command's help; paragraphs, for lines of one are joined."""
    lines = EXAMPLES[command]
    return "\n\n".join((f"Example{'s' * (len(lines) > 1)}:", *lines))
