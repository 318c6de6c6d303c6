"""Which markup a model speaks. Its chat template shows it: a template writes earlier calls and
thoughts the way the model was taught to. No name of a model is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.server.parsers import calls
from tokenspeed.server.parsers.answer import AnswerParser
from tokenspeed.server.parsers.parts import Tools
from tokenspeed.server.parsers.reasoning import ReasoningSplitter
from tokenspeed.server.parsers.tools import Bare, BareCalls, Marked, MarkedCalls

_TOOL_CALL = {"<tool_call>": "</tool_call>"}

# Name, texts that the template must hold (all of them), the form. The first that fits is taken.
TOOL_FORMATS: tuple[tuple[str, tuple[str, ...], Marked | Bare], ...] = (
    (
        "deepseek",
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        Marked(
            {"<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>"},
            calls.separated,
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
    ),
    (
        "kimi-k2",
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        Marked(
            {"<|tool_call_begin|>": "<|tool_call_end|>"},
            calls.identified,
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
    ),
    (
        "minimax",
        ("<minimax:tool_call>", "<invoke name="),
        Marked({"<minimax:tool_call>": "</minimax:tool_call>"}, calls.invocations),
    ),
    (
        "qwen3-coder",
        ("<tool_call>", "<function=", "<parameter="),
        Marked(_TOOL_CALL, calls.function_parameters),
    ),
    ("glm", ("<tool_call>", "<arg_key>", "<arg_value>"), Marked(_TOOL_CALL, calls.key_values)),
    ("hermes", ("<tool_call>",), Marked(_TOOL_CALL, calls.named_json)),
    ("llama3", ("<|python_tag|>",), Bare(calls.named_json, "<|python_tag|>")),
    ("llama3", ("<|start_header_id|>", '"parameters":'), Bare(calls.named_json, "<|python_tag|>")),
    ("json", ('"name":', '"parameters":'), Bare(calls.named_json)),
    ("json", ('"name":', '"arguments":'), Bare(calls.named_json)),
)

REASONING_FORMATS: tuple[tuple[str, str, str], ...] = (
    ("think", "<think>", "</think>"),
    ("seed", "<seed:think>", "</seed:think>"),
    ("bracket", "[THINK]", "[/THINK]"),
    ("triangle", "◁think▷", "◁/think▷"),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """`tool_format` and `reasoning_format` are None where the model speaks none that is known."""

    tool_format: str | None
    reasoning_format: str | None
    tools: Marked | Bare | None
    reasoning: tuple[str, str] | None

    def marks(self) -> frozenset[str]:
        """Texts that must reach the parser even where the vocabulary calls them control tokens."""
        found: set[str] = set(self.reasoning or ())
        match self.tools:
            case Marked(marks, _, around):
                found |= {*marks, *marks.values(), *around}
                found |= {"<｜tool▁sep｜>", "<|tool_call_argument_begin|>"}
            case Bare(_, prefix):
                found.add(prefix)
        return frozenset(found - {""})

    def parser(self, prompt_end: str, tools: Tools | None, parallel: bool) -> AnswerParser:
        """A parser for one answer. `prompt_end` are the last characters of the prompt, which may
        have opened the reasoning. `tools` None: calls are not looked for."""
        splitter = None
        if self.reasoning is not None:
            opened = prompt_end.rstrip().endswith(self.reasoning[0])
            splitter = ReasoningSplitter(*self.reasoning, opened)
        scanner: MarkedCalls | BareCalls | None = None
        if tools is not None:
            match self.tools:
                case Marked():
                    scanner = MarkedCalls(self.tools, tools, parallel)
                case Bare():
                    scanner = BareCalls(self.tools, tools, parallel)
        return AnswerParser(splitter, scanner)


def dialect_of(template: str | None, takes_tools: bool) -> Dialect:
    """`takes_tools`: the template reads the variable `tools`."""
    template = template or ""
    tool_format, form = None, None
    for name, texts, candidate in TOOL_FORMATS:
        # Templates quote JSON in several ways.
        plain = template.replace('\\"', '"').replace('" :', '":')
        if takes_tools and all(text in plain for text in texts):
            tool_format, form = name, candidate
            break
    for name, begin, end in REASONING_FORMATS:
        if begin in template or end in template:
            return Dialect(tool_format, name, form, (begin, end))
    return Dialect(tool_format, None, form, None)
