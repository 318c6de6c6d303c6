"""C37: a template is not trusted, neither with objects nor with time and memory."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.tokenizer.sizes import TemplateError
from tokenspeed.tokenizer.template import compile_template

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def render(source: str, **extra: Any) -> str:
    return compile_template(source, {"bos_token": "<s>"}).render(MESSAGES, extra)


def test_the_usual_globals() -> None:
    assert render("{{ {'b': 'é<', 'a': [1, true]} | tojson }}") == '{"b": "é<", "a": [1, true]}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{% generation %}x{% endgeneration %}{{ bos_token }}") == "x<s>"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("{{ 'a' ~ 1 ~ none }}|{{ 'a' + 'b' }}|{{ 2 * 3 }}|{{ '%d' % 5 }}") == (
        "a1None|ab|6|5"
    )


def test_loop_facts_survive_the_metering() -> None:
    source = "{% for m in messages + messages %}{{ loop.index }}/{{ loop.length }}"
    assert render(source + "{{ loop.last }} {% endfor %}") == "1/2False 2/2True "
    assert render("{% for x in nothing %}a{% else %}none{% endfor %}") == "none"
    assert render("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}") == "a1"
    assert render("{% for c in messages|map(attribute='role') %}{{ c }}{% endfor %}") == "user"


def test_a_refusal_of_the_template_reaches_the_client() -> None:
    with pytest.raises(TemplateError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x='aaaaaaaa') %}"
        "{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}"
        "{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a\nb' | indent(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_c37_work_is_bounded(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "expression",
    [
        "('x' * 6000).replace('x', 'y' * 6000)",
        "('x' * 6000).replace('', 'y' * 6000)",
        "('x' * 6000) | replace('x', 'y' * 6000)",
        "('x' * 6000).join(['y'] * 6000)",
        "(['y'] * 6000) | join('x' * 6000)",
        "([a] * 6) | length",
        "(6 * (a, a)) | length",
        "sixfold | join",
        "''.join(sixfold)",
        "(([{'b': a}] * 3) + [{'b': sixfold}]) | join(attribute='b')",
        "sixfold | tojson",
        "sixfold | string | length",
        "sixfold",
        "{'a': (a, a, a), 'b': [a, a, a]} ~ ''",
        "([1] * 6000) | tojson(separators=('x' * 6000, ': '))",
        "[[1]] | tojson(indent=10 ** 9)",
        "('\\t' * 6000).expandtabs(6000)",
        "('\\t' * 6000).expandtabs(tabsize=6000)",
        "'{:>1000000000}'.format(1)",
        "'{0}{0}{0}{0}{0}{0}'.format(a)",
        "'{:{}}{:{}}{:{}}'.format(1, 9000000, 1, 9000000, 1, 9000000)",
    ],
)
def test_c37_what_grows_is_measured_before_it_is_made(expression: str) -> None:
    """Each of these is 32 million characters and more; `a` has six million."""
    source = "{% set sixfold = [a, a, a, a, a, a] %}{{ " + expression + " }}"
    with pytest.raises(TemplateError, match=r"more than 32000000 characters|huge width"):
        render(source, a="a" * 6_000_000)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a-b-c'.replace('-', '+')", "a+b+c"),
        ("'a-b-c'.replace('-', '+', 1)", "a+b-c"),
        ("'a-b-c' | replace('-', '+', 1)", "a+b-c"),
        ("11 | replace(1, 2)", "22"),
        ("', '.join(['a', 'b'])", "a, b"),
        ("', '.join(m.keys())", "role, content"),
        ("', '.join(messages | map(attribute='role'))", "user"),
        ("messages | join(', ', attribute='role')", "user"),
        ("[1, 'b'] | join", "1b"),
        ("(['a'] * 2000001) | join | length", "2000001"),
        ("[1, 'b'] | string", "[1, 'b']"),
        ("'a\\tb'.expandtabs(2)", "a b"),
        ("'{} {x:>3}'.format('a', x=1)", "a   1"),
        ("[1, {}] | tojson(separators=(',', ':'))", "[1,{}]"),
        ("none", "None"),
    ],
)
def test_what_is_measured_is_made(expression: str, expected: str) -> None:
    assert render("{% set m = messages[0] %}{{ " + expression + " }}") == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append({}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages | attr('__class__'))() }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_c37_the_sandbox_holds(source: str) -> None:
    try:
        text = render(source)
    except TemplateError:
        return
    assert text == ""  # an unsafe attribute is undefined, and prints as nothing


def test_the_budget_cannot_be_replaced() -> None:
    source = "{% set tokenspeed_budget = 1 %}{% for i in range(3) %}{{ i }}{% endfor %}"
    assert render(source) == "012"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a' + m.role + 'b'", "auserb"),
        ("1 + 2 + 3", "6"),
        ("10 - (1 + 2)", "7"),
        ("[1] + [2] + ['x' + 'y']", "[1, 2, 'xy']"),
        ("(1 + 2) ~ ('3' + '4')", "334"),
        ("'a' + 'b' * 2 + ('c' + 'd')", "abbcd"),
    ],
)
def test_sums_of_any_kind(expression: str, expected: str) -> None:
    assert render("{% for m in messages %}{{ " + expression + " }}{% endfor %}") == expected


@pytest.mark.parametrize("expression", ["'a' + 1", "1 + 'a'", "'a' + m.missing", "m + m"])
def test_sums_that_cannot_be(expression: str) -> None:
    with pytest.raises(TemplateError):
        render("{% for m in messages %}{{ " + expression + " }}{% endfor %}")
