"""The oracle: transformers in float32, every sequence computed whole, no cache, no batch.

    oracle = Oracle(folder)
    oracle.check_greedy(prompt, tokens)      # raises with the gap where the tokens go wrong

`check_greedy` is the tie rule: where the answer leaves the oracle's path, the oracle's best two
logits must be closer than rounding, else the test fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config, PreTrainedModel

TIE = 1e-3


class Oracle:
    """Wraps a model folder, or a transformers model that is already built."""

    def __init__(self, model: Path | PreTrainedModel) -> None:
        if isinstance(model, Path):
            kept = AutoConfig.from_pretrained(model)
            quantised = getattr(kept, "quantization_config", {}).get("quant_method") == "mxfp4"
            # Without it transformers wants packages of a GPU, before it finds that there is none.
            asked = {"quantization_config": Mxfp4Config(dequantize=True)} if quantised else {}
            model = AutoModelForCausalLM.from_pretrained(
                model, dtype=torch.float32, attn_implementation="eager", **asked
            )
        self._model = model.eval()
        self._checked: dict[tuple[tuple[int, ...], tuple[int, ...], float], int] = {}

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """float32 [len(tokens), vocab]: row i predicts token i + 1."""
        return self._model(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy continuation, each token from a computation of everything before it."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """float32 [len(tokens), vocab]: log-probabilities of token i + 1 in row i."""
        return self.logits(tokens).log_softmax(-1)

    def check_greedy(self, prompt: Sequence[int], answer: Sequence[int], tie: float = TIE) -> int:
        """Walk `answer`; returns how many tokens agree before the first difference.

        Raises AssertionError where the answer takes a token whose logit lies `tie` or more
        below the best. One forward over prompt + answer equals recomputing for every token,
        because up to the first difference the prefixes are the same.
        """
        key = (tuple(prompt), tuple(answer), tie)
        if key not in self._checked:
            self._checked[key] = self._walk(prompt, answer, tie)
        return self._checked[key]

    def _walk(self, prompt: Sequence[int], answer: Sequence[int], tie: float) -> int:
        scores = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        for place, (row, token) in enumerate(zip(scores, answer, strict=True)):
            if int(row.argmax()) == token:
                continue
            gap = float(row.max() - row[token])
            assert gap < tie, (
                f"token {place} of {len(answer)} is {token}, the oracle says {int(row.argmax())} "
                f"with a gap of {gap:.4f} (a tie would be below {tie})"
            )
            return place
        return len(answer)
