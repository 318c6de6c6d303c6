"""Hardware is a value: JSON carries it both ways."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from tokenspeed.hardware.profiles import load_hardware, names
from tokenspeed.hardware.types import Hardware


@pytest.mark.parametrize("name", names())
def test_json_both_ways(name: str) -> None:
    hardware = load_hardware(name)
    assert Hardware.from_json(hardware.to_json()) == hardware


def test_a_value_is_frozen_and_can_be_a_key() -> None:
    hardware = load_hardware("nvidia-h200")
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware.name = "other"  # type: ignore[misc]
    assert len({hardware, load_hardware("nvidia-h200")}) == 1


@pytest.mark.parametrize("data", [b"{}", b"[]", b"not json", b'{"name": 5}'])
def test_what_is_no_hardware(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Hardware.from_json(data)
