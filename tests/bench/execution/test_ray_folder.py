"""Ray's own files on this machine: no other user comes near them, and none are left."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.execution import ray_folder
from tests.support.processes import OTHER, ROOT, as_other

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder for temporary files that all users can enter, with a short path as /tmp has."""
    monkeypatch.setattr(ray_folder, "_place", lambda: tmp_path)
    return tmp_path


def left(place: Path) -> list[Path]:
    return list(place.glob(f"{ray_folder.PREFIX}*"))


def test_the_folder_is_closed_to_others_whatever_ray_does_in_it_and_gone_at_the_end(place):
    with ray_folder.private() as folder:
        folder.chmod(0o777)  # as Ray does
        (folder / "sockets").mkdir(mode=0o777)
        assert folder.parent.stat().st_mode & 0o777 == 0o700 and left(place) == [folder.parent]
    assert not left(place)


@as_root
def test_a_second_user_cannot_replace_a_socket():
    with ray_folder.private() as folder:
        folder.chmod(0o777)
        sockets = folder / "sockets"
        sockets.mkdir()
        sockets.chmod(0o777)
        (sockets / "raylet").touch(mode=0o777)
        assert as_other("ls", "/tmp").returncode == 0, "it is a user"
        for command in (("mv", sockets / "raylet", sockets / "old"), ("ls", folder), ("rm", "-r", folder.parent)):
            done = as_other(*command)
            assert done.returncode != 0 and "denied" in done.stderr or "not permitted" in done.stderr
        assert [path.name for path in sockets.iterdir()] == ["raylet"]


def test_folders_of_killed_drivers_are_removed_and_those_of_others_stay(place):
    code = (
        "import pathlib, sys, time\nfrom bench.execution import ray_folder\n"
        "ray_folder._place = lambda: pathlib.Path(sys.argv[1])\n"
        "with ray_folder.private(): print('made', flush=True); time.sleep(100)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, place], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout.readline() == "made\n"
        with ray_folder.private():
            assert len(left(place)) == 2, "that of a driver at work stays"
    finally:
        driver.kill()
        driver.communicate()
    (place / f"{ray_folder.PREFIX}link").symlink_to(place / "mine")
    (place / "mine").mkdir()
    with ray_folder.private() as folder:
        assert {*left(place)} == {folder.parent, place / f"{ray_folder.PREFIX}link"} and (place / "mine").is_dir()


@as_root
def test_a_folder_of_a_second_user_is_left_alone(place):
    theirs = place / f"{ray_folder.PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, OTHER, OTHER)
    with ray_folder.private():
        pass
    assert left(place) == [theirs]


def test_a_driver_does_not_take_a_folder_that_another_one_removes(place, monkeypatch):
    real, calls = fcntl.flock, []

    def flock(descriptor, kind):
        if not calls:
            left(place)[0].rmdir()
        calls.append(kind)
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with ray_folder.private() as folder:
        assert folder.is_dir() and len(calls) == 2


@pytest.mark.parametrize("name", ["short", "x" * 60, "ö" * 15])
def test_paths_of_sockets_are_short_enough_wherever_temporary_files_go(name, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", f"/tmp/{name}")
    assert str(ray_folder._place()) == ("/tmp/short" if name == "short" else "/tmp")
    longest = Path("/tmp") / (ray_folder.PREFIX + "x" * ray_folder._RANDOM) / "ray"
    path = longest / "session_2026-01-01_12-00-00_000000_1234567" / "sockets" / "plasma_store"
    assert len(str(path)) <= 107
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    with ray_folder.private() as folder, socket.socket(socket.AF_UNIX) as one:
        sockets = folder / path.parent.relative_to(longest)
        sockets.mkdir(parents=True)
        one.bind(str(sockets / "plasma_store"))
