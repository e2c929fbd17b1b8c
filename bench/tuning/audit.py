"""Whether the cells of a stored grid are those that its file gives, with the hyper-parameters that its searches give.

Nothing is trained: the grid is expanded as `run` would do it, and each choice is made again from the stored validation runs.
"""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import algorithms
from bench import references
from bench.config.resolve import proposed_configs
from bench.config.schema import run_id
from bench.errors import ConfigError, in_short, named_in_short
from bench.execution import agreement
from bench.experiments import grid_files
from bench.experiments.cells import Cell, cell_key, is_laid_out_as
from bench.experiments.grid_loading import load_grid, single
from bench.experiments.grid_schema import GridSpec
from bench.experiments.images import Images
from bench.experiments.labels import value_of
from bench.experiments.report_schema import Layout
from bench.experiments.selection import Selection, fit_to_images, select_cells, with_chosen
from bench.experiments.spec import ALL, OWN, PROTOCOL, TUNED, ExperimentSpec, TuningOptions, by_study
from bench.results.grids import StoredCell, StoredGrid, StoredLayout
from bench.results.ids import unversioned
from bench.results.omitted_defaults import spell_out
from bench.results.store import Store
from bench.tuning.outcomes import ranked, validation_runs
from bench.tuning.search import Search, stops_of
from bench.tuning.select import best_of, describe_choice, searches_of
from bench.tuning.study import draws, is_in_space
from datasets import DataError, Dataset, own_data, partition_files, resized

# Of a cell, and how it was made; those of earlier versions do not say all of it.
_CHOICE = ("hparams", "metric", "seeds", "share", "searcher", "scheduler", "tried", "defaults")
# Settings that may follow from images that are incomplete, or of the author.
_OF_IMAGES = {"clients", "first_clients", "train_examples", "test_examples"}
# Of the layout of a table: which numbers it shows, and which of them compete.
_OF_TABLE = ("rows", "columns", "rounds_shown", "compared")


class Audit(NamedTuple):
    """What came out for a stored grid.

    Attributes:
        differs: whether it is another one than its file gives.
        says: the same in one line.
        follows: whether all of it is what its file gives; False also where a part cannot be known here.
    """

    differs: bool
    says: str
    follows: bool = False


class _Contradiction(Exception):
    """In what a stored grid, or one of its searches, is not what its name, its file or its rules say."""


def audit(store: Store, grid: StoredGrid, file: Path | None = None, data_dir: Path | None = None) -> Audit:
    """Expands a stored grid again, and compares its cells.

    Args:
        file: the grid's YAML file, where it is not where its author had it.
        data_dir: with the images, which only cells on incomplete ones need.
    """
    try:
        found = filter(None, (references.read(cell["config"]["partition"]) for cell in grid["cells"]))
        with partition_files.in_place_of_absent(store.folder, found):
            return _compared(store, grid, _specs(grid, file), data_dir)
    except _Contradiction as error:
        return Audit(True, f"DIFFERS: {error}")
    except (ValueError, OSError) as error:
        return Audit(False, f"cannot be expanded here: {in_short(error)}")
    except Exception as error:  # of the code of a lab, or of a file that no version of the program has written
        return Audit(False, f"cannot be expanded here: it ends with {named_in_short(error)}")


