"""C24 and the burst: prompts that the cache holds, as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import Oracle, build_rand, rand_prompts
from tests.rigs.plans import tiny_plan
from tests.server.conftest import BLOCK
from tests.server.live import LiveServer, Raw, serving, sse_frames, until

TEXT = "/v1/completions"


def by_rule(length: int) -> int:
    return (length - 1) // BLOCK * BLOCK


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("max_tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_c24_lengths_around_block_borders(
    rand: LiveServer, oracle: Oracle, max_tokens: int
) -> None:
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 8 * BLOCK)
    for length in lengths:
        prompt = rand_prompts(1, length, seed=max_tokens)[0]
        fields = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}

        def ask(prompt: list[int] = prompt, fields: dict[str, Any] = fields) -> Any:
            return rand.complete(prompt, logprobs=0, **fields)

        answers = [ask() for _ in range(3)]
        with ThreadPoolExecutor(4) as pool:
            answers += pool.map(lambda _: ask(), range(4))
        assert [cached(answer) for answer in answers] == [0] + [by_rule(length)] * 6
        for answer in answers:
            choice = answer["choices"][0]
            oracle.check_greedy(prompt, choice["token_ids"])
            first = answers[0]["choices"][0]["logprobs"]["token_logprobs"]
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(first, abs=1e-3)


def test_c24_one_token_more_and_one_less(rand: LiveServer, oracle: Oracle) -> None:
    whole = rand_prompts(1, 2 * BLOCK, seed=31)[0]
    for prompt, expected in ((whole, 0), ([*whole, 9], 2 * BLOCK), (whole[:-1], BLOCK)):
        answer = rand.complete(prompt, max_tokens=4, ignore_eos=True, return_token_ids=True)
        assert cached(answer) == expected
        oracle.check_greedy(prompt, answer["choices"][0]["token_ids"])


# ---- 64 clients on one prefix of 2,048 tokens

CLIENTS = 64
PREFIX = rand_prompts(1, 2048, seed=41)[0]


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = build_rand(
        tmp_path_factory.mktemp("long") / "model", "qwen3", seed=3, max_position_embeddings=4096
    )
    plan = tiny_plan(folder, num_blocks=1500, max_running=64, max_step_tokens=256)
    with serving(plan, Path(folder), tmp_path_factory.mktemp("run")) as server:
        yield server


def burst(server: LiveServer, salt: str) -> list[int]:
    """64 streams at once, each with a tail of its own; what each says was cached."""
    tails = rand_prompts(CLIENTS, 40, seed=42)
    raws = [Raw(server.port) for _ in tails]
    for place, (raw, tail) in enumerate(zip(raws, tails, strict=True)):
        raw.post(
            TEXT,
            {
                "model": "tiny",
                "prompt": PREFIX + tail[: 1 + place % 40],
                "max_tokens": 8,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                "cache_salt": salt,
            },
        )
    found = []
    for place, raw in enumerate(raws):
        status, _, body = raw.answer()
        frames = sse_frames(body)
        assert (status, frames[-1]) == (200, "[DONE]")
        usage = json.loads(frames[-2])["usage"]
        assert usage["prompt_tokens"] == len(PREFIX) + 1 + place % 40
        assert usage["completion_tokens"] == 8
        found.append(usage["prompt_tokens_details"]["cached_tokens"])
    return found


def computed(server: LiveServer) -> int:
    stats = server.stats()
    return stats.prompt_tokens - stats.cached_prompt_tokens


def test_a_warm_burst_takes_the_whole_prefix_from_the_cache(roomy: LiveServer) -> None:
    roomy.complete([*PREFIX, 5], max_tokens=1, cache_salt="warm")
    before = computed(roomy)
    assert burst(roomy, "warm") == [len(PREFIX)] * CLIENTS
    tails = sum(1 + place % 40 for place in range(CLIENTS))
    assert computed(roomy) - before == tails
    roomy.assert_idle()


def test_a_cold_burst_computes_the_prefix_at_most_twice(roomy: LiveServer) -> None:
    before = computed(roomy)
    burst(roomy, "cold")
    tails = sum(1 + place % 40 for place in range(CLIENTS))
    assert computed(roomy) - before <= 2 * len(PREFIX) + tails
    roomy.assert_idle()
    stats = roomy.stats()
    assert (stats.slots_used, stats.blocks_used) == (0, 0)
    until(lambda: roomy.engine.open_requests == 0)
