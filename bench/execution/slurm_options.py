"""What `--slurm` says: options of sbatch, and whether they ask for a GPU."""

import re
from collections.abc import Mapping
from typing import Any

# What is said by --cpus-per-trial and --max-concurrent, or is the same for every run of one process.
_OWN = {"cpus_per_task", "array", "array_parallelism", "nodes", "ntasks", "ntasks_per_node", "requeue"}
_OWN |= {"setup", "teardown", "srun_args", "additional_parameters"}
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def asks_for_gpus(options: Mapping[str, Any]) -> bool:
    """Whether options ask for GPUs, as gpus_per_node=1 or gres=gpu:a100:1 do; names of partitions do not.

    Raises:
        ValueError: if a partition or a constraint names GPUs, and no option says how many.
    """
    said = [part for key, value in options.items() for part in _of_gpus(key, str(value))]
    named = [key for key in ("partition", "constraint") if "gpu" in str(options.get(key, "")).lower()]
    if named and not said:
        raise ValueError(
            f"--slurm {named[0]}={options[named[0]]} names GPUs, but no option asks for one: add gpus_per_node=1, or "
            "gpus_per_node=0 to train on CPUs there."
        )
    return any(re.split("[:=]", part)[-1] != "0" for part in said)


def _of_gpus(key: str, value: str) -> list[str]:
    """What an option says of GPUs: ["1"] of gpus_per_node=1, ["gpu:a100:1"] of gres=gpu:a100:1,disk:1."""
    parts = value.split(",")
    if key.startswith("gpus"):
        return parts
    return [part for part in parts if "gpu" in part] if key in ("gres", "tres_per_task") else []


def read_slurm(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Values of `--slurm`: options of sbatch by their names, `gpus_per_node` or `gpus-per-node`, with minutes as the time;
    "true" for those without a value.

    Raises:
        ValueError: if there is no time, or something else that must not be there.
    """
    options: dict[str, Any] = {key.replace("-", "_"): value == "true" or value for key, value in pairs.items()}
    if own := [key for key in options if key in _OWN]:
        raise ValueError(
            f"--slurm {own[0]} cannot be set: a run is one process, with --cpus-per-trial and --max-concurrent; leave it out."
        )
    if not (found := _TIME.fullmatch(str(options.get("time")))):
        raise ValueError(
            "--executor slurm needs the time of a job in minutes, or as --slurm time=4:00:00 or time=1-12:00:00, but got "
            f"{options.get('time', 'none')}; a run that takes longer is queued again."
        )
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    numbers = [0, *numbers] if days is None and len(numbers) < 3 else numbers  # "30" and "30:00" are minutes
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    if not any(numbers) and not int(days or 0):
        raise ValueError("--slurm time must be above 0, because a run that takes longer is queued again, but got 0.")
    return options | {"time": max(1, round(1440 * int(days or 0) + 60 * hours + minutes + seconds / 60))}
