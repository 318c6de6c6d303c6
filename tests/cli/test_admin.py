"""`tokenspeed admin` against a real instance: what it does, and who is let in."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.appliance.live import Front, Home, until
from tests.rigs.experts import build_experts
from tokenspeed.appliance.front import ask_now
from tokenspeed.appliance.instance import Record
from tokenspeed.cli import main
from tokenspeed.errors import ExitCode
from tokenspeed.server.admin import MAX_STEPS

ADMIN, USER = "sk-the-admin", "sk-a-user"
PATHS = ("drain", "resume", "flush", "experts", "profile", "log-level")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("admin")
    (folder / "keys").write_text(f"{USER}\n{ADMIN} scopes=admin,inference\n")
    with Home() as home:
        model = build_experts(folder / "model", "qwen3_moe", seed=1, max_position_embeddings=65_536)
        recipe = home.recipe("demo", model)
        with recipe.open("a") as file:
            file.write(f"  api_keys: ['file:{folder}/keys']\nadvanced: {{expert_load: true}}\n")
        front = home.up(recipe)
        front.client.headers["x-api-key"] = USER
        yield front.wait_ready()


@pytest.fixture
def record(front: Front) -> Record:
    found = front.home.record("demo")
    assert found is not None
    return found


def admin(front: Front, *words: str) -> Any:
    """What the verb prints as data; it must work."""
    done = front.home.run("admin", *words, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", PATHS)
def test_no_port_has_the_paths_of_administrators(front: Front, path: str) -> None:
    for key, status in ((ADMIN, 404), (USER, 404), ("wrong", 401)):
        answer = front.client.post(f"{front.url}/admin/{path}", headers={"x-api-key": key})
        assert answer.status_code == status
    assert "/admin/" not in front.get("/openapi.json").text


def test_the_socket_wants_a_key_with_the_scope(record: Record) -> None:
    def ask(key: str, **body: Any) -> tuple[int, Any]:
        return ask_now(record.local, "POST", "/admin/log-level", body, key=key)

    assert ask("", level="info")[0] == 401
    status, answer = ask(USER, level="info")
    assert (status, answer["error"]["code"]) == (403, "insufficient_scope")
    assert ask(ADMIN, level="info") == (200, {"level": "info"})
    assert ask(record.key, level="info") == (200, {"level": "info"})


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("log-level", {}, "level"),
        ("log-level", {"level": "loud"}, "level"),
        ("profile", {"steps": 0}, "steps"),
        ("profile", {"steps": MAX_STEPS + 1}, "steps"),
        ("profile", {"file": "/etc/passwd"}, "file"),
        ("flush", {"tenant": "x"}, "tenant"),
        ("drain", {"seconds": 1}, "seconds"),
    ],
)
def test_what_a_body_may_not_say(record: Record, path: str, body: Any, field: str) -> None:
    status, answer = ask_now(record.local, "POST", f"/admin/{path}", body, key=record.key)
    assert (status, answer["error"]["param"]) == (400, field)


def test_a_body_may_be_left_out(record: Record) -> None:
    """As `curl -X POST` sends it: no body, no length."""
    head = f"POST /admin/resume HTTP/1.1\r\nhost: x\r\nx-api-key: {record.key}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(record.local.removeprefix("unix:"))
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_the_socket_describes_what_it_has(record: Record) -> None:
    _, document = ask_now(record.local, "GET", "/openapi.json", key=record.key)
    found = {path.removeprefix("/admin/") for path in document["paths"] if "/admin/" in path}
    assert found == set(PATHS)
    body = document["paths"]["/admin/profile"]["post"]["requestBody"]["content"]
    steps = body["application/json"]["schema"]["properties"]["steps"]
    assert (steps["minimum"], steps["maximum"]) == (1, MAX_STEPS)


def test_experts_shows_where_tokens_went(front: Front) -> None:
    def totals() -> list[int]:
        return [sum(layer["tokens"]) for layer in admin(front, "experts")["layers"]]

    before = totals()
    body = {"model": "tiny", "prompt": [5, 6, 7, 8, 9], "max_tokens": 4, "ignore_eos": True}
    assert front.post("/v1/completions", body).status_code == 200
    # Three experts of eight; the last token of the answer is computed by nobody.
    assert [now - then for now, then in zip(totals(), before, strict=True)] == [3 * 8, 3 * 8]
    done = front.home.run("admin", "experts")
    assert done.stdout.startswith("layer   0  ") and "over 8 experts" in done.stdout


def test_flush_forgets_prefixes_and_nothing_else(front: Front) -> None:
    prompt = "the same words again and again, " * 20

    def ask() -> tuple[str, int]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        answer = front.post("/v1/completions", body).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], cached

    text, _ = ask()
    assert ask() == (text, cached := ask()[1])
    assert cached > 0
    assert admin(front, "flush")["blocks"] > 0
    assert front.gauges()["tokenspeed_cache_blocks_reusable"] == 0
    assert ask() == (text, 0)
    assert ask() == (text, cached)


def test_drain_waits_for_open_requests_and_resume_lets_in_again(front: Front) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 60_000, "ignore_eos": True}
    url = f"{front.url}/v1/completions"
    with ThreadPoolExecutor(1) as pool:
        with front.client.stream("POST", url, json=body | {"stream": True}) as open_one:
            lines = open_one.iter_lines()
            next(lines)
            draining = pool.submit(front.home.run, "admin", "drain", "demo")
            until(lambda: front.get("/readyz").status_code == 503, "the drain begins")
            assert front.get("/readyz").json()["status"] == "draining"
            refused = front.post("/v1/completions", body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                503,
                "engine_draining",
            )
            assert "retry-after" in refused.headers
            assert [next(lines) for _ in range(8)]  # what is open runs on
            assert not draining.done()
        done = draining.result()
    assert (done.returncode, done.stdout[:7]) == (0, "drained"), done.stderr
    assert front.home.run("status", "demo").returncode == ExitCode.TRY_AGAIN
    assert front.home.run("admin", "resume").stdout == "requests are let in again\n"
    assert front.get("/readyz").status_code == 200
    assert front.ask() == front.ask()


def test_a_profile_of_some_steps(front: Front, record: Record) -> None:
    text = front.ask()
    over = threading.Event()

    def talk() -> None:
        while not over.is_set():
            assert front.ask() == text

    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk)
        answer = admin(front, "profile", "--steps", "5")
        over.set()
        talking.result()
    file = Path(answer["file"])
    assert file.parent == record.folder
    assert answer["steps"] >= 5
    names = {event.get("name", "") for event in json.loads(file.read_bytes())["traceEvents"]}
    assert any(name.startswith(("aten::", "tokenspeed")) for name in names), names


def test_one_profile_at_a_time(front: Front, record: Record) -> None:
    def profile(steps: int) -> tuple[int, Any]:
        body = {"steps": steps}
        return ask_now(record.local, "POST", "/admin/profile", body, 60.0, key=record.key)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(profile, 2) for _ in range(2)]
        until(lambda: any(one.done() for one in both), "one is refused")
        front.ask()
        statuses = sorted(one.result()[0] for one in both)
    assert statuses == [200, 409]


def test_log_level_says_which_lines_there_are(front: Front) -> None:
    def logged(path: str) -> int:
        front.get(path)
        return sum(f"GET {path}" in line for line in front.lines)

    assert admin(front, "log-level", "debug", "demo") == {"level": "debug"}
    until(lambda: logged("/livez"), "a probe is logged")
    assert admin(front, "log-level", "warning") == {"level": "warning"}
    before = logged("/livez")
    assert (logged("/livez"), logged("/v1/models/x")) == (before, 0)
    assert admin(front, "log-level", "info") == {"level": "info"}
    until(lambda: logged("/v1/models/x"), "a request is logged")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--help",), *((path, "--help") for path in PATHS)):
        assert main(["admin", *words]) == ExitCode.OK
        assert len(capsys.readouterr().out.split()) > 15
    assert main(["admin", "log-level", "loud"]) == ExitCode.USAGE
    assert "debug" in capsys.readouterr().err
    assert main(["admin", "flush", "nobody"]) == ExitCode.UNAVAILABLE
