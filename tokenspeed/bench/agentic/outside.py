"""Sessions against any server that speaks the OpenAI chat API, as text over HTTP.

What a turn adds is sized in tokens, and only the server's tokenizer knows how many a text has: the
number of tokens per word is measured by a few questions first, and the tokens of each turn are
those that the server reports.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import msgspec

from tokenspeed.bench.agentic.records import Record
from tokenspeed.bench.agentic.workload import Corpus, Script, Workload
from tokenspeed.errors import Problem, UnavailableError

_PROBE_WORDS = 400
_LIST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` up to and without /v1; `ignore_eos`: the server knows this field, and answers then
    have the length that they are meant to have."""

    url: str
    model: str
    key: str | None = None
    ignore_eos: bool = True


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


_decoder = msgspec.json.Decoder(_Chunk)

Message = dict[str, str]


@dataclass(slots=True)
class _Answer:
    """Seconds on the clock of `time.perf_counter`."""

    asked_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    pieces: list[str] = field(default_factory=list)
    usage: _Usage | None = None

    def take(self, chunk: _Chunk) -> None:
        now = time.perf_counter()
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            text = choice.delta.content or choice.delta.reasoning_content
            if not text:
                continue
            self.first_s, self.last_s = self.first_s or now, now
            # Thoughts are not part of the conversation that follows.
            if choice.delta.content:
                self.pieces.append(choice.delta.content)


class Client:
    """Asks one endpoint. Raises UnavailableError with what the server said, when it refuses."""

    def __init__(self, endpoint: Endpoint, connections: int) -> None:
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._endpoint = endpoint
        self._http = httpx.AsyncClient(
            base_url=endpoint.url,
            headers=headers,
            timeout=None,
            limits=httpx.Limits(max_connections=connections),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, messages: list[Message], tokens: int) -> _Answer:
        body: dict[str, object] = {
            "model": self._endpoint.model,
            "messages": messages,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._endpoint.ignore_eos:
            body["ignore_eos"] = True
        answer = _Answer(time.perf_counter())
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")[:500]
                    raise _unavailable(f"{response.status_code}: {text}", self._endpoint)
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        answer.take(_decoder.decode(line[6:]))
        except httpx.TransportError as error:
            raise _unavailable(str(error) or type(error).__name__, self._endpoint) from error
        if answer.usage is None:
            raise _unavailable("the answer ended without usage", self._endpoint)
        # An answer may be nothing but bytes that make no character yet.
        answer.last_s = answer.last_s or time.perf_counter()
        answer.first_s = answer.first_s or answer.last_s
        return answer


def _unavailable(what: str, endpoint: Endpoint) -> UnavailableError:
    return UnavailableError(
        Problem(
            code="TS-B002",
            message=f"{endpoint.url} does not answer as a chat server: {what}",
            hint="check that the server runs, knows the model and streams usage; "
            "for one without ignore_eos, add --no-ignore-eos",
        )
    )


def most_tokens(endpoint: Endpoint) -> int | None:
    """What the server says that requests of the model have at most, None where it does not."""
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    try:
        url = f"{endpoint.url}/v1/models"
        response = httpx.get(url, headers=headers, timeout=_LIST_SECONDS, trust_env=False)
        listed = msgspec.json.decode(response.content, type=_Models).data
    except (httpx.HTTPError, msgspec.DecodeError):
        return None  # the first question says what is wrong, where anything is
    return next((model.max_model_len for model in listed if model.id == endpoint.model), None)


class _Text:
    """Text of about so many tokens."""

    def __init__(self, corpus: Corpus, words_per_token: float) -> None:
        self._corpus, self._words_per_token = corpus, words_per_token

    def system(self, tokens: int) -> str:
        """The same for all sessions."""
        return self._words(tokens, 0)

    def said(self, script: Script, turn: int) -> str:
        """What turn `turn` of a session adds; its first words are the session's own."""
        begin = random.Random(f"{script.number} {turn}").randrange(self._corpus.size)
        head = f"Session {script.number}, result {turn}:\n"
        return head + self._words(script.turns[turn].added, begin)

    def _words(self, tokens: int, begin: int) -> str:
        return " ".join(self._corpus.words(max(1, round(tokens * self._words_per_token)), begin))


async def _words_per_token(client: Client, corpus: Corpus) -> float:
    """Of three passages, by what the server counts beyond an almost empty prompt."""
    few = await client.ask([{"role": "user", "content": "a"}], 1)
    tokens = 0
    for part in range(3):
        words = corpus.words(_PROBE_WORDS, part * corpus.size // 3)
        answer = await client.ask([{"role": "user", "content": " ".join(words)}], 1)
        assert answer.usage is not None and few.usage is not None
        tokens += answer.usage.prompt_tokens - few.usage.prompt_tokens
    return 3 * _PROBE_WORDS / max(1, tokens)


async def run_level(
    endpoint: Endpoint,
    workload: Workload,
    corpus: Corpus,
    users: int,
    seconds: float,
    each: Iterator[Script],
) -> list[Record]:
    """Takes its sessions from `each`. No turn is asked for once `seconds` are over; those begun are
    finished and counted."""
    client = Client(endpoint, users)
    try:
        text = _Text(corpus, await _words_per_token(client, corpus))
        await client.ask([{"role": "system", "content": text.system(workload.system)},
                          {"role": "user", "content": "Begin."}], 1)  # fmt: skip
        end = time.perf_counter() + seconds
        found = await asyncio.gather(
            *(_user(client, user, each, text, end) for user in range(users))
        )
        return [record for records in found for record in records]
    finally:
        await client.close()


async def _user(
    client: Client, user: int, each: Iterator[Script], text: _Text, end: float
) -> list[Record]:
    """One session after the other."""
    records: list[Record] = []
    while time.perf_counter() < end:
        await _session(client, user, next(each), text, end, records)
    return records


async def _session(
    client: Client, user: int, script: Script, text: _Text, end: float, records: list[Record]
) -> None:
    messages: list[Message] = [{"role": "system", "content": text.system(script.system)}]
    ideal = script.system
    for turn, asked in enumerate(script.turns):
        if time.perf_counter() >= end:
            return
        messages.append({"role": "user", "content": text.said(script, turn)})
        answer = await client.ask(messages, asked.generated)
        usage = answer.usage
        assert usage is not None
        details = usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        records.append(
            Record(
                user=user,
                turn=turn,
                prompt=usage.prompt_tokens,
                cached=cached or 0,
                ideal=min(ideal, usage.prompt_tokens),
                output=usage.completion_tokens,
                asked_s=answer.asked_s,
                first_s=answer.first_s,
                last_s=answer.last_s,
            )
        )
        ideal = usage.prompt_tokens + usage.completion_tokens - 1
        messages.append({"role": "assistant", "content": "".join(answer.pieces)})
