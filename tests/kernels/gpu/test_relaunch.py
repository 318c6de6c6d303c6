from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


def test_a_remembered_launch_computes_what_the_first_one_did(monkeypatch):
    from tokenspeed_kernels import relaunch_triton
    from tokenspeed_kernels.activation.silu_mul_triton import _silu_mul, silu_mul
    from triton import JITFunction, knobs

    monkeypatch.setattr(JITFunction, "run", JITFunction.run)
    monkeypatch.delitem(vars(_silu_mul), "known_launches", raising=False)
    relaunch_triton.remember_launches()
    looked_up = []
    monkeypatch.setattr(
        relaunch_triton, "_launch", lambda *args, real=relaunch_triton._launch, **more: (
            looked_up.append(1), real(*args, **more))[1],
    )  # fmt: skip
    for turn in range(4):
        x = torch.randn(33, 512, device="cuda", dtype=torch.bfloat16)
        gate, up = x.float().chunk(2, 1)
        torch.testing.assert_close(
            silu_mul(x).float(), torch.nn.functional.silu(gate) * up, atol=2e-2, rtol=2e-2
        )
        assert len(looked_up) == 1, turn
    # Who traces launches sees all of them.
    seen = []
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        silu_mul(torch.randn(33, 512, device="cuda", dtype=torch.bfloat16))
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert len(seen) == 1
