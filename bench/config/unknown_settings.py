"""What is said about a setting that there is not."""

from collections.abc import Collection

import algorithms
from bench.config.methods import options_of
from bench.config.schema import SETTINGS
from bench.errors import suggestion
from bench.registry import Registry

# What other frameworks call a setting -> what it is called here.
_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "learningrate", "local_lr", "client_lr", "step_size"), "lr"),
    **dict.fromkeys(
        ("learning_rate_decay", "learning_rate_decay_gamma", "lr_gamma", "scheduler", "lr_schedule"), "lr_decay"
    ),
    **dict.fromkeys(
        ("max_grad_norm", "grad_clip", "gradient_clip", "gradient_clipping", "clip_norm", "max_norm"),
        "max_gradient_norm",
    ),
    **dict.fromkeys(("epochs", "local_ep", "num_epochs", "local_iterations"), "local_epochs"),
    **dict.fromkeys(("steps", "num_steps"), "local_steps"),
    **dict.fromkeys(("num_rounds", "communication_rounds", "comm_round", "global_rounds", "global_epochs"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients", "n_parties", "num_users", "population"), "clients"),
    **dict.fromkeys(("join_ratio", "sample_fraction", "fraction", "frac", "sampling_rate"), "participation"),
    **dict.fromkeys(("bs", "local_bs", "minibatch_size"), "batch_size"),
    **dict.fromkeys(("wd", "decay", "l2"), "weight_decay"),
    **dict.fromkeys(("network", "net", "architecture", "arch", "backbone"), "model"),
    **dict.fromkeys(("method", "strategy"), "algorithm"),
    "data": "dataset",
    "width": "model_width",
    "seeds": "seed",
    "random_seed": "seed",
}


_OF_THE_COMMAND = {
    "engine", "budget", "seeds", "data_dir", "results_dir", "cpus_per_trial", "gpus_per_trial", "max_concurrent", "keep_state",
}  # fmt: skip


def usual_name(key: str) -> str:
    """What a setting is called here that other frameworks call `key`; `key` itself for all others."""
    own = key.replace("-", "_").lower()
    return _ELSEWHERE.get(own, own if own in SETTINGS else key)


def unknown_setting(key: str, methods: Collection[str]) -> str:
    """One sentence: what is meant, which methods have such an option, or what there is: options before settings.

    Args:
        methods: names of the methods that it might have been an option of.
    """
    options = sorted({option for name in methods for option in options_of(name)} - {"base"})
    named = usual_name(key)
    owners = methods_with(key)
    of_methods = f"options of {', '.join(methods) or 'no method'}: {', '.join(options) or 'none'}; {key} is of "
    of_methods += ", ".join(owners)
    if fixed := [name for name, entry in Registry("model").items() if entry.lab and key in entry.options]:
        return (
            f"Unknown setting {key!r}: {f'{of_methods}. As to models, ' * bool(owners)}{key} is an option of the decorator of "
            f"the model {fixed[0]}; for another value, give the class a second name, "
            f'@registered_model("{fixed[0]}-2", {key}=...), and set model={fixed[0]}-2.'
        )
    if named == key and owners:
        return f"Unknown setting {key!r}: {of_methods}."
    if named in _OF_THE_COMMAND:
        return f"Unknown setting {key!r}: it is an option of the command, --{named.replace('_', '-')}."
    near = f" Did you mean {named!r}?" if named != key else suggestion(key, [*SETTINGS, *options])
    listed = [f"method options {', '.join(options)}"] if options else []
    listed.append(f"settings {', '.join(sorted(SETTINGS))}")
    return f"Unknown setting {key!r}.{near} Known: {'; '.join(listed)}."


def methods_with(option: str) -> list[str]:
    """Names of the methods that have an option; a file that cannot be imported has none."""
    found = []
    for name in algorithms.REGISTRY:
        try:
            found += [name] * (option in options_of(name))
        except ValueError:  # said where that method is used
            continue
    return found
