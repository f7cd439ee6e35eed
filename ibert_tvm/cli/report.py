"""`ibert report`: one page about an artefact, with the documents of the other commands in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..common.errors import UsageError
from .options import InputNames, JsonFlag, TrustFlag, VerboseFlag, parse_inputs
from .result import CommandResult


def command(
    path: Annotated[
        Path,
        Argument(help="A library, a NAME.ibert folder, or a package for a microcontroller."),
    ],
    model: Annotated[
        Path | None,
        Option(help="The NAME.ibert folder that PATH was compiled from: its graph and its layers."),
    ] = None,
    against: Annotated[
        Path | None, Option(help="The float model, to say how close the integer one is.")
    ] = None,
    text: Annotated[
        Path | None,
        Option(help="Texts that calibration has not seen, one per line; by default the package's."),
    ] = None,
    seq_len: Annotated[
        str | None, Option(help="Truncate the texts to this many tokens; by default 128.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Use only the first texts.")] = None,
    layer_texts: Annotated[
        int, Option(min=1, help="Use so many of the texts for layers, which NumPy evaluates.")
    ] = 16,
    why: Annotated[
        bool, Option("--why/--no-why", help="Measure where quality is lost; takes minutes.")
    ] = True,
    bench: Annotated[bool, Option("--bench/--no-bench", help="Measure speed here.")] = True,
    threads: Annotated[str, Option(help="Threads to measure with, with commas.")] = "1",
    seconds: Annotated[float, Option(min=0.0, help="How long to measure each shape.")] = 1.0,
    certificate: Annotated[
        Path | None,
        Option(help="What `ibert verify` wrote; by default verify.json beside PATH, if it is its."),
    ] = None,
    compare: Annotated[
        Path | None, Option(help="Another artefact, shown side by side with PATH.")
    ] = None,
    compare_model: Annotated[
        Path | None, Option(help="The NAME.ibert folder that the other was compiled from.")
    ] = None,
    output: Annotated[
        Path | None, Option("-o", "--output", help="The page; by default report.html.")
    ] = None,
    graph: Annotated[
        Path | None,
        Option(help="Write the graph, an .onnx file for Netron; without -o that alone."),
    ] = None,
    inputs: InputNames = None,
    trust: TrustFlag = False,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Write a page: what an artefact is, how exact, how fast, its memory and its graph."""
    from ..common.files import check_writable, write_file
    from ..frontend.errors import require
    from ..model.artefact import QuantizedModel
    from ..report import program_graph, render_page, write_onnx
    from ..report.onnx_file import check_suffix
    from .report_parts import Job, check_job, collect

    if compare_model is not None and compare is None:
        raise UsageError(
            "--compare-model was given without --compare",
            why="it is the model of the other artefact",
            todo="give that as well, with --compare",
        )
    if graph is not None:
        check_suffix(graph)
        check_writable(graph)
    job = Job(
        path.expanduser(),
        None if model is None else model.expanduser(),
        against,
        text,
        seq_len,
        limit,
        layer_texts,
        why,
        bench,
        threads,
        seconds,
        certificate,
        inputs,
        trust,
    )
    parse_inputs(inputs)
    jobs = [job] if compare is None else [job, job.other(compare.expanduser(), compare_model)]
    for each in jobs:
        check_job(each)

    document: dict[str, Any] = {}
    lines = []
    if graph is not None:
        folder = jobs[0].folder
        if folder is None:
            raise UsageError(
                "--graph was given for a compiled artefact alone",
                where=str(path),
                why="it holds kernels; the graph is that of the integer program",
                todo="give the NAME.ibert folder that it was compiled from, with --model",
            )
        loaded = QuantizedModel.load(folder)
        write_onnx(loaded, program_graph(loaded), graph)
        document["graph"] = str(graph)
        lines.append(f"wrote {graph}: {len(loaded.program.steps)} nodes; netron.app opens it")
        if output is None:
            return CommandResult(document, lines)
    require(
        "jinja2",
        to="ibert report",
        why="the package that fills in the page is optional",
        todo="pip install 'ibert-tvm[report]'",
        where="ibert report",
    )
    page = check_writable(output or Path("report.html"))
    content = _document(collect(jobs))
    text_of_page = render_page(content)
    with write_file(page) as temporary:
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


def _document(artefacts: list[dict[str, Any]]) -> dict[str, Any]:
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
