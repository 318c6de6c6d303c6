"""The real units under a real systemd, with the real small model. One machine, in this order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.machine import Machine, missing, until

REASON = missing()
pytestmark = [
    pytest.mark.systemd,
    pytest.mark.skipif(bool(REASON), reason=REASON or "it can be made"),
]

UNIT = "tokenspeed@demo.service"
RECIPE = """\
version: 1
name: {name}
device: cpu
model:
  source: path:/srv/model
  served_names: [small]
kv:
  blocks: 129
limits:
  max_running: 8
serve:
  port: {port}
  drain: 20s
"""
KEYED = '  api_keys: ["credential:api-key"]\n'

# Asks without a pause until a file appears; prints statuses and the longest wait as JSON.
LOAD = """
import json, pathlib, threading, time, urllib.request
counts, longest, failures = {}, 0.0, []
body = json.dumps({"model": "small", "prompt": "One, two,", "max_tokens": 3}).encode()
def run():
    global longest
    while not pathlib.Path("/run/enough").exists():
        began = time.monotonic()
        request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body,
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                counts[answer.status] = counts.get(answer.status, 0) + 1
                answer.read()
        except Exception as error:
            failures.append(repr(error))
        longest = max(longest, time.monotonic() - began)
threads = [threading.Thread(target=run) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps({"counts": counts, "longest": longest, "failures": failures}))
"""


@pytest.fixture(scope="module")
def machine(smollm2_dir: Path) -> Iterator[Machine]:
    with Machine(smollm2_dir) as it:
        yield it


def write(machine: Machine, name: str, port: int, more: str = "") -> str:
    path = machine.root / "srv" / f"{name}.yaml"
    path.write_text(RECIPE.format(name=name, port=port) + more)
    return f"/srv/{name}.yaml"


def ask(machine: Machine, port: int = 8000, key: str = "") -> int:
    """The status of one completion."""
    program = f"""
