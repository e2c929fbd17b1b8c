"""What Ray makes of its environment; nothing here starts Ray."""

import json
import os
import re
import subprocess
import sys

import pytest

from bench.execution import ray_environment
from tests.support.processes import ROOT

ASKED = """
import json, os
from bench.execution import ray_environment
import ray
ray_environment.require_own_token()
ray_environment.require_own_token()
from ray._private.authentication import authentication_token_setup as at_start
at_start.enable_token_auth_by_default()
at_start.ensure_token_if_auth_enabled()
mode, loader = at_start.get_authentication_mode(), at_start.AuthenticationTokenLoader.instance()
print(json.dumps([mode == at_start.AuthenticationMode.TOKEN, ray_environment.requires_token(), loader.get_raw_token()]))
"""


def asked(home, **users: str) -> tuple[bool, bool, str]:
    """Whether a local session asks for a token according to Ray, and to us, and for which one, as a user has set variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment = clean | {"HOME": str(home), "PYTHONPATH": str(ROOT)} | users
    done = subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(
    "users",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "known to others", "RAY_ENABLE_K8S_TOKEN_AUTH": "true"},
    ],
    ids=["laxer", "as-strict"],
)
def test_whatever_a_user_has_set_a_local_session_asks_for_a_token_that_nobody_else_knows(users, tmp_path):
    by_ray, by_us, token = asked(tmp_path, **users)
    assert by_ray and by_us
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert not list(tmp_path.iterdir()), "it is not written anywhere"


def test_every_process_has_a_token_of_its_own(tmp_path):
    assert asked(tmp_path)[2] != asked(tmp_path)[2]


def test_modules_that_import_ray_set_its_environment_before():
    importing = re.compile(r"^(?:import|from) ray\b", re.MULTILINE)
    checked = []
    for path in sorted((ROOT / "bench").rglob("*.py")):
        text = path.read_text()
        if found := importing.search(text):
            assert "ray_environment" in text[: found.start()], path
            checked.append(f"{path.parent.name}/{path.name}")
    assert {"execution/ray_session.py", "execution/scheduler.py", "execution/trainable.py", "tuning/runner.py"} <= set(
        checked
    )


@pytest.mark.parametrize("inherited", [None, ""])
def test_the_path_of_workers_has_no_empty_part(inherited):
    assert "" not in ray_environment.python_path(inherited).split(os.pathsep)
    assert ray_environment.python_path("/more").endswith(f"{os.pathsep}/more")
