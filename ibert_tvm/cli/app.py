"""The commands of `ibert`, put together. Parsing only; the work is in one file per command."""

from __future__ import annotations

from typing import Annotated

import typer

from ibert_tvm.cli.bench import command as bench_command
from ibert_tvm.cli.compile import command as compile_command
from ibert_tvm.cli.demo import command as demo_command
from ibert_tvm.cli.doctor import command as doctor_command
from ibert_tvm.cli.eval import command as eval_command
from ibert_tvm.cli.inspect import command as inspect_command
from ibert_tvm.cli.quantize import command as quantize_command
from ibert_tvm.cli.run import command as run_command
from ibert_tvm.cli.targets import command as targets_command
from ibert_tvm.cli.tune import command as tune_command

__all__ = ["app"]

app = typer.Typer(
    name="ibert",
    help="Compile BERT-like transformers to programs without floating point.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 2 usage, 3 model, 4 toolchain or target, 5 verification.",
)

app.command("quantize")(quantize_command)
app.command("compile")(compile_command)
app.command("tune")(tune_command)
app.command("run")(run_command)
app.command("eval")(eval_command)
app.command("bench")(bench_command)
app.command("inspect")(inspect_command)
app.command("targets")(targets_command)
app.command("doctor")(doctor_command)
app.command("demo")(demo_command)


def _version(wanted: bool) -> None:
    if wanted:
        from ibert_tvm import __version__

        typer.echo(f"ibert_tvm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Compile BERT-like transformers to programs without floating point."""