def _specs(stored: StoredGrid, file: Path | None) -> list[ExperimentSpec]:
    """The experiment that a stored grid is, by its name; several where the name leaves it open how it was searched.

    Raises:
        ConfigError, OSError: if there is none here.
        _Contradiction: if it says of itself what its name or its file does not say.
    """
    grid, label = _grid(stored, file), f"{stored['grid']}@{stored['budget']}"
    names = sorted(grid.budgets, key=len, reverse=True)
    budget = next((name for name in names if f"{stored['budget']}+".startswith(f"{name}+")), "")
    if not budget:
        raise ConfigError([f"its grid has no budget of which {stored['budget']} could be a name."])
    if (now := grid.digest(budget)) != stored["digest"]:
        raise ConfigError([f"the file of its grid has changed since (its digest was {stored['digest']} and is {now})."])
    _check_table(grid, stored)
    grid, rules = _with_stored_data(grid, stored), stored.get("ruleset")
    spec = ExperimentSpec(
        grid,
        budget,
        overrides=stored.get("overrides", {}),
        seeds=None if rules else [*dict.fromkeys(cell["seed"] for cell in stored["cells"])],
        substitutes={cell["dataset"]: cell["substitute"] for cell in stored["cells"] if cell["substitute"]},
        ruleset=rules["name"] if rules else "",
    )
    specs = [replace(spec, tuning=tuning) for tuning in _tunings(stored, grid, budget)]
    fitting = [one for one in specs if label in (one.label, *one.earlier_labels)]
    if not fitting and specs[0].tuning and _is_cut(stored):
        # The searches may have had other options. All else that the name shows must be so.
        shown = label[: -len("~12345678")]
        if any(one.earlier_labels[0].startswith(shown) for one in specs):
            raise ConfigError(["its name is cut, and no way to search that is known here gives it."])
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
    if source and Path(source).is_file():  # a pipe would wait for a writer
        return load_grid(source)
    if grid_files.is_ours(name) if not source else name in grid_files.names():
        return load_grid(name)  # with a source: of the folder of a lab, which may lie elsewhere here
    if source:
        raise ConfigError([f"its file {Path(source).name} is not here; --grid FILE names one."])
    first = stored["cells"][0]
    overrides = stored.get("overrides", {})
    settings = {"dataset": first["dataset"], "partition": first["config"]["partition"], "algorithm": first["algorithm"]}
    found = single(settings, [0], overrides)
    if found.stored_name != stored["grid"]:
        raise ConfigError([f"no grid that is called {stored['grid']} comes with this version of the program."])
    return found


def _with_stored_data(grid: GridSpec, stored: StoredGrid) -> GridSpec:
    """The grid with the references of stored cells in place of the datasets of users that are not here, by their names: the
    place of the files, in a grid's file, is that of its author."""
    found = filter(None, (references.read(cell["dataset"]) for cell in stored["cells"]))
    there = {(reference.kind, reference.name): str(reference) for reference in found}

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(one) for one in value]
        if not there or not own_data.is_dataset(value) or own_data.canonical_setting("dataset", value) != value:
            return value
        kind = value.partition(":")[0] if references.is_dataset(value) else references.LAB
        return there.get((kind, references.make(kind, references.name_of(value), "").name), value)

    def replaced(part: Mapping[str, Any]) -> dict[str, Any]:
        return {key: named(value) if key == "dataset" else value for key, value in part.items()}

    conditions = [one.model_copy(update={"when": replaced(one.when)}) for one in grid.conditions]
    changed = {"axes": replaced(grid.axes), "settings": replaced(grid.settings), "conditions": conditions}
    return grid.model_copy(update=changed)


def _tunings(stored: StoredGrid, grid: GridSpec, budget: str) -> list[TuningOptions | None]:
    """How the hyper-parameters of a stored grid may have been chosen; None for no search. Its name says all but the number of
    configurations, and whether the searches were for a comparison; one that is cut says nothing, but a choice says most."""
    rules = stored.get("ruleset")
    if stored.get("chosen_on", "test") != "validation" and not (rules and rules["name"] == TUNED):
        return [None]
    ways = _ways_of_choices(stored) if _is_cut(stored) else [_way_of_name(stored)]
    if rules:
        studies = by_study(grid.seeds_at(budget), len(rules["studies"]))
        if rules["name"] != TUNED or [[*study] for study in studies] != rules["studies"]:
            raise _Contradiction(f"its studies have the seeds {rules['studies']}, those of its rules {studies}")
        own = [{key: way[key] for key in ("space", "metric", "validation_share") if key in way} for way in ways]
        usual: dict[str, Any] = {"space": ALL, "samples": rules["samples"]}
        return [TuningOptions("random", compares=True, studies=studies, **usual | way) for way in own]
    found: list[TuningOptions | None] = []
    for way in ways:
        if "searcher" not in way:
            found.append(PROTOCOL)
            continue
        samples = None if way["searcher"] == "grid" else 1  # how many configurations there are, each search says itself
        for space, compares in ((ALL, True), (OWN, False)):
            found.append(TuningOptions(**{"space": space, "samples": samples, "compares": compares, **way}))
    return found


