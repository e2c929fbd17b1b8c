"""Figures of a search: Optuna's own, in the style of all others, and how many configurations survived each rung."""

import warnings
from typing import Any

from bench.tuning.outcomes import Outcome
from bench.tuning.search import Search, stops
from bench.tuning.study import Study
from reports.figures.lines import STYLE
from reports.figures.style import COLOURS
from reports.tables.names import Name, Names, axis_label


def title(search: Search) -> str:
    """What is searched, with names for people: "FedProx on CIFAR-10, Dir(0.5)", "MOON + CCVR on ..."."""
    config, names = search.template, Names()
    method = Name.join((names.value("algorithm", method) for method in search.methods), " + ")
    place = names.together(("dataset", "partition"), (config.dataset, config.partition))
    return Name.join([method, place], " on ").plain


def draw(study: Study, outcomes: list[Outcome]) -> dict:
    """Name -> figure: history, slices, importance (with several values and parameters), and rungs of a scheduler."""
    import matplotlib
    import optuna
    from optuna.visualization import matplotlib as plots

    found: dict[str, Any] = {}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # about axis limits, if all configurations have one value
        values = {trial.value for trial in study.optuna.get_trials(deepcopy=False) if trial.value is not None}
        name = f"Validation {study.search.metric.replace('_', ' ')} (%)"
        if values:
            # With a `target`, Optuna would omit the best value so far.
            found["history"] = plots.plot_optimization_history(study.optuna, target_name=name)
            found["slice"] = plots.plot_slice(study.optuna, target_name=name)
        if len(values) > 1 and len(study.search.space) > 1:
            found["importance"] = plots.plot_param_importances(study.optuna, target_name=name)
    drawn = {kind: _in_style(axes, study, name) for kind, axes in found.items()}
    if study.search.scheduler != "none" and outcomes:
        drawn["rungs"] = _rungs(study, outcomes)
    return drawn


def _in_style(axes, study: Study, metric: str):
    """The figure of Optuna's axes (one or several) in our style, with scores in percent instead of [0, 1]."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
    panels = [one for one in figure.axes if one.get_label() != "<colorbar>"]
    figure.set_size_inches(max(4.6, 2.6 * len(panels)), 2.8)
    for one in figure.axes:
        for loc in ("left", "center"):
            one.set_title("", loc=loc)
        if legend := one.get_legend():
            legend.remove()
        if len(one.get_legend_handles_labels()[0]) > 1:
            one.legend(loc="best", facecolor="white")
    for text in figure.texts:
        text.set_text("")
    figure.suptitle(title(study.search))
    for text in figure.findobj(Text):
        text.set(fontsize=STYLE["font.size"], color="black")
    for one in figure.axes:
        one.set_facecolor("white")
        one.tick_params(labelsize=STYLE["xtick.labelsize"], which="both", color="black", labelcolor="black")
        if one.get_ylabel() in (metric, "Objective Value"):
            one.set_ylabel(metric)
            one.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
        one.grid(color=STYLE["grid.color"], linewidth=STYLE["grid.linewidth"])
        for spine in one.spines.values():
            spine.set(edgecolor="black", linewidth=STYLE["axes.linewidth"])
        if one.get_xlabel() in study.search.space:
            one.set_xlabel(axis_label(one.get_xlabel()))
        keys = [label.get_text() for label in one.get_yticklabels()]
        if keys and {*keys} <= study.search.space.keys():  # of importances
            one.set_yticks(one.get_yticks(), [axis_label(key) for key in keys])
        of_trials = one.get_xlabel() == "Trial"
        if of_trials or one.get_ylabel() == "Trial":
            (one.xaxis if of_trials else one.yaxis).set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def _rungs(study: Study, outcomes: list[Outcome]):
    """Number of configurations that were trained for at least the rounds of each rung."""
    import matplotlib
    from matplotlib.figure import Figure

    rounds = stops(study.search)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.4, 2.2), layout="constrained")
        axes = figure.subplots()
        counts = [sum(one.rounds >= stop for one in outcomes) for stop in rounds]
        bars = axes.bar(range(len(rounds)), counts, color=COLOURS[0])
        axes.bar_label(bars, fontsize=7)
        axes.margins(y=0.12)  # room for the numbers
        axes.set_xticks(range(len(rounds)), [*map(str, rounds)])
        axes.set(xlabel="Rounds", ylabel="Configurations trained\nfor at least so many")
        axes.grid(axis="x", visible=False)
    return figure
