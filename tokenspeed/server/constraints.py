"""What an answer is held to: the form that was asked for, calls that must be made, strict tools,
a reasoning budget. Reasoning comes first and is free; the grammar begins behind it."""

from __future__ import annotations

from tokenspeed.grammar import lark
from tokenspeed.grammar.lark import Piece
from tokenspeed.grammar.limits import GrammarError
from tokenspeed.request import Constraints, Thinking
from tokenspeed.server.openai.errors import bad_request
from tokenspeed.server.openai.form import Form, invalid_form
from tokenspeed.server.openai.tools import ToolUse
from tokenspeed.server.openai.types import Options
from tokenspeed.server.parsers import harmony
from tokenspeed.server.parsers.dialect import Dialect
from tokenspeed.server.parsers.tools import Bare, Marked
from tokenspeed.server.parsers.written import Signature, Spelling
from tokenspeed.tokenizer import TextModel

# Line breaks that models put behind their thoughts.
_AFTER_THOUGHT = lark.pattern("\\n{0,4}")


def text_constraints(text: TextModel, options: Options) -> Constraints | None:
    """Of an answer that is text and nothing else. Raises ApiError 400."""
    form = options.form
    return _constraints(text, options, None if form is None else form.piece, None)


def chat_constraints(
    text: TextModel, dialect: Dialect, options: Options, tools: ToolUse | None, prompt_end: str
) -> Constraints | None:
    """Of an answer to a chat; `prompt_end` are the last characters of the prompt. Raises ApiError
    400 when tools or form cannot be held to."""
    spelling = Spelling(text.special_id)
    try:
        answer = _answer(dialect, spelling, options.form, tools)
    except GrammarError as error:
        raise invalid_form("tools", str(error)) from None
    if answer is not None and dialect.thinks(prompt_end):
        answer = _after_thought(dialect, spelling, answer, dialect.opened(prompt_end))
    thinking = None
    if options.budget is not None and dialect.reasoning and dialect.thinks(prompt_end):
        begin, end = dialect.reasoning
        closing = text.encode_bare(end + harmony.RESUME if dialect.channels else end)
        thinking = Thinking(
            begin=begin,
            end=end,
            opened=dialect.opened(prompt_end),
            max_tokens=options.budget,
            closing=tuple(closing),
        )
    return _constraints(text, options, answer, thinking)


def _constraints(
    text: TextModel, options: Options, answer: Piece | None, thinking: Thinking | None
) -> Constraints | None:
    allowed = options.allowed_token_ids
    if answer is None and thinking is None and not allowed:
        return None
    if answer is None:
        return Constraints(thinking=thinking, allowed_token_ids=allowed)
    field = options.form_field
    if not text.has_tokenizer:
        raise invalid_form(field, "the model has no tokenizer")
    if options.ignore_eos or allowed:
        other = "allowed_token_ids" if allowed else "ignore_eos"
        raise bad_request(f"{other!r} excludes what {field!r} asks for.", other)
    try:
        return Constraints(grammar=lark.write(answer), thinking=thinking)
    except GrammarError as error:
        raise invalid_form(field, str(error)) from None


def _answer(
    dialect: Dialect, spelling: Spelling, form: Form | None, tools: ToolUse | None
) -> Piece | None:
    """The answer behind the reasoning; None where it is free."""
    text = None if form is None else form.piece
    if tools is not None and (tools.must or tools.strict or text is not None):
        signatures = [
            Signature(name, schema, name in tools.strict)
            for name, schema in tools.schemas.items()
            if tools.named in (None, name)
        ]
        several = tools.parallel and tools.named is None
        if dialect.channels:
            return _channels(spelling, signatures, tools, text)
        if isinstance(dialect.tools, Marked):
            return _marked(dialect.tools, spelling, signatures, several, tools.must, text)
        if isinstance(dialect.tools, Bare):
            return _bare(dialect.tools, spelling, signatures, several, tools.must, text)
    if text is not None and dialect.channels:
        return harmony.final(spelling, text)
    return text


def _channels(
    spelling: Spelling, signatures: list[Signature], tools: ToolUse, text: Piece | None
) -> Piece:
    call = harmony.call(spelling, signatures)
    if tools.must:
        return call
    said = lark.pattern(lark.ANY_TEXT) if text is None else text
    return lark.either(call, harmony.final(spelling, said))


def _marked(
    form: Marked,
    spelling: Spelling,
    signatures: list[Signature],
    several: bool,
    must: bool,
    text: Piece | None,
) -> Piece:
    (begin, end), *_ = form.marks.items()
    written = [lark.row(form.write(one, spelling), spelling.mark(end)) for one in signatures]
    behind = lark.rule("call", lark.either(*written))
    one = lark.row(spelling.mark(begin), behind)
    more = lark.any_number(lark.row(lark.optional(lark.literal("\n")), one))
    calls, trigger = lark.row(one, more) if several else one, begin
    if form.around:
        trigger, after = form.around
        behind = lark.row(calls, spelling.mark(after))
        calls = lark.row(spelling.mark(trigger), behind)
    if must:
        return calls
    if text is not None:
        return lark.either(calls, text)
    return lark.text_with([(spelling.trigger(trigger), behind)])


def _bare(
    form: Bare,
    spelling: Spelling,
    signatures: list[Signature],
    several: bool,
    must: bool,
    text: Piece | None,
) -> Piece:
    call = lark.rule("call", lark.either(*(form.write(one, spelling) for one in signatures)))
    more = lark.any_number(lark.row(lark.pattern("[;\\n] ?"), call))
    calls = lark.row(call, more) if several else call
    if form.prefix:
        calls = lark.row(lark.optional(spelling.mark(form.prefix)), calls)
    if must:
        return calls
    if text is None:
        # Whatever does not look like a call from its first character on.
        text = lark.pattern("([^{\\[\\s](?s:.*))?")
    return lark.either(calls, text)


def _after_thought(dialect: Dialect, spelling: Spelling, answer: Piece, opened: bool) -> Piece:
    assert dialect.reasoning is not None
    if dialect.channels:
        return lark.row(lark.optional(harmony.thought(spelling)), answer)
    begin, end = dialect.reasoning
    rest = lark.row(spelling.until(end), _AFTER_THOUGHT)
    if opened:
        return lark.row(rest, answer)
    return lark.row(lark.optional(lark.row(spelling.mark(begin), rest)), answer)
