"""The schema as an editor sees it: yaml-language-server over stdio, with the modeline of recipes.

Needs node and the npm package: .ci/run puts it below build/editor with
`npm install --prefix build/editor yaml-language-server`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODELINE = "# yaml-language-server: $schema={schema}\n"
LEAST = "version: 1\nname: demo\nmodel:\n  source: hf:Qwen/Qwen3-8B\n"


class Editor:
    """A language client, as small as can be."""

    def __init__(self, command: list[str], schema: Path) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._modeline = MODELINE.format(schema=schema)
        self._last = 0
        self._told: dict[str, Any] = {}
        self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self._tell("initialized", {})

    def open(self, text: str) -> str:
        """The document's address. Its first line is the modeline: the text begins on line 1."""
        self._last += 1
        uri = f"file:///recipe-{self._last}.yaml"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": self._modeline + text}
        self._tell("textDocument/didOpen", {"textDocument": document})
        return uri

    def diagnostics(self, text: str) -> list[tuple[int, str]]:
        """(line of the text from 1, message) of everything that is marked."""
        uri = self.open(text)
        while uri not in self._told:
            self._handle(self._read())
        return [(d["range"]["start"]["line"], d["message"]) for d in self._told[uri]]

    def at(self, method: str, text: str, line: int, character: int) -> Any:
        place = {"line": line, "character": character}
        return self.ask(method, {"textDocument": {"uri": self.open(text)}, "position": place})

    def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._last += 1
        number = self._last
        self._write({"id": number, "method": method, "params": parameters})
        while True:
            message = self._read()
            if message.get("id") == number and "method" not in message:
                return message["result"]
            self._handle(message)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            self._told[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif "id" in message and "method" in message:  # the server asks for settings and the like
            items = message.get("params", {}).get("items", [])
            self._write({"id": message["id"], "result": [None for _ in items]})

    def _tell(self, method: str, parameters: dict[str, Any]) -> None:
        self._write({"method": method, "params": parameters})

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        length = 0
        while (line := stream.readline().strip()) or not length:
            assert self._process.poll() is None, "the language server ended"
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        message: dict[str, Any] = json.loads(stream.read(length))
        return message


@pytest.fixture(scope="module")
def editor(repo: Path) -> Iterator[Editor]:
    server = repo / "build/editor/node_modules/yaml-language-server/bin/yaml-language-server"
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, and the language server runs on it")
    if not server.is_file():
        pytest.skip("yaml-language-server is not in build/editor: the docstring says how it comes")
    editor = Editor([node, str(server), "--stdio"], repo / "schemas/recipe.schema.json")
    yield editor
    editor.close()


def test_a_right_recipe_is_not_marked(editor: Editor) -> None:
    assert editor.diagnostics(LEAST) == []


def test_shipped_recipes_are_not_marked(editor: Editor, repo: Path) -> None:
    """With their own modeline, which is the second here and loses."""
    for path in sorted((repo / "recipes").glob("*.yaml")):
        assert editor.diagnostics(path.read_text()) == [], path


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("limits:\n  max_running: 5000\n", 6, "maximum"),
        ("limits:\n  max_runing: 5\n", 6, "max_runing"),
        ("kv:\n  size: 4GB\n", 6, "pattern"),
        ("kv: {dtype: fp12}\n", 5, "Valid values"),
        ("serve:\n  port:\n", 6, "integer"),
        ("when:\n  - if: {arhc: sm_90}\n    then: {device: cpu}\n", 6, "arhc"),
        ("when:\n  - if: {arch: sm_90}\n    then: {kv: {blok_size: 1}}\n", 7, "blok_size"),
        ("serve:\n  api_keys: [sk-123]\n", 6, "pattern"),
    ],
)
def test_what_is_wrong_is_marked(editor: Editor, text: str, line: int, words: str) -> None:
    found = editor.diagnostics(LEAST + text)
    assert any(at == line and words in message for at, message in found), found


def test_what_is_missing_is_marked_unless_a_parent_has_it(editor: Editor) -> None:
    assert any("name" in message for _, message in editor.diagnostics("version: 1\n"))
    assert any("source" in m for _, m in editor.diagnostics("version: 1\nname: a\nmodel: {}\n"))
    assert editor.diagnostics("extends: base.yaml\nmodel: {max_context: 4096}\n") == []


def test_completion(editor: Editor) -> None:
    found = editor.at("textDocument/completion", LEAST + "limits:\n  \n", line=6, character=2)
    labels = {item["label"] for item in found["items"]}
    assert {"max_running", "max_step_tokens", "memory"} <= labels


def test_completion_of_choices(editor: Editor) -> None:
    found = editor.at("textDocument/completion", LEAST + "device: \n", line=5, character=8)
    assert {"cpu", "cuda"} <= {item["label"] for item in found["items"]}


def test_hover(editor: Editor) -> None:
    text = LEAST + "limits:\n  max_running: 8\n"
    found = editor.at("textDocument/hover", text, line=6, character=5)
    assert "Requests that run at the same time" in found["contents"]["value"]
