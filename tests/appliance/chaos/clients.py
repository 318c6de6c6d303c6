"""Clients that never pause, and what became of each of their requests.

A request ends once: with a whole answer, with an error, or with a connection that is closed. One
that ends twice, or not at all, is a fault of the server, whatever was done to it meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from typing import Any

from tests.appliance.live import until

ANSWERED, REFUSED, FAILED, CLOSED, LEFT = "answered", "refused", "failed", "closed", "left"
# Longer than whatever the server may take to end a request, by far.
HANG_SECONDS = 120.0
_PAUSE = 0.2  # after a refusal, as a client that means well


class Clients:
    """`count` clients of the server on `port`; some of their requests stream, some do not, and
    some are left before they end."""

    def __init__(self, port: int, count: int, seed: int) -> None:
        self._port = port
        self._open = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._busy: dict[int, float] = {}
        self._outcomes: Counter[str] = Counter()
        self._mistakes: list[str] = []
        self.streaming = 0  # streams that have a first token and no end
        self.total = 0
        self._threads = [
            threading.Thread(target=self._run, args=(number, seed), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Asks on from here; outcomes are counted anew."""
        self._outcomes, self._mistakes = Counter(), []
        self._open.set()
        until(lambda: self.streaming, "a stream is under way")

    def pause(self) -> Counter[str]:
        """Lets what is under way end, and asks nothing more. Raises AssertionError for a request
        that does not end, or ended wrongly."""
        self._open.clear()
        until(lambda: not self._busy, "every request ends", HANG_SECONDS)
        assert not self._mistakes, self._mistakes[0]
        return self._outcomes

    def close(self) -> None:
        self._closed = True
        self._open.set()
        for thread in self._threads:
            thread.join(HANG_SECONDS)

    def _run(self, number: int, seed: int) -> None:
        draw = random.Random(f"{seed}/{number}")
        for turn in itertools.count():
            self._open.wait()
            if self._closed:
                return
            with self._lock:
                self._busy[number] = time.monotonic()
            outcome, mistake = self._ask(f"client {number}, question {turn}", draw)
            with self._lock:
                self.total += 1
                self._outcomes[outcome] += 1
                self._mistakes += [mistake] if mistake else []
                del self._busy[number]
            if outcome in (REFUSED, CLOSED):
                time.sleep(_PAUSE)

    def _ask(self, prompt: str, draw: random.Random) -> tuple[str, str]:
        """The outcome of one request, and what was wrong with it."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": draw.choice((1, 30, 100, 500)),
            "stream": draw.random() < 0.6,
            "ignore_eos": True,
            "temperature": draw.choice((0, 0.8)),
        }
        leaves_after = draw.choice((None, None, None, 5)) if body["stream"] else None
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=HANG_SECONDS)
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                return _refusal(response)
            if body["stream"]:
                return self._stream(response, leaves_after)
            return ANSWERED, _whole(json.loads(response.read()), body["max_tokens"])
        except TimeoutError:
            return FAILED, f"{prompt}: no end within {HANG_SECONDS:g} s"
        except (OSError, http.client.HTTPException):
            return CLOSED, ""
        finally:
            connection.close()

    def _stream(
        self, response: http.client.HTTPResponse, leaves_after: int | None
    ) -> tuple[str, str]:
        events: list[str] = []
        try:
            with contextlib.suppress(http.client.IncompleteRead):
                while line := response.readline():
                    if not line.startswith(b"data: "):
                        continue
                    events.append(line[6:].decode().rstrip("\n"))
                    if len(events) == 1:
                        self._count(1)
                    if len(events) == leaves_after:
                        return LEFT, ""
        finally:
            if events:
                self._count(-1)
        return judge(events)

    def _count(self, change: int) -> None:
        with self._lock:
            self.streaming += change


def judge(events: list[str]) -> tuple[str, str]:
    """The outcome of a stream that gave these events, and what is wrong with it."""
    whole = bool(events) and events[-1] == "[DONE]"
    ends: list[str] = []
    for event in events[:-1] if whole else events:
        if ends:
            return FAILED, f"after its end came {event}"
        frame = json.loads(event)
        if "error" in frame:
            ends.append(FAILED)
        ends += [ANSWERED for choice in frame.get("choices", ()) if choice["finish_reason"]]
    if len(ends) > 1 or (whole and not ends):
        return FAILED, f"a stream with {len(ends)} ends: {events[-3:]}"
    if not whole:
        return CLOSED, ""
    return ends[0], ""


def _refusal(response: http.client.HTTPResponse) -> tuple[str, str]:
    body = json.loads(response.read())
    if response.status not in (500, 503) or "error" not in body:
        return FAILED, f"status {response.status}: {body}"
    return (REFUSED if response.status == 503 else FAILED), ""


def _whole(body: dict[str, Any], tokens: int) -> str:
    usage, reason = body["usage"], body["choices"][0]["finish_reason"]
    if (usage["completion_tokens"], reason) == (tokens, "length"):
        return ""
    return f"{usage['completion_tokens']} of {tokens} tokens, ended by {reason}"
