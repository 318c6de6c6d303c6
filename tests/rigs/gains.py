"""By how much each matrix of an engine seems to be multiplied, told from what it says of tokens.

Rows in float8 make distance a blunt measure: an activation half way between two values falls to
either side, and after two layers an engine and a reference whose sums differ in the last bit stray
by 6 to 14 % of the spread of the logits; one matrix at 1.25 of what it is strays by 11 %. But that
noise has no direction. What the engine says, less what the reference says, is laid beside what 1.25
times a matrix does to the reference: over many tokens noise cancels out, a fault of scales does
not. `test_gains.py` holds the proof. What shows in neither is rows that stay in 16 bits where they
should become float8: that is no farther away than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tests.rigs.drive import Answer
from tests.rigs.rounded import Rounded
from tokenspeed.request import SamplingParams

TOP = 20
SCORED = SamplingParams(temperature=0.0, logprobs=TOP)
# Over 3 families and 3 seeds noise of bfloat16 in every product gives gains up to 0.010 and strays
# up to 0.14. A matrix at 1.25 or 0.8 gives a gain of 0.17 and more, 64 rows of one at half their
# scale 0.13 and more; one product of one text at twice its rows a stray of 0.27 and more.
MOST_GAIN = 0.03
MOST_STRAY = 0.22
_STEP = 0.25
# Of the engine's 20 those that the reference without noise finds likeliest: chosen by the engine
# alone they would be those that its noise lifted, which looks like a smaller head.
_KEPT = 10

Text = tuple[list[int], list[int]]  # a prompt and its answer


@dataclass(frozen=True)
class Likeness:
    """`gains` by matrix: 0 where it seems to be what it should be, 0.25 where 1.25 times that.
    `strays` of each text: root mean square over the spread of the logits."""

    gains: Mapping[str, float]
    strays: Sequence[float]

    @property
    def gain(self) -> float:
        """The largest, up or down."""
        return max(map(abs, self.gains.values()))

    @property
    def stray(self) -> float:
        return max(self.strays)

    @property
    def holds(self) -> bool:
        return self.gain < MOST_GAIN and self.stray < MOST_STRAY


class Scale:
    """Weighs answers to texts by one reference. Its matrices change while this is made."""

    def __init__(self, reference: Rounded, texts: Sequence[Text]) -> None:
        self._counts = [len(answer) for _, answer in texts]
        self._logits = all_logits(reference, texts)
        self._spread = float(self._logits.std(1).mean())
        rounds, reference.rounds = reference.rounds, False
        # Without the noise of rounded rows.
        self._plain = all_logits(reference, texts)
        self._louder = {}
        for name in reference.multiplied:
            kept = reference.matrices[name]
            reference.matrices[name] = kept * (1 + _STEP)
            self._louder[name] = all_logits(reference, texts)
            reference.matrices[name] = kept
        reference.rounds = rounds

    def weigh(self, answers: Sequence[Answer]) -> Likeness:
        """Of answers by `SCORED`, whose tokens are those of the texts."""
        tops = [entry.top[:TOP] for answer in answers for entry in answer.logprobs]
        ids = torch.tensor([[token for token, _ in top] for top in tops])
        said = torch.tensor([[value for _, value in top] for top in tops])
        kept = self._plain.gather(1, ids).topk(_KEPT).indices
        ids, said = ids.gather(1, kept), said.gather(1, kept)
        apart = _centred(said) - _picked(self._logits, ids)
        plain = _picked(self._plain, ids)
        gains = {}
        for name, louder in self._louder.items():
            effect = _picked(louder, ids) - plain
            gains[name] = _STEP * float((effect * apart).sum() / effect.square().sum())
        parts = apart.split(self._counts)
        strays = [float(part.square().mean().sqrt()) / self._spread for part in parts]
        return Likeness(gains, strays)


def all_logits(reference: Rounded, texts: Sequence[Text]) -> torch.Tensor:
    """float32 [N, V] of every token that was answered."""
    return torch.cat(
        [reference.logits([*p, *answer[:-1]], len(p))[len(p) - 1 :] for p, answer in texts]
    )


def _picked(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return _centred(logits.gather(1, ids))


def _centred(values: torch.Tensor) -> torch.Tensor:
    return values - values.mean(1, keepdim=True)
