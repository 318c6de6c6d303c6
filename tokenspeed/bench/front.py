"""`tokenspeed bench front`: the CPU time that the front adds to the engine.

A worker that computes nothing stands behind the real server, and the time of the server's process
is read from the kernel: turns of a long conversation, tokens of one stream and of many, memory
over many requests.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from tokenspeed.bench import report
from tokenspeed.bench.scripted import cpu_seconds
from tokenspeed.hardware.probe import probe
from tokenspeed.plan import Plan
from tokenspeed.recipe.load import load_recipe
from tokenspeed.resolve.facts import THIS_BUILD, model_facts
from tokenspeed.resolve.resolve import resolve

CONTEXT_TOKENS = 50_000
TURN_TOKENS = 800
SPREAD = 4  # fronts that take the turns of a conversation one after the other
LONE_STEP_SECONDS = 0.002
CROWD_STEP_SECONDS = 0.02

# An agent's template: it looks for the last question, and at neighbours and thoughts, as those of
# today's models do.
TEMPLATE = """\
{%- set ns = namespace(last=0) -%}
{%- for m in messages if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<result>\\n' + m.content + '\\n</result>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and m.reasoning_content is string and loop.index0 > ns.last -%}
{{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content if m.content is string else '' -}}
{%- for call in m.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}
"""  # noqa: E501
_WORDS = """
the engine returns a value when file line error test build module import def class self data path
list of and to in for is on that by this with you it not or be are from at as your all
"""


def bench_plan(recipe: Path) -> Plan:
    """The recipe's plan with an agent's template, and as much room as conversations want."""
    loaded = load_recipe(recipe, ())
    plan = resolve(loaded.recipe, loaded.origins, model_facts(loaded), probe(), THIS_BUILD).plan
    return dataclasses.replace(
        plan,
        model=dataclasses.replace(plan.model, chat_template=TEMPLATE),
        scheduler=dataclasses.replace(plan.scheduler, max_model_len=1 << 20),
        serve=dataclasses.replace(plan.serve, log_requests=False),
    )


@dataclass(frozen=True, slots=True)
class Front:
    """The server's process, reached at `url`."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    model: str
    arrived: Path  # where the worker writes

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def cpu_seconds_at_arrival(self) -> float:
        """When the worker had the last request."""
        return float(self.arrived.read_text())

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


@contextmanager
def fronting(plan: Plan, model_dir: Path, step_seconds: float) -> Iterator[Front]:
    """A scripted worker and a front, ready to answer.

    The front has a core of its own where there are several: neither the worker nor the clients of
    this process take its caches, which a token that comes every few milliseconds notices.
    """
    cores = sorted(os.sched_getaffinity(0))
    own, others = cores[-1:], cores[:-1] or cores
    with tempfile.TemporaryDirectory(prefix="front-") as scratch, socket.socket() as listener:
        (Path(scratch) / "plan.json").write_bytes(plan.to_json())
        endpoint = f"{scratch}/worker.sock"
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        port = listener.getsockname()[1]
        python = [sys.executable, "-P", "-m"]
        os.sched_setaffinity(0, others)
        worker = subprocess.Popen([*python, "tokenspeed.bench.scripted", endpoint,
                                   str(step_seconds)])  # fmt: skip
        process = subprocess.Popen(
            [*python, "tokenspeed.bench.front_process", f"{scratch}/plan.json", str(model_dir),
             endpoint, str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )  # fmt: skip
        os.sched_setaffinity(process.pid, own)
        front = Front(
            process,
            f"http://127.0.0.1:{port}",
            port,
            plan.model.served_names[0],
            Path(f"{endpoint}.arrived"),
        )
        try:
            _wait_ready(front)
            yield front
        finally:
            os.sched_setaffinity(0, cores)
            for child in (process, worker):
                child.kill()
                child.wait()


def _wait_ready(front: Front) -> None:
    while front.process.poll() is None:
        if httpx.get(f"{front.url}/readyz", trust_env=False, timeout=60).status_code == 200:
            return
        time.sleep(0.05)
    raise RuntimeError("the front ended before it was ready")


# ---- turns of a long conversation


class Conversation:
    """An agent's messages: questions, calls, results."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._vocabulary = _WORDS.split()
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are an agent. " * 40}
        ]

    def grow(self, tokens: int) -> None:
        """About so many tokens more, in three messages per 800."""
        for _ in range(max(1, tokens // 800)):
            number = len(self.messages)
            call = {"name": "read", "arguments": f'{{"path": "src/module_{number}.py"}}'}
            self.messages += [
                {"role": "user", "content": self._words(100)},
                {"role": "assistant", "content": self._words(150), "tool_calls": [
                    {"id": f"call_{number}", "type": "function", "function": call}]},
                {"role": "tool", "tool_call_id": f"call_{number}", "content": self._words(480)},
            ]  # fmt: skip

    def _words(self, count: int) -> str:
        return " ".join(self._random.choice(self._vocabulary) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds of a request that asks for one token: until the worker has it, and with
    the answer."""

    arrival_ms: float
    whole_ms: float


def _median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.arrival_ms for cost in costs),
        statistics.median(cost.whole_ms for cost in costs),
    )


@dataclass(frozen=True, slots=True)
class Turns:
    """`later`, `spread` and `short` are medians; `spread` is of a turn of which this front has not
    seen the SPREAD - 1 before it, since others took them."""

    prompt_tokens: int
    first: Cost
    later: Cost
    spread: Cost
    short: Cost


