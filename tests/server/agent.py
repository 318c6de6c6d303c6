"""R-CHAIN as an agent's model: Hermes calls, `<think>`, one script per way to answer.

Every script exists twice: NAME has a token per character, NAME-whole one for the whole text.
"""

from __future__ import annotations

import json
from typing import Any

TEMPLATE = """\
{%- if tools %}TOOLS:{{ tools | tojson }}
Calls: <tool_call>{"name": <name>, "arguments": <object>}</tool_call>
{% endif -%}
{%- if enable_thinking is defined %}THINK={{ enable_thinking }}{% endif -%}
{%- for message in messages -%}
{{ message.role }}:{{ message.reasoning_content or '' -}}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.id }}={{ call.function | tojson }}</tool_call>
{%- endfor -%}
{{ message.tool_call_id or '' }}{{ message.content or '' }}
{%- endfor -%}
{#- <think></think> -#}"""


def call(name: str, arguments: object) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


DEEP = {"city": 'Z"}]{', "deep": [[1, {"ü": []}]], "🦙": "\\"}
ONE = call("weather", DEEP)
TWO = call("weather", {"n": 1}) + "\n" + call("weather", {})
ABA = "\n".join(call(name, {}) for name in ("weather", "clock", "weather"))
MIXED = f"First.\n{call('clock', {})}\nThen.\n\n{call('weather', {'n': 2})}\nDone."
THOUGHT = f"<think>\nHm ü\n</think>\n\nSo.\n{ONE}"

TEXTS = {
    "one": ONE,
    "two": TWO,
    "aba": ABA,
    "mixed": MIXED,
    "thought": THOUGHT,
    "broken": '<tool_call>{"name": "weather"</tool_call> oh',
    "plain": "Just text.",
    "think": "<think>ab</think>cd",
    "empty": "<think></think>b",
    "blocks": "<think>a</think>b<think>c</think>",
    "almost": "<think>a</thing</think>b",
}
SCRIPTS: dict[str, list[str | bytes]] = {
    **{name: list(text) for name, text in TEXTS.items()},
    **{f"{name}-whole": [text] for name, text in TEXTS.items()},
    "split": ["<think>", "a", b"\xc3", b"\xbc</th", "ink>", "b"],
    "opened": ["a", "</th", "ink>", "b"],
}
STARTS = {"opened": "<think>"}

FUNCTIONS: list[dict[str, Any]] = [
    {"name": "clock", "parameters": {"type": "object", "properties": {}}},
    {
        "name": "weather",
        "description": "Says <|im_end|> and more",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
