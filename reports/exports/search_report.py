"""Report of a search: a table of its configurations, and figures of its progress."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from bench.files import write_file
from bench.results.store import below
from bench.tuning.outcomes import Outcome
from bench.tuning.search import Search
from bench.tuning.study import Study
from reports.exports import search_figures
from reports.figures import lines as figures
from reports.formats.csv import to_csv
from reports.formats.markdown import pipe_table
from reports.tables.layout import percent
from reports.tables.names import Names


def write(study: Study, outcomes: list[Outcome], with_figures: bool = True) -> list[Path]:
    """Saves the table, and unless disabled the figures, as `<results>/reports/search-<name>...`; returns the files."""
    folder = study.store.folder / "reports"
    stem = f"search-{study.search.name}"
    table = configurations(study, outcomes)
    paths = {suffix: below(folder, f"{stem}.{suffix}") for suffix in ("md", "csv")}
    alike = sum(one.is_like(outcomes[0]) for one in outcomes)
    write_file(paths["md"], markdown(study, table, alike))
    write_file(paths["csv"], to_csv(table.round({"mean": 6, "std": 6})))
    drawn = [*paths.values()]
    for name, figure in (search_figures.draw(study, outcomes) if with_figures else {}).items():
        # Optuna's labels would be cut off.
        drawn += figures.save(figure, below(folder, f"{stem}-{name}"), bbox_inches="tight")
    return drawn


def configurations(study: Study, outcomes: list[Outcome]) -> pd.DataFrame:
    """One line per configuration, the best first.

    Columns: its hyper-parameters; mean and std (population) over seeds of the validation metric in percent; rounds; trained
    and saved (rounds of all seeds together, and those that stopping has saved); whole (whether it was trained for all rounds);
    diverged (number of seeds); found (whether another search had trained it); run_ids.
    """
    lines = []
    for one in outcomes:
        scores = pd.Series(one.scores) * 100
        numbers = {
            "mean": scores.mean(),
            "std": scores.std(ddof=0) if len(scores) > 1 else float("nan"),
            "rounds": one.rounds,
            "trained": one.trained,
            "saved": one.saved,
            "whole": one.complete,
            "diverged": one.diverged,
            "found": one.from_others,
        }
        lines.append({**one.params, **numbers, "run_ids": " ".join(one.runs)})
    columns = ("mean", "std", "rounds", "trained", "saved", "whole", "diverged", "found", "run_ids")
    return pd.DataFrame(lines, columns=[*study.search.space, *columns])


def markdown(study: Study, table: pd.DataFrame, alike: int) -> str:
    """The table as Markdown.

    Args:
        alike: number of configurations whose printed mean is that of the best one.
    """
    search, config = study.search, study.search.template
    rows = [
        [
            *(f"{line[key]:.4g}" if isinstance(line[key], float) else line[key] for key in search.space),
            _score(line, len(search.configs)),
            f"{line['rounds']}" if line["whole"] else f"{line['rounds']} of {config.rounds}, stopped",
        ]
        for line in table.to_dict("records")
    ]
    searched = [Names().heading(key).plain for key in search.space]
    header = [*searched, f"validation {search.metric.replace('_', ' ')} (%)", "rounds"]
    notes = "\n".join(f"- {note}" for note in _notes(study.search, table, alike))
    return f"# Search: {search_figures.title(search)}\n\n{pipe_table(header, rows)}\n\n{notes}\n"


def _notes(search: Search, table: pd.DataFrame, alike: int) -> Iterator[str]:
    """The protocol of the search, its spaces, and limits of its result."""
    seeds = ", ".join(map(str, search.configs))
    of_seeds = f"Mean±std (population) over seeds {seeds}" if len(search.configs) > 1 else f"Of seed {seeds}"
    share = f"{search.template.validation_share:.0%} of each class of each client"
    yield f"{of_seeds} in the last trained round; {share} was set aside; no test image was read."
    for key, parameter in search.space.items():
        name = Names().heading(key).plain
        name += f" ({key})" * (name.casefold() != key)  # which is what one types
        yield f"{name}: {parameter.describe(search.searcher)}; {parameter.origin(search.searcher)}."
    yield f"Searcher {search.searcher}, scheduler {search.scheduler}; {search.wanted} configurations to try."
    if found := table["found"].sum():
        yield f"{found} of the configurations were found in the store: other searches had trained them."
    if len(search.configs) > 1 and (table["diverged"] > 0).any():
        yield "A configuration that diverged with one of its seeds cannot be chosen."
    if alike > 1:
        yield f"{alike} configurations print alike at the top: what is chosen among them means little."
    own = table[~table["found"].astype(bool)]
    if search.scheduler != "none" and len(own):
        saved, trained = own["saved"].sum(), own["trained"].sum()
        yield f"Stopping has saved {saved} rounds; this search has trained {trained}, those of all seeds."
    if search.scheduler != "none" and not table["whole"].all():
        yield f"Figures of values are of the {table['whole'].sum()} configurations that were trained to the end."


def _score(line: dict, seeds: int) -> str:
    """ "53.2±0.4", with the number of diverged seeds; "diverged" if all have."""
    if line["diverged"] == seeds:
        return f"diverged with {'its seed' if seeds == 1 else 'all seeds'}"
    number = percent(line["mean"]) + ("" if pd.isna(line["std"]) else f"±{percent(line['std'])}")
    return number + (f", {line['diverged']} of {seeds} seeds diverged and count as 0" if line["diverged"] else "")
