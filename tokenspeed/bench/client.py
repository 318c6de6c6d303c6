"""A streaming client that measures any OpenAI-compatible server the same way.

Times are taken where a user would see them: from the moment the request is sent to the moment a
piece of text arrives. Tokens are counted by the caller from the text, with one tokenizer for all
servers, because servers disagree about what a chunk is.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx
import msgspec


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. Times are seconds since the request was sent."""

    text: str
    first_s: float
    last_s: float


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_chunk_decoder = msgspec.json.Decoder(_Chunk)


async def ask(client: httpx.AsyncClient, model: str, prompt: str, max_tokens: int) -> Sample:
    """Streams one greedy chat completion. Raises httpx errors and ValueError on an empty answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    pieces: list[str] = []
    first = last = 0.0
    start = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            detail = (await response.aread()).decode(errors="replace")[:500]
            raise ValueError(f"{response.status_code} from {client.base_url}: {detail}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = _chunk_decoder.decode(line[6:])
            if chunk.choices and chunk.choices[0].delta.content:
                last = time.perf_counter() - start
                first = first or last
                pieces.append(chunk.choices[0].delta.content)
    if not pieces:
        raise ValueError(f"{client.base_url} answered nothing to {prompt[:60]!r}")
    return Sample("".join(pieces), first, last)


@dataclass(frozen=True, slots=True)
class Burst:
    """Several answers asked for at once; `seconds` from the first sent to the last byte."""

    samples: tuple[Sample, ...]
    seconds: float


async def burst(base_url: str, model: str, prompts: list[str], max_tokens: int) -> Burst:
    """Asks all prompts at the same moment, one connection each."""
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(
        base_url=base_url, timeout=600, limits=limits, trust_env=False
    ) as client:
        start = time.perf_counter()
        samples = await asyncio.gather(*(ask(client, model, p, max_tokens) for p in prompts))
        return Burst(tuple(samples), time.perf_counter() - start)
