"""Bugs that schedulers like this one have had elsewhere, and the test that would catch each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LESSONS: dict[int, tuple[str, str]] = {
    1: ("a transition drops what a state held", "AGuardStrikesBeforeAnythingMoves"),
    2: ("an assignment overwrites an owned slot", "DroppingASlotEndsTheProcess"),
    3: ("ranks decide by pointer or hash order", "test_the_same_calls_give_the_same_steps"),
    4: (
        "a rank-local condition guards a collective",
        "test_ranks_that_see_only_steps_compute_the_same",
    ),
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
    12: ("events rehash all ancestors", "test_work_does_not_grow"),
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
    25: (
        "everybody holds, everybody needs one more",
        "test_without_overcommit_nobody_is_preempted",
    ),
    26: ("a window reserves what it never holds", "test_a_window_gives_back_what_it_slid_over"),
    31: ("two chunk rules have no common solution", "AStopIsAtABlockOrNowhere"),
    32: (
        "two definitions of computed tokens miss checkpoints",
        "test_states_are_kept_at_block_ends_under_drafts",
    ),
    10: ("a resource is taken from the wrong tier", "test_a_hit_says_which_tier_it_is_from"),
    16: (
        "the decode role's first step drops what its state held",
        "test_the_decode_role_owns_its_prompt_and_its_first_token",
    ),
    20: ("a copy waits for more than it reads", "test_a_copy_waits_for_nothing_but_what_it_reads"),
    21: (
        "success is said before the data is there",
        "test_the_completion_message_carries_all_that_its_reader_needs",
    ),
    22: ("an abort frees blocks in transfer", "test_no_block_is_reused_while_a_peer_may_touch_it"),
    23: ("hand-overs are ranked after prefills", "test_hand_overs_outrank_prefills"),
    27: (
        "a deadline runs while the other side cannot act",
        "test_a_timer_starts_when_the_obligated_party_can_act",
    ),
    28: (
        "one mechanism for two protections of a source",
        "test_each_transfer_names_its_source_guard",
    ),
    29: ("decodes slow down as the cache fills", "test_work_does_not_grow"),
    30: ("failed backups are taken for stored", "test_results_are_per_block"),
    33: (
        "padding rows write where request 0 reads",
        "test_padding_changes_no_row_and_writes_to_the_sink",
    ),
}


def test_every_lesson_is_answered() -> None:
    assert sorted(LESSONS) == list(range(1, 34))


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_test_of_a_lesson_exists(lesson: int) -> None:
    _, name = LESSONS[lesson]
    here = Path(__file__).parent
    # Padding is the worker's.
    worker = here.parent / "worker"
    sources = [*here.glob("*.py"), *(here / "csrc").glob("*.cc"), *worker.glob("*.py")]
    definition = re.compile(rf"^(def {name}\(|TEST(_P)?\(\w+, {name}\))", re.M)
    assert any(definition.search(source.read_text()) for source in sources)
