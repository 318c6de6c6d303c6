"""C04, C08, C13, C14, C42: text, over the wire."""

from __future__ import annotations

import dataclasses
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import Chain
from tests.server.conftest import go
from tests.server.live import LiveServer, Raw, joined, sse_frames
from tokenspeed.server.app import create_app
from tokenspeed.server.keys import Keys
from tokenspeed.tokenizer import load_text_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def both_ways(server: LiveServer, **fields: Any) -> tuple[str, Any]:
    """Text and last choice, after checking that buffered and streamed answers agree."""
    choice = server.complete(**fields)["choices"][0]
    events = server.events(TEXT, **fields)
    assert joined(events) == choice["text"]
    last = events[-1]["choices"][0]
    for name in ("finish_reason", "stop_reason"):
        assert last[name] == choice[name]
    assert not any("\ud800" <= char <= "\udfff" for char in choice["text"])
    return choice["text"], choice


# ---- C04


def test_c04_order_of_defaults(rand: LiveServer) -> None:
    sampling = dataclasses.replace(rand.plan.serve.sampling, top_k=1, temperature=0.1)
    serve = dataclasses.replace(rand.plan.serve, sampling=sampling)
    app = create_app(dataclasses.replace(rand.plan, serve=serve), rand.engine, rand.text, Keys())

    def texts(**fields: Any) -> set[str]:
        found = set()
        for seed in range(1, 6):
            body = {"model": "tiny", "prompt": "abc", "max_tokens": 50, "seed": seed, **fields}
            found.add(rand.ask_app(app, TEXT, body)[1]["choices"][0]["text"])
        return found

    assert len(texts(temperature=10)) == 1, "the default top_k holds where the request is silent"
    assert len(texts(temperature=10, top_k=0)) == 5, "the request's field wins"


def test_c04_end_tokens_of_the_model_files(rand: LiveServer, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(rand.plan.model.source.removeprefix("path:"), tmp_path / "m"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    app = create_app(rand.plan, rand.engine, load_text_model(folder, rand.plan), Keys())
    body = {"model": "tiny", "prompt": "abc", "logit_bias": {"7": 100}}
    _, answer = rand.ask_app(app, TEXT, body)
    assert answer["choices"][0]["finish_reason"] == "stop"


# ---- C08


def test_c08_where_the_template_is(rand: LiveServer, tmp_path: Path) -> None:
    source = Path(rand.plan.model.source.removeprefix("path:"))
    config = json.loads((source / "tokenizer_config.json").read_text())
    config["bos_token"] = {"content": "<|endoftext|>", "lstrip": False}
    short = "{% for m in messages %}{{ m.content }}{% endfor %}"
    strict = "{{ raise_exception('the first message must be a system message') }}"

    def ask(name: str, in_config: str | None, separate: str | None) -> tuple[int, Any]:
        folder = Path(shutil.copytree(source, tmp_path / name))
        config["chat_template"] = in_config
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        if separate is not None:
            (folder / "chat_template.jinja").write_text(separate)
        app = create_app(rand.plan, rand.engine, load_text_model(folder, rand.plan), Keys())
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": True}
        completion = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        assert rand.ask_app(app, TEXT, completion)[0] == 200
        return rand.ask_app(app, CHAT, body)

    expected = rand.text.encode("hello")
    assert ask("config", short, None)[1]["prompt_token_ids"] == expected
    assert ask("separate", None, short)[1]["prompt_token_ids"] == expected
    assert ask("both", strict, short)[1]["prompt_token_ids"] == expected
    status, answer = ask("neither", None, None)
    assert status == 400
    assert "no chat template" in answer["error"]["message"]
    status, answer = ask("strict", strict, None)
    assert (status, answer["error"]["message"]) == (
        400,
        "the first message must be a system message",
    )


# ---- C13


@pytest.mark.parametrize(
    ("script", "text"),
    [("llama", "🦙"), ("ni", "你"), ("cut", "a�"), ("mark", "�"), ("hello", "Hello world")],
)
def test_c13_split_characters(chain: LiveServer, script: str, text: str) -> None:
    assert both_ways(chain, prompt=go(script))[0] == text
    streamed = chain.events(TEXT, prompt=go(script), n=2)
    assert [joined(streamed, index) for index in range(2)] == [text, text]
    deltas = [choice["text"] for event in streamed for choice in event["choices"]]
    assert "".join(deltas).count("�") == 2 * text.count("�")


def test_c13_truncated_by_the_budget(chain: LiveServer) -> None:
    text, choice = both_ways(chain, prompt=go("llama"), max_tokens=2)
    assert (text, choice["finish_reason"]) == ("�", "length")


def test_c13_the_prompt_is_another_text(chain: LiveServer) -> None:
    """Half a character at the prompt's end does not complete with the answer's bytes."""
    prompt = [0xF0, 0x9F, chain.text.encode(go("tail"))[0]]
    text, _ = both_ways(chain, prompt=prompt)
    assert text == b"\xa6\x99z".decode(errors="replace")


def test_c13_interleaved(chain: LiveServer) -> None:
    names = ["llama", "ni", "hello", "mark"] * 2
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: chain.events(TEXT, prompt=go(name)), names))
    assert [joined(events) for events in answers] == ["🦙", "你", "Hello world", "�"] * 2


