"""Chat templates: Jinja in a sandbox, with a budget.

A template comes with the model and is not trusted: the sandbox keeps it from objects it was not
given, the budget from work without end. Each loop iteration and each call costs a step, texts
that grow are measured before they are made (`sizes`), and the clock is looked at on the way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
import jinja2.visitor
from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.utils import Namespace

from tokenspeed.tokenizer.sizes import (
    FILTERS,
    MAX_CHARACTERS,
    TemplateError,
    check_bits,
    check_format,
    check_length,
    checked_arguments,
    joined,
    writable,
    written,
)

MAX_SECONDS = 5.0
MAX_STEPS = 2_000_000
_STEPS_A_LOOK = 32  # at the clock
_BUDGET = "tokenspeed_budget"


class _Budget:
    __slots__ = ("_deadline", "_look", "_steps")

    def __init__(self) -> None:
        self._steps = self._look = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < self._look:
            self._look = self._steps - _STEPS_A_LOOK
            if self._steps < 0 or time.monotonic() > self._deadline:
                raise TemplateError("the chat template takes too long for this conversation")


def _budget(context: Context) -> _Budget:
    # `parent` holds what render was given; a template's own `set` cannot reach it.
    budget = context.parent[_BUDGET]
    assert isinstance(budget, _Budget)
    return budget


@jinja2.pass_context
def _counted(context: Context, value: Any) -> Any:
    """Charges a loop for its iterations before it runs; lazy iterables are made lists."""
    try:
        steps = len(value)
    except TypeError:
        value = list(islice(value, MAX_STEPS + 1))
        steps = len(value)
    _budget(context).spend(steps)
    return value


def _concatenated(parts: Sequence[Any]) -> str:
    written(*parts)
    return "".join([str(part) for part in parts])


@jinja2.pass_context
def _added(context: Context, terms: Sequence[Any]) -> Any:
    """The terms added from left to right."""
    for term in terms:
        if type(term) is not str:
            break
    else:
        _budget(context).spend(1)
        check_length(sum(map(len, terms)))
        return "".join(terms)
    environment = context.environment
    assert isinstance(environment, _Sandbox)
    total = terms[0]
    for term in terms[1:]:
        total = environment.call_binop(context, "+", total, term)
    return total


class _Metered(jinja2.visitor.NodeTransformer):
    """Puts the two filters above around every loop's iterable and every `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = self._filtered("tokenspeed_counted", node.iter)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802 - jinja2's name
        """`a + b + c` in one step: joined where all are texts, else added as it is written."""
        terms: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            terms.append(left.right)
            left = left.left
        terms.append(left)
        terms = [self.visit(term) for term in reversed(terms)]
        parts = nodes.List(terms, lineno=node.lineno)
        return self._filtered("tokenspeed_added", parts)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self._filtered("tokenspeed_concatenated", parts)

    @staticmethod
    def _filtered(name: str, node: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a trainer learns from; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the attribute jinja2 reads

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


# What nearly every access of a template is, let through without the sandbox's general rules,
# which take ten times as long: `message.role`, and methods of texts that only read.
_DICT_NAMES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(
    {"startswith", "endswith", "split", "strip", "lstrip", "rstrip", "replace", "upper", "lower"}
)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_NAMES:
                if attribute in obj:
                    return obj[attribute]
                return self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in _TEXT_METHODS:
                return getattr(obj, attribute)
        elif (kind is LoopContext or kind is Namespace) and attribute[0] != "_":
            with contextlib.suppress(AttributeError):
                return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _budget(context).spend(1)
        for value in (*args, *kwargs.values()):
            # `'x'.ljust(10 ** 9)` and its like; no template needs such a number.
            if isinstance(value, int) and abs(value) > MAX_CHARACTERS:
                raise TemplateError("the chat template calls a function with a huge number")
        method = getattr(obj, "__wrapped__", obj)  # the sandbox has `format` of its own
        text = getattr(method, "__self__", None)
        if type(text) is str:
            args = checked_arguments(text, method.__name__, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _budget(context).spend(1)
        match operator, left, right:
            case "*", str() | list() | tuple(), int():
                check_length(written(left) * right)
            case "*", int(), str() | list() | tuple():
                check_length(left * written(right))
            case "+", str() | list() | tuple(), str() | list() | tuple():
                check_length(len(left) + len(right))
            case "*", int(), int():
                check_bits(left.bit_length() + right.bit_length())
            case "**", int(), int():
                check_bits(left.bit_length() * abs(right))
            case "%", str(), _:
                check_format(left)
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template. Safe to render from several threads."""

    template: jinja2.Template
    variables: Mapping[str, Any]
    reads: frozenset[str]  # names that the template does not set itself

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        extra: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as text, ready for the assistant's answer.

        `extra` are variables of the request; they cannot replace those of the server. `tools` as
        OpenAI's clients send them, None for none. Raises TemplateError.
        """
        values = {
            **extra,
            **self.variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": True,
            _BUDGET: _Budget(),
        }
        try:
            return joined(self.template.generate(values))
        except TemplateError:
            raise
        except Exception as error:
            # Whatever a template runs into is the fault of this conversation or this template.
            raise TemplateError(f"the chat template failed: {error}") from error


def compile_template(source: str, variables: Mapping[str, Any]) -> ChatTemplate:
    """`variables` are what the template may read beside the messages, such as `bos_token`.

    Raises jinja2.TemplateSyntaxError.
    """
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=writable,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    filters: dict[str, Callable[..., Any]] = {
        "tokenspeed_added": _added,
        "tokenspeed_counted": _counted,
        "tokenspeed_concatenated": _concatenated,
    }
    environment.filters.update({**FILTERS, **filters})
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    tree = environment.parse(source)
    reads = frozenset(jinja2.meta.find_undeclared_variables(tree))
    return ChatTemplate(environment.from_string(_Metered().visit(tree)), dict(variables), reads)


RESERVED = frozenset({"messages", "add_generation_prompt", "tools", "documents", _BUDGET})
"""Names that a request may not set, beside the template's own variables and globals."""


def refused_variable(template: ChatTemplate, name: str) -> bool:
    """Whether a request must not set this variable: it would replace one of the server's."""
    return (
        name in RESERVED
        or name in template.variables
        or name in template.template.globals
        or name == "chat_template"
        or name.startswith("_")
        or not name.isidentifier()
    )
