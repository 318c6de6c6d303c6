"""Every request ends exactly once, whatever it asks for (cases C09, C15, C27, C28)."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.rigs import Oracle, build_rand, rand_prompts
from tests.rigs.drive import FRONT, GREEDY, Driver, driver
from tests.rigs.plans import dummy_plan, tiny_plan
from tests.worker.conftest import Model
from tokenspeed.plan import WeightFormat
from tokenspeed.request import FinishReason, Request, SamplingParams
from tokenspeed.scheduler import Scheduler, SchedulerConfig, Step, TransferDone
from tokenspeed.worker.checks import Limits
from tokenspeed.worker.guides import Guides
from tokenspeed.worker.loop import Loop, StepRunner
from tokenspeed.worker.runner import PendingStep, StepResult
from tokenspeed.worker.sampler import Entry

PROMPT = rand_prompts(1, 20, seed=41)[0]


def request(tokens: list[int], **fields: Any) -> Request:
    raw = np.array(tokens, dtype=np.int64).astype("<i4").tobytes()
    return Request(**{"request_id": 1, "tokens": raw, "max_tokens": 4, "sampling": GREEDY} | fields)


MISTAKES = {
    "no prompt": request([]),
    "half a token": msgspec.structs.replace(request(PROMPT), tokens=b"\0\0\0"),
    "token past the vocabulary": request([512]),
    "negative token": request([-1]),
    "huge token": request([2**31 - 1]),
    "negative max_tokens": request(PROMPT, max_tokens=-1),
    "endless max_tokens": request(PROMPT, max_tokens=2**63 - 1),
    "huge stop id": request(PROMPT, stop_token_ids=(2**40,)),
    "negative min_tokens": request(PROMPT, min_tokens=-1),
    "huge priority": request(PROMPT, priority=-(2**40)),
    "bias past the vocabulary": request(PROMPT, sampling=SamplingParams(logit_bias=((512, 1.0),))),
    "bias below it": request(PROMPT, sampling=SamplingParams(logit_bias=((-1, 1.0),))),
    "bias of nan": request(PROMPT, sampling=SamplingParams(logit_bias=((1, math.nan),))),
    "infinite temperature": request(PROMPT, sampling=SamplingParams(temperature=math.inf)),
    "negative temperature": request(PROMPT, sampling=SamplingParams(temperature=-1.0)),
    "negative top_k": request(PROMPT, sampling=SamplingParams(top_k=-1)),
    "top_p of 0": request(PROMPT, sampling=SamplingParams(top_p=0.0)),
    "min_p above 1": request(PROMPT, sampling=SamplingParams(min_p=1.5)),
    "repetition penalty of 0": request(PROMPT, sampling=SamplingParams(repetition_penalty=0.0)),
    "too many logprobs": request(PROMPT, sampling=SamplingParams(logprobs=21)),
    "negative prompt_logprobs": request(PROMPT, sampling=SamplingParams(prompt_logprobs=-1)),
}


def test_mistakes_are_refused_and_harm_nobody(llama: Model) -> None:
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        bystander = run.submit(PROMPT, 40)
        for name, wrong in MISTAKES.items():
            run.turn()
            refusal = run.loop.submit("other", wrong)
            assert refusal is not None, name
            assert refusal.finish_reason == FinishReason.ERROR
            assert refusal.error, name
        run.run()
        llama.oracle.check_greedy(PROMPT, run.answers[bystander].tokens)


def test_extreme_but_legal_parameters_are_served(llama: Model) -> None:
    legal = (
        SamplingParams(temperature=1e-6),
        SamplingParams(temperature=1e6, top_k=10**9),
        SamplingParams(seed=2**200, temperature=1.0),
        SamplingParams(temperature=0.0, logit_bias=tuple((token, -100.0) for token in range(512))),
        SamplingParams(temperature=0.0, frequency_penalty=2.0, presence_penalty=-2.0),
    )
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        ids = [run.submit(PROMPT, 6, params) for params in legal]
        run.run()
        assert all(len(run.answers[request_id].tokens) == 6 for request_id in ids)


def test_request_id_may_be_used_again_once_it_ended(llama: Model) -> None:
    with driver(tiny_plan(llama.folder), llama.folder) as run:
        assert run.loop.submit("one", request(PROMPT)) is None
        twice = run.loop.submit("one", request(PROMPT))
        assert twice is not None
        assert "open already" in twice.error
        assert run.loop.submit("two", request(PROMPT)) is None
        finals = _turn_out(run)
        assert sorted(finals) == [("one", FinishReason.LENGTH), ("two", FinishReason.LENGTH)]
        assert run.loop.submit("one", request(PROMPT)) is None
        assert _turn_out(run) == [("one", FinishReason.LENGTH)]


def _turn_out(run: Driver) -> list[tuple[str, FinishReason]]:
    finals = []
    while run.loop.busy:
        for front, delta in run.loop.turn():
            if delta.finish_reason:
                finals.append((front, delta.finish_reason))
    return finals


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("turns", range(8))
def test_abort_at_any_moment_ends_once(llama: Model, depth: int, turns: int) -> None:
    plan = tiny_plan(llama.folder, max_running=2, max_step_tokens=9, in_flight_depth=depth)
    with driver(plan, llama.folder) as run:
        ids = [run.submit(prompt, 12) for prompt in rand_prompts(4, 20, seed=42)]
        for _ in range(turns):
            run.turn(check=True)
        for request_id in (ids[1], ids[3]):
            run.abort(request_id)
            assert run.answers[request_id].finish_reason == FinishReason.ABORT
            assert run.loop.abort(FRONT, request_id) is None
        run.run(check=True)
        for request_id in (ids[0], ids[2]):
            assert len(run.answers[request_id].tokens) == 12
        assert run.loop.stats().requests_aborted == 2


@pytest.mark.parametrize("depth", [0, 1])
def test_front_that_is_gone_takes_only_its_own_along(llama: Model, depth: int) -> None:
    with driver(tiny_plan(llama.folder, in_flight_depth=depth), llama.folder) as run:
        assert run.loop.submit("gone", request(PROMPT)) is None
        stays = run.submit(PROMPT, 10)
        run.turn()
        assert run.loop.abort_front("gone") == 1
        assert run.loop.abort_front("gone") == 0
        run.run()
        assert len(run.answers[stays].tokens) == 10


@pytest.mark.parametrize("depth", [0, 1])
def test_end_all_ends_everything_once(llama: Model, depth: int) -> None:
    with driver(tiny_plan(llama.folder, in_flight_depth=depth), llama.folder) as run:
        for number in range(3):
            assert run.loop.submit("one", request(PROMPT, request_id=number)) is None
        run.turn()
        ended = run.loop.end_all(FinishReason.ERROR, "the reason")
        assert [delta.request_id for _, delta in ended] == [0, 1, 2]
        assert {delta.error for _, delta in ended} == {"the reason"}
        run.run()
        assert run.loop.end_all(FinishReason.ABORT) == []


def test_request_beyond_the_pool_is_refused_and_blocks_nobody(llama: Model) -> None:
    """C28: 5 usable blocks of 8; the block that belongs to nobody does not count."""
    plan = tiny_plan(llama.folder, num_blocks=6, block_size=8)
    with driver(plan, llama.folder) as run:
        assert run.capacity.max_request_tokens == 40
        for length, new_tokens in ((32, 1), (39, 1), (40, 1), (41, 1), (32, 16), (1, 16)):
            (prompt,) = rand_prompts(1, length, seed=43)
            long = run.submit(prompt, new_tokens)
            short = run.submit(PROMPT[:10], 2)
            run.run(check=True)
            assert len(run.answers[short].tokens) == 2
            if length + new_tokens > 41:
                assert "need 6 blocks, and the cache has 5" in run.answers[long].error
            elif length + new_tokens <= 40:
                assert len(run.answers[long].tokens) == new_tokens


def test_full_queue_refuses_with_a_reason(llama: Model) -> None:
    plan = tiny_plan(llama.folder, max_running=1, max_waiting=2)
    with driver(plan, llama.folder) as run:
        ids = [run.submit(PROMPT, 2) for _ in range(4)]
        run.run()
    ends = [run.answers[request_id].finish_reason for request_id in ids]
    assert ends == [FinishReason.LENGTH] * 3 + [FinishReason.FULL]
    assert "queue is full" in run.answers[ids[-1]].error


def test_a_request_that_waits_too_long_ends(llama: Model) -> None:
    plan = tiny_plan(llama.folder, max_wait_seconds=1e-6)
    with driver(plan, llama.folder) as run:
        late = run.submit(PROMPT, 2)
        run.run(check=True)
    assert run.answers[late].finish_reason == FinishReason.EXPIRED
    assert "longer than it may" in run.answers[late].error


class _Stand(StepRunner):
    """Draws token 0 for every row without computing anything, and moves nothing."""

    def __init__(self) -> None:
        self.tickets: dict[int, int] = {}  # and how many blocks each moves

    def admit(self, request_id: int, entry: Entry) -> None:
        pass

    def launch(self, step: Step, masked_rows: np.ndarray) -> PendingStep:
        moves = step.transfers
        counts = np.diff(moves.begins)
        self.tickets |= zip(moves.tickets.tolist(), counts.tolist(), strict=True)
        done: Future[StepResult] = Future()
        done.set_result(StepResult(np.zeros(step.num_samples, np.int32), None, None, ()))
        return PendingStep(done)

    def close(self) -> None:
        pass


def _stand(**fields: Any) -> tuple[Loop, Scheduler, _Stand, list[float]]:
    """A loop over a scheduler of 8 blocks of 4, and the seconds that its clock shows."""
    config = SchedulerConfig(
        num_blocks=9,
        block_size=4,
        max_running=1,
        max_step_tokens=32,
        max_model_len=32,
        prefix_cache=True,
        chunked_prefill=True,
        in_flight_depth=0,
        digest_key=(1, 2),
        **fields,
    )
    scheduler, runner, now = Scheduler(config), _Stand(), [0.0]
    limits = Limits(vocab_size=512, max_request_tokens=32)
    guides = Guides(lambda: pytest.fail("no grammar is asked for"), 512, 1)
    loop = Loop(scheduler, runner, guides, limits, 0, max_wait_s=5.0, clock=lambda: now[0])
    return loop, scheduler, runner, now


def test_only_the_time_before_a_request_runs_counts() -> None:
    loop, _, _, now = _stand()
    for number in (1, 2):
        assert loop.submit(FRONT, request(PROMPT[:8], request_id=number, max_tokens=9)) is None
    ends = {}
    for _ in range(8):
        now[0] += 1
        ends |= {d.request_id: d.finish_reason for _, d in loop.turn() if d.finish_reason}
    assert ends == {2: FinishReason.EXPIRED}
    now[0] += 100
    for _ in range(8):
        ends |= {d.request_id: d.finish_reason for _, d in loop.turn() if d.finish_reason}
    assert ends[1] == FinishReason.LENGTH
    assert not loop.busy


def test_the_loop_waits_while_a_transfer_is_out() -> None:
    loop, scheduler, runner, now = _stand(num_host_blocks=33)

    def report() -> None:
        for ticket, count in runner.tickets.items():
            scheduler.apply([TransferDone(ticket, np.ones(count, np.uint8))], now[0])
        runner.tickets.clear()

    def answer(number: int, prompt: list[int]) -> None:
        assert loop.submit(FRONT, request(prompt, request_id=number)) is None
        while loop.busy:
            loop.turn()
            report()

    answer(1, PROMPT[:16])
    for _ in range(4):  # what was computed goes to the host
        loop.turn()
        report()
    answer(2, [token + 1 for token in PROMPT] + PROMPT[:8])  # which evicts it here
    assert loop.submit(FRONT, request(PROMPT[:16], request_id=3)) is None
    assert not loop.only_waits
    while not loop.only_waits:
        assert loop.turn() == []
    assert runner.tickets, "the prompt comes from the host"
    assert loop.turn() == []
    report()
    deltas = []
    while loop.busy:
        deltas += [delta for _, delta in loop.turn()]
        report()
    assert deltas[0].cached_tokens == 12
    assert deltas[-1].finish_reason == FinishReason.LENGTH


def test_text_may_fill_the_rotary_table_to_its_end(tmp_path: Path) -> None:
    """C09: 128 positions; the last one is computed right, one more is refused."""
    folder = build_rand(tmp_path, max_position_embeddings=128, seed=3)
    (prompt,) = rand_prompts(1, 120, seed=44)
    plan = tiny_plan(folder)
    assert plan.scheduler.max_model_len == 128
    with driver(plan, folder) as run:
        full, over = run.submit(prompt, 8), run.submit(prompt, 9)
        run.run()
        assert run.answers[full].finish_reason == FinishReason.LENGTH
        assert Oracle(folder).check_greedy(prompt, run.answers[full].tokens) == 8
        assert "context of 128" in run.answers[over].error


def test_a_plan_may_reach_beyond_the_models_positions(tmp_path: Path) -> None:
    """The angles simply go on: as in the same model made for longer texts."""
    short, long = (
        build_rand(tmp_path / str(end), max_position_embeddings=end, seed=3) for end in (128, 256)
    )
    (prompt,) = rand_prompts(1, 150, seed=44)
    with driver(tiny_plan(short, max_model_len=256), short) as run:
        (answer,) = run.generate([prompt], 8)
    assert Oracle(long).check_greedy(prompt, answer.tokens) == 8


def test_stats_tell_the_true_state(llama: Model) -> None:
    with driver(tiny_plan(llama.folder, max_running=2), llama.folder) as run:
        for prompt in rand_prompts(3, 20, seed=45):
            run.submit(prompt, 3)
        run.turn()
        now = run.loop.stats(bad_frames=7)
        assert (now.running, now.waiting, now.slots_used, now.blocks_used) == (2, 1, 2, 4)
        assert now.bad_frames == 7
        run.run()
        end = run.loop.stats()
        assert (end.prompt_tokens, end.generated_tokens, end.requests_finished) == (60, 9, 3)
        assert end.blocks_total == run.capacity.num_blocks - 1
        assert end.step_seconds_sum > 0


@pytest.mark.parametrize(
    ("linear", "embedding"),
    [(WeightFormat.FLOAT32, WeightFormat.FLOAT32), (WeightFormat.Q4_1, WeightFormat.Q8_0)],
)
def test_dummy_weights_answer_without_any_file(
    models: dict[str, Model], tmp_path: Path, linear: WeightFormat, embedding: WeightFormat
) -> None:
    shaped = tiny_plan(models["qwen3"].folder, linear_format=linear, embedding_format=embedding)
    with driver(dummy_plan(shaped), tmp_path) as run:
        answers = run.generate(rand_prompts(3, 20, seed=46), 8)
    assert [len(answer.tokens) for answer in answers] == [8, 8, 8]
