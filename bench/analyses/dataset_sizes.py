"""Table 8 of FedConcat (Diao et al., AAAI 2024): sizes of the datasets, counted in the images that are here."""

import json
from pathlib import Path

import datasets
from bench.files import write_file
from datasets import resized
from reports.exports import encoder_tables

DATASETS = ("cifar10", "svhn", "fmnist", "cifar100", "tinyimagenet")


def dataset_statistics(data_dir: Path | None) -> dict[str, dict | None]:
    """What was found of each dataset of the paper.

    Returns:
        dataset -> "n_train" and "n_test" in examples, "n_classes", "kind" of the files, "digest" and "note" (how they differ
        from the complete dataset); None where there are no images.

    Raises:
        datasets.DataError: if images are there but damaged.
    """
    return {name: _statistics(name, data_dir) for name in DATASETS}


def run(data_dir: Path | None, results_dir: Path, budget: str = "paper") -> dict[str, list[Path]]:
    """Counts, and saves the table under `<results_dir>/reports/`; the results directory must be locked.

    Args:
        budget: part of the files' names only: counting is the same at all of them.

    Returns:
        "paper_table8" -> the files, Markdown first.
    """
    name, found = f"paper_table8@{budget}", dataset_statistics(data_dir)
    folder = Path(results_dir) / "analyses"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / f"{name}.json", json.dumps({"datasets": found}, indent=1) + "\n")
    notes = [
        f"{'Incomplete data' if facts['note'] else 'Data'}: {dataset} from {facts['kind']} ({facts['digest']})."
        for dataset, facts in found.items()
        if facts
    ]
    report = encoder_tables.size_report(name, found, tuple(notes))
    return {"paper_table8": list(encoder_tables.write(report, results_dir).values())}


def _statistics(name: str, data_dir: Path | None) -> dict | None:
    try:
        dataset = resized.load(name, "fedconcat", data_dir)
    except datasets.MissingData:
        return None
    return {
        "n_train": len(dataset.train.labels),
        "n_test": len(dataset.test.labels),
        "n_classes": dataset.num_classes,
        "kind": dataset.kind,
        "digest": dataset.digest,
        "note": dataset.note,
    }
