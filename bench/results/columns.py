"""What was run, as one flat row: the columns of tables for other programs, and the hyper-parameters that TensorBoard shows."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bench import references
from bench.results.omitted_defaults import spell_out
from bench.results.records import Config
from datasets import partitions

PARTITION = ("labels_per_client", "shards_per_client", "concentration")  # parameters, where a kind has them


def described(config: Config) -> dict[str, Any]:
    """Settings of a run, its method, the versions of the parts whose change may change the numbers, and the options:
    "fedprox.mu" of FedProx, also where that is the base of another method.

    Values are numbers, texts, truth values and None; other options are JSON texts.
    """
    config = spell_out(config)
    method = config["algorithm"]
    callbacks = config.pop("callbacks", [])
    looked = {"callbacks": ", ".join(spec["name"] for spec in callbacks)} if callbacks else {}
    versions = ", ".join(f"{part} {version}" for part, version in sorted(config["versions"].items()))
    settings = {key: value for key, value in config.items() if key not in ("algorithm", "versions")}
    numbers = _partition_numbers(config["partition"])
    return {
        "algorithm": method["name"],
        **settings,
        **looked,
        **numbers,
        "versions": versions,
        **dict(_options(method)),
    } | {name: value for spec in callbacks for name, value in _options(spec)}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round: its own, then its metrics by their names, without those of which there is none."""
    flat = {**row, **row.get("metrics", {})}
    return {name: value for name, value in flat.items() if isinstance(value, int | float)}


def _partition_numbers(name: str) -> dict[str, Any]:
    """What the name of a partition says, as numbers: "dir-0.1" is of the kind "dir", with the concentration 0.1."""
    if references.is_partition(name):  # a file, which need not be here
        return {"partition_kind": references.PARTITION}
    try:
        parameters = vars(partitions.parse(name))
    except ValueError:  # of a lab that is not here
        parameters = {}
    numbers = {key: parameters[key] for key in PARTITION if key in parameters}
    return {"partition_kind": re.sub(r"(-[\d.]+)+$", "", name)} | numbers


def _options(method: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Option -> value, also of a method within; what is within is "base", or "ccvr.base" further down."""
    for key, value in method.items():
        if isinstance(value, Mapping) and "name" in value:
            yield f"{inside}{key}", value["name"]
            yield from _options(value, f"{value['name']}.")
        elif key != "name":
            yield f"{method['name']}.{key}", json.dumps(value) if isinstance(value, list | dict) else value
