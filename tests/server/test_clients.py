"""The unmodified `openai` client."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.server.conftest import go
from tests.server.live import LiveServer, until


def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat(chain: LiveServer) -> None:
    with client(chain) as api:
        answer = api.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": go("hello")}],
            temperature=0,
            logprobs=True,
            top_logprobs=2,
        )
        (choice,) = answer.choices
        assert choice.message.content == "Hello world"
        assert choice.message.role == "assistant"
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [entry.token for entry in choice.logprobs.content] == ["Hel", "lo", " wor", "ld"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(chain: LiveServer) -> None:
    with client(chain) as api:
        stream = api.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": go("llama")}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "🦙"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5


def test_the_stream_helper(chain: LiveServer) -> None:
    with client(chain) as api:
        messages = [{"role": "user", "content": go("stop")}]
        with api.chat.completions.stream(model="tiny", messages=messages, temperature=0) as events:  # type: ignore[arg-type]
            events.until_done()
            assert events.get_final_completion().choices[0].message.content == "abcSTOPdef"


def test_completions(chain: LiveServer) -> None:
    with client(chain) as api:
        answer = api.completions.create(
            model="tiny", prompt=[go("hello"), go("ni")], temperature=0, logprobs=1, max_tokens=9
        )
        assert [choice.text for choice in answer.choices] == ["Hello world", "你"]
        assert answer.choices[1].logprobs is not None
        assert answer.choices[1].logprobs.tokens == ["bytes:\\xe4\\xbd", "bytes:\\xa0"]
        stream = api.completions.create(
            model="tiny", prompt=go("stop"), temperature=0, stream=True, stop=["STOP"]
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_errors(chain: LiveServer) -> None:
    with client(chain) as api:
        with pytest.raises(openai.NotFoundError) as missing:
            api.completions.create(model="gpt-9", prompt="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            api.completions.create(model="tiny", prompt="a", temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as long:
            api.completions.create(model="tiny", prompt="a " * 5000, stream=True)
        assert long.value.code == "context_length_exceeded"
        assert long.value.request_id is not None


def test_models(chain: LiveServer) -> None:
    with client(chain) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        assert api.models.retrieve("tiny").owned_by == "tokenspeed"


def test_cancel_in_mid_stream(chain: LiveServer) -> None:
    aborted = chain.stats().requests_aborted
    with client(chain) as api:
        stream = api.completions.create(
            model="tiny", prompt=go("long"), temperature=0, stream=True, max_tokens=3000
        )
        for chunk in stream:
            assert chunk.choices[0].text
            break
        stream.close()
        until(lambda: chain.stats().requests_aborted == aborted + 1)


def test_cancelled_task(chain: LiveServer) -> None:
    """A time-out around an await, which is how asynchronous programs give up."""
    aborted = chain.stats().requests_aborted

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{chain.url}/v1", api_key="none") as api:
            async with asyncio.timeout(0.3):
                await api.completions.create(
                    model="tiny",
                    prompt=go("long"),
                    temperature=0,
                    max_tokens=4000,
                    extra_body={"ignore_eos": True},
                )

    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    until(lambda: chain.stats().requests_aborted == aborted + 1)
