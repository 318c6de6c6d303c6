"""Which layers keep their tokens together: the cache groups of a model. Imports no torch.

All groups take blocks from one pool of equal ones, so groups hold equally many layers: those that
see everything make one, those with one window as many as it takes; the last may be partly empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.plan import Attention, LatentAttention, Mixer, ModelConfig


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """`kinds` as the scheduler takes them, ("full", 0) or ("window", tokens); for each layer its
    group and its place in there. Layers of one place share memory, never a block."""

    kinds: tuple[tuple[str, int], ...]
    group: tuple[int, ...]
    place: tuple[int, ...]

    @property
    def places(self) -> int:
        return max(self.place) + 1


def window_of(mixer: Mixer) -> int:
    """The window of a layer that keeps tokens, 0 where it sees all of them."""
    assert isinstance(mixer, Attention | LatentAttention), "a recurrent layer keeps no tokens"
    return mixer.window or 0 if isinstance(mixer, Attention) else 0


def layer_groups(config: ModelConfig) -> LayerGroups:
    """The groups in the order of their first layers, all that see everything first."""
    windows = [window_of(layer.mixer) for layer in config.sequence()]
    size = windows.count(0) or max(windows.count(window) for window in set(windows))
    kinds: list[tuple[str, int]] = [("full", 0)] if 0 in windows else []
    filled: dict[int, tuple[int, int]] = {0: (0, 0)} if kinds else {}
    group, place = [], []
    for window in windows:
        where, used = filled.get(window, (-1, size))
        if used == size:
            where, used = len(kinds), 0
            kinds.append(("window", window))
        group.append(where)
        place.append(used)
        filled[window] = (where, used + 1)
    return LayerGroups(tuple(kinds), tuple(group), tuple(place))
