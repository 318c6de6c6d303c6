"""Bugs that schedulers like this one have had elsewhere, and the test here that would catch each.

`OPEN` lists those whose subject (tiers, transfers, disaggregated roles, deadlines) the core does
not have yet: whoever builds the subject moves the line up with its test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LESSONS: dict[int, tuple[str, str]] = {
    1: ("a transition drops what a state held", "AGuardStrikesBeforeAnythingMoves"),
    2: ("an assignment overwrites an owned slot", "DroppingASlotEndsTheProcess"),
    3: ("ranks decide by pointer or hash order", "test_the_same_calls_give_the_same_steps"),
    5: (
        "a dead entry is still in a side set",
        "AHandleDiesWithItsRequestEvenWhenIdAndEntryLiveAgain",
    ),
    6: ("admission credits blocks that publication keeps", "KeepsEveryInvariantAndDrains"),
    7: ("a plan passes and its commit fails", "test_decisions_equal_the_model"),
    8: ("states that nobody reaches are never evicted", "test_every_group_reads_its_own"),
    9: (
        "more blocks are assumed than hashes exist",
        "test_a_fully_cached_prompt_still_computes_its_last_token",
    ),
    11: ("a look-up emits events", "test_prefix_events_replay_to_the_index"),
    12: ("events rehash all ancestors", "test_events_speak_of_the_digests_of_a_prompt"),
    13: ("the event stream has no producer", "test_prefix_events_replay_to_the_index"),
    14: ("only prefills hold blocks and none can be preempted", "KeepsEveryInvariantAndDrains"),
    15: (
        "prefixes are published at the end only",
        "test_the_second_of_two_equal_prompts_hits_a_step_later",
    ),
    17: (
        "chunks never end where a state can be kept",
        "test_a_repeated_prompt_hits_in_every_model",
    ),
    18: ("two ledgers gate admission, decodes starve", "test_decodes_never_wait_for_prompts"),
    19: ("a gauge counts one group", "test_a_request_that_no_pool_of_this_model_holds_is_refused"),
    24: ("an old result advances a new state", "AStopFoundLateDropsTheRowThatIsAlreadyOut"),
    25: ("everybody holds, everybody needs one more", "test_preemption_cannot_be_seen"),
    26: ("a window reserves what it never holds", "test_a_window_gives_back_what_it_slid_over"),
    31: ("two chunk rules have no common solution", "AStopIsAtABlockOrNowhere"),
    32: (
        "two definitions of computed tokens miss checkpoints",
        "test_a_repeated_prompt_hits_in_every_model",
    ),
}
OPEN: dict[int, str] = {
    4: "collectives are the worker's: one rank decides, the others follow its Step",
    10: "a match that says which tier it is from",
    16: "the decode role's first step",
    20: "dependency sets of copies",
    21: "the completion message of a hand-off",
    22: "no release while a peer reads or writes",
    23: "hand-offs outrank prefills",
    27: "timers that start when the obligated party can act",
    28: "each transfer names its source guard",
    29: "a cost gate: `make bench-scheduler` prints evictions at 131k blocks, no test times",
    30: "results per transfer",
    33: "padding rows are the worker's: they write to block 0",
}


def test_every_lesson_is_answered_or_open() -> None:
    assert sorted([*LESSONS, *OPEN]) == list(range(1, 34))


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_test_of_a_lesson_exists(lesson: int) -> None:
    _, name = LESSONS[lesson]
    here = Path(__file__).parent
    sources = [*here.glob("*.py"), *(here / "csrc").glob("*.cc")]
    definition = re.compile(rf"^(def {name}\(|TEST(_P)?\(\w+, {name}\))", re.M)
    assert any(definition.search(source.read_text()) for source in sources)
