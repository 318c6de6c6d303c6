from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed.appliance.instance import RECORD_VERSION, Record, claim, find, records
from tokenspeed.appliance.process import start_ticks
from tokenspeed.errors import ExitCode, TryAgainError, UnavailableError


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as name:
        yield Path(name) / "run"


def record(name: str, **changes: object) -> Record:
    values = {
        "version": RECORD_VERSION,
        "name": name,
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "url": "http://127.0.0.1:8000",
        "recipe": "/etc/r.yaml",
        "started": 1.5,
        "drain_seconds": 30.0,
        "log": None,
        "greeting": "",
    }
    return Record(**values | changes)


def test_a_claimed_folder_is_private_listed_and_removed(root: Path) -> None:
    run = claim(root, "a")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert records(root) == []  # no record yet
    run.write_record(record("a"))
    assert [found.name for found in records(root)] == ["a"]
    assert run.endpoint(2) == f"{root}/a/worker-2.sock"
    run.remove()
    assert list(root.iterdir()) == []


def test_a_name_in_use_is_refused_with_its_place(root: Path) -> None:
    run = claim(root, "a")
    run.write_record(record("a"))
    with pytest.raises(TryAgainError, match=r"http://127.0.0.1:8000 .*tokenspeed down a"):
        claim(root, "a")
    claim(root, "b").remove()
    run.remove()
    claim(root, "a").remove()


def test_what_a_killed_instance_left_is_cleared_by_the_next(root: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tokenspeed.appliance.instance import claim\n"
        f"run = claim(Path({str(root)!r}), 'a')\n"
        "run.socket(1).touch()\nos._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (root / "a" / "worker-1.sock").exists()
    run = claim(root, "a")
    assert [path.name for path in run.path.iterdir()] == ["lock"]
    run.remove()


def test_a_record_of_a_process_that_is_gone_or_another_is_stale(root: Path) -> None:
    run = claim(root, "a")
    run.write_record(record("a", start_ticks=1))
    assert records(root) == []
    run.write_record(record("a", pid=2**22 + 1))
    assert records(root) == []
    (run.path / "instance.json").write_text("{")
    assert records(root) == []
    run.remove()


def test_an_instance_is_found_by_name_or_recipe(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claim(root, "a")
    run.write_record(record("a"))
    monkeypatch.chdir("/etc")
    assert find(root, "a") == find(root, "r.yaml") == find(root, "/etc/r.yaml") == record("a")
    assert find(root, "b") is None
    run.remove()


def test_a_folder_that_others_can_open_is_refused(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(UnavailableError, match="not a private folder"):
        claim(root, "a")
    root.chmod(0o755)
    (root / "a").mkdir(mode=0o755)
    with pytest.raises(UnavailableError, match="mode 755"):
        claim(root, "a")


def test_a_link_in_place_of_the_folder_is_refused(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (root / "a").symlink_to(tmp_path)
    with pytest.raises(UnavailableError, match="not a private folder"):
        claim(root, "a")


def test_a_path_too_long_for_a_socket_is_said_before_anything_starts(root: Path) -> None:
    with pytest.raises(UnavailableError, match="shorter") as caught:
        claim(root / ("d" * 90), "a")
    assert caught.value.exit_code is ExitCode.UNAVAILABLE


def test_no_room_is_said_and_what_was_written_stays(root: Path) -> None:
    run = claim(root, "a")
    run.write_record(record("a"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(TryAgainError, match="cannot be written"):
            run.write_record(record("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.name for found in records(root)] == ["a"]
    assert sorted(path.name for path in run.path.iterdir()) == ["instance.json", "lock"]
    run.remove()
