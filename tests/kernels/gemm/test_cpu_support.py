from __future__ import annotations

import platform

import pytest
from tokenspeed_kernels import _cpu


def test_the_portable_kernels_always_run():
    assert _cpu.supports(_cpu.PORTABLE)


@pytest.mark.skipif(platform.machine() == "x86_64", reason="x86 may have them")
def test_x86_kernels_are_refused_elsewhere():
    for isa in (_cpu.AVX2, _cpu.AVX512, _cpu.AVX512_VNNI):
        assert not _cpu.supports(isa)


def test_an_unknown_instruction_set_is_an_error_not_a_crash():
    assert not _cpu.supports(17)
    with pytest.raises(RuntimeError, match="make the plan on the machine that runs it"):
        _cpu.silu_mul(17, 0, 0, 0, 0)
