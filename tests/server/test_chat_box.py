"""The chat box of the status page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.browser import CHROMIUM, Page, page
from tests.server.conftest import go
from tests.server.live import LiveServer

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

ASK = """
document.getElementById('question').value = %r;
document.getElementById('chat-form').requestSubmit();
"""
ANSWERS = "[...document.querySelectorAll('#talk .answered')].map(p => p.textContent)"
IDLE = "document.getElementById('send').textContent === 'Send'"
NOTE = "document.getElementById('chat-note').textContent"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def box(tab: Page, chain: LiveServer) -> Page:
    tab.go(f"{chain.url}/status")
    return tab


def ask(box: Page, words: str) -> None:
    box.run(ASK % words)
    box.wait(IDLE)


def test_a_conversation(box: Page) -> None:
    ask(box, go("hello"))
    ask(box, go("llama"))
    assert box.run(ANSWERS) == ["Hello world", "🦙"]
    assert box.run(NOTE).startswith("5 tokens in ")
    box.run("document.getElementById('again').click()")
    assert box.run(ANSWERS) == []
    ask(box, go("lines"))
    (answer,) = box.run(ANSWERS)
    assert answer.startswith("a\n\nb")
    assert box.complaints == []


def test_markup_of_a_model_stays_text(box: Page) -> None:
    ask(box, "<img src=x onerror=alert(1)>" + go("hello"))
    assert box.run("document.querySelectorAll('#talk img').length") == 0


def test_stopping_ends_the_request(box: Page, chain: LiveServer) -> None:
    aborted = chain.stats().requests_aborted
    box.run(ASK % go("long"))
    box.wait(f"({ANSWERS})[0].length > 20")
    box.run("document.getElementById('chat-form').requestSubmit()")
    box.wait(IDLE)
    assert box.run(NOTE) == "stopped"
    chain.assert_idle()
    assert chain.stats().requests_aborted == aborted + 1


def test_a_refusal_is_shown(box: Page) -> None:
    ask(box, "x" * 5000)
    assert "maximum context length" in box.run(NOTE)
    ask(box, go("hello"))  # what was refused is no part of the conversation
    assert box.run(ANSWERS)[-1] == "Hello world"
