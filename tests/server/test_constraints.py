"""Every dialect: calls that are forced by its grammar are read back by its parser, and their
arguments satisfy the schema, whether its marks are control tokens or text."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, Tokenizer

from tests.grammar.walk import tokens
from tests.rigs.tokens import EOS, rand_tokenizer
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.plan import SamplingDefaults
from tokenspeed.request import Constraints
from tokenspeed.server.constraints import chat_constraints, text_constraints
from tokenspeed.server.openai.errors import ApiError
from tokenspeed.server.openai.types import ChatRequest, Limits, read_chat
from tokenspeed.server.parsers.dialect import dialect_of
from tokenspeed.server.parsers.parts import Call, Part, Reasoning, Text, merged
from tokenspeed.tokenizer import TextModel
from tokenspeed.tokenizer.assets import TokenizerAssets

# Dialect, and what of its template shows it.
TEMPLATES = {
    "hermes": "{{ tools }}<tool_call>",
    "qwen3-coder": "{{ tools }}<tool_call><function=<parameter=",
    "glm": "{{ tools }}<tool_call><arg_key></arg_key><arg_value></arg_value>",
    "minimax": "{{ tools }}<minimax:tool_call><invoke name=",
    "deepseek": "{{ tools }}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>",
    "deepseek fenced": "{{ tools }}<｜tool▁call▁begin｜><｜tool▁sep｜>```json",
    "kimi-k2": "{{ tools }}<|tool_call_begin|><|tool_call_argument_begin|>",
    "llama3": "{{ tools }}<|python_tag|>",
    "json": '{{ tools }}{"name": "arguments":',
    "harmony": "{{ tools }}<|start|><|channel|><|message|>",
}
TYPED = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "near": {"$ref": "#/$defs/places"},
        "exact": {"type": ["boolean", "null"]},
    },
    "$defs": {"places": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
    "required": ["city", "unit", "near"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": TYPED, "clock": EMPTY}
TOOLS = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
DEFAULTS = SamplingDefaults(
    temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=None
)
LIMITS = Limits(
    vocab_size=600, max_choices=1, defaults=DEFAULTS, template_reads=frozenset({"tools"})
)


# What ends unquoted text, and would take chance too long to find.
ENDS = ("<think>", "</think>", "</parameter>", "\n</parameter>", "</arg_value>", "<|end|>")


@functools.cache
def trained() -> str:
    return rand_tokenizer(512).to_str()


class Model:
    """A text model of one dialect. `control`: its marks are control tokens."""

    def __init__(self, template: str, control: bool) -> None:
        tokenizer = Tokenizer.from_str(trained())
        self.dialect = dialect_of(template, takes_tools=True)
        if control:
            marks = [AddedToken(m, special=True) for m in sorted(self.dialect.marks())]
            tokenizer.add_tokens(marks)
        end = tokenizer.token_to_id(EOS)
        self.text = TextModel(TokenizerAssets(tokenizer, None, EOS, (end,), None, ""), (end,))
        self.vocabulary = Vocabulary(self.text, tokenizer.get_vocab_size() + 3)

    def constraints(self, request: ChatRequest, prompt_end: str = "") -> Constraints | None:
        return chat_constraints(self.text, self.dialect, request.options, request.tools, prompt_end)

    def parts(self, request: ChatRequest, seed: int, prompt_end: str = "") -> list[Part]:
        """What a client would get of an answer that is drawn at random."""
        constraints = self.constraints(request, prompt_end)
        assert constraints is not None
        drawn = tokens(constraints.grammar, seed, self.vocabulary, ENDS)
        schemas = None if request.tools is None else request.tools.schemas
        parallel = request.tools is None or request.tools.parallel
        parser = self.dialect.parser(prompt_end, schemas, parallel)
        stream = self.text.stream(self.text.special_ids(self.dialect.marks()))
        parts = [part for token in drawn for part in parser.push(stream.push(token))]
        return merged([*parts, *parser.push(stream.finish()), *parser.finish(False)])

    def spoken(self, request: ChatRequest, seed: int) -> list[Part]:
        """The same without what it thinks."""
        parts = self.parts(request, seed)
        return [part for part in parts if not isinstance(part, Reasoning)]


@pytest.fixture(scope="module", params=[(n, c) for n in TEMPLATES for c in (True, False)], ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    name, control = request.param
    return Model(TEMPLATES[name], control)


def asked(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return read_chat(body, LIMITS)


def check(call: Call) -> None:
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_a_required_call_is_made_and_keeps_its_schema(model: Model) -> None:
    request, names = asked(tools=TOOLS, tool_choice="required"), set()
    for seed in range(6):
        calls = model.spoken(request, seed)
        assert calls
        for call in calls:
            assert isinstance(call, Call), calls
            names.add(call.name)
            check(call)
    assert names == {"weather", "clock"}


def test_a_named_call_is_the_only_one(model: Model) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    request = asked(tools=TOOLS, tool_choice=choice)
    for seed in range(4):
        (call,) = model.spoken(request, seed)
        assert isinstance(call, Call)
        assert call.name == "weather"
        check(call)


def test_one_call_where_they_may_not_be_parallel(model: Model) -> None:
    request = asked(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    for seed in range(5):
        (call,) = model.spoken(request, seed)
        assert isinstance(call, Call)


def test_strict_tools_bind_calls_that_the_model_makes_by_itself(model: Model) -> None:
    """No text that begins like a call is anything but one."""
    request = asked(tools=TOOLS)
    for seed in range(6):
        for part in model.spoken(request, seed):
            if isinstance(part, Call):
                check(part)
            elif isinstance(part, Text):
                assert not any(mark in part.text for mark in model.dialect.marks())


def test_a_form_leaves_room_for_calls(model: Model) -> None:
    request = asked(tools=TOOLS, regex="[xyz]{3}")
    seen = set()
    for seed in range(6):
        parts = model.spoken(request, seed)
        seen |= set(map(type, parts))
        for part in parts:
            if isinstance(part, Call):
                check(part)
            else:
                assert isinstance(part, Text)
                assert len(part.text) == 3
                assert set(part.text) <= set("xyz")
    assert seen == {Call, Text}


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_comes_first_and_is_free(control: bool, opened: bool) -> None:
    model = Model("{{ tools }}<think></think><tool_call>", control)
    end = "<think>\n" if opened else ""
    kinds = set()
    for seed in range(5):
        parts = model.parts(asked(regex="[0-9]{4}"), seed, end)
        kinds |= {type(part) for part in parts}
        (answer,) = (part for part in parts if isinstance(part, Text))
        assert len(answer.text) == 4
        assert answer.text.isdigit()
        if opened and len(parts) > 1:
            assert isinstance(parts[0], Reasoning)
    assert kinds == {Text, Reasoning}
    closed = model.parts(asked(regex="[0-9]{4}"), 1, "<think>\n\n</think>\n\n")
    assert [type(part) for part in closed] == [Text]


def test_tools_that_are_not_strict_are_held_to_what_can_be_held() -> None:
    model = Model(TEMPLATES["hermes"], True)
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}},
              "required": ["a"], "additionalProperties": False}  # fmt: skip
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for seed in range(4):
        for part in model.parts(asked(tools=[tool], tool_choice="required"), seed):
            assert isinstance(part, Call)
            assert list(json.loads(part.arguments)) == ["a"]
    assert model.constraints(asked(tools=[tool])) is None


def test_strict_text_arguments_are_refused_where_they_cannot_be_enforced() -> None:
    model = Model(TEMPLATES["qwen3-coder"], True)
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    with pytest.raises(ApiError) as refused:
        model.constraints(asked(tools=[tool]))
    assert refused.value.param == "tools"
    assert "'pattern'" in refused.value.message


def test_what_excludes_a_grammar_is_refused_by_name() -> None:
    model = Model(TEMPLATES["hermes"], True)
    for field, value in (("ignore_eos", True), ("allowed_token_ids", [1, 2])):
        with pytest.raises(ApiError) as refused:
            model.constraints(asked(tools=TOOLS, tool_choice="required", **{field: value}))
        assert refused.value.param == field
    bare = TextModel(None, (5,))
    with pytest.raises(ApiError) as refused:
        text_constraints(bare, asked(regex="a").options)
    assert refused.value.param == "regex"
    budget = replace(asked().options, budget=5)
    assert text_constraints(bare, budget) is None
