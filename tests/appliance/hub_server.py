"""A repository of models that speaks as much of Hugging Face's protocol as downloads need."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repository:
    """`org/name` with the files of a folder. `cut`: so many bytes of a large file are sent, once,
    before the connection ends, or before nothing more comes where it `stalls`. `sent`: bytes of
    each file. `token`: what must be sent, if anything."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.cut = 0
        self.stalls = False
        self.sent: Counter[str] = Counter()
        self.damaged = False
        self.surplus = 0  # bytes of a large file that come behind its end
        self.token = ""
        self.url = ""

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def tree(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for name, data in self.files.items():
            entry = {"type": "file", "path": name, "size": len(data), "oid": self.etag(name)}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"oid": self.etag(name), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return entries


@contextmanager
def serve(repository: Repository) -> Iterator[Repository]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            wanted = self.headers.get("Range", "")
            repository.requests.append((self.command, path, wanted))
            if repository.token and self.headers.get("Authorization") != (
                f"Bearer {repository.token}"
            ):
                self.reply(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "no"})
            elif path.startswith(f"/api/models/{repository.name}/tree/"):
                self.reply_json(repository.tree())
            elif path.startswith(f"/api/models/{repository.name}"):
                siblings = [{"rfilename": name} for name in repository.files]
                body = {"id": repository.name, "sha": COMMIT, "siblings": siblings}
                self.reply_json(body | {"private": False, "downloads": 0, "tags": []})
            elif path.startswith(f"/{repository.name}/resolve/"):
                self.reply_file(path.rsplit("/", 1)[1], wanted)
            else:
                self.reply(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no"})

        def reply_file(self, name: str, wanted: str) -> None:
            if name not in repository.files:
                self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            data = repository.files[name]
            headers = {"ETag": f'"{repository.etag(name)}"', "X-Repo-Commit": COMMIT}
            status, start = 200, 0
            if wanted.startswith("bytes="):
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                status = 206
            if repository.damaged and name.endswith(".safetensors"):
                data = data[:-1] + bytes([data[-1] ^ 1])
            if name.endswith(".safetensors"):
                data += bytes(repository.surplus)
            self.reply(status, data[start:], headers, name)

        def reply_json(self, body: object) -> None:
            self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def reply(self, status: int, data: bytes, headers: dict[str, str], name: str = "") -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            cut = 0 < repository.cut < len(data)
            sent = data[: repository.cut] if cut else data
            repository.sent[name] += len(sent)
            if cut:  # once, also where the other side is killed before all of it is through
                repository.cut = 0
            with contextlib.suppress(ConnectionError):
                self.wfile.write(sent)
                if cut and repository.stalls:
                    self.rfile.read(1)  # until the other side is gone
            if cut:
                self.close_connection = True
                self.connection.close()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        repository.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield repository
        finally:
            server.shutdown()
            thread.join()
