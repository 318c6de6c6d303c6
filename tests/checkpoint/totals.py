"""Parameter totals beside those of transformers (counted on the meta device) and of the makers.

python -m tests.checkpoint.totals      prints the table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tokenspeed.checkpoint import cards
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.inventory import active_parameters, parameters

CARDS = Path(cards.__file__).parent / "cards"
# card -> class of transformers, for every family that has one.
CLASSES = {
    "llama-3.1-8b": "LlamaForCausalLM",
    "llama-3.3-70b": "LlamaForCausalLM",
    "qwen2.5-7b": "Qwen2ForCausalLM",
    "qwen3-0.6b": "Qwen3ForCausalLM",
    "qwen3-8b": "Qwen3ForCausalLM",
    "qwen3-30b-a3b": "Qwen3MoeForCausalLM",
    "qwen3-235b-a22b": "Qwen3MoeForCausalLM",
    "qwen3-next-80b-a3b": "Qwen3NextForCausalLM",
    "qwen3.5-35b-a3b": "Qwen3_5MoeForCausalLM",
    "qwen3.5-397b-a17b": "Qwen3_5MoeForCausalLM",
    "deepseek-v2-lite": "DeepseekV2ForCausalLM",
    "deepseek-v3": "DeepseekV3ForCausalLM",
    "kimi-k2": "DeepseekV3ForCausalLM",
    "moonlight-16b-a3b": "DeepseekV3ForCausalLM",
    "kimi-linear-48b-a3b": "KimiLinearForCausalLM",
    "gpt-oss-20b": "GptOssForCausalLM",
    "gpt-oss-120b": "GptOssForCausalLM",
    "minimax-m2": "MiniMaxM2ForCausalLM",
    "glm-4.5": "Glm4MoeForCausalLM",
    "glm-4.5-air": "Glm4MoeForCausalLM",
    "mixtral-8x7b": "MixtralForCausalLM",
}
BILLION, TRILLION = 1e9, 1e12
# card -> total as its makers publish it, with the digits that they give, and the unit.
PUBLISHED = {
    "llama-3.1-8b": ("8.03", BILLION),
    "qwen3-235b-a22b": ("235", BILLION),
    "deepseek-v2-lite": ("15.7", BILLION),
    "deepseek-r1": ("671", BILLION),
    "deepseek-v3": ("671", BILLION),
    "kimi-k2.5": ("1", TRILLION),
    "kimi-k3": ("2.78", TRILLION),
    "gpt-oss-20b": ("20.91", BILLION),
    "gpt-oss-120b": ("116.83", BILLION),
    "mixtral-8x7b": ("46.7", BILLION),
    "glm-4.5-air": ("107", BILLION),
}


def config_json(card: str) -> dict[str, Any]:
    """The language model's own config of a card."""
    config = json.loads((CARDS / f"{card}.json").read_bytes())["config"]
    found: dict[str, Any] = config.get("text_config", config)
    return found


def ours(card: str) -> tuple[int, int]:
    """(parameters, parameters that one token meets)."""
    config = model_config(json.loads((CARDS / f"{card}.json").read_bytes())["config"])
    return parameters(config), active_parameters(config)


def theirs(card: str) -> int:
    """What transformers counts, the biases of expert selection included, which it keeps as
    buffers; draft layers, which it does not build, left out."""
    kind = getattr(transformers, CLASSES[card])
    written = {
        key: value
        for key, value in config_json(card).items()
        if key not in ("quantization_config", "model_type")
    }
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"):
        written.pop(key, None)
    with torch.device("meta"):
        model = kind(kind.config_class(**written))
    buffers = [b.numel() for name, b in model.named_buffers() if "correction_bias" in name]
    return sum(p.numel() for p in model.parameters()) + sum(buffers)


def main() -> None:
    print(f"{'card':24} {'ours':>20} {'transformers':>20} {'active':>16} {'published':>10}")
    for path in sorted(CARDS.glob("*.json")):
        total, active = ours(path.stem)
        counted = f"{theirs(path.stem):,}" if path.stem in CLASSES else "-"
        text, unit = PUBLISHED.get(path.stem, ("-", BILLION))
        stated = text + (" T" if unit == TRILLION else "")
        print(f"{path.stem:24} {total:20,} {counted:>20} {active:16,} {stated:>10}")


if __name__ == "__main__":
    main()