def _is_cut(stored: StoredGrid) -> bool:
    """Whether a hash stands for a part of its name."""
    return re.search(r"~[0-9a-f]{8}$", stored["budget"]) is not None


def _way_of_name(stored: StoredGrid) -> dict[str, Any]:
    """What the name of a stored grid says of its searches; no searcher where the grid itself asks for them."""
    parts = dict(part.partition("=")[::2] for part in stored["budget"].split("+")[1:])
    way: dict[str, Any] = {key: parts[key] for key in ("space", "metric") if key in parts}
    if "validation_share" in parts:
        way["validation_share"] = float(parts["validation_share"])
    if "tuned" in parts:
        way["searcher"], _, scheduler = parts["searcher"].partition("-")
        way["scheduler"] = scheduler or "none"
    if "search_seeds" in parts:
        way["search_seeds"] = tuple(map(int, parts["search_seeds"].split(",")))
    return way


def _ways_of_choices(stored: StoredGrid) -> list[dict[str, Any]]:
    """What a choice of a stored grid says of its searches: all ways in which these may have been asked for."""
    chosen = next((cell["tuned"] for cell in stored["cells"] if "tuned" in cell), None)
    if chosen is None:
        return [{}]
    said = {"searcher": chosen["searcher"], "scheduler": chosen["scheduler"], "validation_share": chosen["share"]}
    asked = itertools.product((None, f"validation_{chosen['metric']}"), (None, tuple(chosen["seeds"])))
    return [{}, *({**said, "metric": metric, "search_seeds": seeds} for metric, seeds in asked)]


def _selection(spec: ExperimentSpec) -> Selection:
    """All cells of an experiment, on complete images, or on those of the datasets that replaced others."""
    selection = select_cells(spec)
    if not spec.substitutes:
        return selection
    absent = dict.fromkeys(spec.substitutes, "")
    return fit_to_images(selection, spec, Images({}, absent, spec.substitutes, {}))


def _compared(store: Store, stored: StoredGrid, specs: Iterable[ExperimentSpec], data_dir: Path | None) -> Audit:
    """What the cells of a stored grid are, compared with those of the experiment whose searches they name.

    Raises:
        ConfigError: if it cannot be expanded.
        _Contradiction: if one of its searches is another one than its rules give.
    """
    layout = stored["report"]
    there = {_place(layout, cell): cell for cell in stored["cells"]}
    spec, selection, held, searches = _searched(stored, specs, there)
    chosen, unknown = _choices(store, spec, held, searches, there, layout)
    given = _by_place(with_chosen(selection, spec, chosen), layout)
    cells = [cell for cell in stored["cells"] if cell["run"]]
    records = {_place(layout, cell): store.record(cell["run"] or "") for cell in cells}
    noted = {place for place, record in records.items() if record and record.get("data_note")}
    own = (cell for cell in cells if references.is_dataset(cell["config"]["dataset"]))
    noted |= {place for cell in own if _difference(cell, given.get(place := _place(layout, cell)), set())}
    on_images = _on_images(store, selection, spec, [(there[place], given.get(place)) for place in noted], data_dir)
    if not isinstance(on_images, str):
        fitting = _by_place(with_chosen(on_images, spec, chosen), layout)
        given |= {place: cell for place, cell in fitting.items() if place in noted}
    if differing := [*_differing(cells, given, noted if isinstance(on_images, str) else (), layout)]:
        more = f" (and in {len(differing) - 1} more of {len(cells)} cells)" if len(differing) > 1 else ""
        return Audit(True, f"DIFFERS in {differing[0]}{more}")
    said = ["its stored cell follows" if len(cells) == 1 else f"all {len(cells)} stored cells follow"]
    if left := len(given.keys() - {_place(layout, cell) for cell in cells}):
        said.append(f"{left} of the grid {'was' if left == 1 else 'were'} not run")
    if searches:
        said.append(f"{len(searches) - len(unknown)} of {len(searches)} choices were made again from validation runs")
    if unknown:
        said.append(f"others cannot be: {unknown[0]}")
    if isinstance(on_images, str):
        said.append(
            f"of {len(noted)} nobody can tell here how many examples they have, which depends on their images: {on_images}"
        )
    if not is_laid_out_as(spec.grid, stored):
        said.append("the title or the layout of its table is another one")
    return Audit(False, "; ".join(said), follows=not unknown and not isinstance(on_images, str))


