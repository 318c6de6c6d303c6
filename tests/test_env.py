from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenspeed import env
from tokenspeed.errors import ExitCode, UsageError

LAYOUT = ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "STATE_DIRECTORY", "XDG_DATA_HOME")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAYOUT:
        monkeypatch.delenv(name, raising=False)


def test_unknown_variables_of_ours_stop_the_start_and_are_all_named() -> None:
    with pytest.raises(UsageError) as caught:
        env.check_variables({"TOKENSPEED_KV": "1", "TOKENSPEED_ATTN": "x", "PATH": "/bin"})
    assert [problem.message.split()[3] for problem in caught.value.problems] == [
        "TOKENSPEED_ATTN",
        "TOKENSPEED_KV",
    ]
    assert caught.value.exit_code is ExitCode.USAGE


def test_foreign_variables_are_nobody_s_business() -> None:
    env.check_variables({"OTHER_TOKENSPEED_X": "1", "tokenspeed_kv": "1", "HOME": "/"})


def test_run_root_prefers_the_service_manager_then_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert env.run_root() == Path(f"/tmp/tokenspeed-{os.getuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert env.run_root() == Path("/run/user/7/tokenspeed")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/a:/run/b")
    assert env.run_root() == Path("/run/a")


def test_data_root_prefers_the_service_manager_then_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert env.data_root() == Path("/home/u/.local/share/tokenspeed")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert env.data_root() == Path("/data/tokenspeed")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/tokenspeed:/var/lib/tokenspeed/x")
    assert env.data_root() == Path("/var/lib/tokenspeed")


def test_relative_folders_are_ignored_as_their_specification_demands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    monkeypatch.setenv("HOME", "/home/u")
    assert env.data_root() == Path("/home/u/.local/share/tokenspeed")


def test_worker_threads_reach_openmp_and_zero_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert env.worker_environment(2)["OMP_NUM_THREADS"] == "2"
    assert env.worker_environment(0)["OMP_NUM_THREADS"] == "7"


def test_what_a_manager_says_is_obeyed_only_by_the_process_it_was_said_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = str(os.getpid()), str(os.getppid())
    for name, value in {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": own,
        "LISTEN_PID": own,
        "LISTEN_FDS": "2",
        "LISTEN_FDNAMES": "a",
    }.items():
        monkeypatch.setenv(name, value)
    manager = env.service_manager()
    assert manager == env.Manager("/run/n", 3.0, ((3, "a"), (4, "")))
    assert not {name for name in env.child_environment({}) if "LISTEN" in name or "WATCH" in name}
    monkeypatch.setenv("WATCHDOG_PID", other)
    monkeypatch.setenv("LISTEN_PID", other)
    assert env.service_manager() == env.Manager("/run/n", None, ())
    monkeypatch.delenv("LISTEN_PID")  # a count alone leaks into containers
    assert env.service_manager().sockets == ()


def test_a_secret_is_a_file_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("let-me-in\n")
    assert env.secret(f"file:{tmp_path / 'key'}") == "let-me-in\n"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        env.secret(f"file:{tmp_path / 'pipe'}")
