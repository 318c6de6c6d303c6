"""A body decodes to what it says, whatever was remembered of earlier ones."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.test_types import LIMITS
from tokenspeed.server.anthropic.types import read_request
from tokenspeed.server.bodies import MOST_OBJECTS, Bodies, Entries
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.openai.types import read_chat

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "<|end|>"}'}}
MESSAGES: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": "é 世界 🦙 ]}, {", "name": "x"},
    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "e"}}]},
    {"role": "system", "content": "says <|end|>", "odd": 1},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "[1, 2]"},
    {"content": "turned round", "role": "user"},
    {"role": "nobody"},
    7,
    "text",
]
STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"separators": (",", ":"), "ensure_ascii": False},
    {"indent": 1},
    {"separators": (" ,\n", " : ")},
]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "change", "drop", "back"]),
        st.integers(0, 9),
        st.sampled_from(MESSAGES),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=150, deadline=None)
@given(edits=EDITS, style=st.sampled_from(STYLES), order=st.booleans(), salts=st.booleans())
def test_every_body_equals_its_own_decoding(
    edits: list[Any], style: dict[str, Any], order: bool, salts: bool
) -> None:
    # One memory for each reader, as each path has its own.
    memories = [(Bodies(chunk=16), read_chat), (Bodies(chunk=16), read_request)]
    messages: list[Any] = [{"role": "system", "content": "be brief, and say nothing else"}]
    earlier = list(messages)
    for what, place, message in edits:
        place %= len(messages)
        match what:
            case "add":
                earlier = list(messages)
                messages.append(message)
            case "change":
                messages[place] = message
            case "drop" if len(messages) > 1:
                del messages[place]
            case "back":
                messages = list(earlier)
        fields: list[tuple[str, Any]] = [
            ("model", "m"), ("messages", messages), ("max_tokens", place + 1), ("seed", 1),
        ]  # fmt: skip
        fields += [("cache_salt", f"salt {place % 2}")] if salts else []
        sent = json.dumps(dict(reversed(fields) if order else fields), **style).encode()
        expected = msgspec.json.decode(sent)
        for memory, read in memories:
            found = memory.decode(sent, "messages", b"tenant")
            assert found == expected
            assert list(found) == list(expected)
            assert _read(read, found) == _read(read, expected)


def _read(read: Any, body: Any) -> Any:
    try:
        return read(body, LIMITS)
    except ApiError as error:
        return error.status, error.message, error.param


def talk(turns: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"turn {turn} of many"} for turn in range(turns)]
    return {"model": "m", "messages": messages}


def test_only_what_is_new_is_read_again() -> None:
    memory = Bodies(chunk=64)

    def ask(turns: int, tenant: bytes = b"one", **fields: Any) -> Entries:
        sent = msgspec.json.encode({**talk(turns), **fields})
        entries = memory.decode(sent, "messages", tenant)["messages"]
        assert isinstance(entries, Entries)
        return entries

    first = ask(10)
    read_chat({**talk(10), "messages": first}, LIMITS)
    assert len(first.read) == 10
    later = ask(12)
    assert len(later.read) == 10
    assert all(one is other for one, other in zip(first, later, strict=False))
    # Neither another tenant nor another salt of the same finds it.
    assert ask(12, b"two").read == []
    assert ask(12, cache_salt="pepper").read == []
    assert len(ask(12).read) == 10


@pytest.mark.parametrize(
    "sent",
    [
        b'{"messages": [{"role": "user"},]}',
        b'{"messages": [{"role": "user"}',
        b'{"messages": [{"role": "\xff"}]}',
        b'{"messages": [{"role": "\\ud800"}]}',
        b'{"messages": [{"role": "user"}], "n": 01}',
        b'["messages", {"role": "user"}]',
        b'{"messages": [' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"]}",
        b'{"messages": [{"role": "user"}], "messages": [{"role": "tool"}]}',
        b'{"messages": [{"role": "user", "role": "tool"}], "stream": true, "stream": false}',
    ],
)
def test_what_is_wrong_with_a_body_is_said_as_ever(sent: bytes) -> None:
    memory = Bodies(chunk=16)
    memory.decode(b'{"messages": [{"role": "user"}, {"role": "user"}]}', "messages", b"")
    outcomes = []
    for decode in (msgspec.json.decode, lambda body: memory.decode(body, "messages", b"")):
        try:
            outcomes.append(decode(sent))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


def test_memory_is_bounded() -> None:
    memory = Bodies(max_bytes=20_000, chunk=64)
    for tenant in range(50):
        memory.decode(msgspec.json.encode(talk(40)), "messages", b"%d" % tenant)
        assert memory.held_bytes <= 20_000
    assert memory.held_bytes > 0


@pytest.mark.parametrize(
    ("messages", "salt"),
    [
        ([{"role": "user", "content": f"and {turn}?"} for turn in range(2000)], ""),
        ([{"role": "user", "content": [{"type": "text", "text": "x" * 200_000}]}], ""),
        ([{}] * 20_000, ""),
        ([{"deep": [{}] * (MOST_OBJECTS - 1)}], ""),
        ([{"deep": [{"a": [1.5]}] * 10_000}], ""),
        ([{"deep": list(range(10_000, 30_000))}], ""),
        ([{"role": "user", "content": "x" * 1000}], "s" * 1_000_000),
    ],
    ids=["short", "long", "empty", "objects", "nested", "numbers", "salt"],
)
def test_what_is_remembered_takes_what_is_counted(messages: list[Any], salt: str) -> None:
    memory = Bodies(chunk=64)
    sent = msgspec.json.encode({"messages": messages, "cache_salt": salt})
    tracemalloc.start()
    try:
        for tenant in range(5):
            memory.decode(sent, "messages", b"%d" % tenant)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < taken < 1.5 * memory.held_bytes


@pytest.mark.parametrize(
    ("messages", "held"),
    [
        ([{}] * MOST_OBJECTS, True),
        ([{}] * (MOST_OBJECTS + 1), False),
        ([{"a": 1}] * (MOST_OBJECTS + 1), False),
        ([{"role": "user", "content": 'if (x) { f({"a": 1}); }' * MOST_OBJECTS}], True),
    ],
    ids=["most", "empty", "filled", "text"],
)
def test_a_list_of_more_objects_is_decoded_in_one_go(messages: list[Any], held: bool) -> None:
    """Braces within texts are none of them."""
    memory = Bodies(chunk=64)
    body = {"messages": messages}
    assert memory.decode(msgspec.json.encode(body), "messages", b"") == body
    assert (memory.held_bytes > 0) == held
