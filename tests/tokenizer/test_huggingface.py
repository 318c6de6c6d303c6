"""C04 (end tokens), C08 (where the template is looked up)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tokenspeed.errors import CheckpointError
from tokenspeed.tokenizer.assets import encode
from tokenspeed.tokenizer.huggingface import read_huggingface


def folder(path: Path, tokenizer: Tokenizer, **config: object) -> Path:
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_c08_separate_file_wins_over_the_config(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder(tmp_path, tokenizer, chat_template="config")
    assert read_huggingface(tmp_path, None).chat_template == "config"
    (tmp_path / "chat_template.jinja").write_text("separate")
    assert read_huggingface(tmp_path, None).chat_template == "separate"
    assert read_huggingface(tmp_path, "recipe").chat_template == "recipe"


def test_c08_named_templates_and_none(tmp_path: Path, tokenizer: Tokenizer) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder(tmp_path, tokenizer, chat_template=named)
    assert read_huggingface(tmp_path, None).chat_template == "d"
    folder(tmp_path, tokenizer)
    assert read_huggingface(tmp_path, None).chat_template is None


def test_c08_special_tokens_as_text_or_object(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder(tmp_path, tokenizer, bos_token={"content": "<s>", "lstrip": False}, eos_token="</s>")
    assets = read_huggingface(tmp_path, None)
    assert (assets.bos_token, assets.eos_token) == ("<s>", "</s>")
    assert assets.eos_token_ids == (tokenizer.token_to_id("</s>"),)


@pytest.mark.parametrize(("listed", "expected"), [(7, (7, 1)), ([5, 7], (5, 7, 1)), (None, (1,))])
def test_c04_end_tokens_of_the_generation_config(
    tmp_path: Path, tokenizer: Tokenizer, listed: object, expected: tuple[int, ...]
) -> None:
    folder(tmp_path, tokenizer, eos_token="</s>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    assert read_huggingface(tmp_path, None).eos_token_ids == expected


def test_broken_files_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder(tmp_path, tokenizer)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        read_huggingface(tmp_path, None)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_huggingface(tmp_path, None)


def test_a_template_that_is_no_text_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder(tmp_path, tokenizer)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        read_huggingface(tmp_path, None)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_file_without_an_end_is_not_waited_for(
    tmp_path: Path, tokenizer: Tokenizer, name: str
) -> None:
    folder(tmp_path, tokenizer)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    if name == "tokenizer.json":
        with pytest.raises(CheckpointError, match="not a regular file"):
            read_huggingface(tmp_path, None)
    else:  # not a file, so there is none
        assert read_huggingface(tmp_path, None).bos_token is None


def test_files_over_which_the_tokenizer_panics_are_named(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    said = json.loads(tokenizer.to_str())
    said["model"] |= {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*panicked"):
        read_huggingface(tmp_path, None)


def test_a_panic_over_a_text_is_an_error_like_others() -> None:
    broken = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    broken.pre_tokenizer = pre_tokenizers.FixedLength(length=0)
    with pytest.raises(RuntimeError, match="panicked"):
        encode(broken, "abc", add_special=False)