def _searched(
    stored: StoredGrid, specs: Iterable[ExperimentSpec], there: Collection[tuple]
) -> tuple[ExperimentSpec, Selection, list[Cell], dict[str, Search]]:
    """Of some experiments the one most of whose searches a stored grid names: its cells, those that are there, its searches.

    Raises:
        ConfigError: if none of them can be searched.
    """
    found = []
    for spec in specs:
        selection = _selection(spec)
        held = [cell for cell in selection.selected if _place(stored["report"], cell.to_json()) in there]
        try:
            found.append((spec, selection, held, searches_of(spec, held) if spec.tuning else {}))
        except ConfigError as error:  # these methods cannot be searched in this way
            refused = error
    if not found:
        raise refused
    named = _names(stored)
    return max(found, key=lambda one: len(named & {form.name for search in one[3].values() for form in search.forms}))


def _differing(
    cells: Iterable[StoredCell], given: Mapping[tuple, Cell], excused: Collection[tuple], layout: StoredLayout
) -> Iterator[str]:
    """Each stored cell that is another one than the grid gives, and in what.

    Args:
        excused: places whose numbers of examples are not compared.
    """
    for cell in cells:
        place = _place(layout, cell)
        if difference := _difference(cell, given.get(place), _OF_IMAGES if place in excused else ()):
            names = " ".join(str(value_of(cell, key)) for key in (*layout["rows"], layout["columns"]))
            yield f"{names} seed {cell['seed']}: {difference}"


def _check_table(grid: GridSpec, stored: StoredGrid) -> None:
    """Raises _Contradiction if the table of a stored grid shows other numbers than that of its file, or under other names."""
    of_file = json.loads(json.dumps(grid.report.model_dump(include={*_OF_TABLE}), default=str))
    for key in _OF_TABLE:
        says = cast(Mapping[str, Any], stored["report"]).get(key, Layout.model_fields[key].get_default())
        if says != of_file[key]:
            raise _Contradiction(f"the {key.replace('_', ' ')} of its table are {says}, but {of_file[key]} by its file")
    given = stored["report"].get("names", {}).get("algorithm", {})
    titles = {algorithms.letters(algorithms.title_of(name)): name for name in algorithms.REGISTRY}
    for name, text in given.items():
        other = titles.get(algorithms.letters(text), name)
        if other != name and given != grid.report.names.get("algorithm", {}):
            raise _Contradiction(f"its table calls {name} {text}, which is {other}")


def _on_images(
    store: Store,
    selection: Selection,
    spec: ExperimentSpec,
    cells: Iterable[tuple[StoredCell, Cell | None]],
    data_dir: Path | None,
) -> Selection | str:
    """The cells of an experiment on the images here, or why those are not the incomplete ones of some stored cells.

    Args:
        cells: these stored cells, with what their grid gives.
    """
    found: dict[str, Dataset] = {}
    for stored, cell in cells:
        if cell is None:
            continue
        config = cell.config
        if references.is_path(config.dataset):
            return f"{config.dataset} is a path, which may lead to any file of this machine"
        try:
            images = resized.of_config(config, data_dir)
        except DataError as error:
            return in_short(error)
        record = store.record(stored["run"] or "")
        if record and (other := agreement.other_images(record, images)):
            return other
        found[config.dataset] = images
    if not found:
        return selection
    absent = dict.fromkeys(spec.substitutes, "")
    return fit_to_images(selection, spec, Images(found, absent, spec.substitutes, {}))


