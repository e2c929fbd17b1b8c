"""Figures of a search: Optuna's own, in the style of all others, and how many configurations survived each rung."""

import warnings

from bench.outcomes import Outcome
from bench.searches import stops
from bench.study import Study
from reports import figures
from reports.looks import COLOURS


def draw(study: Study, outcomes: list[Outcome]) -> dict:
    """Figures by name: best-so-far and slices, importance where there is something to compare, and how many configurations
    survived each rung of a scheduler."""
    import matplotlib
    import optuna
    from optuna.visualization import matplotlib as plots

    found = {}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # of limits, where all configurations have one value
        values = {trial.value for trial in study.optuna.get_trials(deepcopy=False) if trial.value is not None}
        name = f"Validation {study.search.metric.replace('_', ' ')} (%)"
        if values:
            found["history"] = plots.plot_optimization_history(study.optuna, target=_percent, target_name=name)
            found["slice"] = plots.plot_slice(study.optuna, target=_percent, target_name=name)
        if len(values) > 1 and len(study.search.space) > 1:
            found["importance"] = plots.plot_param_importances(study.optuna, target=_percent, target_name=name)
    drawn = {title: _in_style(axes, study) for title, axes in found.items()}
    if study.search.scheduler != "none" and outcomes:
        drawn["rungs"] = _rungs(study, outcomes)
    return drawn


def _percent(trial) -> float:
    return 100 * trial.value


def _in_style(axes, study: Study):
    """Optuna gives axes, one or several, in a style of its own."""
    from matplotlib.ticker import MaxNLocator

    figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
    config = study.search.template
    for title in (*figure.texts, *(one.title for one in figure.axes)):
        title.set_text("")
    figure.suptitle(f"{config.algorithm['name']} on {config.dataset}, {config.partition}", fontsize=10)
    for one in figure.axes:
        one.set_facecolor("white")
        one.grid(color=figures.STYLE["grid.color"], linewidth=figures.STYLE["grid.linewidth"])
        for spine in one.spines.values():
            spine.set(edgecolor="black", linewidth=figures.STYLE["axes.linewidth"])
        of_trials = one.get_xlabel() == "Trial"
        if of_trials or one.get_ylabel() == "Trial":
            (one.xaxis if of_trials else one.yaxis).set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _rungs(study: Study, outcomes: list[Outcome]):
    """How many configurations were trained for at least so many rounds."""
    import matplotlib
    from matplotlib.figure import Figure

    rounds = stops(study.search)
    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(3.4, 2.2), layout="constrained")
        axes = figure.subplots()
        counts = [sum(one.rounds >= stop for one in outcomes) for stop in rounds]
        bars = axes.bar(range(len(rounds)), counts, color=COLOURS[0])
        axes.bar_label(bars, fontsize=7)
        axes.margins(y=0.12)  # room for the numbers
        axes.set_xticks(range(len(rounds)), rounds)
        axes.set(xlabel="Rounds", ylabel="Configurations trained\nfor at least so many")
        axes.grid(axis="x", visible=False)
    return figure
