from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from starlette.responses import PlainTextResponse

from tokenspeed.appliance.front import Doorway, Server, ask, ask_now, listen, url_of
from tokenspeed.errors import ExitCode, TryAgainError, UnavailableError
from tokenspeed.server.keys import Keys


def client(app: Doorway) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://front")


def test_a_listening_socket_holds_its_address_from_the_start() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(TryAgainError, match=f"127.0.0.1:{port} is in use") as caught:
            listen("127.0.0.1", port)
        assert caught.value.exit_code is ExitCode.TRY_AGAIN
        with pytest.raises(TryAgainError):
            listen("0.0.0.0", port)
    listen("127.0.0.1", port).close()  # free again at once


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(UnavailableError, match="cannot listen on"):
        listen(host, 0)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_url_works_from_this_machine(host: str, shown: str) -> None:
    with listen(host, 0) as listener:
        url = url_of(listener)
        assert url == f"http://{shown}:{listener.getsockname()[1]}"
        with socket.create_connection((shown.strip("[]"), listener.getsockname()[1])):
            pass


def test_the_doorway_answers_probes_and_refuses_work_until_the_server_is_in_place() -> None:
    async def scenario() -> None:
        door = Doorway(Keys())
        door.stage, door.fraction = "downloading x", 0.42
        async with client(door) as http:
            assert (await http.get("/livez")).json() == {"status": "live"}
            start = await http.get("/startupz")
            assert start.status_code == 503
            assert start.json() == {"status": "loading", "stage": "downloading x", "percent": 42}
            ready = await http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json() == {"status": "loading", "detail": "downloading x, 42%"}
            refused = await http.post("/v1/chat/completions", json={})
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            assert refused.json()["error"]["code"] == "engine_loading"
            door.inner = PlainTextResponse("the real one")
            assert (await http.get("/readyz")).status_code == 503  # it has answered nobody yet
            door.is_open = True
            assert (await http.get("/livez")).text == "the real one"

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["finish", "drop"])
def test_the_server_ends_cleanly_either_way(end: str) -> None:
    async def scenario() -> None:
        door = Doorway(Keys())
        server = Server(door)
        listener = listen("127.0.0.1", 0)
        url = url_of(listener)
        serving = asyncio.create_task(server.serve([]))
        await server.open(listener)
        assert await ask(url, "GET", "/livez") == (200, {"status": "live"})
        getattr(server, end)()
        await asyncio.wait_for(serving, 10)
        with pytest.raises(ConnectionRefusedError):
            await ask(url, "GET", "/livez")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_dropping_does_not_wait_for_a_request_that_never_ends() -> None:
    async def scenario() -> None:
        door = Doorway(Keys())
        began = asyncio.Event()

        async def endless(scope: object, receive: object, send: object) -> None:
            began.set()
            await asyncio.Event().wait()

        door.inner, door.is_open = endless, True
        server = Server(door)
        listener = listen("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve([]))
        await server.open(listener)
        asking = asyncio.create_task(ask(url_of(listener), "GET", "/"))
        await began.wait()
        server.drop()
        await asyncio.wait_for(serving, 10)
        with pytest.raises(OSError):
            await asking

    asyncio.run(scenario())


def test_asking_nobody_is_an_error() -> None:
    with listen("127.0.0.1", 0) as listener:
        url = url_of(listener)
    with pytest.raises(ConnectionRefusedError):
        ask_now(url, "GET", "/livez")
