"""The shipped CPU recipe beside `transformers serve --continuous-batching`, in one run.

Both serve SmolLM2-135M-Instruct on this machine with one compute thread each, ours as shipped
(4-bit weights, 8-bit activations), theirs in bfloat16 from the same weights. Rounds alternate
(A B A B ...); the table shows medians over the rounds and their ratio.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tokenspeed.bench.client import Burst, burst
from tokenspeed.bench.servers import Server

OUTPUT_TOKENS = 64
STREAMS = 8
LONG_PROMPT_TOKENS = 1000

TOPICS = (
    "a lighthouse keeper who collects storms", "the history of bread in twelve chapters",
    "how a compiler turns text into machine code", "a journey by train across a frozen sea",
    "the rules of an imaginary board game", "why the sky changes colour at dusk",
    "a letter from a gardener to the rain", "how cities were lit before electricity",
    "an orchestra that rehearses at night", "the invention of the pencil",
    "a detective who cannot read", "how rivers shape the land they cross",
    "a market where only memories are sold", "the life of a paper boat",
    "how to build a bridge out of rope", "a clockmaker's last apprentice",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table: per server, one value per round. `better` is "high" or "low"."""

    name: str
    unit: str
    better: str
    values: dict[str, list[float]]

    def median(self, server: str) -> float:
        return statistics.median(self.values[server])

    def ratio(self, ours: str, theirs: str) -> float:
        """How many times better ours is."""
        a, b = self.median(ours), self.median(theirs)
        return a / b if self.better == "high" else b / a


def story(topic: str) -> str:
    return f"Write a long and detailed story about {topic}. Take your time and do not stop early."


def long_prompt(tokenizer: Tokenizer, number: int) -> str:
    """About 1,000 tokens whose first words differ, so that no prefix cache can help."""
    sentence = "Ticket {i}: the build of module {i} failed because test {j} timed out on host {k}. "
    text = f"Report {number * 7919} of the night shift. "
    i = number
    while len(tokenizer.encode(text).ids) < LONG_PROMPT_TOKENS:
        i += 1
        text += sentence.format(i=i, j=i * 31 % 97, k=i * 17 % 41)
    return text + "Summarise this report."


class Contest:
    """Measures servers in turns. `tell` gets a line of progress before each measurement."""

    def __init__(
        self, servers: list[Server], tokenizer: Tokenizer, tell: Callable[[str], None]
    ) -> None:
        self._servers = servers
        self._tokenizer = tokenizer
        self._tell = tell
        names = [server.name for server in servers]
        self.one = Measure("1 stream", "tok/s", "high", {n: [] for n in names})
        self.many = Measure(f"{STREAMS} streams", "tok/s", "high", {n: [] for n in names})
        self.first = Measure("first token, 1k prompt", "ms", "low", {n: [] for n in names})

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (self.one, self.many, self.first)

    def run(self, rounds: int) -> None:
        """One round that is not counted, then `rounds` that are."""
        for server in self._servers:
            server.pause()
        for number in range(rounds + 1):
            for server in self._servers:
                server.resume()
                self._tell(f"round {number} of {rounds}: {server.name}")
                self._measure(server, number, counted=number > 0)
                server.pause()

    def _measure(self, server: Server, number: int, *, counted: bool) -> None:
        topics = [TOPICS[(number * STREAMS + i) % len(TOPICS)] for i in range(STREAMS)]
        tag = f"(version {number})"
        alone = self._ask(server, [story(f"{topics[0]} {tag}")], OUTPUT_TOKENS)
        crowd = self._ask(server, [story(f"{topic}, part {number}") for topic in topics],
                          OUTPUT_TOKENS)  # fmt: skip
        prompt = long_prompt(self._tokenizer, number + 1)
        first = self._ask(server, [prompt], 4)
        if counted:
            self.one.values[server.name].append(self._rate(alone))
            self.many.values[server.name].append(self._rate(crowd))
            self.first.values[server.name].append(1000 * first.samples[0].first_s)

    def _ask(self, server: Server, prompts: list[str], max_tokens: int) -> Burst:
        return asyncio.run(burst(server.base_url, server.model, prompts, max_tokens))

    def _rate(self, answers: Burst) -> float:
        """Tokens of all answers per second from the first request sent to the last byte."""
        tokens = sum(len(self._tokenizer.encode(sample.text).ids) for sample in answers.samples)
        return tokens / answers.seconds


def load_tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))