def _by_place(selection: Selection, layout: StoredLayout) -> dict[tuple[str, int], Cell]:
    return {_place(layout, cell.to_json()): cell for cell in selection.selected}


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
    found = next((form for form in search.forms if form.name == name), None)
    if found is None:
        return f"the search {name} is of another space, or of other code, than {search.name} of today"
    search = found
    stored = store.search(name)
    if stored is None:
        return f"the search {name} is not stored"
    if search.warm_start and search.searcher == "optuna":
        return f"the search {name} has learnt from others"
    if not tuning.studies:  # else the rules say how many; other searches may differ in that, and tables say so
        search = replace(search, samples=stored.get("samples"))
    proposed = stored["proposed"][: search.wanted]
    if search.searcher == "random":
        for number, (params, drawn) in enumerate(zip(proposed, draws(search, len(proposed)), strict=False), start=1):
            if not _is_drawn(params, drawn):
                raise _Contradiction(
                    f"configuration {number} of the search {name} is {params}, but by its seeds {drawn} is drawn"
                )
    if not all(is_in_space(search, params) for params in proposed):
        return f"the search {name} has proposed what is not in its space"
    if len(proposed) < search.wanted:
        return f"the search {name} has proposed {len(proposed)} configurations of {search.wanted}"
    runs = [run for params in proposed for run in search.runs(params)]
    ended = validation_runs(search, store, runs, keep_stale=True)
    if lacking := [run for run in runs if run not in ended]:
        return f"{len(lacking)} of the {len(runs)} validation runs of the search {name} are not stored"
    for run, one in ended.items():
        if one.status == "stopped" and (why := _cannot_stop(search.scheduler, search.template.rounds, one.rounds)):
            raise _Contradiction(f"run {run} of the search {name} says that this stopped it, but {why}")
    outcomes = ranked(search, proposed, ended)
    best = best_of(outcomes, tuning)
    return describe_choice(search, best, outcomes) if best else f"the search {name} has no configuration to choose"


def _is_drawn(params: Mapping[str, Any], drawn: Mapping[str, Any]) -> bool:
    """Whether both are one configuration, but for the last digits, which depend on the machine."""
    return params.keys() == drawn.keys() and all(
        math.isclose(value, drawn[key], rel_tol=1e-9)
        if isinstance(value, float) and isinstance(drawn[key], float)
        else value == drawn[key]
        for key, value in params.items()
    )


def stops_of_searches(store: Store) -> dict[str, str]:
    """Stopped run -> why no stored search that has proposed it can have stopped it where it has ended; "" if one can. Runs that
    no stored search has proposed are left out."""
    stopped = {run: record for run, record in store.records().items() if record["status"] == "stopped"}
    found: dict[str, str] = {}
    for name in store.searches() if stopped else ():
        search = store.search(name)
        scheduler = cast(Mapping[str, Any], search or {}).get("scheduler", "none")
        for configs in proposed_configs(search["configs"].values(), search["proposed"]) if search else ():
            runs = {run_id(config): config for config in configs}
            failed = any((store.record(run) or {"status": "failed"})["status"] == "failed" for run in runs)
            for run in runs.keys() & stopped.keys():
                at = stopped[run].get("rounds", len(store.rows(run)))
                why = "" if failed else _cannot_stop(scheduler, runs[run].rounds, at)
                found[run] = why and found.get(run, why)
    return found


def _cannot_stop(scheduler: str, rounds: int, at: int) -> str:
    """Why a search does not stop runs of so many rounds after one of them; "" if it can."""
    rungs = stops_of(rounds, scheduler)[:-1]
    if not rungs:
        return "it stops no runs"
    after = " or ".join(map(str, rungs))
    return (
        "" if at in rungs else f"it stops runs after round {after} of {rounds}, and this one has ended after round {at}"
    )


def _difference(stored: StoredCell, given: Cell | None, excused: Collection[str]) -> str:
    """In what a stored cell is another one than the grid gives; "" if in nothing.

    Args:
        excused: settings that are not compared.
    """
    if given is None:
        return "its grid has no such cell"
    if bool(given.tuned) != ("tuned" in stored):
        return f"its hyper-parameters {'are' if given.tuned else 'are not'} searched in its grid"
    there, here = _flat(stored["config"]), _flat(given.config.canonical())
    for key in dict.fromkeys([*there, *here]):
        if key not in excused and there.get(key) != here.get(key):
            by = "the choice of its search" if key in given.tuned.get("hparams", {}) else "its grid"
            return f"{key} is {there.get(key)}, but {here.get(key)} by {by}"
    for key in ("variant", "published_as"):
        if stored.get(key, "") != getattr(given, key):
            return f"its table says {stored.get(key, '')!r} beside its method, but {getattr(given, key)!r} by its grid"
    says: Mapping[str, Any] = stored.get("tuned", {})
    for key in _CHOICE:
        if key in says and says[key] != given.tuned[key]:
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
