from __future__ import annotations

import torch

from tokenspeed.layers.expert_load import ExpertLoad


def test_padding_and_rehearsals_are_not_counted() -> None:
    load = ExpertLoad((1, 3), 4, torch.device("cpu"))
    slots = torch.tensor([0, 17, 18])
    for choices in ([[0, 1], [2, 3], [2, 1]], [[0, 1], [0, 3], [0, 3]]):
        load.chose(torch.tensor(choices, dtype=torch.int32))
    load.count(slots)
    assert load.read() == ((0, 1, 2, 1), (2, 0, 0, 2))
    load.chose(torch.zeros(3, 2, dtype=torch.int32))  # one layer of the two
    load.count(slots)
    for choices in ([[3, 2]], [[1, 0]]):
        load.chose(torch.tensor(choices, dtype=torch.int32))
    load.count(slots[1:2])
    assert load.read() == ((0, 1, 3, 2), (3, 1, 0, 2))
