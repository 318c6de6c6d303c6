"""The rigs prove themselves: sensitive enough to show KV faults, and scripted as written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.rigs import FAMILIES, VOCAB, Oracle, build_chain, build_rand, rand_prompts


@pytest.mark.parametrize("family", FAMILIES)
def test_first_token_decides_most_continuations(family: str, tmp_path: Path) -> None:
    oracle = Oracle(build_rand(tmp_path, family))
    changed = 0
    for prompt in rand_prompts(50, 200):
        other = [3 + prompt[0] % (VOCAB - 3), *prompt[1:]]
        assert other != prompt
        changed += oracle.greedy(prompt, 8) != oracle.greedy(other, 8)
    assert changed > 35


def test_tokenizer_covers_every_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(build_rand(tmp_path) / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCAB
    for text in ("The quick brown fox", "naïve 漢字 🦙\n\t", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sharded_folder_holds_the_same_model(tmp_path: Path) -> None:
    whole = Oracle(build_rand(tmp_path / "whole", seed=3))
    sharded = Oracle(build_rand(tmp_path / "sharded", seed=3, shards=3))
    (prompt,) = rand_prompts(1, 20)
    assert (whole.logits(prompt) == sharded.logits(prompt)).all()


def test_chain_plays_its_scripts(tmp_path: Path) -> None:
    llama = "🦙".encode()
    scripts = {"a": ["Hel", "lo", llama[:2], llama[2:]], "b": ["x", "x", "y"], "on": ["1", "2"]}
    chain = build_chain(tmp_path, scripts, loops=["on"])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    oracle = Oracle(chain.folder)
    played = {
        name: oracle.greedy(tokenizer.encode("Hi! " + chain.prompt(name)).ids, 5)
        for name in scripts
    }
    assert played["a"] == [*chain.steps["a"], chain.eos]
    assert tokenizer.decode(played["a"]) == "Hello🦙"
    assert played["b"] == [*chain.steps["b"], chain.eos, chain.eos]
    assert tokenizer.decode(played["b"]) == "xxy"
    assert tokenizer.decode(played["on"]) == "12121"
    assert oracle.greedy(tokenizer.encode("unscripted").ids, 1) == [chain.eos]


def test_chain_margin_is_the_hidden_size(tmp_path: Path) -> None:
    chain = build_chain(tmp_path, {"a": ["1", "2", "3"]})
    scores = Oracle(chain.folder).logits([chain.triggers["a"], *chain.steps["a"]])
    best = scores.topk(2).values
    assert ((best[:, 0] - best[:, 1]) > 0.9 * scores.shape[1]).all()
