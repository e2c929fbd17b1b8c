"""The runs of searches: those that have begun, and those that are left."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bench.results.grids import StoredSearch
from bench.results.omitted_defaults import spell_out
from bench.results.records import Config

_MOST = 100_000  # runs of searches that are still to be proposed; files of others may name any number


class SearchedRun(NamedTuple):
    """A run of a search.

    Attributes:
        run: its id; of one that has not begun a name that no run has.
        config: its settings; of one that has not begun those of the method without a search.
        seeds: runs of its configuration, which one trial trains.
    """

    run: str
    config: Config
    seeds: int


def value_in(config: Mapping[str, Any], key: str) -> Any:
    """A setting of a stored config, or an option of the method or of one inside; None if there is none of that name."""
    config = spell_out(config)
    if key in config:
        return config[key]
    method = config["algorithm"]
    while isinstance(method, Mapping):
        if key in method:
            return method[key]
        method = method.get("base")
    return None


def runs_of_searches(
    searches: Mapping[str, StoredSearch], configs: Mapping[str, Config]
) -> dict[str, list[SearchedRun]]:
    """Name of a search -> the runs that it wants, at most: it may stop some early, and share others with another search.

    Args:
        searches: by their names.
        configs: run id -> config of the runs that have begun and are in no grid.
    """
    found = dict[str, list[SearchedRun]]()
    spare = _MOST
    alike: dict[frozenset[str], dict[str, list[str]]] = {}  # options -> what runs have besides -> their ids
    for name, search in searches.items():
        options, seeds = frozenset(search["space"]), len(search["configs"])
        if options not in alike:
            alike[options] = defaultdict(list)
            for run, config in configs.items():
                alike[options][_without(config, options)].append(run)
        found[name] = wanted = []
        count = search.get("wanted", search.get("samples") or len(search["proposed"]))
        for seed, usual in search["configs"].items():
            own = [
                run
                for run in alike[options].get(_without(usual, options), ())
                if {key: value_in(configs[run], key) for key in options} in search["proposed"]
            ]
            wanted += [SearchedRun(run, configs[run], seeds) for run in own]
            left = min(count - len(own), spare)
            spare -= max(0, left)
            wanted += [SearchedRun(f"{name} {seed} {number}", usual, seeds) for number in range(left)]
    return found


def _without(config: Mapping[str, Any], options: Collection[str]) -> str:
    """The same for the configs of a search and seed: what is not searched."""

    def kept(part: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: value for key, value in part.items() if key not in options}
        return own | {key: kept(own[key]) for key in ("algorithm", "base") if isinstance(own.get(key), Mapping)}

    return json.dumps(kept(spell_out(config)), sort_keys=True)
