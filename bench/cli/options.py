"""Command-line options that several commands share, and how their values are read."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.console import explained
from bench.errors import require_known, unknown
from bench.experiments.figure_names import CURVES
from reports import widths
from reports.api import FORMATS


def _names_of(kind: str) -> Callable[[str], list[str]]:
    """What completes the beginning of a word in a shell: the names of a kind of `list`."""

    def complete(incomplete: str) -> list[str]:
        from bench.cli.listing import listing

        return [name for name, _ in listing(kind) if name.startswith(incomplete)]

    return complete


def _one_of(*known: str) -> Callable[[typer.CallbackParam, str], str]:
    """A callback of an option that has these values."""

    def check(param: typer.CallbackParam, value: str) -> str:
        with explained():
            require_known(f"value of {param.opts[0]}", [value], known)
        return value

    return check


def _not_negative(param: typer.CallbackParam, value: float) -> float:
    with explained():
        if not value >= 0:
            raise ValueError(f"{param.opts[0]} must be at least 0, but got {value:g}.")
    return value


GridOption = Annotated[
    str | None,
    typer.Option("--grid", help="Name of a grid (see `list`), or a YAML file.", autocompletion=_names_of("grids")),
]
BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget",
        help="paper (of grids of your own: full), small, smoke, or one of the grid's own.",
        show_default="the whole grid",
    ),
]
StoredGridOption = Annotated[
    str | None, typer.Option("--grid", help="Only this grid: NAME, or NAME@BUDGET; all of them if left out.")
]
StoredBudgetOption = Annotated[str | None, typer.Option("--budget", help="Only results of this budget.")]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only these cells: KEY=VALUE,...; several values: KEY=A|B, or KEY=A,KEY=B."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Settings or method options that win over the grid: KEY=VALUE,...")
]
CallbacksOption = Annotated[
    str | None,
    typer.Option(
        "--callbacks",
        help="What looks at runs after each round (see `list callbacks`): NAME,..., or YAML as [{name: NAME, decay: 0.9}].",
    ),
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", help="Seeds instead of the grid's: 0,1,2")]
SearchSeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Of searches: seeds on which configurations are compared; of boards 0,1,2, else those of the table."
    ),
]
RulesetOption = Annotated[
    str | None,
    typer.Option(
        help="By which rules methods are compared: tuned (3 studies, each of 5 random configurations on validation data, whose "
        "choice is trained with seeds of its own), or defaults (no search)."
    ),
]
StudiesOption = Annotated[int | None, typer.Option(help="Of --ruleset tuned: number of studies (3).")]
SubstituteOption = Annotated[
    list[str] | None,
    typer.Option("--substitute", help="MISSING=OTHER: try the mechanics of cells without images on another dataset."),
]


def look_in(data_dir: Path | None) -> Path | None:
    from datasets import of_labs

    of_labs.look_in(data_dir)
    return data_dir


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="SKEWBENCH_DATA", callback=look_in, help="Where the images are (see `data check`)."
    ),
]
ResultsOption = Annotated[
    Path, typer.Option("--results-dir", envvar="SKEWBENCH_RESULTS", help="Where results are kept.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AlgorithmOption = Annotated[
    str | None,
    typer.Option("--algorithm", help="Of one setting: method.", autocompletion=_names_of("algorithms")),
]
DatasetOption = Annotated[
    str | None,
    typer.Option("--dataset", help="Of one setting: dataset.", autocompletion=_names_of("datasets")),
]
PartitionOption = Annotated[str | None, typer.Option("--partition", help="Of one setting: partition.")]
CpusOption = Annotated[float, typer.Option(help="Cores, and torch threads, of a trial.")]
ConcurrentOption = Annotated[
    int,
    typer.Option(help="Trials at once; 0: as many as there are cores.", callback=_not_negative),
]
GpusOption = Annotated[
    str,
    typer.Option(
        help="Of a trial: a share of one GPU, a whole number of them, 0 for the CPU; auto: measured, where there are GPUs. "
        "Shares are raised where a GPU would be idle."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster: auto, or HOST:PORT; local for none.")
]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait-for-machines",
        help="Seconds that a cluster may take to start, and until a machine has what a trial needs.",
        callback=_not_negative,
    ),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        help="What starts trials: ray; slurm, one job for each run; or local, plain processes of this machine.",
        callback=_one_of("ray", "slurm", "local"),
    ),
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm", help="Of --executor slurm: options of sbatch, as time=4:00:00,partition=gpu,gpus_per_node=1."
    ),
]
HostOption = Annotated[
    str,
    typer.Option(
        help="What a record says of the machine of its run: name (its host name), or none.",
        callback=_one_of("name", "none"),
    ),
]
CheckpointOption = Annotated[
    float,
    typer.Option(
        help="Least time between checkpoints of a run; 0: one after every round.",
        callback=_not_negative,
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Where the machines of a cluster write checkpoints and states: a shared path, or a URI as s3://..."
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        help="How a run trains its clients: loop, one after another; vectorised, many at once; auto: the faster.",
        callback=_one_of("auto", "loop", "vectorised"),
    ),
]
Tf32Option = Annotated[
    bool,
    typer.Option(
        "--tf32",
        help="On GPUs, less exact convolutions and matrix products, which some cards make faster; in the record.",
    ),
]
KeepStaleOption = Annotated[
    bool,
    typer.Option("--keep-stale", help="Use finished runs as they are, also if the code has changed since."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        help="Of searches: configurations that each method tries in each cell (8), or study (5); a grid is tried as a whole."
    ),
]
SearcherOption = Annotated[
    str | None, typer.Option(help="Of searches: grid, random, or optuna (TPE); of `run` random if left out.")
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        help="Of searches: where, as NAME,... (see `list spaces`) or YAML files; own: the method's own space, in the place of "
        "which METHOD=FILE puts another one; sets: the grid's. Of `run` own,training if left out."
    ),
]
ShareOption = Annotated[
    float | None, typer.Option(help="Of searches: validation data, of each class of each client, set aside (0.15).")
]

RESULTS = Path("results")


def plugins_first(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command line, those of `--plugins` before the command; what stands behind "--" stays there."""
    first, rest = [], [*arguments]
    end = rest.index("--") if "--" in rest else len(rest)
    for place in range(end - 1, -1, -1):
        if rest[place].startswith("--plugins="):
            first = [rest.pop(place), *first]
        elif rest[place] == "--plugins":
            first, rest = [*rest[place : place + 2], *first], [*rest[:place], *rest[place + 2 :]]
    return [*first, *rest]


