"""Where traces go, while a front serves."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator

from tokenspeed.appliance.threads import Threads
from tokenspeed.plan import Plan
from tokenspeed.server.tracing import Tracer

LAST_TRACES_SECONDS = 2.0


@contextlib.asynccontextmanager
async def tracing(plan: Plan, threads: Threads) -> AsyncIterator[Tracer | None]:
    """The plan's tracer, None without one. Its library is an extra, and loaded for plans that need
    it. A collector that does not answer holds up the end for a moment, and no longer."""
    if plan.serve.traces is None:
        yield None
        return
    otlp = importlib.import_module("tokenspeed.appliance.otlp")
    tracer = otlp.OtlpTracer(plan.serve.traces, plan.name, plan.tokenspeed)
    try:
        yield tracer
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(threads.run(tracer.close), LAST_TRACES_SECONDS)
