"""What parsers make of an answer does not depend on how it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed.server.parsers.dialect import Dialect, dialect_of
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text, merged

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "deep": {"type": "array"},
        "on": {"type": "boolean"},
        "any": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
}
TOOLS: dict[str, Any] = {"clock": {"type": "object"}, "weather": WEATHER}

# What a template of the family shows of its markup, whatever else it says.
TEMPLATES = {
    "hermes": '{{ tools }}<tool_call>\n{"name": <name>, "arguments": {}}\n</tool_call>',
    "qwen3-coder": "{{ tools }}<tool_call>\n<function=x>\n<parameter=y>\nz\n</parameter>",
    "glm": "{{ tools }}<tool_call>{{ name }}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>",
    "minimax": '{{ tools }}<minimax:tool_call>\n<invoke name="x">',
    "deepseek": "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>x<｜tool▁sep｜>{}",
    "kimi-k2": "{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>i"
    "<|tool_call_argument_begin|>{}",
    "llama3": '{{ tools }}<|start_header_id|>{"name": x, "parameters": {}}<|python_tag|>',
    "json": '{{ tools }}answer with {"name": x, "parameters": y}',
}
A = {"city": 'Zürich "}]" \\ </tool', "days": 3, "deep": [[1, {"x": []}], 2.5], "on": True}
B: dict[str, Any] = {}
C = {"city": "two\nlines", "any": None}


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def xml(value: object) -> str:
    return value if isinstance(value, str) else dump(value)


def written(name: str, calls: list[tuple[str, dict[str, Any]]], around: str = "") -> str:
    """The calls as the family writes them, `around` before each of them."""
    texts = []
    for place, (tool, arguments) in enumerate(calls):
        items = arguments.items()
        match name:
            case "hermes":
                text = f'<tool_call>\n{{"name": "{tool}", "arguments": {dump(arguments)}}}'
                text += "\n</tool_call>"
            case "qwen3-coder":
                inner = "".join(f"<parameter={k}>\n{xml(v)}\n</parameter>\n" for k, v in items)
                text = f"<tool_call>\n<function={tool}>\n{inner}</function>\n</tool_call>"
            case "glm":
                inner = "".join(
                    f"<arg_key>{k}</arg_key>\n<arg_value>{xml(v)}</arg_value>\n" for k, v in items
                )
                text = f"<tool_call>{tool}\n{inner}</tool_call>"
            case "minimax":
                inner = "".join(f'<parameter name="{k}">{xml(v)}</parameter>\n' for k, v in items)
                text = f'<minimax:tool_call>\n<invoke name="{tool}">\n{inner}</invoke>'
                text += "\n</minimax:tool_call>"
            case "deepseek":
                text = f"<｜tool▁call▁begin｜>{tool}<｜tool▁sep｜>{dump(arguments)}"
                text += "<｜tool▁call▁end｜>"
            case "kimi-k2":
                text = f"<|tool_call_begin|>functions.{tool}:{place}<|tool_call_argument_begin|>"
                text += f"{dump(arguments)}<|tool_call_end|>"
            case _:
                text = f'{{"name": "{tool}", "parameters": {dump(arguments)}}}'
        texts.append(around + text)
    outer = {
        "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        "kimi-k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    }
    begin, end = outer.get(name, ("", ""))
    return begin + (";\n" if name in ("llama3", "json") else "\n").join(texts) + end


def parsed(
    dialect: Dialect,
    pieces: list[str],
    *,
    tools: bool = True,
    parallel: bool = True,
    cut: bool = False,
    prompt_end: str = "",
) -> list[Part]:
    parser = dialect.parser(prompt_end, TOOLS if tools else None, parallel)
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
        if parser.done:
            break
    return merged([*parts, *parser.finish(cut)])


def every_cut(dialect: Dialect, text: str, **how: Any) -> list[Part]:
    """The parts of the text, the same for one piece, single characters and every cut in two."""
    whole = parsed(dialect, [text], **how)
    assert parsed(dialect, list(text), **how) == whole
    for at in range(1, len(text)):
        assert parsed(dialect, [text[:at], text[at:]], **how) == whole, (text[:at], text[at:])
    return whole


def calls_of(parts: list[Part]) -> list[tuple[str, Any]]:
    return [(p.name, json.loads(p.arguments)) for p in parts if isinstance(p, Call)]


def text_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text))


families = pytest.mark.parametrize("name", TEMPLATES)


@families
def test_the_template_tells_the_family(name: str) -> None:
    assert dialect_of(TEMPLATES[name], True).tool_format == name
    assert dialect_of(TEMPLATES[name], False).tool_format is None


def test_templates_without_known_markup() -> None:
    assert dialect_of("{{ tools }} call them somehow", True).tool_format is None
    assert dialect_of(None, False).marks() == frozenset()


@families
@pytest.mark.parametrize(
    "calls",
    [
        [("weather", A)],
        [("weather", A), ("weather", B)],
        [("clock", B), ("weather", C), ("clock", B)],
    ],
    ids=["one", "same", "aba"],
)
def test_c18_calls_cut_anywhere(name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    parts = every_cut(dialect_of(TEMPLATES[name], True), written(name, calls))
    assert calls_of(parts) == calls
    assert text_of(parts) == ""


MARKED = pytest.mark.parametrize("name", [n for n in TEMPLATES if n not in ("llama3", "json")])


@MARKED
def test_c18_text_around_calls(name: str) -> None:
    text = "Let me <b>look</b>.\n\n" + written(name, [("weather", A)]) + "\n\nAnd "
    text += written(name, [("clock", B)]) + " done"
    parts = every_cut(dialect_of(TEMPLATES[name], True), text)
    shown = [
        p.text if isinstance(p, Text) else p.name for p in parts if not isinstance(p, Reasoning)
    ]
    assert shown == ["Let me <b>look</b>.", "weather", "And", "clock", "done"]


@families
def test_one_call_where_only_one_is_wanted(name: str) -> None:
    text = written(name, [("weather", A), ("clock", B)])
    assert calls_of(every_cut(dialect_of(TEMPLATES[name], True), text, parallel=False)) == [
        ("weather", A)
    ]


@families
def test_c19_a_call_cut_off_is_neither_call_nor_text(name: str) -> None:
    dialect, whole = dialect_of(TEMPLATES[name], True), written(name, [("weather", A)])
    for end in range(len(whole)):
        parts = parsed(dialect, list(whole[:end]), cut=True)
        assert parts == parsed(dialect, [whole[:end]], cut=True)
        assert calls_of(parts) in ([], [("weather", A)])
        # A piece of the first mark may still turn out to be text; nothing longer leaks.
        assert len(text_of(parts)) < len('{ "name": "weather" <|tool_calls_section_begin|>')
        assert "Zür" not in text_of(parts)


@families
def test_without_tools_markup_is_text(name: str) -> None:
    text = written(name, [("weather", A)])
    assert every_cut(dialect_of(TEMPLATES[name], True), text, tools=False) == [Text(text)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>nothing</tool_call>",
        '<tool_call>\n{"name": "weather", "arguments": {"a": }}\n</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call> and more',
        '<tool_call>{"name": "weather", "arguments": {}',
        "<tool_call></tool_call>",
        "a < b <tool <tool_cal",
        "  spaces \n ",
    ],
)
def test_what_is_no_call_stays_as_it_was_written(text: str) -> None:
    assert every_cut(dialect_of(TEMPLATES["hermes"], True), text) == [Text(text)]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "nobody", "parameters": {}}',
        '{"answer": 42}',
        '[{"answer": 42}]',
        "{",
        "[]",
        ' {"name": "weather"}',
        'Say {"name": "weather", "parameters": {}}',
        '<|python_tag|>print("x")',
        "<|python_ta",
        "",
        " ",
    ],
)
def test_json_that_is_no_call_is_text(text: str) -> None:
    parts = every_cut(dialect_of(TEMPLATES["llama3"], True), text)
    assert text_of(parts) == text
    assert calls_of(parts) == []


@pytest.mark.parametrize("form", ["[{}]", "<|python_tag|>{}", " \n{}\n", "{};"])
def test_ways_to_write_a_bare_call(form: str) -> None:
    call = '{"name": "weather", "parameters": {"days": 1}}'
    parts = every_cut(dialect_of(TEMPLATES["llama3"], True), form.replace("{}", call))
    assert calls_of(parts) == [("weather", {"days": 1})]
    assert text_of(parts).strip(";") == ""


def test_a_missing_last_mark_at_the_models_own_end() -> None:
    text = '<tool_call>\n{"name": "clock", "arguments": {}}'
    assert calls_of(every_cut(dialect_of(TEMPLATES["hermes"], True), text)) == [("clock", {})]


def test_a_mark_within_a_string_ends_nothing() -> None:
    arguments = {"city": "</tool_call><tool_call>"}
    text = written("hermes", [("weather", arguments)])
    parts = every_cut(dialect_of(TEMPLATES["hermes"], True), text)
    assert calls_of(parts) == [("weather", arguments)]


def test_json_arguments_are_passed_on_as_they_were_written() -> None:
    spelling = '{"a" : 1.50, "b":"\\u00e9",  "c": 12345678901234567890123}'
    text = f'<tool_call>{{"name":"clock","arguments":{spelling}}}</tool_call>'
    assert parsed(dialect_of(TEMPLATES["hermes"], True), [text]) == [Call("clock", spelling)]


def test_arguments_as_a_string_of_json() -> None:
    text = '<tool_call>{"name":"clock","arguments":"{\\"a\\": 1}"}</tool_call>'
    parts = parsed(dialect_of(TEMPLATES["hermes"], True), [text])
    assert calls_of(parts) == [("clock", {"a": 1})]


def test_the_older_deepseek_form() -> None:
    text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    text += '{"days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    parts = every_cut(dialect_of(TEMPLATES["deepseek"], True), text)
    assert (calls_of(parts), text_of(parts)) == ([("weather", {"days": 2})], "")


def test_kimi_gives_its_calls_ids() -> None:
    parts = parsed(dialect_of(TEMPLATES["kimi-k2"], True), [written("kimi-k2", [("clock", {})])])
    assert parts == [Call("clock", "{}", "functions.clock:0")]


@pytest.mark.parametrize(
    ("value", "schema", "meant"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {}, "5"),
        ("5", {"type": "integer"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, None),
        ('"quoted"', {"type": ["string", "null"]}, '"quoted"'),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("\n  indented\n\n", {"type": "string"}, "  indented\n"),
    ],
)
def test_the_schema_types_what_xml_does_not(value: str, schema: Any, meant: Any) -> None:
    text = f"<tool_call><function=f><parameter=x>{value}</parameter></function></tool_call>"
    parser = dialect_of(TEMPLATES["qwen3-coder"], True).parser(
        "", {"f": {"properties": {"x": schema}}}, True
    )
    parts = [*parser.push(text), *parser.finish(False)]
    assert calls_of(parts) == [("f", {"x": meant})]


THINK = dialect_of("<think>{{ x }}</think>", False)
THINK_TOOLS = dialect_of("<think></think>" + TEMPLATES["hermes"], True)
REASONED = [
    ("<think>ab</think>c", "ab", "c"),
    ("<think>\na</thing\n</think>\n\nb", "a</thing\n", "b"),
    ("<think></think>b", "", "b"),
    ("<think>\n\n</think>\n\nb\n", "", "b\n"),
    (" \n<think>a</think>", "a", ""),
    ("<think>never closed </thi", "never closed </thi", ""),
    ("no mark", "", "no mark"),
    ("<thin", "", "<thin"),
    ("<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
    ("b</think>c", "", "b</think>c"),
    (" b<think>c</think>", "", " b<think>c</think>"),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "reasoning", "answer"), REASONED)
def test_c20_marks_cut_anywhere(text: str, reasoning: str, answer: str) -> None:
    parts = every_cut(THINK, text, tools=False)
    assert text_of(parts) == answer
    assert "".join(p.text for p in parts if isinstance(p, Reasoning)) == reasoning


def test_c20_a_prompt_that_opened_the_block() -> None:
    for end in ("<think>", "assistant\n<think>\n"):
        parts = every_cut(THINK, "\na</think>\nb", tools=False, prompt_end=end)
        assert parts == [Reasoning("a"), Text("b")]
    assert every_cut(THINK, "a", tools=False, prompt_end="</think>\n\n") == [Text("a")]


def test_c20_only_what_may_be_a_mark_is_withheld() -> None:
    parser = THINK.parser("<think>", None, True)
    assert parser.push("so </th") == [Reasoning("so ")]
    assert parser.push("in") == []
    assert parser.push("g") == [Reasoning("</thing")]


def test_c20_reasoning_then_a_call_and_no_call_within_it() -> None:
    call = written("hermes", [("clock", {})])
    parts = every_cut(THINK_TOOLS, f"<think>{call}</think>{call}")
    assert parts == [Reasoning(call), Call("clock", "{}")]


PIECES = (
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "x",
        " \n",
        "<",
        "</thi",
        "{",
        "}",
        '"',
    ),
    '{"name": "clock", "arguments": {}}',
)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.data())
def test_any_text_any_cut(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for name in ("hermes", "json", "glm"):
        dialect = dialect_of("<think></think>" + TEMPLATES[name], True)
        for cut in (False, True):
            assert parsed(dialect, chunks, cut=cut) == parsed(dialect, [text], cut=cut)
