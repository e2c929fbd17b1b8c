"""`python -m bench data`: is it there, get it, look at how a partition deals it."""

from pathlib import Path
from typing import Annotated

import typer

from bench.cli import options as given
from bench.cli.console import explained, say, warn

app = typer.Typer(help="Datasets: check, prepare, show.", no_args_is_help=True)

SizeOption = Annotated[
    str | None,
    typer.Option("--image-size", help="Resize the images to N pixels, or to HEIGHTxWIDTH, as a run with image_size."),
]
ClientsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Size of the population; 40 if left out, for natural the number of writers, for shifts 20."
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the partition, and of K-means, as in a run.")]
Names = Annotated[list[str] | None, typer.Argument(help="Datasets; all if left out.")]


@app.command()
def check(names: Names = None, image_size: SizeOption = None, data_dir: given.DataOption = None) -> None:
    """Say for each dataset where it was found and whether it is complete, or what to do."""
    import datasets

    with explained():
        size = _size(image_size)
        for name in names or datasets.names():
            finding = datasets.check(name, data_dir, image_size=size)
            say(f"{name}: {finding.status}. {finding.detail}")


@app.command()
def prepare(
    names: Annotated[list[str], typer.Argument(help="Datasets to download or make.")],
    data_dir: given.DataOption = None,
) -> None:
    """Download datasets with torchvision's own loaders; femnist is made from files that you have. What is there stays."""
    import datasets

    with explained():
        for name in names:
            finding = datasets.check(name, data_dir)
            if finding.status == "found":
                say(f"{name}: found. {finding.detail}; there is nothing to prepare.")
                continue
            datasets.prepare(name, data_dir)
            finding = datasets.check(name, data_dir)
            say(f"{name}: {finding.status}. {finding.detail}")


@app.command()
def show(
    dataset: str,
    partition: str,
    clients: ClientsOption = None,
    seed: SeedOption = 0,
    image_size: SizeOption = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it, to a .png, .svg or .pdf file.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Also write who has which examples under --seed, to a .json or .npz file: that partition is the same for all "
            "seeds of a run with --partition file:."
        ),
    ] = None,
    data_dir: given.DataOption = None,
) -> None:
    """Print how many examples of each class each client gets, for training and, where it has its own, for testing, and how
    skewed that is."""
    from datasets import partition_files
    from datasets import show as pictures

    with explained():
        if save:
            partition_files.check_suffix(save)
        dealt, images, clients = _named(dataset, partition, clients, image_size, data_dir)
        parts = pictures.tables(dealt, images, clients, seed)
        for name, table in parts.items():
            shown = f"{table.to_string()}\n\n{pictures.skew_of(table)}"
            typer.echo(f"{name}:\n{shown}\n" if len(parts) > 1 else shown)
        if groups := dealt.describe_groups(clients):
            typer.echo(groups)
        if isinstance(dealt, partition_files.FilePartition):
            if unused := dealt.describe_unused(len(images.train.labels), len(images.test.labels)):
                typer.echo(unused)
        if save:
            drawn = pictures.draw(dealt, images, clients, seed)
            partition_files.write(save, partition_files.Content(drawn.indices, drawn.test_indices, dealt.has_own_tests))
            if dealt.also:
                say(
                    f"{dealt.name} {dealt.also}, which {save} does not hold: it says who has which examples, and nothing else."
                )
            warn(f"Saved: {save}")
        if plot:
            title = f"{dataset}, {dealt.name}, {clients} clients, seed {seed}"
            pictures.draw_bubbles(parts["training"], plot, title, parts.get("testing"))
            warn(f"Saved: {plot}")


@app.command()
def elbow(
    dataset: str,
    partition: str,
    clients: ClientsOption = None,
    seed: SeedOption = 0,
    image_size: SizeOption = None,
    data_dir: given.DataOption = None,
) -> None:
    """Print the clustering loss of clients' label distributions for each number of clusters, and the number at its elbow, which
    FedConcat has with num_clusters=elbow."""
    with explained():
        from algorithms.shared.clustering import elbow_of, inertias, seed_of_clusters
        from datasets import show as pictures

        dealt, images, clients = _named(dataset, partition, clients, image_size, data_dir)
        counts = pictures.tables(dealt, images, clients, seed)["training"].drop(columns="total").to_numpy("float32")
        shares = (counts / counts.sum(1, keepdims=True)).astype(float)  # in single precision, as clients report them
        curve = inertias(shares, seed_of_clusters(seed))
        best = elbow_of(curve)
        typer.echo("K   sum of squared distances")
        for number, loss in enumerate(curve, start=1):
            typer.echo(f"{number:<3} {loss:.4f}{'  <- elbow' * (number == best)}")
        why = "the largest distance below the line between both ends, each axis from 0 to 1"
        typer.echo(f"K = {best}: {why if best > 1 else 'the curve has no elbow'}; K from 1 to {len(curve)}.")


def _named(dataset: str, partition: str, clients: int | None, image_size: str | None, data_dir: Path | None):
    """The partition and the dataset that a command names, and the clients, as many as those of a run if it names none."""
    import datasets
    from datasets import partitions

    dealt, images = partitions.parse(partition), datasets.load(dataset, data_dir, image_size=_size(image_size))
    return dealt, images, clients or partitions.usual_clients(partition, images.num_writers) or 40


def _size(text: str | None):
    """Value of `--image-size`."""
    from datasets.image_size import read_image_size

    return None if text is None else read_image_size(given.scalar(text))