import json, urllib.error, urllib.request
body = json.dumps({{"model": "small", "prompt": "One,", "max_tokens": 2}}).encode()
headers = {{"Content-Type": "application/json", "Authorization": "Bearer {key}"}}
try:
    url = "http://127.0.0.1:{port}/v1/completions"
    print(urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
    return int(machine.python(program))


def front(machine: Machine) -> int:
    return int(machine.show(UNIT, "MainPID"))


def worker(machine: Machine) -> int:
    found = machine.run("pgrep", "-f", "tokenspeed.worker", check=False).stdout.split()
    return int(found[0]) if found else 0


def test_install_starts_it_and_it_is_ready_after_its_first_answer(machine: Machine) -> None:
    done = machine.run("tokenspeed", "install", write(machine, "demo", 8000), "--now")
    assert "demo is ready at port 8000" in done.stdout
    assert machine.show(UNIT, "ActiveState") == "active"
    assert machine.show(UNIT, "StatusText").startswith("serving at http://127.0.0.1:8000")
    assert ask(machine) == 200
    assert machine.run("tokenspeed", "status", "demo").returncode == 0  # as root, from outside
    security = machine.run("systemd-analyze", "security", "--no-pager", UNIT).stdout
    exposure = float(security.split("exposure level for")[1].split(":")[1].split()[0])
    assert exposure <= 2.0
    print(f"\nexposure {exposure}")


def test_it_runs_without_privileges(machine: Machine) -> None:
    status = machine.run("cat", f"/proc/{front(machine)}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split()[0] != "0"
    assert int(fields["CapEff"], 16) == 0
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")


def test_the_journal_has_fields(machine: Machine) -> None:
    lines = machine.run(
        *("journalctl", "-u", UNIT, "-o", "json", "--no-pager", "TOKENSPEED_RECIPE=demo")
    ).stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    ready = next(entry for entry in entries if entry["MESSAGE"] == "the worker is ready")
    assert ready["SYSLOG_IDENTIFIER"] == "tokenspeed"
    assert ready["LOGGER"] == "tokenspeed.appliance.supervise"
    assert int(ready["PRIORITY"]) == 6
    assert int(ready["TS_BLOCKS"]) == 129


def test_a_restart_under_load_refuses_nobody(machine: Machine) -> None:
    machine.run("rm", "-f", "/run/enough")
    with machine.started(LOAD) as load:
        until(lambda: worker(machine), "it serves")
        machine.run("systemctl", "restart", UNIT)
        machine.run("touch", "/run/enough")
        told = json.loads(load.communicate(timeout=60)[0])
    print(f"\n{told}")
    assert told["failures"] == []
    assert list(told["counts"]) == ["200"]


def test_a_reload_ends_with_the_same_processes(machine: Machine) -> None:
    before = front(machine), worker(machine)
    machine.run("systemctl", "reload", UNIT)
    assert machine.show(UNIT, "ActiveState") == "active"
    assert (front(machine), worker(machine)) == before
    log = machine.run("journalctl", "-u", UNIT, "--no-pager").stdout
    assert "nothing changed in" in log
    assert "Reloaded" in log
    assert ask(machine) == 200


def test_a_killed_worker_is_replaced_below_the_same_front(machine: Machine) -> None:
    before, old = front(machine), worker(machine)
    machine.run("kill", "-9", str(old))
    until(lambda: worker(machine) not in (0, old), "another worker")
    until(lambda: ask(machine) == 200, "it serves")
    assert front(machine) == before


def test_a_killed_front_is_restarted_and_leaves_no_orphan(machine: Machine) -> None:
    before, old = front(machine), worker(machine)
    machine.run("kill", "-9", str(before))
    until(lambda: machine.run("kill", "-0", str(old), check=False).returncode, "no orphan")
    until(lambda: machine.show(UNIT, "ActiveState") == "active", "it is up again")
    assert front(machine) != before
    assert machine.show(UNIT, "NRestarts") == "1"
    assert ask(machine) == 200


def test_a_missed_watchdog_ends_and_restarts_it(machine: Machine) -> None:
    folder = machine.root / "etc/systemd/system" / f"{UNIT}.d"
    (folder / "test.conf").write_text("[Service]\nWatchdogSec=4\nTimeoutAbortSec=2\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", UNIT)
    before = front(machine)
    machine.run("kill", "-STOP", str(before))
    until(lambda: front(machine) not in (0, before), "another front")
    until(lambda: machine.show(UNIT, "ActiveState") == "active", "it is up again")
    log = machine.run("journalctl", "-u", UNIT, "--no-pager").stdout
    assert "Watchdog timeout" in log
    assert ask(machine) == 200
    (folder / "test.conf").unlink()
    machine.run("systemctl", "daemon-reload")


def test_a_generation_that_cannot_boot_gives_way(machine: Machine) -> None:
    machine.run("cp", "-r", "/srv/model", "/srv/other")
    text = RECIPE.format(name="demo", port=8000).replace("/srv/model", "/srv/other")
    (machine.root / "srv/changed.yaml").write_text(text)
    machine.run("rm", "-f", "/run/enough")
    with machine.started(LOAD) as load:
        # Whole for the plan and the lock; cut off by the time that it starts.
        machine.run(
            "sh",
            "-c",
            "tokenspeed apply /srv/changed.yaml & "
            "until test -e /var/lib/tokenspeed/demo/generations/2; do sleep 0.01; done; "
            "truncate -s 1M /srv/other/*.gguf; wait $! && exit 1 || true",
        )
        machine.run("touch", "/run/enough")
        told = json.loads(load.communicate(timeout=60)[0])
    print(f"\n{told}")
    assert told["failures"] == []
    assert list(told["counts"]) == ["200"]
    listed = machine.run("tokenspeed", "generations", "demo", "--output", "json").stdout
    first, second = json.loads(listed)
    assert first["state"] == "current, confirmed"
    assert second["state"].startswith("gave way")
    assert machine.show(UNIT, "ActiveState") == "active"


def test_an_invalid_recipe_is_not_started_again_and_again(machine: Machine) -> None:
    machine.run("systemctl", "stop", "tokenspeed@demo.socket", UNIT)
    recipe = machine.root / "var/lib/tokenspeed/demo/current/recipe.yaml"
    good = recipe.read_text()
    recipe.write_text(good.replace("max_running", "max_runing"))
    machine.run("systemctl", "start", UNIT, check=False)
    until(lambda: machine.show(UNIT, "ActiveState") == "failed", "it fails")
    assert machine.show(UNIT, "ExecMainStatus") == "65"
    assert machine.show(UNIT, "NRestarts") == "0"
    recipe.write_text(good)
    machine.run("systemctl", "reset-failed", UNIT)
    machine.run("systemctl", "start", "tokenspeed@demo.socket", UNIT)


def test_a_key_comes_as_a_credential(machine: Machine) -> None:
    recipe = write(machine, "keyed", 8001, KEYED)
    refused = machine.run("tokenspeed", "install", recipe, "--now", check=False)
    assert (refused.returncode, "TS-S264" in refused.stderr) == (69, True)
    folder = machine.root / "etc/tokenspeed/credentials/keyed"
    folder.mkdir(parents=True)
    (folder / "api-key").write_text("let-me-in\n")
    (folder / "api-key").chmod(0o600)
    machine.run("tokenspeed", "install", recipe, "--now")
    assert ask(machine, 8001) == 401
    assert ask(machine, 8001, "let-me-in") == 200
    machine.run("systemctl", "disable", "--now", "tokenspeed@keyed.socket", "tokenspeed@keyed")


def test_it_comes_back_with_the_machine(machine: Machine) -> None:
    machine.reboot()
    until(lambda: machine.show(UNIT, "ActiveState") == "active", "it starts by itself")
    assert ask(machine) == 200
    machine.run("systemctl", "stop", "tokenspeed.target")
    until(lambda: machine.show(UNIT, "ActiveState") == "inactive", "the target stops it")
    assert worker(machine) == 0
