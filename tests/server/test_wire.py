"""What comes in at the socket: slow, broken, too long, cut at every byte. Then all is idle."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, dechunked, sse_frames, until
from tokenspeed.server.listen import MAX_HEAD_BYTES, MAX_HEADERS, HalfOpenHttp

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
BODY = {"model": "tiny", "prompt": go("hello"), "temperature": 0}


def whole_request(**fields: object) -> bytes:
    data = json.dumps({**BODY, **fields}).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(data) + data


def until_closed(raw: Raw) -> bytes:
    received = b""
    while chunk := raw.socket.recv(65536):
        received += chunk
    raw.close()
    return received


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(HalfOpenHttp, "patience", 0.2)
    yield


def refusal(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "sent",
    [HEAD[:20], HEAD, HEAD + b"content-length: 100\r\n\r\n", HEAD + b"content-length: 9\r\n\r\n{"],
)
def test_half_requests_end(chain: LiveServer, impatient: None, sent: bytes) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(sent)
    assert refusal(until_closed(raw)) == (408, "request_timeout")


def test_a_connection_that_says_nothing_ends(chain: LiveServer, impatient: None) -> None:
    assert until_closed(Raw(chain.port)) == b""


def test_slow_loris_holds_no_place(chain: LiveServer, impatient: None) -> None:
    """A byte now and then is no progress, neither in a head nor in a body."""
    slow = [Raw(chain.port) for _ in range(20)]
    for place, raw in enumerate(slow):
        raw.socket.sendall(HEAD + b"content-length: 900\r\n\r\n" if place % 2 else HEAD)
    ended: set[Raw] = set()

    def drip() -> bool:
        for raw in set(slow) - ended:
            try:
                raw.socket.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                ended.add(raw)
                raw.close()
        return len(ended) == len(slow)

    until(drip, what="all slow clients cut off")
    assert chain.complete(go("hello"))["choices"][0]["text"] == "Hello world"


def test_a_slow_body_that_goes_on_is_read(chain: LiveServer, impatient: None) -> None:
    data = json.dumps(BODY).encode() + b" " * 40_000
    raw = Raw(chain.port)
    raw.socket.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(data))
    for begin in range(0, len(data), 4000):
        raw.socket.sendall(data[begin : begin + 4000])
        until(lambda: True)
    assert raw.answer()[0] == 200


def test_a_long_answer_is_no_slow_request(chain: LiveServer, impatient: None) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(whole_request(prompt=go("long"), max_tokens=1500, ignore_eos=True))
    assert raw.answer()[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"x-%d: 1\r\n" % number for number in range(10_000)),
        b"x: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\ny: 1\r\n\r\n",
        b"x" * (20 * MAX_HEAD_BYTES),
    ],
    ids=["many", "long", "endless"],
)
def test_heads_are_bounded(chain: LiveServer, headers: bytes) -> None:
    raw = Raw(chain.port)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.socket.sendall(HEAD + headers)
    try:
        received = until_closed(raw)
    except ConnectionResetError:  # it closed while we were sending
        raw.close()
        return
    assert refusal(received) == (431, "head_too_long")


def test_the_end_of_a_large_body_is_no_head(chain: LiveServer) -> None:
    """However much of it comes at once."""
    for size in (MAX_HEAD_BYTES, 5 * MAX_HEAD_BYTES, 1 << 20):
        status, answer, _ = chain.post("/v1/completions", {**BODY, "prompt": "x" * size})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("begin", [b"HTTP/1.1\r\nconnection: close", b"HTTP/1.0"])
@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [("/nowhere", "application/json", 404), ("/v1/completions", "text/plain", 415)],
)
def test_who_closes_behind_a_refusal_sees_it_however_much_it_sends(
    chain: LiveServer, begin: bytes, path: str, kind: str, status: int
) -> None:
    """As a proxy does, for which a reset would be a failure of the server."""
    size = 8 << 20
    for _ in range(3):
        raw = Raw(chain.port)
        head = b"POST %s %s\r\nhost: localhost\r\n" % (path.encode(), begin)
        head += b"content-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind.encode(), size)
        raw.socket.sendall(head + b"x" * size)
        answer = until_closed(raw)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
        assert answer.endswith(b"}}")


def test_who_waits_to_be_asked_for_a_body_is_refused_without_it(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"expect: 100-continue\r\ncontent-length: 1000000\r\n\r\n"
    )
    assert until_closed(raw).startswith(b"HTTP/1.1 404 ")


def test_a_large_but_bounded_head_works(chain: LiveServer) -> None:
    many = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 100) for number in range(MAX_HEADERS - 10))
    data = json.dumps(BODY).encode()
    raw = Raw(chain.port)
    raw.socket.sendall(HEAD + many + b"content-length: %d\r\n\r\n" % len(data) + data)
    assert raw.answer()[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/9.9\r\n\r\n",
    ],
)
def test_broken_requests_have_the_envelope(chain: LiveServer, sent: bytes) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(sent)
    assert refusal(until_closed(raw)) == (400, "invalid_http")


def test_pipelined_requests_are_answered_in_order(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    names = {"hello": "Hello world", "stop": "abcSTOPdef", "ni": "你"}
    raw.socket.sendall(b"".join(whole_request(prompt=go(name)) for name in names))
    for text in names.values():
        head, _, rest = raw.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(rest) < size:
            rest += raw.socket.recv(65536)
        assert json.loads(rest[:size])["choices"][0]["text"] == text
        raw.received = rest[size:]
    raw.close()


def test_a_pipelined_stream_does_not_mix_with_the_next(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.socket.sendall(whole_request(stream=True) + whole_request(prompt=go("ni")))
    received = raw.read_until("你".encode()).partition(b"\r\n\r\n")[2]
    stream, _, rest = received.partition(b"0\r\n\r\n")
    frames = sse_frames(dechunked(stream + b"0\r\n\r\n"))
    assert frames[-1] == "[DONE]"
    assert rest.startswith(b"HTTP/1.1 200")
    raw.close()


def test_disconnect_at_every_byte_of_a_request(chain: LiveServer) -> None:
    sent = whole_request()
    for size in range(1, len(sent)):
        raw = Raw(chain.port)
        raw.socket.sendall(sent[:size])
        raw.reset()
    chain.assert_idle()


def test_disconnect_all_along_a_stream(chain: LiveServer) -> None:
    """At every 23rd byte; a step of 1 takes most of a minute, and passed."""
    raw = Raw(chain.port)
    raw.socket.sendall(whole_request(stream=True))
    whole = raw.read_until(b"[DONE]\n\n\r\n0\r\n\r\n")
    raw.close()
    for size in range(1, len(whole), 23):
        raw = Raw(chain.port)
        raw.socket.sendall(whole_request(stream=True))
        # Tokens that came together share a frame, so that this stream may be the shorter one.
        while len(raw.received) < size and b"\r\n0\r\n\r\n" not in raw.received:
            raw.received += raw.socket.recv(size - len(raw.received))
        raw.reset()
    chain.assert_idle()
    assert chain.complete(go("hello"))["choices"][0]["text"] == "Hello world"
