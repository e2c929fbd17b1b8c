"""The environment of Ray and of its workers: every module that imports Ray imports this one before it.

Ray reads some variables when it is imported, some when it starts, and its workers inherit the rest.
"""

import os
import secrets
from pathlib import Path
from typing import Any

from bench import plugins

ROOT = Path(__file__).parents[2]
PACKAGES = ("algorithms", "bench", "datasets", "reports", "search_spaces")  # which a cluster's workers get
_TOKEN = secrets.token_hex(32)  # one for the process, because Ray keeps the first that it has read

_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
}
for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)


def prepare_local(threads: int) -> None:
    """Sets the environment that a local session of Ray, and its workers, inherit from this process.

    Args:
        threads: of each worker, whatever library starts them.
    """
    os.environ |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    os.environ[plugins.VARIABLE] = os.pathsep.join(map(str, plugins.folders()))
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # one for each core, whatever the trials need
    require_own_token()


def cluster_runtime_env(threads: int, working_dir: str, labs: str = "") -> dict[str, Any]:
    """Ray's `runtime_env` for workers of a cluster: they get the code of this project and of labs; torch and images must be
    there.

    Args:
        threads: as in `prepare_local`.
        working_dir: an empty folder, which every worker gets as its own. Without one Ray puts the driver's working directory
            before the code that is sent, and a machine with another checkout at that path would train with it.
        labs: package with the folders of labs, see `bench.plugins.copy_to`; "" if none is used.
    """
    return {
        "working_dir": working_dir,
        "py_modules": [*(str(ROOT / name) for name in PACKAGES), *filter(None, [labs])],
        "excludes": ["__pycache__"],
        "env_vars": {"OMP_NUM_THREADS": str(threads), plugins.VARIABLE: ""},
    }


def python_path(inherited: str | None) -> str:
    """Where workers find this code, before what they inherit; an empty part would be their working directory."""
    return os.pathsep.join(filter(None, [str(ROOT), inherited]))


def require_own_token() -> None:
    """Makes a local session of Ray refuse whoever lacks this process's token: every user of the machine reaches its servers,
    and whoever may join can run programs. Workers inherit the token; it is written nowhere.

    A mode that the user has set changes nothing: "token" is the strictest, but with a token that others know.
    """
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_K8S_TOKEN_AUTH"):
        # Unset, the mode becomes "token" in `ray.init`; set now, it would be too late, as Ray has read it when imported.
        os.environ.pop(name, None)
    os.environ["RAY_AUTH_TOKEN"] = _TOKEN


def requires_token() -> bool:
    """Whether Ray requires a token in this process, a driver that is connected or a worker."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
