"""Traces of requests to an OpenTelemetry collector, over OTLP/HTTP. Needs the extra `traces`.

    request            HTTP server span, below the client's own where it sent a traceparent
      queue            until a worker took the sequence up
      prefill          until its first token
      decode           until its last one

Spans are made when a request is over, and sent by a thread of the SDK. A collector that does not
answer costs the traces, never the requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tokenspeed.server.tracing import SequenceTrace, Trace

log = logging.getLogger(__name__)

KEPT_SPANS = 8192  # waiting to be sent; more are dropped
BATCH_SPANS = 512
WAIT_MILLISECONDS = 1000.0
SEND_SECONDS = 5.0


class OtlpTracer:
    """A `server.tracing.Tracer`. `close` sends what is left."""

    def __init__(self, endpoint: str, service: str, version: str) -> None:
        attributes = {"service.name": service, "service.version": version}
        self._exporter = _Telling(OTLPSpanExporter(endpoint, timeout=SEND_SECONDS), endpoint)
        # Stated here, because the SDK would take them from the environment.
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON), resource=Resource(attributes), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=KEPT_SPANS,
                schedule_delay_millis=WAIT_MILLISECONDS,
                max_export_batch_size=BATCH_SPANS,
                export_timeout_millis=1000 * SEND_SECONDS,
            )
        )
        self._tracer = self._provider.get_tracer("tokenspeed", version)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, trace: Trace) -> None:
        offset = time.time() - time.monotonic()
        carrier = {"traceparent": trace.parent, "tracestate": trace.state}
        given = {name: value for name, value in carrier.items() if value}
        context = self._propagator.extract(given, Context())
        span = self._tracer.start_span(
            f"{trace.method} {trace.route}",
            context=context,
            kind=SpanKind.SERVER,
            start_time=_nanoseconds(trace.began + offset),
            attributes={
                "http.request.method": trace.method,
                "http.route": trace.route,
                "http.response.status_code": trace.status,
                "tokenspeed.request_id": trace.request_id,
                "gen_ai.request.model": trace.model,
                "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in trace.sequences),
                "gen_ai.usage.output_tokens": sum(one.completion_tokens for one in trace.sequences),
                "tokenspeed.cached_tokens": sum(one.cached_tokens for one in trace.sequences),
            },
        )
        if trace.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span, Context())
        for index, sequence in enumerate(trace.sequences):
            self._record_sequence(index, sequence, below, offset)
        span.end(_nanoseconds(trace.ended + offset))

    def _record_sequence(
        self, index: int, one: SequenceTrace, context: Context, offset: float
    ) -> None:
        """Its stages as far as it came: each ends where the next one begins."""
        taken = one.submitted + (one.queued_seconds or 0.0)
        first = one.first_token
        stages = [("queue", one.submitted, taken if one.queued_seconds is not None else one.ended)]
        if one.queued_seconds is not None:
            stages.append(("prefill", taken, first if first is not None else one.ended))
        if first is not None:
            stages.append(("decode", first, one.ended))
        tokens = {
            "prefill": {
                "gen_ai.usage.input_tokens": one.prompt_tokens,
                "tokenspeed.cached_tokens": one.cached_tokens,
            },
            "decode": {"gen_ai.usage.output_tokens": one.completion_tokens},
        }
        for name, began, ended in stages:
            span = self._tracer.start_span(
                name,
                context=context,
                start_time=_nanoseconds(began + offset),
                attributes={"tokenspeed.choice": index, **tokens.get(name, {})},
            )
            if name == stages[-1][0]:
                span.set_attribute("gen_ai.response.finish_reasons", [one.finish])
            span.end(_nanoseconds(ended + offset))

    def close(self) -> None:
        """Blocks until what is left is sent, or cannot be: some seconds at most."""
        self._provider.shutdown()


class _Telling(SpanExporter):
    """Says once that a collector does not take traces, and once that it does again; the SDK would
    print a traceback for each attempt."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._inner = inner
        self._endpoint = endpoint
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                log.info("traces reach %s again; %d spans were lost", self._endpoint, self._lost)
            self._lost = 0
            return result
        if not self._lost:
            log.warning("traces do not reach %s and are dropped until they do", self._endpoint)
        self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
