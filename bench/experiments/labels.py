"""What tables and sentences call the settings of cells."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.references import without_digest
from bench.results.omitted_defaults import spell_out

UNWRAPPED = "none"  # on the axis `wrapper`: the method as it is
ABSENT = "-"  # on the axis of an option: methods that do not have it
HEADINGS = "axes"  # among the names that a grid gives: those of the axes themselves
_NONE = (None, "")


def value_of(cell: Mapping[str, Any], key: str) -> Any:
    """A stored cell's value of an axis, a setting, or an option of its method or of the one inside a wrapper, as a table shows
    it; None if it has none of that name."""
    return values_of(cell, [key])[key]


def values_of(cell: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """`value_of` of several keys."""
    found = {key: cell.get(key) for key in keys}
    if absent := [key for key, value in found.items() if value in _NONE]:  # few: most are fields of the cell
        config = spell_out(cell["config"])
        method = config["algorithm"]
        inside = method["base"] if cell.get("wrapper", UNWRAPPED) != UNWRAPPED else {}
        parts = (config, method, inside)
        found |= {key: next((part[key] for part in parts if part.get(key) not in _NONE), None) for key in absent}
    return {key: shown(value) for key, value in found.items()}


def competitor(values: Sequence[Any]) -> Any:
    """What competes in a table, from its values on the axes that are compared: one value, or "fedavg fedcollab" of several."""
    return values[0] if len(values) == 1 else " ".join(map(str, values))


def chosen_in(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a stored cell that were chosen: its point of a tuning set, or what a search has found."""
    return cell["choice"] or cell.get("tuned", {}).get("hparams", {})


def number(value: float) -> str:
    """A number as people read it, with four digits, but large ones whole: "10", "0.01235", "100000"."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def pairs(params: Mapping[str, Any]) -> list[str]:
    """["mu=0.01", "tau=0.5"]: hyper-parameters as people read them."""
    return [f"{key}={number(value) if isinstance(value, float) else shown(value)}" for key, value in params.items()]


def text_of(params: Mapping[str, Any]) -> str:
    """ "mu=0.01, tau=0.5"."""
    return ", ".join(pairs(params))


def name_of_config(config: Mapping[str, Any]) -> str:
    """A run for people, with all options of its method: "digits label-2 ccvr base=fedprox mu=0.1 seed 0"."""
    words = [str(shown(without_digest(str(config.get(key, ""))))) for key in ("dataset", "partition")]
    words += [str(shown(config.get("algorithm", ""))), f"seed {config.get('seed', '?')}"]
    return " ".join([*words, *["on validation data"] * ("validation_share" in config)])


def names_of_configs(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """`name_of_config` of several runs by their ids; those of one name with the settings in which these differ:
    "digits label-2 fedavg seed 0 lr_decay=0.9". The config of a run that cannot be read is {}."""
    alike = defaultdict[str, dict[str, dict[str, Any]]](dict)
    for run, config in configs.items():
        alike[name_of_config(config)][run] = spell_out(config) if config else {}
    found = {}
    for name, runs in alike.items():
        keys = dict.fromkeys(key for config in runs.values() for key in config if key != "versions")
        differing = [key for key in keys if len({str(config.get(key)) for config in runs.values()}) > 1]
        for run, config in runs.items():
            found[run] = " ".join(
                [name, *pairs({key: config[key] for key in differing if config.get(key) is not None})]
            )
    return found


def shown(value: Any) -> Any:
    """A setting's value as a label of a table: a method with options as "fedprox mu=0.1", all others as they are."""
    if isinstance(value, str) or not (isinstance(value, Mapping) and "name" in value):
        return value
    options = (f"{key}={shown(option)}" for key, option in value.items() if key != "name")
    return " ".join([value["name"], *options])
