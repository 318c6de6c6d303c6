"""Each sampling parameter changes the distribution in the way in which it is documented: draws
through the API against probabilities from the oracle's logits, by chi-square on six tokens."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.rigs import Oracle, rand_prompts
from tests.server.live import LiveServer

TEXT = "/v1/completions"
(PROMPT,) = rand_prompts(1, 12, seed=77)
REQUESTS, SIBLINGS = 20, 16
Words = tuple[int, ...]


@pytest.fixture(scope="module")
def letters(oracle: Oracle) -> Words:
    """The small vocabulary: three likely tokens of the prompt, and before them three others that
    are about as likely."""
    row = oracle.logits(PROMPT)[-1]
    said = [token for token in row.argsort(descending=True).tolist() if token in PROMPT][:3]
    nearness = (row - row[said].mean()).abs().argsort().tolist()
    return (*[token for token in nearness if token not in PROMPT][:3], *said)


def critical(cells: int) -> float:
    """Exceeded once in 10,000 times by chance (Wilson and Hilferty's approximation)."""
    k = max(1, cells - 1)
    return float(k * (1 - 2 / (9 * k) + 3.72 * math.sqrt(2 / (9 * k))) ** 3)


def distance(observed: Counter[Words], expected: dict[Words, float]) -> tuple[float, int]:
    """Chi-square and its cells; outcomes that are too rare for a cell of their own share one."""
    total = sum(observed.values())
    cells = [key for key, share in expected.items() if share * total >= 5]
    rest = 1 - sum(expected[key] for key in cells)
    seen = [observed[key] for key in cells]
    wanted = [expected[key] * total for key in cells]
    stray = total - sum(seen)
    value = sum((o - e) ** 2 / e for o, e in zip(seen, wanted, strict=True))
    if rest * total >= 1e-6:
        value += (stray - rest * total) ** 2 / (rest * total)
        return value, len(cells) + 1
    return (math.inf if stray else value), len(cells)


def draws(server: LiveServer, letters: Words, length: int, **fields: Any) -> Counter[Words]:
    found: Counter[Words] = Counter()
    for seed in range(REQUESTS):
        body = {
            "model": "tiny",
            "prompt": PROMPT,
            "allowed_token_ids": letters,
            "temperature": 1.0,
            "max_tokens": length,
            "n": SIBLINGS,
            "seed": 1000 * seed,
            "return_token_ids": True,
            "ignore_eos": True,
            **fields,
        }
        status, answer, headers = server.post(TEXT, body)
        assert status == 200, answer
        assert "x-ignored-fields" not in headers
        found.update(tuple(choice["token_ids"]) for choice in answer["choices"])
    return found


Change = Callable[[torch.Tensor, Sequence[int], Sequence[int]], torch.Tensor]


def expected(oracle: Oracle, letters: Words, length: int, change: Change) -> dict[Words, float]:
    """Probability of every answer of that length. `change` makes the parameter's logits, of the
    letters, out of the model's, given the prompt and what was said."""
    shares: dict[Words, float] = {}
    for prefix in itertools.product(letters, repeat=length - 1):
        rows = oracle.logits([*PROMPT, *prefix])[-length:, list(letters)].double()
        before = 1.0
        for place, token in enumerate(prefix):
            changed = change(rows[place], prefix[:place], letters).softmax(-1)
            before *= float(changed[letters.index(token)])
        last = change(rows[-1], prefix, letters).softmax(-1)
        shares |= {
            (*prefix, token): before * float(share)
            for token, share in zip(letters, last, strict=True)
        }
    return shares


def plain(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    return row


def temperature(heat: float) -> Change:
    return lambda row, said, letters: row / heat


def top_k(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    return row.masked_fill(row < row.sort(descending=True).values[1], -math.inf)


def top_p(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    shares, order = row.softmax(-1).sort(descending=True)
    kept = order[(shares.cumsum(-1) - shares) < 0.6]
    return torch.full_like(row, -math.inf).index_copy(0, kept, row[kept])


def min_p(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    shares = row.softmax(-1)
    return row.masked_fill(shares < 0.5 * shares.max(), -math.inf)


def repetition(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    seen = torch.tensor([letter in (*PROMPT, *said) for letter in letters])
    return torch.where(seen, torch.where(row > 0, row / 2, row * 2), row)


def presence(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    return row - torch.tensor([1.5 * (letter in said) for letter in letters])


def frequency(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    return row - torch.tensor([1.2 * list(said).count(letter) for letter in letters])


def bias(row: torch.Tensor, said: Sequence[int], letters: Sequence[int]) -> torch.Tensor:
    return row + torch.tensor([0.0, 0.0, 0.0, 2.0, 0.0, -100.0])


CASES: dict[str, tuple[int, Callable[[Words], dict[str, Any]], Change]] = {
    "nothing": (1, lambda letters: {}, plain),
    "temperature low": (1, lambda letters: {"temperature": 0.4}, temperature(0.4)),
    "temperature high": (1, lambda letters: {"temperature": 3.0}, temperature(3.0)),
    "top_k": (1, lambda letters: {"top_k": 2}, top_k),
    "top_p": (1, lambda letters: {"top_p": 0.6}, top_p),
    "min_p": (1, lambda letters: {"min_p": 0.5}, min_p),
    "repetition_penalty": (1, lambda letters: {"repetition_penalty": 2.0}, repetition),
    "presence_penalty": (3, lambda letters: {"presence_penalty": 1.5}, presence),
    "frequency_penalty": (3, lambda letters: {"frequency_penalty": 1.2}, frequency),
    "logit_bias": (
        1, lambda letters: {"logit_bias": {str(letters[3]): 2, str(letters[5]): -100}}, bias,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_gives_its_distribution_and_no_other(
    rand: LiveServer, oracle: Oracle, letters: Words, name: str
) -> None:
    length, fields, change = CASES[name]
    used = letters if length == 1 else letters[:2]
    if name not in ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"):
        # Unequal ones: what heats or cuts shows on them.
        used = tuple(oracle.logits(PROMPT)[-1].topk(6).indices.tolist())
    observed = draws(rand, used, length, **fields(letters))
    assert sum(observed.values()) == REQUESTS * SIBLINGS
    value, cells = distance(observed, expected(oracle, used, length, change))
    assert value < critical(cells)
    if name != "nothing":
        other, cells = distance(observed, expected(oracle, used, length, plain))
        assert other > critical(cells)


def test_every_draw_is_one_of_the_allowed_tokens(rand: LiveServer, letters: Words) -> None:
    observed = draws(rand, letters[:2], 1, temperature=5.0)
    assert set(observed) == {(letters[0],), (letters[1],)}


def test_seeds_repeat_and_differ(rand: LiveServer, letters: Words) -> None:
    def tokens(**fields: Any) -> list[Any]:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "return_token_ids": True}
        status, answer, _ = rand.post(TEXT, {**body, "temperature": 1.0, **fields})
        assert status == 200
        return [choice["token_ids"] for choice in answer["choices"]]

    assert tokens(seed=5) == tokens(seed=5)
    assert tokens(seed=5) != tokens(seed=6)
    assert tokens(seed=-5) == tokens(seed=-5)
    assert tokens() != tokens()
    assert tokens(temperature=0) == tokens(temperature=0, seed=9)


def test_ignore_eos_and_min_tokens_move_the_end(rand: LiveServer) -> None:
    """The end token is liked so much that only these two can hold it back."""
    liked = {"logit_bias": dict.fromkeys(map(str, rand.text.eos_token_ids), 100)}

    def length(**fields: Any) -> int:
        answer = rand.complete(PROMPT, max_tokens=12, **liked, **fields)
        return int(answer["usage"]["completion_tokens"])

    assert length() == 1
    assert length(min_tokens=5) == 6
    assert length(ignore_eos=True) == 12


def test_prompt_logprobs_are_the_models_own(rand: LiveServer, oracle: Oracle) -> None:
    scores = oracle.logprobs(PROMPT)
    answer = rand.complete(PROMPT, prompt_logprobs=2, max_tokens=1)
    first, *others = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    for row, token, entry in zip(scores, PROMPT[1:], others, strict=False):
        likely = row.topk(2).indices.tolist()
        assert set(entry) == {str(token), *map(str, likely)}
        for key, values in entry.items():
            assert values["logprob"] == pytest.approx(float(row[int(key)]), abs=1e-3)
            place = likely.index(int(key)) + 1 if int(key) in likely else None
            assert values["rank"] == place
    chat = rand.chat("x", prompt_logprobs=0, max_tokens=1, return_token_ids=True)
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"])


# ---- C25


def test_c25_adapters_are_refused_and_never_answered_by_the_base_model(rand: LiveServer) -> None:
    for name in ("tiny:adapter", "adapter"):
        status, answer, _ = rand.post(TEXT, {"model": name, "prompt": "x"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer, _ = rand.post(TEXT, {"model": "tiny", "prompt": "x", "lora_path": "/a"})
    assert (status, answer["error"]["param"]) == (400, "lora_path")
