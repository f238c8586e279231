"""The command line: one file per command, errors printed in one place."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import typer
from typer.core import TyperGroup

from grace.errors import GraceError


class _Commands(TyperGroup):
    """Turns every error that a user can mend into one line on standard error and exit code 2."""

    def invoke(self, ctx: typer.Context) -> object:
        try:
            return super().invoke(ctx)
        except GraceError as error:
            message = str(error)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            message = f"{error.filename or 'system'}: {error.strerror or error}"
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Generative retrieval inside the catalogue and inside what each request may see.",
)
data = typer.Typer(no_args_is_help=True, help="Public data sets.")
sid = typer.Typer(no_args_is_help=True, help="Semantic IDs.")
index = typer.Typer(no_args_is_help=True, help="Indexes: build, check, change, go back.")
app.add_typer(data, name="data")
app.add_typer(sid, name="sid")
app.add_typer(index, name="index")

for group, command, module, function in (
    (app, "demo", "demo", "demo"),
    (data, "prepare", "data", "prepare"),
    (sid, "fit", "sid", "fit"),
    (app, "train", "train", "train"),
    (index, "build", "index", "build"),
    (index, "info", "index", "info"),
    (index, "verify", "index", "verify"),
    (index, "watch", "watch", "watch"),
    (index, "versions", "versions", "versions"),
    (index, "rollback", "versions", "rollback"),
    (app, "retrieve", "retrieve", "retrieve"),
    (app, "evaluate", "evaluate", "evaluate"),
):
    group.command(command)(getattr(importlib.import_module(f"grace.cli.{module}"), function))


def main() -> None:
    """Run the command line; a termination signal ends it as an error does, tidily."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
