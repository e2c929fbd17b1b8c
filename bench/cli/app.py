"""The command line. A command imports what it needs when it runs: `--help`, `list` and `report` start in a moment."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bench.cli import options as given
from bench.cli.check import check
from bench.cli.console import console, explained, say_json, stopped_by_sigterm, use_plugins
from bench.cli.data import app as data_commands
from bench.cli.describe import describe
from bench.cli.exchange import compare, export, import_
from bench.cli.listing import KINDS, listing, listing_table
from bench.cli.report import report
from bench.cli.reproduction import board, reproduction
from bench.cli.run import run
from bench.cli.status import status
from bench.cli.tune import tune
from bench.cli.verify import verify
from bench.errors import require_known


class _Program(TyperGroup):
    """The commands; what is about all of them may also stand behind one."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        with stopped_by_sigterm():
            return super().main(*arguments, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # who asks for nothing has made no mistake
            typer.echo(ctx.get_help())
            ctx.exit()
        rest = super().parse_args(ctx, given.plugins_first(args))
        named = next((word for word in args if word in self.commands), "")
        if named:
            with explained():
                given.require_no_settings(args, [each for one in self.commands[named].params for each in one.opts])
        return rest


app = typer.Typer(
    cls=_Program,
    help="Federated learning under label skew: runs grids of experiments, and makes tables of their results.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands, name="data")
for command in (run, report, describe, status, tune, check, compare, verify, export, reproduction, board):
    app.command()(command)
app.command(name="import")(import_)


def _say_version(wanted: bool) -> None:
    if wanted:
        from bench import __version__

        sys.stdout.write(f"skewbench {__version__}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version, and end.")
    ] = False,
    plugins: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder with methods, models, search spaces and grids of your own; may be repeated, and "
            "may stand behind the command."
        ),
    ] = None,
) -> None:
    with explained():
        use_plugins(plugins or [])


@app.command(name="list")
def list_(
    what: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(KINDS)}; all if left out.")] = None,
    json_: given.JsonOption = False,
) -> None:
    """List grids, algorithms, datasets, models, partitions, kinds of figures and search spaces."""
    with explained():
        kinds = KINDS if what is None else ["algorithms" if what == "methods" else what]
        require_known("listing", kinds, KINDS)
        if json_:
            say_json({kind: [{"name": name, "description": text} for name, text in listing(kind)] for kind in kinds})
            return
        for kind in kinds:
            console.print(listing_table(kind), "")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def speed(context: typer.Context) -> None:
    """Measure how fast this machine trains: examples per second, memory, and what the scheduler costs."""
    from bench.speed import main as speed  # reads its options itself: it must also run where there is no typer

    speed.main(context.args, prog="python -m bench speed")
