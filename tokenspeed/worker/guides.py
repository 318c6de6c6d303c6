"""The guides of requests that are held to a grammar, to `min_tokens` or to a reasoning budget.

Grammars are compiled on threads of their own, and a request is scheduled once its guide is there.
A step is launched without the masks of its rows: they need the tokens of the step before, which
may still be computed, and are made while the forward pass runs (see `runner.PendingStep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLExecutor

from tokenspeed.grammar.compiler import THREADS, Compiler
from tokenspeed.grammar.guide import Guide, Thought, fill
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.request import Constraints, Request

# A grammar that takes longer is refused. Limits of its own end the compiler not much later.
COMPILE_SECONDS = 10.0
# Requests whose grammar is not compiled yet.
MAX_COMPILING = 1024


class Guides:
    """`load` gives the vocabulary, when the first request wants it; `mask_threads` compute masks,
    `vocab_size` is the width of the logits. `jump_ahead`: see `SchedulerPlan`."""

    def __init__(
        self,
        load: Callable[[], Vocabulary],
        vocab_size: int,
        mask_threads: int,
        jump_ahead: int = 0,
    ) -> None:
        self._compiler = Compiler(load)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._vocab_size = vocab_size
        self._mask_threads = mask_threads
        self._executor: LLExecutor | None = None
        self._jump_ahead = jump_ahead

    def warm(self) -> Future[Vocabulary]:
        """Loads the vocabulary now, beside everything else."""
        return self._threads.submit(self._compiler.vocabulary)

    def of(self, request: Request) -> Guide | Future[Guide] | None:
        """None: it may say what it likes. The future raises GrammarError."""
        constraints = request.constraints or Constraints()
        if constraints.grammar or constraints.thinking is not None:
            return self._threads.submit(self._compiled, request, constraints)
        if constraints.allowed_token_ids or (request.min_tokens and request.stop_token_ids):
            return Guide(
                ends=self._ends(request),
                min_tokens=request.min_tokens,
                allowed=constraints.allowed_token_ids,
            )
        return None

    def run_behind(self, request: Request, guide: Guide) -> Sequence[int]:
        """The tokens that must follow what the guide accepted, as far as they are worth a row of
        their own; it accepts them too. None for a request that wants log-probabilities: those of
        each token are the model's own, which only a sample computes."""
        if not self._jump_ahead or request.sampling.logprobs is not None:
            return ()
        return guide.follow(self._jump_ahead, request.max_tokens - guide.accepted)

    def masks(self, guides: Sequence[Guide]) -> np.ndarray:
        """One row per guide, int32 [len(guides), ceil(V / 32)]."""
        masks = np.empty((len(guides), -(-self._vocab_size // 32)), dtype=np.int32)
        if self._executor is None and any(guide.matcher is not None for guide in guides):
            self._executor = LLExecutor(num_threads=self._mask_threads)
        fill(self._executor, guides, masks)
        return masks

    def close(self) -> None:
        """Waits for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, request: Request, constraints: Constraints) -> Guide:
        thinking = constraints.thinking
        vocabulary = self._compiler.vocabulary()
        return Guide(
            matcher=self._compiler.matcher(constraints.grammar) if constraints.grammar else None,
            ends=self._ends(request),
            min_tokens=request.min_tokens,
            allowed=constraints.allowed_token_ids,
            thought=None if thinking is None else Thought(thinking, vocabulary.bytes_of),
        )

    def _ends(self, request: Request) -> Sequence[int]:
        """Those that can be drawn: a tokenizer may name some that the model does not have."""
        return [token for token in request.stop_token_ids if token < self._vocab_size]
