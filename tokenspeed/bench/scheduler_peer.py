"""Drives the published package `tokenspeed-scheduler` as a model runner would, for comparison.

Only its documented surface is used. Its plan is read once per step, as its arrays: what a runner
needs to launch a forward pass.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE = "tokenspeed_scheduler"
MEASURED = "0.1.42"


class PeerMissingError(Exception):
    """The package is not installed in this environment."""


class PeerScheduler:
    """The peer behind the workload's interface. One full-attention group, no host tier."""

    name = "peer"

    def __init__(self, block: int, blocks: int, running: int) -> None:
        self._api: Any = importlib.import_module(PACKAGE)
        config = self._api.SchedulerConfig()
        config.prefix_granularity = block
        config.num_device_pages = blocks
        config.num_host_pages = config.num_snapshot_pages = 1  # its word for none
        config.max_scheduled_tokens = 8192
        config.max_batch_size = running
        config.overlap_schedule_depth = 0
        config.disable_l2_cache = True
        config.enable_mixed_prefill_decode = True
        group = self._api.CacheGroupConfig("kv", block, blocks, self._api.AttnKind.Full)
        config.cache_groups = [group]
        self._core = self._api.Scheduler(config)
        self._left: dict[str, int] = {}
        self._samples: list[str] = []

    @classmethod
    def version(cls) -> str:
        """Its version; raises PeerMissingError with the way to get it."""
        if importlib.util.find_spec(PACKAGE) is None:
            raise PeerMissingError(
                f"the peer package is not installed here: pip install "
                f"tokenspeed-scheduler=={MEASURED} into an environment of its own, "
                f"then run this program there with --peer"
            )
        return importlib.metadata.version("tokenspeed-scheduler")

    def submit(self, request_id: int, tokens: NDArray[np.int32], max_tokens: int) -> None:
        spec = self._api.RequestSpec()
        spec.request_id = str(request_id)
        spec.tokens = tokens.tolist()
        spec.max_new_tokens = max_tokens
        self._left[spec.request_id] = max_tokens
        self._core.submit_requests([spec])

    def step(self) -> int:
        plan = self._core.next_execution_plan()
        self._samples = []
        self._empty: list[str] = []
        self._decodes: set[str] = set()
        for batch in plan.forward:
            ids = batch.request_ids
            if not ids:
                continue
            batch.block_tables_arrays()
            extends = batch.num_extends()
            prefixes, lengths = batch.extend_prefix_lens, batch.input_lengths
            totals = batch.prefill_lengths
            for i, request_id in enumerate(ids):
                whole = i >= extends or prefixes[i] + lengths[i] >= totals[i]
                (self._samples if whole else self._empty).append(request_id)
                if i >= extends:
                    self._decodes.add(request_id)
        return len(self._samples)

    def finish_step(self) -> list[int]:
        event = self._api.ExecutionEvent()
        ended = []
        for request_id in self._samples + self._empty:
            result = self._api.ForwardEvent.ExtendResult()
            result.request_id = request_id
            sampled = request_id not in self._empty
            result.tokens = [7] if sampled else []
            event.add_event(result)
            if not sampled:
                continue
            self._left[request_id] -= 1
            if self._left[request_id] == 0:
                finish = self._api.ForwardEvent.Finish()
                finish.request_id = request_id
                event.add_event(finish)
                ended.append(int(request_id))
            elif request_id in self._decodes:
                reserve = self._api.ForwardEvent.UpdateReserveNumTokens()
                reserve.request_id = request_id
                reserve.reserve_num_tokens_in_next_schedule_event = 1
                event.add_event(reserve)
        self._core.advance(event)
        return ended
