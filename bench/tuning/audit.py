"""Whether the cells of a stored grid are those that its file gives, with the hyper-parameters that its searches give.

Nothing is trained: the grid is expanded as `run` would do it, and each choice is made again from the stored validation runs.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import ConfigError
from bench.experiments import grid_files
from bench.experiments.cells import Cell, cell_key, is_laid_out_as
from bench.experiments.grid_loading import load_grid, single
from bench.experiments.grid_schema import GridSpec
from bench.experiments.images import Images
from bench.experiments.labels import value_of
from bench.experiments.selection import Selection, fit_to_images, select_cells, with_chosen
from bench.experiments.spec import ALL, OWN, PROTOCOL, TUNED, ExperimentSpec, TuningOptions, by_study
from bench.results.ids import unversioned
from bench.results.omitted_defaults import spell_out
from bench.results.records import StoredCell, StoredGrid, StoredLayout
from bench.results.store import Store
from bench.tuning.outcomes import ranked, validation_runs
from bench.tuning.search import Search
from bench.tuning.select import best_of, describe_choice, searches_of
from bench.tuning.study import could_propose

_CHOICE = ("hparams", "metric", "seeds", "share", "searcher", "scheduler")  # of a cell, and how it was made
# Settings that may follow from incomplete images.
_OF_IMAGES = {"clients", "first_clients", "train_examples", "test_examples"}


class Audit(NamedTuple):
    """What came out for a stored grid.

    Attributes:
        differs: whether a cell is another one than the grid gives.
        says: the same in one line.
    """

    differs: bool
    says: str


class _Contradiction(Exception):
    """In what the description of a stored grid is not that of its name, or of its rules."""


def audit(store: Store, grid: StoredGrid, file: Path | None = None) -> Audit:
    """Expands a stored grid again, and compares its cells.

    Args:
        file: the grid's YAML file, where it is not where its author had it.
    """
    try:
        return _compared(store, grid, _specs(store, grid, file))
    except _Contradiction as error:
        return Audit(True, f"DIFFERS: {error}")
    except (ValueError, OSError) as error:
        return Audit(False, f"cannot be expanded here: {' '.join(str(error).split())}")
    except Exception as error:  # of the code of a lab, or of a file that no version of the program has written
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Audit(False, f"cannot be expanded here: it ends with {said}")


def _specs(store: Store, stored: StoredGrid, file: Path | None) -> list[ExperimentSpec]:
    """The experiment that a stored grid is, by its name; several where the name leaves it open how it was searched.

    Raises:
        ConfigError, OSError: if there is none here.
        _Contradiction: if it says of itself what its name does not say.
    """
    grid, label = _grid(stored, file), f"{stored['grid']}@{stored['budget']}"
    names = sorted(grid.budgets, key=len, reverse=True)
    budget = next((name for name in names if f"{stored['budget']}+".startswith(f"{name}+")), "")
    if not budget:
        raise ConfigError([f"its grid has no budget of which {stored['budget']} could be a name."])
    if (now := grid.digest(budget)) != stored["digest"]:
        raise ConfigError([f"the file of its grid has changed since (its digest was {stored['digest']} and is {now})."])
    rules = stored.get("ruleset")
    spec = ExperimentSpec(
        grid,
        budget,
        overrides=stored.get("overrides", {}),
        seeds=None if rules else [*dict.fromkeys(cell["seed"] for cell in stored["cells"])],
        substitutes={cell["dataset"]: cell["substitute"] for cell in stored["cells"] if cell["substitute"]},
        ruleset=rules["name"] if rules else "",
    )
    specs = [replace(spec, tuning=tuning) for tuning in _tunings(store, stored, grid, budget)]
    fitting = [one for one in specs if label in (one.label, *one.earlier_labels)]
    if not fitting:
        raise _Contradiction(f"by its settings and searches it would be called {specs[0].label}")
    return fitting


def _names(stored: StoredGrid) -> set[str]:
    """Names of the searches of a stored grid."""
    return {cell["tuned"]["search"] for cell in stored["cells"] if "tuned" in cell}


def _grid(stored: StoredGrid, file: Path | None) -> GridSpec:
    """The grid of a file, of ours, or of one setting."""
    name, source = unversioned(stored["grid"]), stored.get("source", "")
    if file:
        return load_grid(str(file))
    if source:
        if not Path(source).is_file():  # a pipe would wait for a writer
            raise ConfigError([f"its file {Path(source).name} is not here; --grid FILE names one."])
        return load_grid(source)
    if grid_files.is_ours(name):
        return load_grid(name)
    first = stored["cells"][0]
    overrides = stored.get("overrides", {})
    settings = {"dataset": first["dataset"], "partition": first["config"]["partition"], "algorithm": first["algorithm"]}
    found = single(settings, [0], overrides)
    if found.stored_name != stored["grid"]:
        raise ConfigError([f"no grid that is called {stored['grid']} comes with this version of the program."])
    return found


def _tunings(store: Store, stored: StoredGrid, grid: GridSpec, budget: str) -> list[TuningOptions | None]:
    """How the hyper-parameters of a stored grid may have been chosen; None for no search. Its name says all but the number of
    configurations, and whether the searches were for a comparison."""
    rules = stored.get("ruleset")
    if stored.get("chosen_on", "test") != "validation" and not (rules and rules["name"] == TUNED):
        return [None]
    parts = dict(part.partition("=")[::2] for part in stored["budget"].split("+")[1:])
    given: dict[str, Any] = {key: parts[key] for key in ("space", "metric") if key in parts}
    if "validation_share" in parts:
        given["validation_share"] = float(parts["validation_share"])
    if rules:
        studies = by_study(grid.seeds_at(budget), len(rules["studies"]))
        if rules["name"] != TUNED or [[*study] for study in studies] != rules["studies"]:
            raise _Contradiction(f"its studies have the seeds {rules['studies']}, those of its rules {studies}")
        given = {"space": ALL, "samples": rules["samples"], **given}
        return [TuningOptions("random", compares=True, studies=studies, **given)]
    if "tuned" not in parts:
        return [PROTOCOL]
    given["searcher"], _, scheduler = parts["searcher"].partition("-")
    if "search_seeds" in parts:
        given["search_seeds"] = tuple(map(int, parts["search_seeds"].split(",")))
    searches = [found for name in sorted(_names(stored)) if (found := store.search(name))]
    samples = max((found.get("samples") or 0 for found in searches), default=0)
    given |= {"scheduler": scheduler or "none", "samples": samples or (None if given["searcher"] == "grid" else 1)}
    return [
        TuningOptions(**{"space": space, **given}, compares=compares) for space, compares in ((ALL, True), (OWN, False))
    ]


def _selection(spec: ExperimentSpec) -> Selection:
    """All cells of an experiment, on complete images, or on those of the datasets that replaced others."""
    selection = select_cells(spec)
    if not spec.substitutes:
        return selection
    absent = dict.fromkeys(spec.substitutes, "")
    return fit_to_images(selection, spec, Images({}, absent, spec.substitutes, {}))


def _compared(store: Store, stored: StoredGrid, specs: Iterable[ExperimentSpec]) -> Audit:
    """What the cells of a stored grid are, compared with those of the experiment whose searches they name.

    Raises:
        ConfigError: if it cannot be expanded.
    """
    layout, found = stored["report"], []
    there = {_place(layout, cell): cell for cell in stored["cells"]}
    for spec in specs:
        selection = _selection(spec)
        held = [cell for cell in selection.selected if _place(layout, cell.to_json()) in there]
        found.append((spec, selection, held, searches_of(spec, held) if spec.tuning else {}))
    spec, selection, held, searches = max(
        found, key=lambda one: len(_names(stored) & {search.name for search in one[3].values()})
    )
    chosen, unknown = _choices(store, spec, held, searches, there, layout)
    given = {_place(layout, cell.to_json()): cell for cell in with_chosen(selection, spec, chosen).selected}
    cells = [cell for cell in stored["cells"] if cell["run"]]
    labels = [*layout["rows"], layout["columns"]]
    differing = [
        f"{' '.join(str(value_of(cell, key)) for key in labels)} seed {cell['seed']}: {difference}"
        for cell in cells
        if (difference := _difference(store, cell, given.get(_place(layout, cell))))
    ]
    if differing:
        more = f" (and in {len(differing) - 1} more of {len(cells)} cells)" if len(differing) > 1 else ""
        return Audit(True, f"DIFFERS in {differing[0]}{more}")
    said = [f"follows its grid in {len(cells)} of {len(given)} cells"]
    if searches:
        said.append(f"{len(searches) - len(unknown)} of {len(searches)} choices were made again from validation runs")
    if unknown:
        said.append(f"others cannot be: {unknown[0]}")
    if not is_laid_out_as(spec.grid, stored):
        said.append("the title or the layout of its table is another one")
    return Audit(False, "; ".join(said))


def _place(layout: StoredLayout, cell: StoredCell) -> tuple[str, int]:
    return cell_key(layout, cell), cell["seed"]


def _choices(
    store: Store,
    spec: ExperimentSpec,
    cells: Iterable[Cell],
    searches: Mapping[str, Search],
    there: Mapping[tuple[str, int], StoredCell],
    layout: StoredLayout,
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Place of cells -> what their search has chosen; where that cannot be known, what the first stored cell says, and why."""
    chosen: dict[str, Mapping[str, Any]] = {}
    unknown = []
    for cell in cells:
        place = spec.tuning.place(cell, spec.grid.report.model_dump()) if spec.tuning else ""
        stored = there.get(_place(layout, cell.to_json()))
        if place in chosen or place not in searches or stored is None or spec.tuning is None:
            continue
        says, search = stored.get("tuned"), searches[place]
        found = _made_again(store, search, spec.tuning, says["search"] if says else search.name)
        if isinstance(found, str):
            unknown.append(found)
            found = says if says and says["hparams"].keys() == search.space.keys() else {}
        chosen[place] = found
    return chosen, unknown


