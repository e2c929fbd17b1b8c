"""Tables 6, 7 and 8 of FedConcat: losses on frozen encoders and dataset sizes, in the paper's layout."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.files import write_file
from reports.formats import latex, markdown
from reports.published.lookup import find
from reports.tables.layout import Cell, Row, Table
from reports.tables.report import Report

LOSSES = {"cls_loss": "Classification loss", "rec_loss": "Reconstruction loss"}
SIZES = {"n_train": "#Training", "n_test": "#Test", "n_classes": "#Classes"}

_TITLES = {
    6: "Mutual information with and without exchanging encoders",
    7: "Encoders on the examples of both clients",
}

# Row labels, and the name of the row's published numbers.
_KEYS = {6: ("Encoder", "Exchange"), 7: ("Encoder",)}
_ROWS = {
    6: {
        "fe1-own": ("f_e1", "no"),
        "fe1-exchange": ("f_e1", "yes"),
        "fe2-own": ("f_e2", "no"),
        "fe2-exchange": ("f_e2", "yes"),
    },
    7: {"fe1": ("f_e1",), "fe2": ("f_e2",), "favg": ("f_avg",), "fe": ("f_e",)},
}
_ALGORITHMS = {"favg": "fedavg", "fe": "fedconcat"}  # of the published numbers; the others are of local models


@dataclass(frozen=True)
class Subject:
    """What losses were measured on.

    Attributes:
        name: of the files.
        dataset, partition, model: as asked for.
        substitute: the dataset that stood in, or "".
        complete: whether all images were there.
        notes: footnotes about how it was done, plain sentences.
        absent: why a loss is None.
    """

    name: str
    dataset: str
    partition: str
    model: str
    substitute: str
    complete: bool
    notes: tuple[str, ...]
    absent: str = "diverged"


def loss_report(number: int, losses: Mapping[tuple[str, str], float | None], about: Subject) -> Report:
    """Table 6 or 7.

    Args:
        number: of the table in the paper.
        losses: (row such as "fe1-own", metric such as "cls_loss") -> loss, None where there is none.
    """
    lines = []
    for variant, labels in _ROWS[number].items():
        for metric in LOSSES:
            line = {"table": number, "dataset": about.dataset, "encoder": labels[0], "variant": variant}
            published = _published_loss(number, variant, metric, about)
            lines.append({**line, **_compare(metric, losses[variant, metric], published)})
    cells = pd.DataFrame(lines).assign(substitute=about.substitute, absent=about.absent)
    # Table 6 compares the data that one encoder meets, Table 7 the encoders.
    rivals = cells.groupby(["metric", "encoder"] if number == 6 else ["metric"])["value"]
    least = cells["value"].round(4) == rivals.transform("min").round(4)
    cells["best"] = least & (about.substitute == "")
    shown = {(line.variant, line.metric): _show_loss(line) for line in cells.itertuples()}
    rows = (
        Row(labels, tuple(shown[variant, metric] for metric in LOSSES)) for variant, labels in _ROWS[number].items()
    )
    table = Table("loss", _KEYS[number], tuple(LOSSES.values()), tuple(rows))
    notes = (*_LOSS_NOTES, *([_EXCHANGED] if number == 6 else [_POOLED]), *_marks(cells), *about.notes)
    return Report(about.name, _TITLES[number], (table,), notes, cells)


def size_report(name: str, sizes: Mapping[str, Mapping[str, int] | None], notes: tuple[str, ...]) -> Report:
    """Table 8.

    Args:
        name: of the files.
        sizes: dataset -> metric such as "n_train" -> count; None where there are no images.
        notes: footnotes about the images.
    """
    lines = []
    for dataset, counts in sizes.items():
        for metric in SIZES:
            published = _published("8", dataset, "none", "", "", metric, n_clients="", participation="", model="")
            count = counts[metric] if counts else None
            lines.append({"table": 8, "dataset": dataset, **_compare(metric, count, published)})
    cells = pd.DataFrame(lines)
    shown = {(line.dataset, line.metric): _show_count(line) for line in cells.itertuples()}
    rows = (Row((dataset,), tuple(shown[dataset, metric] for metric in SIZES)) for dataset in sizes)
    table = Table("examples", ("dataset",), tuple(SIZES.values()), tuple(rows))
    notes = ("Counted in the images that are here, in examples.", _PARENTHESES.format(8), *notes)
    cells = cells.astype({"value": "Int64", "difference": "Int64"})
    return Report(name, "Dataset sizes", (table,), notes, cells)


def write(report: Report, results_dir: Path) -> dict[str, Path]:
    """Saves a table as Markdown, LaTeX and CSV under `<results_dir>/reports/`; returns format -> path."""
    folder = Path(results_dir) / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "md": markdown.render(report),
        "tex": latex.render(report),
        "csv": report.cells.round(6).to_csv(index=False, lineterminator="\n"),
    }
    paths = {format: folder / f"{report.name}.{format}" for format in texts}
    for format, path in paths.items():
        write_file(path, texts[format])
    return paths


_LOSS_NOTES = (
    "Losses over the examples that a head was trained on, after its training: cross-entropy (nats) of a linear "
    "classifier, and mean squared error per pixel (in [0, 1]) of a decoder, both on frozen features. Smaller: the features "
    "tell more about classes, or about images.",
)
_EXCHANGED = "Exchange: whether the heads are trained on the other client's examples instead of the encoder's own."
_POOLED = "Heads are trained on the examples of both clients; f_avg: average of f_e1 and f_e2; f_e: both concatenated."
_PARENTHESES = "In parentheses: published value (fedconcat, Table {}) and difference, measured minus published."


def _marks(cells: pd.DataFrame):
    if cells["best"].any():
        yield "Bold: the smaller loss, as in the paper."
    if (cells["published"] != "").any():
        yield _PARENTHESES.format(cells["table"].iloc[0])


def _published_loss(number: int, variant: str, metric: str, about: Subject) -> str:
    if about.substitute or not about.complete:
        return ""
    algorithm = _ALGORITHMS.get(variant, "local")
    setting = {"n_clients": "2", "participation": "1", "model": about.model}
    return _published(str(number), about.dataset, about.partition, algorithm, variant, metric, **setting)


def _published(table, dataset, partition, algorithm, variant, metric, **setting) -> str:
    subject = {"dataset": dataset, "partition": partition, "algorithm": algorithm, "variant": variant}
    found = find(paper="fedconcat", table=table, metric=metric, **subject, **setting)
    return found.mean if found and found.same_setting else ""


def _compare(metric: str, value: float | None, published: str) -> dict:
    """A measured value, the published one as printed, and their difference; NaN where there is none."""
    value = math.nan if value is None else value
    difference = value - float(published) if published else math.nan
    return {"metric": metric, "value": value, "published": published, "difference": difference}


def _show_loss(line) -> Cell:
    caveats = [f"on {line.substitute}"] if line.substitute else []
    if math.isnan(line.value):
        return _absent(line.absent, line.published, *caveats)
    published = (line.published, f"{line.difference:+.4f}") if line.published else ()
    return Cell(f"{line.value:.4f}", tuple(caveats), published, line.best)


def _show_count(line) -> Cell:
    published = f"{int(line.published):,}"
    if math.isnan(line.value):
        return _absent(f"no data: {line.dataset}", published)
    return Cell(f"{int(line.value):,}", (), (published, f"{int(line.difference):+,}"))


def _absent(why: str, published: str, *caveats: str) -> Cell:
    """A cell without a measured value, hence without a difference from the published one."""
    return Cell("", (why, *caveats, *([f"published {published}"] if published else [])))
