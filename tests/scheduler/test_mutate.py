"""The subjects of the mutation check still exist: no list of mistakes that rots unseen."""

from __future__ import annotations

from tests.scheduler.faults import FAULTS
from tests.scheduler.mutate import CORE, all_mutants, fault_text, text_with


def test_every_fault_applies() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 22
    for fault in FAULTS:
        assert fault.after in fault_text(*fault[1:]), fault.name


def test_there_are_mutations_enough_of_every_kind() -> None:
    mutants = all_mutants()
    assert len(mutants) > 600
    assert sum(mutation.after == "" for mutation in mutants) > 100
    assert len({mutation.file for mutation in mutants}) >= 15
    for mutation in mutants[::40]:
        original = (CORE / mutation.file).read_text()
        assert text_with(mutation) != original, str(mutation)
        assert text_with(mutation).count("\n") == original.count("\n")