def measure_turns(front: Front, turns: int = 20) -> Turns:
    """One conversation of CONTEXT_TOKENS that grows by TURN_TOKENS a turn, one token answered."""
    with httpx.Client(base_url=front.url, trust_env=False, timeout=60) as client:

        def ask(messages: list[dict[str, Any]]) -> tuple[Cost, int]:
            body = {"model": front.model, "messages": messages, "max_tokens": 1}
            data = msgspec.json.encode(body)
            before = front.cpu_seconds()
            answer = client.post("/v1/chat/completions", content=data, headers=_JSON)
            answer.raise_for_status()
            whole = front.cpu_seconds() - before
            arrival = front.cpu_seconds_at_arrival() - before
            return Cost(arrival * 1e3, whole * 1e3), answer.json()["usage"]["prompt_tokens"]

        short = [ask([{"role": "user", "content": "hi"}])[0] for _ in range(20)]
        talk = Conversation(1)
        talk.grow(CONTEXT_TOKENS)
        first, tokens = ask(talk.messages)
        later = []
        for _ in range(turns):
            talk.grow(TURN_TOKENS)
            later.append(ask(talk.messages)[0])
        spread = []
        for _ in range(max(1, turns // SPREAD)):
            talk.grow(SPREAD * TURN_TOKENS)
            spread.append(ask(talk.messages)[0])
    return Turns(tokens, first, _median(later), _median(spread), _median(short))


_USED = re.compile(rb'"completion_tokens":(\d+)')
_JSON = {"content-type": "application/json"}


# ---- streams


@dataclass(frozen=True, slots=True)
class Streams:
    """CPU microseconds of the front per streamed token, everything of the requests included."""

    streams: int
    tokens: int
    lost: int
    cpu_us_per_token: float


def measure_streams(front: Front, streams: int, tokens: int) -> Streams:
    before = front.cpu_seconds()
    counts = asyncio.run(_stream_all(front, streams, tokens))
    spent = front.cpu_seconds() - before
    lost = sum(count != tokens for count in counts)
    return Streams(streams, tokens, lost, spent * 1e6 / max(1, sum(counts)))


async def _stream_all(front: Front, streams: int, tokens: int) -> list[int]:
    return await asyncio.gather(*(_stream(front, tokens) for _ in range(streams)))


async def _stream(front: Front, tokens: int) -> int:
    """Tokens of one stream by its own count; what ends without [DONE] counts as nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port, limit=1 << 20)
    body = msgspec.json.encode(
        {
            "model": front.model,
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    )
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    end = b""
    while b"data: [DONE]\n\n" not in end and (data := await reader.read(1 << 16)):
        end = (end + data)[-4096:]
    writer.close()
    used = _USED.findall(end)
    return int(used[-1]) if b"data: [DONE]" in end and used else 0


# ---- memory


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of the front after a tenth of the requests, and after all of them."""

    requests: int
    early_bytes: int
    late_bytes: int


def measure_memory(front: Front, requests: int) -> Memory:
    early = requests // 10
    asyncio.run(_ask_many(front, early))
    early_bytes = front.resident_bytes()
    asyncio.run(_ask_many(front, requests - early))
    return Memory(requests, early_bytes, front.resident_bytes())


async def _ask_many(front: Front, requests: int) -> None:
    waiting = iter(range(requests))

    async def work() -> None:
        for number in waiting:
            await _stream(front, 1 + number % 4)

    await asyncio.gather(*(work() for _ in range(32)))


# ---- the verb


def run_front(
    console: Console, recipe: Path, model_dir: Path, streams: int, requests: int, out: Path | None
) -> None:
    """Turns, one stream, `streams` at once and memory after `requests`, each on a new front."""
    plan = bench_plan(recipe)
    with fronting(plan, model_dir, LONE_STEP_SECONDS) as front:
        turns = measure_turns(front)
        measure_streams(front, 1, 200)
        lone = measure_streams(front, 1, 3000)
    with fronting(plan, model_dir, CROWD_STEP_SECONDS) as front:
        crowd = measure_streams(front, streams, 200)
    with fronting(plan, model_dir, 0.001) as front:
        memory = measure_memory(front, requests)
    _show(console, turns, lone, crowd, memory)
    body = {
        "turns": asdict(turns),
        "lone": asdict(lone),
        "crowd": asdict(crowd),
        "memory": asdict(memory),
    }
    report.keep(console, out, "front", report.cpu_name(), body)


def _show(console: Console, turns: Turns, lone: Streams, crowd: Streams, memory: Memory) -> None:
    table = Table(title="CPU time of the front, without an engine", title_justify="left")
    table.add_column("what")
    table.add_column("", justify="right")
    rows = (
        (f"first turn, {turns.prompt_tokens:,} tokens, to the scheduler",
         f"{turns.first.arrival_ms:.1f} ms"),
        (f"later turn, {TURN_TOKENS} tokens more, to the scheduler",
         f"{turns.later.arrival_ms:.2f} ms"),
        ("the same with its answer of one token", f"{turns.later.whole_ms:.2f} ms"),
        (f"later turn where {SPREAD} fronts take turns, to the scheduler",
         f"{turns.spread.arrival_ms:.2f} ms"),
        ("one short request, to the scheduler", f"{turns.short.arrival_ms:.2f} ms"),
        ("the same with its answer of one token", f"{turns.short.whole_ms:.2f} ms"),
        ("token of one stream", f"{lone.cpu_us_per_token:.0f} us"),
        (f"token of {crowd.streams} streams ({crowd.lost} lost)",
         f"{crowd.cpu_us_per_token:.0f} us"),
        (f"resident after {memory.requests // 10:,} requests",
         f"{memory.early_bytes / 1e6:.1f} MB"),
        (f"resident after {memory.requests:,} requests", f"{memory.late_bytes / 1e6:.1f} MB"),
    )  # fmt: skip
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
