"""A package index on loopback: one page, one wheel, and the faults of real networks."""

from __future__ import annotations

import hashlib
import http.server
import io
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

NAME = "tiny-weights"
VERSION = "1.0"


def metadata(name: str, version: str) -> bytes:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


def filename(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def wheel(files: dict[str, bytes], name: str = NAME, version: str = VERSION) -> bytes:
    """A wheel that holds `files`, uncompressed, so that its size is theirs."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/METADATA", metadata(name, version))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@dataclass
class Index:
    """What is served and how badly. `ranges` lists the Range header of each wheel request."""

    wheel: bytes
    name: str = NAME
    version: str = VERSION
    stated_sha256: str | None = None
    cuts: list[int] = field(default_factory=list)  # next responses end after so many bytes
    statuses: list[int] = field(default_factory=list)  # next wheel requests are answered so
    ignore_ranges: bool = False
    login: str | None = None  # value of the Authorization header that the wheel needs
    hold: threading.Event | None = None  # a wheel response stops half-way until this is set
    url: str = ""
    ranges: list[str | None] = field(default_factory=list)
    requests: int = 0

    def page(self) -> bytes:
        sha = self.stated_sha256 or hashlib.sha256(self.wheel).hexdigest()
        meta = hashlib.sha256(metadata(self.name, self.version)).hexdigest()
        file = filename(self.name, self.version)
        return (
            f'<!DOCTYPE html><html><body><a href="/files/{file}#sha256={sha}" '
            f'data-core-metadata="sha256={meta}">{file}</a></body></html>'
        ).encode()


def _handler(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            index.requests += 1
            file = filename(index.name, index.version)
            if self.path == f"/simple/{index.name}/":
                self._whole(index.page(), "text/html")
            elif self.path == f"/files/{file}.metadata":
                self._whole(metadata(index.name, index.version), "text/plain")
            elif self.path == f"/files/{file}":
                self._wheel()
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _whole(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def _wheel(self) -> None:
            asked = self.headers.get("Range")
            index.ranges.append(asked)
            if index.statuses:
                self.send_error(index.statuses.pop(0))
                return
            if index.login and self.headers.get("Authorization") != index.login:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0
            if asked and not index.ignore_ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(index.wheel):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(index.wheel)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = index.wheel[start:]
            self.send_response(206 if start else 200)
            if start:
                last = len(index.wheel) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(index.wheel)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self._send(body)

        def _send(self, body: bytes) -> None:
            if index.cuts:
                self.wfile.write(body[: index.cuts.pop(0)])
                self.close_connection = True
                return
            if index.hold:
                half = len(body) // 2
                self.wfile.write(body[:half])
                self.wfile.flush()
                index.hold.wait(30)
                body = body[half:]
            self.wfile.write(body)

    return Handler


@contextmanager
def serve(index: Index) -> Iterator[Index]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(index))
    server.daemon_threads = True
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield index
    finally:
        if index.hold:
            index.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


def point_pip_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `url` the whole of pip's configuration."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
