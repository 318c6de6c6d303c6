"""What stands behind a key in its file: scopes, rate, how many at once. Read again on change."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenspeed.errors import UnavailableError
from tokenspeed.metrics import Metrics
from tokenspeed.server.boundary import Boundary
from tokenspeed.server.exchange import send_json
from tokenspeed.server.keys import LOOK_SECONDS, Guard, Keys, read_keys
from tokenspeed.server.recent import Recent

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Door:
    """Boundary and guard before an application that answers when it is let go."""

    def __init__(self, file: Path, *lines: str) -> None:
        file.write_text("\n".join(lines))
        self.keys = read_keys([f"file:{file}"])
        self.clock = self.keys._clock = Clock()
        self.keys._source.looked = self.clock.now
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.inside = 0
        metrics = Metrics()
        guard = Guard(self._answer, self.keys)
        self._app = Boundary(guard, metrics, [], log_requests=False, recent=Recent())

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside += 1
        await self.let_go.wait()
        await send_json(send, 200, b'{"error": {"code": null}}')

    async def ask(self, key: str, path: str = "/v1/completions", method: str = "POST") -> Any:
        """Status, code and headers."""
        transport = httpx.ASGITransport(self._app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.request(method, path, headers={"x-api-key": key})
            return answer.status_code, answer.json()["error"]["code"], answer.headers


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


async def test_scopes(file: Path) -> None:
    hashed = hashlib.sha256(b"three").hexdigest()
    door = Door(
        file,
        *("one scopes=inference", "two scopes=metrics", f"sha256:{hashed}"),
        "four scopes=metrics,inference",
    )
    for key, inference, metrics in (("one", 200, 403), ("two", 403, 200), ("three", 200, 200),
                                    ("four", 200, 200), ("five", 401, 401)):  # fmt: skip
        assert (await door.ask(key))[0] == inference
        status, error, _ = await door.ask(key, "/metrics", "GET")
        assert status == metrics
        if status == 403:
            assert error == "insufficient_scope"


async def test_the_rate_of_a_key(file: Path) -> None:
    door = Door(file, "slow rate=6", "other")
    assert [(await door.ask("slow"))[0] for _ in range(7)] == [200] * 6 + [429]
    status, error, headers = await door.ask("slow")
    assert (status, error, headers["retry-after"]) == (429, "rate_limit_exceeded", "10")
    assert (await door.ask("other"))[0] == 200
    assert (await door.ask("slow", "/v1/models", "GET"))[0] == 200  # costs nothing
    door.clock.now += 10
    assert [(await door.ask("slow"))[0] for _ in range(2)] == [200, 429]
    door.clock.now += 3600
    assert [(await door.ask("slow"))[0] for _ in range(7)] == [200] * 6 + [429]


async def test_how_many_at_once(file: Path) -> None:
    door = Door(file, "narrow concurrent=2", "other")
    door.let_go.clear()
    waiting = [asyncio.create_task(door.ask("narrow")) for _ in range(2)]
    while door.inside < 2:
        await asyncio.sleep(0)
    status, error, headers = await door.ask("narrow")
    assert (status, error, headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
    other = asyncio.create_task(door.ask("other"))
    waiting[0].cancel()  # one who leaves makes room
    await asyncio.gather(waiting[0], return_exceptions=True)
    third = asyncio.create_task(door.ask("narrow"))
    while door.inside < 4:
        await asyncio.sleep(0)
    door.let_go.set()
    assert [(await task)[0] for task in (waiting[1], other, third)] == [200] * 3


async def test_keys_change_without_a_restart(file: Path) -> None:
    door = Door(file, "old rate=1", "kept rate=1")
    assert [(await door.ask("kept"))[0] for _ in range(2)] == [200, 429]
    file.write_text("new\nkept rate=1\n")
    assert (await door.ask("new"))[0] == 401  # nobody has looked yet
    door.clock.now += LOOK_SECONDS
    assert (await door.ask("new"))[0] == 200
    assert (await door.ask("old"))[0] == 401
    assert (await door.ask("kept"))[0] == 429  # what was used stays used
    assert door.keys.find([door.keys.local.encode()]) is not None


@pytest.mark.parametrize("content", ["", "x rate=fast\n", None])
async def test_a_file_that_cannot_be_read_changes_nothing(file: Path, content: str | None) -> None:
    door = Door(file, "old")
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    door.clock.now += LOOK_SECONDS
    assert (await door.ask("old"))[0] == 200
    file.write_text("new\n")
    door.clock.now += LOOK_SECONDS
    assert (await door.ask("new"))[0] == 200
    assert (await door.ask("old"))[0] == 401


@pytest.mark.parametrize(
    "words", ["rate=0", "rate=-1", "rate=x", "concurrent=", "scopes=root", "scopes=", "half-of-it"]
)
def test_what_is_not_understood_stops_the_start(file: Path, words: str) -> None:
    file.write_text(f"sk-very-secret {words}")
    with pytest.raises(UnavailableError) as caught:
        read_keys([f"file:{file}"])
    (problem,) = caught.value.problems
    assert problem.code == "TS-S241"
    assert "secret" not in problem.message
    assert "half" not in problem.message


def test_a_server_without_keys_has_nothing_to_read_again() -> None:
    keys = Keys()
    keys.refresh()
    assert not keys.required
