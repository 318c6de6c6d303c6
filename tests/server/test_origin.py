"""A page in a browser may not use a server that asks for no key."""

from __future__ import annotations

import json

import pytest

from tests.server.conftest import go
from tests.server.live import LiveServer, Raw

BODY = {"model": "tiny", "prompt": go("hello"), "temperature": 0}
TEXT = "/v1/completions"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://evil.example:443", "null", "http://localhost:1", "x"]
)
def test_pages_of_other_sites_are_refused(chain: LiveServer, origin: str) -> None:
    status, answer, _ = chain.post(TEXT, BODY, origin=origin)
    assert (status, answer["error"]["code"]) == (403, "foreign_origin")


def test_our_own_page_may_ask(chain: LiveServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        here = f"{name}:{chain.port}"
        status, _, _ = chain.post(TEXT, BODY, origin=f"http://{here}", host=here)
        assert status == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.1.1.1:80", "[::2]"])
def test_names_that_lead_here_are_not_ours(chain: LiveServer, host: str) -> None:
    """DNS rebinding: the page's own name is pointed at this machine."""
    status, answer, _ = chain.post(TEXT, BODY, host=host)
    assert (status, answer["error"]["code"]) == (403, "foreign_host")


@pytest.mark.parametrize(
    "host", ["LOCALHOST:1", "a.localhost", "[::1]:80", "127.9.9.9", "localhost."]
)
def test_names_of_this_machine(chain: LiveServer, host: str) -> None:
    assert chain.post(TEXT, BODY, host=host)[0] == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_what_a_form_can_send_is_no_request(chain: LiveServer, kind: str) -> None:
    status, answer, _ = chain.post(TEXT, BODY, **{"content-type": kind})
    assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"]
)
def test_json_by_any_name(chain: LiveServer, kind: str) -> None:
    assert chain.post(TEXT, BODY, **{"content-type": kind})[0] == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_packed_bodies_are_refused_by_name(chain: LiveServer, encoding: str) -> None:
    status, answer, _ = chain.post(TEXT, BODY, **{"content-encoding": encoding})
    assert (status, answer["error"]["code"]) == (415, "unsupported_encoding")
    assert encoding in answer["error"]["message"]


def test_a_client_without_any_of_these_headers(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    data = json.dumps(BODY).encode()
    raw.socket.sendall(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(data))
    raw.socket.sendall(data)
    assert raw.answer()[0] == 200
