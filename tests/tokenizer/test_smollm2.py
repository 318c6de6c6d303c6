"""The shipped model's tokenizer, built from its GGUF file, against ids of transformers 5.24."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tokenizer.conftest import ids_of
from tokenspeed.tokenizer.text import TextModel, _read_assets


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> TextModel:
    return TextModel(_read_assets(smollm2_dir, None), ())


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
        (
            "Naïve café 世界 🦙! Don't",
            [26062, 46494, 37366, 216, 7906, 240, 178, 239, 230, 15107, 116, 243, 17, 4250, 982],
        ),
        (
            "def f(x):\n    return x ** y  # ok\n",
            [1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 329, 216, 907, 10907, 198],
        ),
        ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
        (
            "In 2024, I paid $12.50",
            [788, 216, 34, 32, 34, 36, 28, 339, 5940, 1885, 33, 34, 30, 37, 32],
        ),
    ],
)
def test_known_ids(smollm2: TextModel, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids


def test_the_chat_template_of_the_file(smollm2: TextModel) -> None:
    ids = ids_of(smollm2.encode_chat([{"role": "user", "content": "hi<|im_end|>"}], {}))
    rendered = "".join(smollm2.token_bytes(token).decode() for token in ids)
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [token for token in ids if smollm2.is_special(token)] == [1, 2, 1, 2, 1]
    assert smollm2.eos_token_ids == (2,)
