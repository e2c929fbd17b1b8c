"""The environment that Ray reads: every module that imports Ray imports this one before it."""

import functools
import os
import secrets

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


def keep_strangers_out() -> None:
    """Makes Ray, once it is started here, refuse whoever lacks this process's token: its servers listen on all network
    addresses, and whoever may join runs what they like. Workers inherit the token; it is written nowhere.

    A mode of the user's changes nothing: "token" is the strictest, but with a token that others know.
    """
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_K8S_TOKEN_AUTH"):
        # Unset, the mode becomes "token" in `ray.init`; set now, it would be too late, as Ray has read it when imported.
        os.environ.pop(name, None)
    os.environ["RAY_AUTH_TOKEN"] = _token()


def asks_for_token() -> bool:
    """Whether Ray does in this process, a driver that is connected or a worker."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


@functools.cache
def _token() -> str:
    """One for the process, because Ray keeps the first that it has read."""
    return secrets.token_hex(32)