def _made_again(store: Store, search: Search, tuning: TuningOptions, name: str) -> Mapping[str, Any] | str:
    """The choice of a search, from the stored runs of the configurations that it has proposed; or why it cannot be made.

    Args:
        name: of the search by which a cell says that it was chosen.
    """
    if name != search.name:
        return f"the search {name} is of another space, or of other code, than {search.name} of today"
    stored = store.search(name)
    if stored is None:
        return f"the search {name} is not stored"
    if search.warm_start and search.searcher == "optuna":
        return f"the search {name} has learnt from others"
    proposed = stored["proposed"][: int(search.wanted)]
    if not all(could_propose(search.space[key], value) for params in proposed for key, value in params.items()):
        return f"the search {name} has proposed what is not in its space"
    if len(proposed) < search.wanted:
        return f"the search {name} has proposed {len(proposed)} configurations of {search.wanted}"
    runs = [run for params in proposed for run in search.runs(params)]
    ended = validation_runs(search, store, runs, keep_stale=True)
    if lacking := [run for run in runs if run not in ended]:
        return f"{len(lacking)} of the {len(runs)} validation runs of the search {name} are not stored"
    outcomes = ranked(search, proposed, ended)
    best = best_of(outcomes, tuning)
    return describe_choice(search, best, outcomes) if best else f"the search {name} has no configuration to choose"


