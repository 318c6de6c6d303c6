"""The Python face: strict about what comes in, safe about what goes out."""

from __future__ import annotations

import ast
import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.scheduler.driver import make_config
from tokenspeed import scheduler
from tokenspeed.scheduler import Scheduler, SchedulerConfig, SubmitResult, _core

NO_STOPS = np.array([], np.int32)


def public_names(body: list[ast.stmt]) -> set[str]:
    """Functions, properties and constants that a class of the stub offers."""
    names = {item.name for item in body if isinstance(item, ast.FunctionDef)}
    for item in body:
        if isinstance(item, ast.Assign):
            names |= {target.id for target in item.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def stub_names() -> dict[str, set[str]]:
    tree = ast.parse(Path(scheduler.__file__).with_name("_core.pyi").read_text())
    return {
        node.name: public_names(node.body) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def test_the_stub_matches_the_module() -> None:
    stub = stub_names()
    module = {name for name in dir(_core) if not name.startswith("_")}
    assert module == set(stub) == set(scheduler.__all__)
    for name, members in stub.items():
        offered = {member for member in vars(getattr(_core, name)) if not member.startswith("_")}
        assert members == offered, name


def submit(core: Scheduler, request_id: int, length: int, max_tokens: int = 4) -> SubmitResult:
    prompt = np.arange(length, dtype=np.int32)
    return core.submit(request_id, prompt, max_tokens, NO_STOPS, now=0.0)


def test_views_outlive_the_step_and_the_scheduler() -> None:
    core = Scheduler(make_config())
    submit(core, 7, 10)
    step = core.step(0.0)
    assert step is not None
    tokens, dirty, tables = step.tokens, step.dirty, core.block_tables
    core.commit(step.id, np.array([3], np.int32))
    del step, core
    gc.collect()
    assert tokens.tolist() == list(range(10))
    assert dirty.tolist() == [[0, 0, 3]]
    assert tables.shape == (4, 16)
    assert tables[0].tolist() == [1, 2, 3] + [0] * 13


def test_views_are_read_only_and_not_copies() -> None:
    core = Scheduler(make_config())
    tables = core.block_tables
    assert not tables.any()
    submit(core, 7, 10)
    step = core.step(0.0)
    assert step is not None
    assert tables[0, :3].all(), "the view follows the rows"
    for view in (tables, step.tokens, step.dirty, step.request_ids):
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0


def test_shapes_and_dtypes() -> None:
    core = Scheduler(make_config())
    submit(core, 2**64 - 1, 10)
    step = core.step(0.0)
    assert step is not None
    per_row = {
        "request_ids": np.uint64,
        "slots": np.int32,
        "query_lens": np.int32,
        "context_lens": np.int32,
        "samples": np.uint8,
        "admitted": np.uint8,
        "cached_lens": np.int32,
        "first": np.uint8,
    }
    for name, dtype in per_row.items():
        view = getattr(step, name)
        assert (view.dtype, view.shape) == (np.dtype(dtype), (step.num_rows,)), name
    assert {step.tokens.dtype, step.dirty.dtype} == {np.dtype(np.int32)}
    assert step.request_ids.tolist() == [2**64 - 1]
    deltas = core.commit(step.id, np.array([5], np.int32))
    assert deltas.request_ids.dtype == np.dtype(np.uint64)
    assert deltas.tokens.dtype == np.dtype(np.int32)
    assert deltas.finish.dtype == np.dtype(np.uint8)
    assert core.tokens(2**64 - 1).tolist() == [*range(10), 5]


def test_ids_are_never_cast() -> None:
    core = Scheduler(make_config())
    for wrong in (np.arange(4), np.arange(4.0), [1, 2, 3]):
        with pytest.raises(TypeError):
            core.submit(1, wrong, 4, NO_STOPS, now=0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one dimension"):
        core.submit(1, np.zeros((2, 2), np.int32), 4, NO_STOPS, now=0.0)


def test_wrong_arguments_are_named() -> None:
    core = Scheduler(make_config())
    one = np.array([1], np.int32)
    with pytest.raises(ValueError, match="token ids must not be negative"):
        core.submit(1, -one, 4, NO_STOPS, now=0.0)
    with pytest.raises(ValueError, match="max_tokens must not be negative"):
        core.submit(1, one, -4, NO_STOPS, now=0.0)
    with pytest.raises(ValueError, match="min_tokens must not be negative"):
        core.submit(1, one, 4, NO_STOPS, min_tokens=-1, now=0.0)
    with pytest.raises(ValueError, match="now must be finite"):
        core.submit(1, one, 4, NO_STOPS, now=float("nan"))
    with pytest.raises(ValueError, match="request 5 is not live"):
        core.tokens(5)
    assert core.stats().waiting == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 1),
        ("block_size", 0),
        ("max_running", 0),
        ("max_step_tokens", 3),
        ("max_model_len", 0),
        ("in_flight_depth", 2),
        ("ageing_s", 0.0),
        ("ageing_s", float("inf")),
    ],
)
def test_a_wrong_configuration_names_the_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        make_config(**{field: value})


