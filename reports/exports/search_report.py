"""What a search has found: a table of its configurations, and figures of its course."""

from pathlib import Path

import pandas as pd
from tabulate import tabulate

from bench.files import write_file
from bench.results.store import below
from bench.tuning.outcomes import Outcome
from bench.tuning.study import Study
from reports.exports import search_figures
from reports.figures import lines as figures


def write(study: Study, outcomes: list[Outcome], with_figures: bool = True) -> list[Path]:
    """Saves the table, and figures if they are wanted, under `<results>/reports/search-<name>...` and returns the files."""
    folder = study.store.folder / "reports"
    stem = f"search-{study.search.name}"
    table = configurations(study, outcomes)
    paths = {suffix: below(folder, f"{stem}.{suffix}") for suffix in ("md", "csv")}
    alike = sum(one.is_like(outcomes[0]) for one in outcomes)
    write_file(paths["md"], markdown(study, table, alike))
    write_file(paths["csv"], table.round({"mean": 6, "std": 6}).to_csv(index=False, lineterminator="\n"))
    drawn = [*paths.values()]
    for name, figure in (search_figures.draw(study, outcomes) if with_figures else {}).items():
        for suffix in figures.FORMATS:
            drawn.append(below(folder, f"{stem}-{name}.{suffix}"))
            figures.save(figure, drawn[-1], bbox_inches="tight")  # Optuna's labels would be cut
    return drawn


def configurations(study: Study, outcomes: list[Outcome]) -> pd.DataFrame:
    """One line per configuration, the best first: hyper-parameters, mean and std (population) over seeds of the validation
    metric in percent, rounds, whether it was trained to the end, how many seeds diverged, whether another search has played
    it, and its runs."""
    lines = []
    for one in outcomes:
        scores = pd.Series(one.scores) * 100
        std = scores.std(ddof=0) if len(scores) > 1 else float("nan")
        numbers = {
            "mean": scores.mean(),
            "std": std,
            "rounds": one.rounds,
            "whole": one.complete,
            "diverged": one.diverged,
            "found": one.from_others,
        }
        lines.append({**one.params, **numbers, "run_ids": " ".join(one.runs)})
    return pd.DataFrame(
        lines, columns=[*study.search.space, "mean", "std", "rounds", "whole", "diverged", "found", "run_ids"]
    )


def markdown(study: Study, table: pd.DataFrame, alike: int) -> str:
    """The table for people.

    Args:
        alike: configurations whose means print like the best one's.
    """
    search, rounds = study.search, study.search.template.rounds
    metric = f"validation {search.metric.replace('_', ' ')} (%)"
    rows = [
        [
            *(f"{line[key]:.4g}" if isinstance(line[key], float) else line[key] for key in search.space),
            _reached(line, len(search.configs)),
            f"{line['rounds']}" if line["whole"] else f"{line['rounds']} of {rounds}, stopped",
        ]
        for line in table.to_dict("records")
    ]
    config = search.template
    title = f"# Search: {config.algorithm['name']} on {config.dataset}, {config.partition}"
    body = tabulate(rows, [*search.space, metric, "rounds"], tablefmt="pipe", stralign="left", disable_numparse=True)
    seeds, share = ", ".join(map(str, search.configs)), f"{config.validation_share:.0%} of each class of each client"
    several = f"Mean±std (population) over seeds {seeds}" if len(search.configs) > 1 else f"Of seed {seeds}"
    notes = [
        f"{several} in the last round that was played; {share} was set aside; no test image was read.",
        *(
            f"{key}: {parameter.describe(search.searcher)}; {parameter.origin(search.searcher)}."
            for key, parameter in search.space.items()
        ),
        f"Searcher {search.searcher}, scheduler {search.scheduler}; {search.wanted} configurations to try.",
    ]
    if found := table["found"].sum():
        notes.append(f"{found} of the configurations were found in the store: other searches had played them.")
    if alike > 1:
        notes.append(f"{alike} configurations print alike at the top: what is chosen among them means little.")
    if study.search.scheduler != "none" and not table["whole"].all():
        notes.append(
            f"Figures of values are of the {table['whole'].sum()} configurations that were trained to the end."
        )
    return f"{title}\n\n{body}\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"


def _reached(line: dict, seeds: int) -> str:
    """ "53.2±0.4", with what must be known about it."""
    number = f"{line['mean']:.1f}" + ("" if pd.isna(line["std"]) else f"±{line['std']:.1f}")
    return number + (f", {line['diverged']} of {seeds} seeds diverged and count as 0" if line["diverged"] else "")
