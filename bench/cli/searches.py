"""What the options of `run` and `describe` say about searches of hyper-parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.errors import require_known

if TYPE_CHECKING:
    from bench.experiments.grid_schema import GridSpec
    from bench.experiments.spec import TuningOptions


def by_ruleset(
    ruleset: str | None,
    studies: int | None,
    grid: "GridSpec",
    budget: str,
    others: Mapping[str, Any],
    values: Mapping[str, Any],
) -> "TuningOptions | None":
    """How the hyper-parameters of a grid are chosen by a ruleset; None where nothing is searched.

    Args:
        others: of options that a ruleset decides itself, None for those that are left out.
        values: as in `search_options`.
    """
    from bench.experiments.spec import ALL, RULESETS, SAMPLES, STUDIES, TUNED, TuningOptions, by_study

    if ruleset is None:
        raise ValueError("--studies is for --ruleset tuned; leave it out, or name that ruleset.")
    require_known("value of --ruleset", [ruleset], RULESETS)
    budget = budget or grid.usual_budget
    asked = {key: value for key, value in {**values, "studies": studies}.items() if value is not None}
    free = {"samples", "space", "validation_share", "studies"} if ruleset == TUNED else set()
    refused = [key for key, value in others.items() if value is not None] + [key for key in asked if key not in free]
    if refused:
        options = " and ".join("--only seed" if key == "only" else f"--{key.replace('_', '-')}" for key in refused)
        searches = ruleset == TUNED or not {*refused} <= {*values, "studies", "tuned"}
        does = "decides that itself" if searches else "searches nothing"
        seeds = others.get("seeds")
        hint = f", or set seeds in the grid, as budgets: {{{budget}: {{seeds: [{seeds}]}}}}" if seeds else ""
        raise ValueError(f"{options}: the ruleset {ruleset} {does}; leave one of the two out{hint}.")
    here = grid.budgets.get(budget)
    several = [one for one in grid.tuning if here and here.tuning == "all" and len(one.points("all")) > 1]
    if several and ruleset != TUNED:
        raise ValueError(
            f"{grid.name} has several values of {', '.join(several[0].options)} to choose from, but the ruleset defaults "
            "chooses nothing; take --budget small, which has one, or leave --ruleset out."
        )
    if ruleset != TUNED:
        return None
    if (count := asked.pop("studies", STUDIES)) < 1:
        raise ValueError(f"--studies must be at least 1, but got {count}.")
    own = {"samples": SAMPLES, "space": ALL} | asked
    tuning = TuningOptions("random", compares=True, studies=by_study(grid.seeds_at(budget), count), **own)
    tuning.validate()
    return tuning


def search_options(
    tuned: str | None, searched_grid: str, search_seeds: Sequence[int], values: Mapping[str, Any]
) -> "TuningOptions | None":
    """How the hyper-parameters of a grid are searched on validation data; None if they are not.

    Args:
        searched_grid: name of the grid if it is one that is searched, at its budget, without being asked; "" for others.
        search_seeds: those that the grid names; none for those of its table.
        values: of the options that only searches read, as fields of TuningOptions; None for those that are left out.
    """
    require_known("value of --tuned", [tuned or "test"], ("test", "validation"))
    if tuned == "test" and searched_grid:
        raise ValueError(
            f"{searched_grid} chooses hyper-parameters on validation data, as published: leave --tuned out, or fix them by "
            "--set or by --budget small."
        )
    given_values = {key: value for key, value in values.items() if value is not None}
    if tuned != "validation" and not searched_grid:
        if given_values:
            options = " and ".join(f"--{key.replace('_', '-')}" for key in given_values)
            raise ValueError(f"{options}: only searches read that; use it with --tuned validation.")
        return None
    from bench.experiments.spec import ALL, PROTOCOL, TuningOptions

    samples = None if values["searcher"] == "grid" else 8
    own = TuningOptions("random", samples=samples, space=ALL, search_seeds=tuple(search_seeds) or None, compares=True)
    usual = PROTOCOL if searched_grid else own
    tuning = replace(usual, **given_values)
    tuning.validate()
    return tuning