def test_the_configuration_can_be_read_back() -> None:
    config: SchedulerConfig = make_config(max_model_len=63, ageing_s=5.0)
    core = Scheduler(config)
    assert core.config.max_blocks_per_request == 16
    assert (core.config.ageing_s, core.config.prefix_cache) == (5.0, True)


def test_a_wrong_commit_changes_nothing() -> None:
    core = Scheduler(make_config())
    with pytest.raises(ValueError, match="not the oldest step in flight"):
        core.commit(1, np.array([1], np.int32))
    submit(core, 1, 5)
    step = core.step(0.0)
    assert step is not None
    for step_id, tokens, why in (
        (step.id + 1, [1], "not the oldest"),
        (step.id, [], "samples 1 tokens, not 0"),
        (step.id, [1, 2], "samples 1 tokens, not 2"),
        (step.id, [-1], "must not be negative"),
    ):
        with pytest.raises(ValueError, match=why):
            core.commit(step_id, np.array(tokens, np.int32))
    assert core.commit(step.id, np.array([1], np.int32)).tokens.tolist() == [1]


@pytest.mark.parametrize("depth", [0, 1])
def test_no_more_steps_than_the_depth_allows(depth: int) -> None:
    core = Scheduler(make_config(in_flight_depth=depth))
    submit(core, 1, 5, max_tokens=9)
    for _ in range(depth + 1):
        assert core.step(0.0) is not None
    with pytest.raises(RuntimeError, match=f"commit step 1 first: in_flight_depth is {depth}"):
        core.step(0.0)


def test_reset_while_running_publishes_nothing_old() -> None:
    """A reset means that cached contents are no longer valid; what goes on must not return."""
    core = Scheduler(make_config())
    submit(core, 1, 17, max_tokens=20)
    for token in (50, 51):
        step = core.step(0.0)
        while step is not None and step.num_samples == 0:
            core.commit(step.id, NO_STOPS)
            step = core.step(0.0)
        assert step is not None
        core.commit(step.id, np.array([token], np.int32))
    assert core.reset_prefix_cache() == 4
    core.check()
    for token in range(18):
        step = core.step(0.0)
        assert step is not None
        core.commit(step.id, np.array([token], np.int32))
    assert core.stats().running == 0
    assert core.stats().blocks_cached == 0


def test_threads_may_share_a_scheduler() -> None:
    """Calls drop the GIL and exclude each other: nothing is lost, the audit holds."""
    core = Scheduler(make_config(num_blocks=500, max_running=8, max_step_tokens=64))
    total = 4 * 60
    failures: list[BaseException] = []

    def client(first: int) -> None:
        try:
            for i in range(60):
                assert submit(core, first * 100 + i, 9, 3) is SubmitResult.ACCEPTED
                if i % 7 == 0:
                    core.abort(first * 100 + i)
                core.stats()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while (
        any(thread.is_alive() for thread in threads) or core.stats().running + core.stats().waiting
    ):
        step = core.step(0.0)
        if step is not None:
            core.commit(step.id, np.full(step.num_samples, 7, np.int32))
            core.check()
    for thread in threads:
        thread.join()
    assert not failures
    stats = core.stats()
    assert stats.finished + stats.aborted == total
    assert stats.blocks_used == 0
