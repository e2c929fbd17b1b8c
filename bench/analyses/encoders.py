"""What frozen encoders of two clients know: Tables 6 and 7, Figures 5 and 6 of FedConcat (Diao et al., AAAI 2024).

Clients 0 and 1 of a partition train one model each from a common start. Their encoders, the average of them, and both side
by side are frozen; a linear classifier and a decoder are trained on the features (`bench.analyses.encoder_heads`).
Differs from the paper: the decoder and the training of both heads are not published; the file of the analysis says which
are taken. Heads see images as they are, never augmented (the published dataset has no augmentation).
"""

import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

import bench
import datasets
from bench.analyses.cache import Parts
from bench.analyses.encoder_models import CLIENTS, Analysis
from bench.analyses.encoder_spec import EncoderSpec
from bench.errors import ConfigError, unknown
from bench.provenance import commit
from datasets import Dataset, resized
from reports.exports import encoder_tables
from reports.exports.encoder_tables import LOSSES, Subject
from reports.figures import encoder_scatter

TABLES = (6, 7)

# Row of a table -> encoder, and the examples its heads are trained on.
_ROWS = {
    6: {
        "fe1-own": ("fe1", "client 0"),
        "fe1-exchange": ("fe1", "client 1"),
        "fe2-own": ("fe2", "client 1"),
        "fe2-exchange": ("fe2", "client 0"),
    },
    7: {name: (name, "both") for name in ("fe1", "fe2", "favg", "fe")},
}


def run(
    spec: EncoderSpec,
    *,
    tables: Iterable[int] = TABLES,
    figures: Iterable[int] = (),
    view: str = "pca",
    data_dir: Path | None,
    results_dir: Path,
    substitutes: Mapping[str, str] | None = None,
    on_message: Callable[[str], None] = print,
) -> dict[str, list[Path]]:
    """Computes what is not finished, and saves tables and figures under `<results_dir>/reports/`.

    The results directory must be locked (`Store.locked`).

    Args:
        tables: 6, 7.
        figures: 5, 6.
        view: of the figures, "pca" or "tsne".
        substitutes: dataset without images -> dataset that stands in.
        on_message: is told what is done.

    Returns:
        "paper_table6", "paper_figure5"... -> the files; a table's first one is its Markdown.

    Raises:
        ValueError: if the settings do not fit the images.
        datasets.DataError: if there are no images, or damaged ones.
    """
    if view not in encoder_scatter.VIEWS:
        raise ValueError(unknown("view", view, encoder_scatter.VIEWS))
    asked = spec.local.dataset
    try:
        dataset = _load(asked, spec, data_dir, substitutes or {})
    except datasets.MissingData as error:
        if figures:  # a picture of nothing would say nothing
            raise
        on_message(str(error))
        return _without_images(spec, tables, results_dir)
    if dataset.name != asked:
        spec = spec.on(dataset.name)
        on_message(f"No images of {asked}: {dataset.name} stands in.")
    found = {"kind": dataset.kind, "digest": dataset.digest, "note": dataset.note}
    facts = {"settings": {**spec.given, "dataset": spec.local.dataset}, "data": found}
    analysis = Analysis(spec, dataset, Parts(results_dir, f"encoders@{spec.label}", facts, _made(), on_message))
    files = {}
    for number in tables:
        name = f"paper_table{number}"
        losses = {
            (row, metric): analysis.loss(metric, *place) for row, place in _ROWS[number].items() for metric in LOSSES
        }
        report = encoder_tables.loss_report(number, losses, _subject(f"{name}@{spec.label}", asked, analysis))
        files[name] = list(encoder_tables.write(report, results_dir).values())
    for number in figures:
        name = f"paper_figure{number}"
        stem = Path(results_dir) / "reports" / f"{name}-{view}@{spec.label}"
        files[name] = analysis.draw(number, view, stem)
    return files


def _without_images(spec: EncoderSpec, tables: Iterable[int], results_dir: Path) -> dict[str, list[Path]]:
    """Tables that say where there is no data, and what is published there; nothing is computed."""
    local, files = spec.local, {}
    for number in tables:
        name = f"paper_table{number}"
        about = Subject(
            name=f"{name}@{spec.label}",
            dataset=local.dataset,
            partition=local.partition,
            model=local.model,
            substitute="",
            complete=True,
            notes=(f"No images of {local.dataset}: nothing was measured.",),
            absent=f"no data: {local.dataset}",
        )
        losses = {(row, metric): None for row in _ROWS[number] for metric in LOSSES}
        files[name] = list(
            encoder_tables.write(encoder_tables.loss_report(number, losses, about), results_dir).values()
        )
    return files


def _load(asked: str, spec: EncoderSpec, data_dir: Path | None, substitutes: Mapping[str, str]) -> Dataset:
    """The images, or those of the dataset that stands in."""
    unused = [name for name in substitutes if name != asked]
    if unused:
        raise ConfigError([f"--substitute {name}=...: the analysis uses {asked}." for name in unused])
    try:
        return resized.load(asked, spec.local.transform, data_dir, spec.local.image_size)
    except datasets.MissingData:
        if asked not in substitutes:
            raise
    return resized.load(substitutes[asked], spec.local.transform, data_dir, spec.local.image_size)


def _subject(name: str, asked: str, analysis: Analysis) -> Subject:
    """What the tables say about the measurement."""
    spec, local, dataset = analysis.spec, analysis.spec.local, analysis.dataset
    counts = analysis.task.federation.label_counts[CLIENTS]
    owned = [", ".join(dataset.classes[label] for label in row.nonzero().flatten().tolist()) for row in counts]
    clients = "; ".join(
        f"client {client}: {len(analysis.rows[client]):,} examples ({owned[client]})" for client in CLIENTS.tolist()
    )
    options, width = spec.options, spec.options.decoder_width
    decoder = f"one hidden layer of {width} ReLU units" if width else "one linear layer"
    notes = [
        f"The first two of {local.clients} clients of {local.partition}, seed {local.seed}: {clients}.",
        f"Encoders: {local.local_epochs} local epochs from one initial model. Heads: {options.head_epochs} epochs, learning "
        f"rate {options.head_lr:g}; decoder: {decoder}, sigmoid. Budget {spec.label}.",
        "Differs from the paper: it does not say what the decoder is and how long heads are trained.",
    ]
    if spec.label != "paper":
        notes.append(f"Budget {spec.label} is not the paper's, so differences from published values mean little.")
    substitute = dataset.name if dataset.name != asked else ""
    if substitute:
        notes.append(
            f"{asked} was replaced by {substitute}: these cells check the mechanics, not {asked}, and have no published "
            "counterpart."
        )
    if dataset.note:
        notes.append(f"{dataset.name} was incomplete ({dataset.note}): these cells have no published counterpart.")
    notes.append(f"Data: {dataset.name} from {dataset.kind} ({dataset.digest}).")
    return Subject(name, asked, local.partition, local.model, substitute, not dataset.note, tuple(notes))


def _made() -> dict:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {"versions": versions | {"skewbench": bench.__version__}, "commit": commit()}