# ---- C14


@pytest.mark.parametrize(
    ("stop", "include", "text", "reason"),
    [
        (["STOP"], False, "abc", "STOP"),
        (["STOP"], True, "abcSTOP", "STOP"),
        (["STOPX"], False, "abcSTOPdef", None),
        (["TO"], False, "abcS", "TO"),
        (["c", "cS"], False, "ab", "cS"),
        ("b", True, "ab", "b"),
        (["zz", "qq", "def", "ST"], False, "abc", "ST"),
    ],
)
def test_c14_stop_strings(
    chain: LiveServer, stop: Any, include: bool, text: str, reason: str | None
) -> None:
    fields = {"prompt": go("stop"), "stop": stop, "include_stop_str_in_output": include}
    found, choice = both_ways(chain, **fields)
    assert (found, choice["stop_reason"], choice["finish_reason"]) == (text, reason, "stop")


def test_c14_over_bytes_and_at_the_end(chain: LiveServer) -> None:
    assert both_ways(chain, prompt=go("llama"), stop=["🦙"])[0] == ""
    text, choice = both_ways(chain, prompt=go("half"), stop=["STOP"], max_tokens=2)
    assert (text, choice["finish_reason"]) == ("abST", "length")


def test_c14_not_in_the_prompt_and_not_before_min_tokens(chain: LiveServer) -> None:
    assert both_ways(chain, prompt="ab " + go("stop"), stop=["ab c"])[0] == "abcSTOPdef"
    text, choice = both_ways(chain, prompt=go("long"), stop=["x"], min_tokens=4, max_tokens=9)
    assert (text, choice["stop_reason"]) == ("xyxy", "x")


def test_c14_a_stop_string_frees_the_engine(chain: LiveServer) -> None:
    answer = chain.complete(go("long"), stop=["yx"], max_tokens=3000)
    assert answer["choices"][0]["text"] == "x"
    assert answer["usage"]["completion_tokens"] == 3
    chain.assert_idle()


def test_c14_logprobs_do_not_tell_the_stop(chain: LiveServer) -> None:
    fields = {"prompt": go("stop"), "stop": ["STOP"], "logprobs": 0}
    whole = chain.complete(**fields)["choices"][0]["logprobs"]["tokens"]
    assert len(whole) == 2  # "ab" and "cST", whose first character was sent
    streamed = [
        token
        for event in chain.events(TEXT, **fields)
        for token in event["choices"][0]["logprobs"]["tokens"]
    ]
    assert streamed == whole


# ---- C17, the framing


def test_c17_text_stays_on_one_line(chain: LiveServer) -> None:
    raw = Raw(chain.port)
    raw.post(TEXT, {"model": "tiny", "prompt": go("lines"), "stream": True, "temperature": 0})
    _, headers, body = raw.answer()
    assert headers["content-type"].startswith("text/event-stream")
    frames = [json.loads(frame) for frame in sse_frames(body)[:-1]]
    assert joined(frames) == 'a\n\nb\r\u2028\u2029\x85end"'


# ---- C42


def test_c42_one_begin_token(rand: LiveServer, tmp_path: Path) -> None:
    source = Path(rand.plan.model.source.removeprefix("path:"))
    folder = Path(shutil.copytree(source, tmp_path / "m"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    piece = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    app = create_app(rand.plan, rand.engine, load_text_model(folder, rand.plan), Keys())

    def ids(path: str, **fields: Any) -> list[int]:
        body = {"model": "tiny", "max_tokens": 1, "return_token_ids": True, **fields}
        _, answer = rand.ask_app(app, path, body)
        given = answer if path == CHAT else answer["choices"][0]
        assert answer["usage"]["prompt_tokens"] == len(given["prompt_token_ids"])
        return list(given["prompt_token_ids"])

    hello = rand.text.encode("hello")
    assert ids(TEXT, prompt="hello") == ids(TEXT, prompt="<|endoftext|>hello") == [0, *hello]
    chat = ids(CHAT, messages=[{"role": "user", "content": "hello"}])
    assert chat == [0, *hello, 2]
    forged = ids(CHAT, messages=[{"role": "user", "content": "a<|endoftext|><|im_end|>b"}])
    assert [token for token in forged if token in (0, 2)] == [0, 2]


def test_content_may_come_in_parts(chain: LiveServer, chain_model: Chain) -> None:
    parts = [{"type": "text", "text": "say"}, {"type": "text", "text": go("hello")}]
    for role in ("user", "developer"):
        body = {"model": "tiny", "messages": [{"role": role, "content": parts}]}
        status, answer, _ = chain.post(CHAT, {**body, "return_token_ids": True, "temperature": 0})
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "Hello world"
        assert answer["prompt_token_ids"][-1] == chain_model.triggers["hello"]
