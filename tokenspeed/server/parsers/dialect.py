"""Which markup a model speaks. Its chat template shows it: a template writes earlier calls and
thoughts the way the model was taught to. No name of a model is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.server.parsers import calls, harmony, written
from tokenspeed.server.parsers.answer import AnswerParser, Parser
from tokenspeed.server.parsers.harmony import HarmonyParser
from tokenspeed.server.parsers.parts import Tools
from tokenspeed.server.parsers.reasoning import ReasoningSplitter
from tokenspeed.server.parsers.tools import Bare, BareCalls, Marked, MarkedCalls

_TOOL_CALL = {"<tool_call>": "</tool_call>"}
_DEEPSEEK_CALL = {"<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>"}
_DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_LLAMA = Bare(calls.named_json, written.bare("parameters"), "<|python_tag|>")

# Name, texts that the template must hold (all of them), the form. The first that fits is taken.
TOOL_FORMATS: tuple[tuple[str, tuple[str, ...], Marked | Bare], ...] = (
    (
        "deepseek",
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```json"),
        Marked(_DEEPSEEK_CALL, calls.separated, written.fenced, _DEEPSEEK_CALLS),
    ),
    (
        "deepseek",
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        Marked(_DEEPSEEK_CALL, calls.separated, written.separated, _DEEPSEEK_CALLS),
    ),
    (
        "kimi-k2",
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        Marked(
            {"<|tool_call_begin|>": "<|tool_call_end|>"},
            calls.identified,
            written.identified,
            ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
    ),
    (
        "minimax",
        ("<minimax:tool_call>", "<invoke name="),
        Marked(
            {"<minimax:tool_call>": "</minimax:tool_call>"}, calls.invocations, written.invocations
        ),
    ),
    (
        "qwen3-coder",
        ("<tool_call>", "<function=", "<parameter="),
        Marked(_TOOL_CALL, calls.function_parameters, written.function_parameters),
    ),
    (
        "glm",
        ("<tool_call>", "<arg_key>", "<arg_value>"),
        Marked(_TOOL_CALL, calls.key_values, written.key_values),
    ),
    ("hermes", ("<tool_call>",), Marked(_TOOL_CALL, calls.named_json, written.hermes)),
    ("llama3", ("<|python_tag|>",), _LLAMA),
    ("llama3", ("<|start_header_id|>", '"parameters":'), _LLAMA),
    ("json", ('"name":', '"parameters":'), Bare(calls.named_json, written.bare("parameters"))),
    ("json", ('"name":', '"arguments":'), Bare(calls.named_json, written.bare("arguments"))),
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
    channels: bool = False  # both are harmony's

    @property
    def takes_tools(self) -> bool:
        return self.tool_format is not None

    def marks(self) -> frozenset[str]:
        """Texts that must reach the parser even where the vocabulary calls them control tokens."""
        if self.channels:
            return frozenset(harmony.MARKS)
        found: set[str] = set(self.reasoning or ())
        match self.tools:
            case Marked(marks=marks, around=around):
                found |= {*marks, *marks.values(), *around}
                found |= {"<｜tool▁sep｜>", "<|tool_call_argument_begin|>"}
            case Bare(prefix=prefix):
                found.add(prefix)
        return frozenset(found - {""})

    def opened(self, prompt_end: str) -> bool:
        """Whether the prompt, of which these are the last characters, opened the reasoning."""
        return self.reasoning is not None and prompt_end.rstrip().endswith(self.reasoning[0])

    def thinks(self, prompt_end: str) -> bool:
        """Whether the answer may begin with reasoning: not where the prompt has closed it."""
        return self.reasoning is not None and not prompt_end.rstrip().endswith(self.reasoning[1])

    def parser(
        self, prompt_end: str, tools: Tools | None, parallel: bool, only_calls: bool = False
    ) -> Parser:
        """A parser for one answer. `prompt_end` are the last characters of the prompt, which may
        have opened the reasoning. `tools` None: calls are not looked for; `only_calls`: a grammar
        leaves nothing else."""
        if self.channels:
            return HarmonyParser(tools)
        splitter = None
        if self.reasoning is not None:
            splitter = ReasoningSplitter(*self.reasoning, self.opened(prompt_end))
        scanner: MarkedCalls | BareCalls | None = None
        if tools is not None:
            match self.tools:
                case Marked():
                    scanner = MarkedCalls(self.tools, tools, parallel)
                case Bare():
                    scanner = BareCalls(self.tools, tools, parallel)
        return AnswerParser(splitter, scanner, only_calls)


def dialect_of(template: str | None, takes_tools: bool) -> Dialect:
    """`takes_tools`: the template reads the variable `tools`."""
    template = template or ""
    if all(mark in template for mark in ("<|channel|>", "<|message|>", "<|start|>")):
        return Dialect("harmony" if takes_tools else None, "harmony", None, harmony.THOUGHT, True)
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
