"""The commands of `ibert`, put together. Parsing only; the work is in one file per command."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .signature import command_of, examples


class _Command(TyperCommand):
    """A command whose help has no type beside options that take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            if param.name == "help":
                param.rich_help_panel = "Messages"  # type: ignore[attr-defined]
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help; only here with the names of tasks, whose records import NumPy."""
        for param in self.params:
            if param.name == "task":
                from ..tasks import TASKS

                param.help += f" The tasks: {', '.join(TASKS)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


NAMES = (
    *("finetune", "quantize", "compile", "tune", "run", "serve", "eval", "bench"),
    *("inspect", "verify", "sign", "report", "targets", "doctor", "demo"),
)
"""Commands in the order in which they are used, which is that of the help."""


def application(names: Sequence[str] = NAMES) -> typer.Typer:
    """Put commands together: whoever runs one need not wait until all of them are imported."""
    app = typer.Typer(
        name="ibert",
        help="Compile BERT-like transformers to programs without floating point.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 success, 2 usage, 3 model, 4 toolchain or target, 5 verification.",
    )
    app.callback()(_options)
    for name in names:
        command = import_module(f".{name}", __package__).command
        # Paragraphs, for lines of one are joined.
        lines = examples(command)
        end = "\n\n".join((f"Example{'s' * (len(lines) > 1)}:", *lines))
        app.command(name, cls=_Command, epilog=end)(command_of(command))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"ibert_tvm {__version__}")
        raise typer.Exit


def _options(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compile BERT-like transformers to programs without floating point."""
