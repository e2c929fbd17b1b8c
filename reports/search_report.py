"""What a search has found: a table of its configurations, and figures of its course."""

import warnings
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from bench.outcomes import Outcome
from bench.store import write_file
from bench.study import Study
from reports import figures
from reports.looks import COLOURS


def write(study: Study, outcomes: list[Outcome], with_figures: bool = True) -> list[Path]:
    """Saves the table, and figures if they are wanted, under `<results>/reports/search-<name>...` and returns the files."""
    folder = study.store.folder / "reports"
    stem = f"search-{study.search.name}"
    table = configurations(study, outcomes)
    paths = {suffix: folder / f"{stem}.{suffix}" for suffix in ("md", "csv")}
    write_file(paths["md"], markdown(study, table))
    write_file(paths["csv"], table.round({"mean": 6, "std": 6}).to_csv(index=False, lineterminator="\n"))
    drawn = [*paths.values()]
    for name, figure in (draw(study, outcomes) if with_figures else {}).items():
        for suffix in figures.FORMATS:
            drawn.append(folder / f"{stem}-{name}.{suffix}")
            figures.save(figure, drawn[-1], bbox_inches="tight")  # Optuna's labels would be cut
    return drawn


def configurations(study: Study, outcomes: list[Outcome]) -> pd.DataFrame:
    """One line per configuration, the best first: hyper-parameters, mean and std (population) over seeds of the validation
    metric in percent, rounds, whether it was trained to the end, and its runs."""
    lines = []
    for one in outcomes:
        scores = pd.Series(one.scores) * 100
        std = scores.std(ddof=0) if len(scores) > 1 else float("nan")
        numbers = {"mean": scores.mean(), "std": std, "rounds": one.rounds, "whole": one.whole}
        lines.append({**one.params, **numbers, "run_ids": " ".join(one.runs)})
    return pd.DataFrame(lines, columns=[*study.search.space, "mean", "std", "rounds", "whole", "run_ids"])


def markdown(study: Study, table: pd.DataFrame) -> str:
    """The table for people."""
    search, rounds = study.search, study.search.template.rounds
    metric = f"validation {search.metric.replace('_', ' ')} (%)"
    rows = [
        [
            *(f"{line[key]:.4g}" if isinstance(line[key], float) else line[key] for key in search.space),
            f"{line['mean']:.1f}" + ("" if pd.isna(line["std"]) else f"±{line['std']:.1f}"),
            f"{line['rounds']}" if line["whole"] else f"{line['rounds']} of {rounds}, stopped",
        ]
        for line in table.to_dict("records")
    ]
    config = search.template
    title = f"# Search: {config.algorithm['name']} on {config.dataset}, {config.partition}"
    body = tabulate(rows, [*search.space, metric, "rounds"], tablefmt="pipe", stralign="left", disable_numparse=True)
    seeds = ", ".join(map(str, search.configs))
    notes = [
        f"Mean±std (population) over seeds {seeds} in the last round that was played; {config.validation_share:.0%} of each "
        "class of each client was set aside; no test image was read.",
        *(
            f"{key}: {parameter.describe(search.searcher)}; {parameter.source}."
            for key, parameter in search.space.items()
        ),
        f"Searcher {search.searcher}, scheduler {search.scheduler}, at most {search.samples} configurations.",
    ]
    return f"{title}\n\n{body}\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"


def draw(study: Study, outcomes: list[Outcome]) -> dict:
    """Figures by name: best-so-far and slices, importance where there is something to compare, and how many configurations
    survived each rung of a scheduler."""
    import matplotlib
    import optuna
    from optuna.visualization import matplotlib as plots

    found = {}
    with matplotlib.rc_context(figures.STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        values = {trial.value for trial in study.optuna.get_trials(deepcopy=False) if trial.value is not None}
        name = f"validation {study.search.metric.replace('_', ' ')}"
        if values:
            found["history"] = plots.plot_optimization_history(study.optuna, target_name=name)
            found["slice"] = plots.plot_slice(study.optuna, target_name=name)
        if len(values) > 1 and len(study.search.space) > 1:
            found["importance"] = plots.plot_param_importances(study.optuna, target_name=name)
    drawn = {title: _figure_of(axes) for title, axes in found.items()}
    if study.search.scheduler != "none" and outcomes:
        drawn["rungs"] = _rungs(study, outcomes)
    return drawn


def _figure_of(axes):
    """Optuna gives axes, one or several."""
    return (axes if hasattr(axes, "figure") else axes.flat[0]).figure


def _rungs(study: Study, outcomes: list[Outcome]):
    """How many configurations were trained for at least so many rounds."""
    import matplotlib
    from matplotlib.figure import Figure

    from bench.searches import stops

    rounds = stops(study.search)
    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(3.4, 2.2), layout="constrained")
        axes = figure.subplots()
        counts = [sum(one.rounds >= stop for one in outcomes) for stop in rounds]
        bars = axes.bar(range(len(rounds)), counts, color=COLOURS[0])
        axes.bar_label(bars, fontsize=7)
        axes.set_xticks(range(len(rounds)), rounds)
        axes.set(xlabel="Rounds", ylabel="Configurations trained\nfor at least so many")
        axes.grid(axis="x", visible=False)
    return figure