def read_pairs(option: str, texts: Iterable[str] | None) -> list[tuple[str, str]]:
    """("a=1,b=2", "c=3") -> [("a", "1"), ("b", "2"), ("c", "3")].

    Raises:
        ValueError: for a part that is not KEY=VALUE.
    """
    pairs = []
    for part in (part for text in texts or () for part in text.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(
                f"{option} needs KEY=VALUE, but got {part!r}; values of a list are joined by '+', as models=mlp+vgg9."
            )
        pairs.append((key.strip(), value.strip()))
    return pairs


def read_once(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """`read_pairs` of an option whose keys have one value each.

    Raises:
        ValueError: also for a key that is given twice.
    """
    pairs = read_pairs(option, texts)
    given = [key for key, _ in pairs]
    if twice := [key for key in dict.fromkeys(given) if given.count(key) > 1]:
        values = ", ".join(f"{key}={value}" for key, value in pairs if key in twice)
        raise ValueError(f"{option} takes one value for each key, but got {values}.")
    return dict(pairs)


def read_only(texts: Iterable[str] | None) -> dict[str, list]:
    """Values of `--only`; a key may be given several times, or with several values between bars."""
    only: dict[str, list] = {}
    for key, values in read_pairs("--only", texts):
        only.setdefault(key, []).extend(scalar(value) for value in values.split("|"))
    return only


def read_set(texts: Iterable[str] | None) -> dict[str, Any]:
    """Values of `--set`."""
    return {key: scalar(value) for key, value in read_once("--set", texts).items()}


def read_callbacks(text: str | None) -> dict[str, Any]:
    """The setting that `--callbacks` is; {} without it."""
    return {} if text is None else {"callbacks": scalar(text) if text.lstrip()[:1] in ("[", "{") else text}


def read_seeds(text: str | None, option: str = "--seeds") -> list[int] | None:
    """Values of `--seeds`, or of another option that takes seeds.

    Raises:
        ValueError: if one is not a whole number of at least 0, or is given twice.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        near = f" Did you mean {meant}?" if (meant := _range_in_full(text)) else ""
        raise ValueError(f"{option} needs whole numbers such as 0,1,2, but got {text!r}.{near}")
    seeds = list(map(int, parts))
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{option} needs each seed once, but got {text!r}.")
    return seeds


def _range_in_full(text: str, longest: int = 20) -> str:
    """ "0-2" as "0,1,2"; "" if it is no range, or a long one."""
    ends = re.fullmatch(r"\s*(\d{1,9})\s*(?:-|\.\.|:)\s*(\d{1,9})\s*", text)
    seeds = range(int(ends[1]), int(ends[2]) + 1) if ends else range(0)
    return ",".join(map(str, seeds)) if len(seeds) <= longest else ""


def require_no_settings(arguments: Iterable[str], options: Collection[str]) -> None:
    """Raises ValueError for the first argument that is no option of a command but a setting, or an option of a method, which
    its `--set` takes.

    Args:
        options: those of the command.
    """
    words = [*arguments]
    words = words[: words.index("--")] if "--" in words else words
    if "--set" not in options or "--partition" not in options:
        return
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not option.startswith("--") or option in (*options, "--help", "--plugins"):
            continue
        from bench.config.schema import SETTINGS
        from bench.config.unknown_settings import methods_with, usual_name

        key = usual_name(option.removeprefix("--").replace("-", "_"))
        value = value if equals else next((after for after in words[place + 1 : place + 2] if after[:2] != "--"), "")
        if key == "seed":
            raise ValueError(f"There is no option {option}; name seeds by --seeds {value or '0,1,2'}.")
        if key in SETTINGS or methods_with(key):
            raise ValueError(f"There is no option {option}; set it by --set {key}={value or 'VALUE'}.")


def require_one(settings: Mapping[str, str | None]) -> None:
    """Raises ValueError if an option that names the method, the dataset or the partition of one setting names several."""
    for key, value in settings.items():
        names = [part.strip() for part in (value or "").split(",")]
        if len(names) > 1 and ":" not in names[0]:  # a path may have commas
            raise ValueError(
                f"--{key} names one {key}, but got {value!r}; repeat the command for each, or write a grid with "
                f"axes: {{{key}: [{', '.join(names)}]}} and run it by --grid FILE.yaml (docs/own-grid.md)."
            )


def read_search_seeds(text: str | None) -> tuple[int, ...] | None:
    """Values of `--search-seeds`, as those of `--seeds`."""
    seeds = read_seeds(text, "--search-seeds")
    return None if seeds is None else tuple(seeds)


def stored_name(grid: str | None, budget: str | None) -> tuple[str | None, str | None]:
    """A grid as it is called in the store, and its budget: `<grid>@<budget>` names both, a file its stem."""
    suffixes = (".yaml", ".yml")
    if grid and budget and grid.endswith(f"@{budget}"):
        budget = None  # said twice
    if grid and "@" in grid and budget is None and not grid.endswith(suffixes):
        file, _, behind = grid.rpartition("@")  # folders may have an @, too
        grid, budget = (file, behind) if file.endswith(suffixes) else grid.split("@", 1)
    return (Path(grid).stem if grid and grid.endswith(suffixes) else grid), budget


def require_author(author: str) -> None:
    """Raises ValueError if a value of `--author` is not a name in one line."""
    from bench.results.json_schema import is_line

    if not is_line(author):
        raise ValueError(f"--author must be a name in one line, but got {author!r}.")


def read_figures(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Values of `--figure`.

    Raises:
        ValueError: if some are unknown.
    """
    figures = tuple(dict.fromkeys(texts or ()))
    if other := [name for name in figures if name not in CURVES]:
        raise ValueError(
            f"{unknown('figure', other[0], CURVES)} Other kinds have options of their own: a grid lists them under figures of "
            "its report (python -m bench list figures)."
        )
    return figures


def read_widths(width: str | None, template: str | None) -> widths.Widths | None:
    """What `--width` and `--template` ask for; None without them.

    Raises:
        ValueError: if both are given, the template is unknown, or the width is none.
    """
    if width and template:
        raise ValueError("Set either --width or --template, but not both.")
    if template:
        require_known("value of --template", [template], widths.TEMPLATES)
        return widths.TEMPLATES[template]
    return widths.read(width) if width else None


def read_formats(text: str | None) -> tuple[str, ...]:
    """Values of `--format`; all of them if it was not given.

    Raises:
        ValueError: if one is unknown.
    """
    formats = FORMATS if text is None else tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    require_known("value of --format", formats, FORMATS)
    return formats


def scalar(text: str) -> Any:
    """A value as grid files read it.

    Raises:
        ValueError: if it is not YAML.
    """
    import yaml

    from bench.files import parse_yaml

    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{text!r} is not a value that YAML can read; put it into quotes if it is a text, or write a number without zeros "
            "in front and colons."
        ) from error


def read_grid(name: str | None, settings: dict[str, str | None], seeds: str | None, set_: list[str] | None):
    """The grid of that name, or of the one setting that the other options describe."""
    from bench.experiments.grid_loading import load_grid, single

    if name:
        clash = [f"--{key}" for key, value in settings.items() if value]
        if clash:
            raise ValueError(f"Use either --grid or {', '.join(clash)}; within a grid, choose cells with --only.")
        return load_grid(name)
    if settings["algorithm"] == "centralized":
        settings["partition"] = settings["partition"] or "none"
    absent = [f"--{key}" for key, value in settings.items() if not value]
    if absent:
        raise ValueError(f"Name a --grid, or one setting: {', '.join(absent)} missing.")
    require_one(settings)
    return single(settings, read_seeds(seeds) or [0], read_set(set_))
