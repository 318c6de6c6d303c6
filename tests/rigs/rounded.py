"""A decoder in plain torch on the CPU that rounds what an engine with float8 weights rounds there.

Such an engine multiplies in float8: each row is rounded to e4m3 with a scale of its own. Rows that
decode are few and keep their 8 bits of mantissa where the table of cuts has a tile for them, which
depends on the plan's kernels; many rows keep them where weights have the scales of blocks. No
cache, no batch, no graph: what is common with the engine are the weights as loaded, that table, and
the torch references of the ops around them.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from tokenspeed_kernels.attention.reference import paged_attention
from tokenspeed_kernels.dequantise import dequantise
from tokenspeed_kernels.gemm.tiles import Cut, Ring, cuts
from tokenspeed_kernels.norm.reference import add_rms_norm, rms_norm
from tokenspeed_kernels.rope.reference import rope_kv_write
from tokenspeed_kernels.weight import FP8_FORMATS

from tokenspeed.layers.rope import cos_sin_table
from tokenspeed.models.registry import parameters
from tokenspeed.plan import Attention, Plan, WeightFormat
from tokenspeed.weights.load import load_weights

BF16 = torch.bfloat16
CACHES = {"bfloat16": BF16, "fp8": torch.float8_e4m3fn}
LARGEST = 448.0
MOST_TOKENS = 1024


class Rounded:
    """The model of a GPU's plan, one text at a time, as one of `batch` that decode together.
    `hopper`: whether the GPU is one of those. `matrices` are float32 [out, in] by name."""

    def __init__(self, plan: Plan, folder: Path, batch: int, hopper: bool) -> None:
        self._batch, self._hopper = batch, hopper
        self.rounds = True  # rows to float8, where the engine does
        self._config = plan.model.config
        wanted = parameters(self._config, plan.model.container, plan.model.formats)
        self._weights = load_weights(
            wanted, self._config, folder, plan.model.container,
            device=torch.device("cpu"), dtype=BF16, progress=lambda done, total: None,
        )  # fmt: skip
        self._widens = plan.model.linear_format is WeightFormat.FP8_BLOCK
        self._float8_rows = any("float8" in choice.kernel for choice in plan.kernels)
        self.matrices = {name: dequantise(w) for name, w in self._weights.matrices.items()}
        self._head = "embedding" if self._config.tie_embeddings else "head"
        self._cache = CACHES[plan.cache.dtype]
        assert self._config.rope is not None
        self._cos_sin = cos_sin_table(self._config.rope, MOST_TOKENS, torch.device("cpu"))

    @property
    def multiplied(self) -> list[str]:
        """The names of the matrices that rows meet in products."""
        return [name for name in self.matrices if "." in name or name == self._head]

    def logits(self, tokens: list[int], prompt: int) -> torch.Tensor:
        """float32 [T, V], of which the first `prompt` tokens came in one step of many rows."""
        eps, vectors = self._config.norm_eps, self._weights.vectors
        many = (torch.arange(len(tokens)) < prompt)[:, None]
        residual = self.matrices["embedding"][tokens].to(BF16)
        layers = self._config.sequence()
        norms = [vectors[f"layers.{index}.attn_norm"] for index in range(len(layers))]
        norms.append(vectors["final_norm"])
        x = rms_norm(residual, norms[0], eps)
        for index, layer in enumerate(layers):
            assert isinstance(layer.mixer, Attention)
            at = f"layers.{index}."
            x = self._attend(x, layer.mixer, at, many)
            x = add_rms_norm(x, residual, vectors[f"{at}mlp_norm"], eps)
            x = self.product(self._gated(x, at, many), f"{at}down", many).to(BF16)
            x = add_rms_norm(x, residual, norms[index + 1], eps)
        return self.product(x, self._head, torch.zeros_like(many))

    def _attend(
        self, x: torch.Tensor, facts: Attention, at: str, many: torch.Tensor
    ) -> torch.Tensor:
        count, vectors = len(x), self._weights.vectors
        caches = [
            torch.zeros(1, count, facts.num_kv_heads, facts.head_dim).to(self._cache) for _ in "kv"
        ]
        places = torch.arange(count)
        q = rope_kv_write(
            self.product(x, f"{at}qkv", many).to(BF16), facts.num_heads, facts.num_kv_heads,
            places, self._cos_sin, places, *caches,
            vectors.get(f"{at}q_norm"), vectors.get(f"{at}k_norm"), self._config.norm_eps,
        )  # fmt: skip
        tables = torch.zeros(1, 1, dtype=torch.int32)
        lengths = torch.tensor([0, count], dtype=torch.int32)
        caches = [cache.float() for cache in caches]
        out = paged_attention(q, *caches, tables, lengths, lengths[:1], facts.head_dim**-0.5)
        return self.product(out.flatten(1), f"{at}o", many).to(BF16)

    def _gated(self, x: torch.Tensor, at: str, many: torch.Tensor) -> torch.Tensor:
        """Few rows are rounded once, after the activation; of many the product is, too."""
        product = self.product(x, f"{at}gate_up", many)
        gate, up = torch.where(many, product.to(BF16).float(), product).chunk(2, -1)
        return (F.silu(gate) * up).to(BF16)

    def _cut(self, name: str) -> Cut | None:
        shape = (*self.matrices[name].shape, name.endswith("gate_up"))
        kept = self._weights.matrices[name].format
        found = cuts(kept, shape, hopper=self._hopper, float8_rows=self._float8_rows)
        return next((cut for most, cut in found if self._batch <= most), None)

    def product(self, x: torch.Tensor, name: str, many: torch.Tensor) -> torch.Tensor:
        """float32 [T, out] of rows [T, in], of which `many` bool [T, 1] came with many others."""
        wide = x.float()
        if self.rounds and self._weights.matrices[name].format in FP8_FORMATS:
            scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-20) / LARGEST
            narrow = (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
            cut = self._cut(name)
            few = isinstance(cut, Ring) or (cut is None and not self._widens)
            keeps = torch.where(many, self._widens, not few)
            wide = torch.where(keeps, wide, narrow.float() * scale)
        bias, matrix = self._weights.vectors.get(f"{name}.bias"), self.matrices[name]
        offset = None if bias is None else bias.float()
        product = F.linear(wide, matrix, offset)
        if self._widens:
            # Blocks become bfloat16 for many rows.
            product = torch.where(many, F.linear(wide, matrix.to(BF16).float(), offset), product)
        return product
