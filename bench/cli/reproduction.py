"""Of several results directories: `reproduction`, which published numbers have been measured, and `board`, what there is."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.console import counted, explained, name_damaged, warn


def reproduction(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Results directories, or folders in which some lie.")
    ],
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="PAGE", help="Print nothing, but replace the part between the markers of a page."
        ),
    ] = None,
) -> None:
    """List every published number that has been measured at its own budget, and the command that measures it."""
    with explained():
        from bench.errors import StoreError
        from bench.results.store import stores_in
        from reports.reproduction import measured, page, planned

        stores, mistakes = [], []
        for folder in folders:
            try:
                stores += stores_in(folder)
            except StoreError as error:
                mistakes.append(str(error))
        try:
            if write:
                page.around(write)
        except ValueError as error:
            mistakes.append(str(error))
        if mistakes:
            raise ValueError(" ".join(mistakes))
        for store in stores:
            name_damaged(store)
        plans = planned.Plans()
        text = page.render(measured.find_measured(stores, plans), plans)
        if write:
            page.write(write, text)
            warn(f"Saved: {write}")
        else:
            sys.stdout.write(text)


def board(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of results directories, as docs/examples.")
    ],
) -> None:
    """Write the tables of all results directories in a folder, and one page that says who trained what, and what is verified.

    The page is FOLDER/board.md. Grids that several directories hold get tables of all together, in FOLDER/reports.

    Exit status 1 if directories contradict each other: the page says in what, and tables of all together leave it out.
    """
    with explained():
        from bench.results.store import stores_in
        from reports import board as pool

        stores = stores_in(folder)
        if stores[0].folder == folder.absolute():
            raise ValueError(f"{folder} is one results directory; name the folder in which several lie.")
        for store in stores:
            name_damaged(store)
        paths, wrong = pool.rebuild(stores, folder)
    for name, sentences in wrong.items():
        for sentence in sentences:
            warn(f"{name}: {sentence}")
    warn(f"Saved: {paths[-1]}, and {counted(len(paths) - 1, 'report')}")
    if wrong:
        raise typer.Exit(1)
