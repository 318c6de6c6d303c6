"""C36 to C38 as far as the server goes: no template, URL or frame of a stranger does harm."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.rigs.fronts import BareFront
from tests.server.conftest import canary
from tests.server.live import LiveServer, until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": "{{ 'x' }}"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": "x"}},
        {"chat_template_kwargs": {"tools": "x"}},
        {"chat_template_kwargs": {"bos_token": "x"}},
        {"chat_template_kwargs": {"raise_exception": "x"}},
        {"chat_template_kwargs": {"__class__": "x"}},
        {"chat_template_kwargs": {"nested": {"chat_template": "x"}}},
        {"chat_template_kwargs": "x"},
    ],
)
def test_c37_templates_of_a_request(rand: LiveServer, fields: dict[str, Any]) -> None:
    status, answer, _ = rand.post(CHAT, {"model": "tiny", "messages": MESSAGES, **fields})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    (field,) = fields
    assert answer["error"]["param"].split(".")[0] == field


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        server.setblocking(False)
        yield server


def test_c38_nothing_is_fetched(rand: LiveServer) -> None:
    with listener() as server:
        port = server.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/x",
            f"http://localhost:{port}",
            f"http://2130706433:{port}",
            "file:///etc/passwd",
            "x.png",
            "data:image/png;base64," + "A" * 100_000,
        ):
            for kind in ("image_url", "input_image", "audio_url", "video_url", "file"):
                part = {"type": kind, kind: {"url": url}}
                messages = [{"role": "user", "content": [part]}]
                status, answer, _ = rand.post(CHAT, {"model": "tiny", "messages": messages})
                assert (status, answer["error"]["param"]) == (400, "messages[0].content[0].type")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_c36_strangers_on_the_workers_socket(rand: LiveServer) -> None:
    before = rand.stats().bad_frames
    stranger = BareFront("stranger", f"{rand.run_dir}/worker-1.sock")
    frames = (b"\x00" * 1024, b"", b"\x80\x04\x95cposix\nsystem\n.", b"\xdd\xff\xff\xff\xff")
    for frame in frames:
        stranger.say_raw(frame)
    until(lambda: rand.stats().bad_frames == before + len(frames))
    # What cannot be a frame ends its connection.
    stranger.socket.sendall(b"\xff" * 1024)
    while stranger.socket.recv(65536):
        pass
    stranger.close()
    assert rand.stats().bad_frames == before + len(frames) + 1
    assert canary(rand) == canary(rand)