def _difference(store: Store, stored: StoredCell, given: Cell | None) -> str:
    """In what a stored cell is another one than the grid gives; "" if in nothing, or the grid gives none."""
    if given is None:
        return "its grid has no such cell"
    if bool(given.tuned) != ("tuned" in stored):
        return f"its hyper-parameters {'are' if given.tuned else 'are not'} searched in its grid"
    there, here = _flat(stored["config"]), _flat(given.config.canonical())
    record = store.record(stored["run"] or "")
    excused = _OF_IMAGES if record and record.get("data_note") else set[str]()
    for key in dict.fromkeys([*there, *here]):
        if key not in excused and there.get(key) != here.get(key):
            by = "the choice of its search" if key in given.tuned.get("hparams", {}) else "its grid"
            return f"{key} is {there.get(key)}, but {here.get(key)} by {by}"
    says: Mapping[str, Any] = stored.get("tuned", {})
    for key in _CHOICE if says else ():
        if says[key] != given.tuned[key]:
            return f"the {key} of its search are {says[key]}, by its grid {given.tuned[key]}"
    if says and not math.isclose(says["score"], given.tuned["score"], rel_tol=1e-9):
        return f"its choice has reached {says['score']} by its cell, and {given.tuned['score']} by its validation runs"
    return ""


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config with all options of its method, without versions, which the run itself has."""
    config = spell_out(config)
    method = config["algorithm"]
    flat = {key: value for key, value in config.items() if key not in ("algorithm", "versions")}
    return flat | {"method" if key == "name" else key: value for key, value in method.items()}
