"""Which model is served, and whether this build can get it."""

from __future__ import annotations

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.hardware.types import Hardware


def test_the_files_that_up_has_to_fetch(resolved: Resolver, cpu: Hardware) -> None:
    (file,) = resolved(SMALL, cpu).plan.model.files
    assert file.name.endswith(".gguf")
    assert file.sha256 is not None


def test_random_weights_need_no_files(resolved: Resolver, cpu: Hardware) -> None:
    model = resolved(SMALL, cpu, "model.load=dummy").plan.model
    assert (model.load, model.container, model.files) == ("dummy", "none", ())


def test_names(resolved: Resolver, cpu: Hardware) -> None:
    assert resolved(SMALL, cpu).plan.model.served_names == ("small",)
    named = resolved(SMALL, cpu, "model.served_names=[a, b]").plan.model
    assert named.served_names == ("a", "b")


def test_a_repository_is_fetched_as_a_wheel_is(resolved: Resolver, h200: Hardware) -> None:
    assert resolved(DENSE, h200, "model.load=weights").plan.unmet == ()
