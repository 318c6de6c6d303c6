"""What the endpoints share: the plan's limits, the engine, the text, and who may come in."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tokenspeed.engine import Engine, EngineUnavailable
from tokenspeed.metrics import FrontState, Metrics
from tokenspeed.plan import Plan
from tokenspeed.server.admission import Admission
from tokenspeed.server.bodies import Bodies
from tokenspeed.server.company import Company
from tokenspeed.server.openai.errors import model_not_found, unavailable
from tokenspeed.server.openai.types import Limits
from tokenspeed.server.parsers.dialect import dialect_of
from tokenspeed.tokenizer import TextModel
from tokenspeed.wire import Capacity

P = ParamSpec("P")
T = TypeVar("T")

_NONE = re.compile(r"content['\"\])]*\s*(is|==|!=)\s*(not\s+)?none", re.IGNORECASE)

STALL_SECONDS = 10.0
TEXT_THREADS = 2


class Service:
    """One per application. `stall_seconds`: silence of the engine's loop that counts as hanging."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        text: TextModel,
        stall_seconds: float,
        company: Company | None = None,
    ) -> None:
        company = company or Company()
        self.engine = engine
        self.peers = company.peers
        self.text = text
        self.started = int(time.time())
        self.admission = Admission(plan.scheduler.max_waiting, company.places)
        self.bodies = Bodies()
        self.dialect = dialect_of(text.template_source, "tools" in text.template_reads)
        # Some templates tell turns of calls by a content that is none.
        self.asks_for_none = bool(_NONE.search(text.template_source or ""))
        self.shown_ids = text.special_ids(self.dialect.marks())
        self.metrics = Metrics()
        self.take(plan)
        self._stall_seconds = stall_seconds
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")

    def take(self, plan: Plan) -> None:
        """Goes on with a plan that differs in what the front alone decides."""
        self.plan = plan
        self.digest = plan.digest()
        # Equal fingerprints: equal requests with equal seeds give equal answers.
        self.fingerprint = f"ts-{self.digest[:16]}"
        self.admission.max_waiting = plan.scheduler.max_waiting
        self.limits = Limits(
            vocab_size=plan.model.config.vocab_size,
            max_choices=plan.serve.max_choices,
            defaults=plan.serve.sampling,
            template_reads=self.text.template_reads,
            reasons=self.dialect.reasoning is not None,
            says_control=self.text.says_control,
        )
        served = plan.model.served_names[0]
        self.metrics.describe(version=plan.tokenspeed, model=served, plan=self.digest[:16])

    def capacity(self) -> Capacity:
        """Raises EngineUnavailable when no request can be taken now, saying why."""
        capacity = self.engine.require_available()
        age = self.engine.heartbeat_age
        if age > self._stall_seconds:
            raise EngineUnavailable("stalled", f"nothing heard for {age:.1f} s")
        return capacity

    def require_capacity(self) -> Capacity:
        """The same for endpoints: raises ApiError 503 with Retry-After."""
        try:
            return self.capacity()
        except EngineUnavailable as error:
            raise unavailable(error) from error

    def context_limit(self, capacity: Capacity) -> int:
        """Most tokens of prompt and answer together."""
        return min(capacity.max_request_tokens, self.plan.scheduler.max_model_len)

    def prompt_limit(self) -> int | None:
        """Most tokens of a prompt where it must fit into one step, else None."""
        scheduler = self.plan.scheduler
        return None if scheduler.chunked_prefill else scheduler.max_step_tokens

    def require_model(self, name: str) -> None:
        if name not in self.plan.model.served_names:
            raise model_not_found(name, self.plan.model.served_names)

    def front_state(self) -> FrontState:
        try:
            self.capacity()
            ready = True
        except EngineUnavailable:
            ready = False
        return FrontState(
            ready=ready,
            draining=self.engine.draining,
            open_requests=self.engine.open_requests,
            heartbeat_age=self.engine.heartbeat_age,
            bad_frames=self.engine.bad_frames,
            worker_starts=self.engine.worker_starts,
            gpu_faults=self.engine.gpu_faults,
        )

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs text work off the event loop, so that streams and health stay lively."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
