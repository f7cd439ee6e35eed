"""`ibert report`: one page about an artefact, with the documents of the other commands in it."""

from __future__ import annotations

from pathlib import Path

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from .options import ImportOptions
from .report_parts import Job, check_job, collect
from .result import CommandResult


def command(
    *,
    job: Job,
    compare: Path | None = None,
    compare_model: Path | None = None,
    output: Path | None = None,
    graph: Path | None = None,
    source: ImportOptions,
) -> CommandResult:
    """Write a page: what an artefact is, how exact, how fast, its memory and its graph.

    Parameters
    ----------
    compare
        Another artefact, shown side by side with PATH.
    compare_model
        The NAME.ibert folder that the other was compiled from.
    output
        The page; by default report.html.
    graph
        Write the graph, an .onnx file for Netron; without -o that alone.

    Examples
    --------
    ibert report minilm.so --model minilm.ibert --against MODEL -o page.html
    ibert report new.so --model new.ibert --compare old.so
    ibert report minilm.ibert --graph minilm.onnx
    """
    from ..common.files import check_writable, write_file
    from ..model.artefact import QuantizedModel
    from ..report import program_graph, render_page, write_onnx
    from ..report.onnx_file import GRAPH, check_suffix
    from ..report.page import PAGE

    if compare_model is not None and compare is None:
        raise UsageError(
            "--compare-model was given without --compare",
            why="it is the model of the other artefact",
            todo="give that as well, with --compare",
        )
    page = output or Path("report.html")
    if output is not None or graph is None:
        check_writable(page, PAGE)
    if graph is not None:
        check_suffix(graph)
        check_writable(graph, GRAPH)
    jobs = [job] if compare is None else [job, job.other(compare, compare_model)]
    for each in jobs:
        check_job(each)

    document: JsonDict = {}
    lines = []
    if graph is not None:
        folder = jobs[0].folder
        if folder is None:
            raise UsageError(
                "--graph was given for a compiled artefact alone",
                where=str(job.path),
                why="it holds kernels; the graph is that of the integer program",
                todo="give the NAME.ibert folder that it was compiled from, with --model",
            )
        loaded = QuantizedModel.load(folder)
        write_onnx(loaded, program_graph(loaded), graph)
        document["graph"] = str(graph)
        lines.append(f"wrote {graph}: {len(loaded.program.steps)} nodes; netron.app opens it")
        if output is None:
            return CommandResult(document, lines)
    content = _document(collect(jobs, source))
    text_of_page = render_page(content)
    with write_file(page, PAGE) as temporary:
        temporary.write_text(text_of_page, encoding="utf-8")
    size = page.stat().st_size
    document |= {"output": str(page), "bytes": size, **content}
    lines.append(f"wrote {page}: {size / 1e6:.2f} MB, opens in any browser without a network")
    for artefact in content["artefacts"]:
        lines += [
            f"{artefact['name']}: no {part}: {reason}"
            for part, reason in artefact["missing"].items()
        ]
    return CommandResult(document, lines)


def _document(artefacts: list[JsonDict]) -> JsonDict:
    """All that the page holds."""
    import datetime

    from .. import __version__
    from ..report.page import SCHEMA_VERSION

    made = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")
    return {
        "schema_version": SCHEMA_VERSION,
        "ibert_tvm": __version__,
        "made": made,
        "artefacts": artefacts,
    }
