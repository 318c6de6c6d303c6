"""C35: with API keys, nothing but the probes answers without one; and what a key separates."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.rigs.plans import tiny_plan
from tests.server.live import LiveServer, Raw, serving
from tokenspeed.errors import ExitCode, UnavailableError
from tokenspeed.plan import Plan
from tokenspeed.server.app import create_app
from tokenspeed.server.keys import OPEN, Key, Keys, open_to_strangers, read_keys

KEY = "sk-a1b2c3-first"
OTHER = "sk-a1b2c3-second"
FIRST = "sk-a1b2c3-urgent"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND")


@pytest.fixture(scope="module")
def keyed(rand_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("keys")
    hashed = hashlib.sha256(OTHER.encode()).hexdigest()
    (folder / "keys").write_text(f"{KEY}\n\n  sha256:{hashed}\n{FIRST} scopes=inference,priority\n")
    plan = tiny_plan(rand_folder, max_model_len=512)
    serve = dataclasses.replace(plan.serve, api_keys=(f"file:{folder}/keys",), log_requests=True)
    plan = dataclasses.replace(plan, serve=serve)
    with serving(plan, rand_folder, tmp_path_factory.mktemp("run")) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def routes(server: LiveServer) -> list[str]:
    """Every path of the application that runs, parameters filled in."""
    app = create_app(server.plan, server.engine, server.text, server.keys)
    return [route.path.replace("{name:path}", "tiny") for route in app.routes]


WRONG: dict[str, dict[str, str]] = {
    "none": {},
    "empty": {"Authorization": ""},
    "no key": {"Authorization": "Bearer "},
    "wrong": bearer("sk-a1b2c3-other"),
    "part": bearer(KEY[:-1]),
    "more": bearer(KEY + "x"),
    "space before": bearer(" " + KEY),
    "case of the key": bearer(KEY.upper()),
    "case of the scheme": {"Authorization": f"bearer {KEY}"},
    "another scheme": {"Authorization": f"Basic {KEY}"},
    "bare": {"Authorization": KEY},
    "the hash": bearer(hashlib.sha256(OTHER.encode()).hexdigest()),
    "the hash as stored": bearer("sha256:" + hashlib.sha256(OTHER.encode()).hexdigest()),
    "another header": {"X-Token": KEY, "Cookie": f"key={KEY}"},
    "wrong x-api-key": {"x-api-key": "sk"},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG.keys())
def test_c35_every_route_without_a_right_key(keyed: LiveServer, headers: dict[str, str]) -> None:
    for path in routes(keyed):
        for method in METHODS:
            status, body, fields = keyed.request(method, path, b"{}", headers)
            if path in OPEN:
                assert status != 401, (method, path)
                continue
            assert status == 401, (method, path, status)
            assert fields["www-authenticate"].startswith("Bearer ")
            assert fields["x-request-id"]
            if method != "HEAD":
                assert KEY not in json.dumps(body)


TRICKS = (
    *("//v1/models", "/v1/../metrics", "/v1/../livez", "/livez/../metrics", "/V1/models"),
    *("/%2e%2e/metrics", "/%2fmetrics", "/metrics/", "/metrics%00", "/livez/", "//livez"),
    *("/livez%2f..%2fmetrics", "/livez;/metrics", "/LIVEZ", "/livez%20", "/./livez", "/", "/docs"),
    *(f"/v1/models?api_key={KEY}", f"/v1/models?key={KEY}", "http://x/metrics", "/livez/x", "*"),
)


@pytest.mark.parametrize("path", TRICKS)
def test_c35_tricks_with_the_path(keyed: LiveServer, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        raw = Raw(keyed.port)
        raw.socket.sendall(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        status = raw.read_until(b"\r\n").split(b" ")[1]
        raw.close()
        # 400: a target that is no path never gets as far as a route.
        assert status in (b"401", b"400"), (method, path, status)


def test_a_spelling_of_a_probe_is_the_probe(keyed: LiveServer) -> None:
    assert keyed.get("/%6civez")[1] == {"status": "live"}
    for path in OPEN:
        assert keyed.get(path)[0] == 200


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
def test_a_right_key_opens_everything(keyed: LiveServer, key: str, header: str) -> None:
    headers = {header: f"Bearer {key}" if header == "Authorization" else key}
    assert keyed.get("/v1/models", **headers)[0] == 200
    assert keyed.get("/metrics", **headers)[0] == 200
    assert keyed.get("/nowhere", **headers)[0] == 404
    assert keyed.post("/livez", {}, **headers)[0] == 405
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    assert keyed.post("/v1/completions", body, **headers)[0] == 200


def test_priority_needs_its_scope(keyed: LiveServer) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1}

    def ask(key: str, priority: int | None) -> tuple[int, Any]:
        fields = {**body, "priority": priority}
        status, answer, _ = keyed.post("/v1/completions", fields, **bearer(key))
        return status, answer.get("error", {}).get("code")

    refused = (403, "insufficient_scope")
    assert [ask(KEY, value) for value in (None, 0, -1, 1)] == [(200, None)] * 2 + [refused] * 2
    assert ask(FIRST, -1) == (200, None)


def test_the_local_key_opens_too(keyed: LiveServer) -> None:
    assert keyed.get("/metrics", **bearer(keyed.keys.local))[0] == 200


def test_a_refused_upload_gets_its_answer(keyed: LiveServer) -> None:
    status, body, _ = keyed.post("/v1/completions", b"x" * (8 << 20))
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


def test_unmodified_clients(keyed: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEY, max_retries=0) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
    with (
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="no", max_retries=0) as api,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        api.models.list()
    assert refused.value.code == "invalid_api_key"
    with (
        anthropic.Anthropic(base_url=keyed.url, api_key="no", max_retries=0) as claude,
        pytest.raises(anthropic.AuthenticationError),
    ):
        claude.models.list()


def test_the_key_is_never_told(keyed: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for headers in (bearer(KEY), bearer(KEY + "x")):
        _, body, fields = keyed.get("/v1/models", **headers)
        assert KEY not in json.dumps([body, fields])
    assert any("/v1/models" in record.getMessage() for record in caplog.records)
    assert KEY not in caplog.text
    assert KEY.encode() not in keyed.plan.to_json()
    assert KEY not in repr(keyed.keys.__dict__)
    commands = [Path(f"/proc/{keyed.worker.pid}/{name}") for name in ("cmdline", "environ")]
    assert all(KEY.encode() not in command.read_bytes() for command in commands)


def test_each_key_has_a_prefix_cache_of_its_own(keyed: LiveServer) -> None:
    def cached(key: str, **fields: Any) -> int:
        body = {"model": "tiny", "prompt": list(range(3, 83)), "max_tokens": 1, **fields}
        status, answer, _ = keyed.post("/v1/completions", body, **bearer(key))
        assert status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(KEY), cached(KEY)] == [0, 64]
    assert [cached(OTHER), cached(OTHER)] == [0, 64]
    # A salt divides further; it does not lead into anybody else's cache.
    assert [cached(KEY, cache_salt="s"), cached(KEY, cache_salt="s")] == [0, 64]
    assert cached(OTHER, cache_salt="s") == 0


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api").write_text("from-credential\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("MY_KEY", "from-env")
    keys = read_keys(("env:MY_KEY", "credential:api"))
    tenants = {keys.find([key]) for key in (b"from-env", b"from-credential", b"x")}
    assert len(tenants) == 3
    assert None in tenants
    assert not read_keys(()).required


def test_references_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    names = ("env:NOT_SET", "credential:x", "file:/no/such", *(f"file:{tmp_path}/{n}" for n in
             ("empty", "binary")))  # fmt: skip
    with pytest.raises(UnavailableError) as caught:
        read_keys(names)
    assert caught.value.exit_code is ExitCode.UNAVAILABLE
    assert len(caught.value.problems) == 5
    for name, problem in zip(names, caught.value.problems, strict=True):
        assert name in problem.message


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        *(("127.0.0.1", False), ("::1", False), ("localhost", False), ("127.9.9.9", False)),
        *(("0.0.0.0", True), ("::", True), ("10.0.0.1", True), ("box.example", True)),
    ],
)
def test_a_server_beyond_this_machine_wants_keys(host: str, is_open: bool) -> None:
    assert open_to_strangers(host, Keys()) is is_open
    assert not open_to_strangers(host, Keys([Key(b"x" * 32)]))


def test_a_plan_with_keys_holds_only_references(keyed: LiveServer) -> None:
    assert Plan.from_json(keyed.plan.to_json()).serve.api_keys == keyed.plan.serve.api_keys
