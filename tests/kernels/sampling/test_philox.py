from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.sampling.philox import philox, token_bits

# Known answers of Philox4x32-10 as published with the authors' Random123: counter, key, output.
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    words = philox(
        tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([k]) for k in key)
    )
    assert tuple(int(word) for word in words) == expected


def test_bits_of_a_token_depend_on_seed_and_position_alone():
    seeds = torch.tensor([1, -1, 2**40, 1])
    positions = torch.tensor([5, 2**33, 5, 5])
    bits = token_bits(seeds, positions, 11)
    assert bits.shape == (4, 11)
    assert torch.equal(bits[0], bits[3])
    assert len({tuple(row) for row in bits.tolist()}) == 3
    # The first tokens are the same whatever the vocabulary.
    assert torch.equal(token_bits(seeds, positions, 7), bits[:, :7])
    assert int(bits.min()) >= 0 and int(bits.max()) < 2**32
