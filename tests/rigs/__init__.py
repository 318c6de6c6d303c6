"""Tiny models with known answers, and the oracle that knows them.

    from tests.rigs import Oracle, build_chain, build_rand, rand_prompts

- `build_rand(folder, family, seed=, shards=, **config)`: R-RAND, a random llama, qwen2 or qwen3.
- `build_chain(folder, scripts, loops=)`: R-CHAIN, a model that says what the test wrote down.
- `Oracle(folder)`: transformers in float32 over the same folder.
- `build_gguf(folder, family)` of `tests.rigs.gguf_file`: R-RAND quantised, and its floats.
- `tiny_plan(folder, ...)` of `tests.rigs.plans`: a whole Plan that runs such a folder here.
- `driver(plan, folder)` of `tests.rigs.drive`: the worker's loop in this process, no sockets.

Both builders take well under a second; build once per session or module
(`tmp_path_factory.mktemp("rand")`), never per test.
"""

from __future__ import annotations

from tests.rigs.chain import Chain, build_chain
from tests.rigs.oracle import TIE, Oracle
from tests.rigs.rand import FAMILIES, VOCAB, build_rand, rand_prompts

__all__ = [
    "FAMILIES",
    "TIE",
    "VOCAB",
    "Chain",
    "Oracle",
    "build_chain",
    "build_rand",
    "rand_prompts",
]
