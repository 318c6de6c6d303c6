"""Twenty-two mistakes that somebody could make in the core. Each must be noticed, see `mutate.py`.

`before` occurs exactly once in the file; `test_mutate.py` sees to it that the list does not rot.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    before: str
    after: str


FAULTS = [
    Fault(
        "a lease is dropped without its fence",
        "states.h",
        "    RetireAll(groups, fence);",
        "    RetireAll(groups, Fence::Now());",
    ),
    Fault(
        "a slot comes back before its step",
        "states.h",
        "std::move(slot).Retire(fence);",
        "std::move(slot).Retire(Fence::Now());",
    ),
    Fault(
        "a prompt takes one block too few",
        "config.h",
        "(tokens + block_size - 1) / block_size",
        "tokens / block_size",
    ),
    Fault(
        "a block is published one token early",
        "held.cc",
        "(static_cast<std::int64_t>(held.published) + 1) * config_.block_size <= ready",
        "(static_cast<std::int64_t>(held.published) + 1) * config_.block_size <= ready + 1",
    ),
    Fault(
        "a window slides one token too far",
        "held.cc",
        "held.computed() - group.window + 1",
        "held.computed() - group.window + 2 * config_.block_size",
    ),
    Fault(
        "the salt is forgotten",
        "digest.cc",
        "Digest RootDigest(DigestKey key, std::string_view salt) {",
        "Digest RootDigest(DigestKey key, std::string_view salt) {\n  salt = {};",
    ),
    Fault(
        "a block's digest forgets what came before it",
        "digest.cc",
        "Digest BlockDigest(DigestKey key, const Digest& parent, std::span<const Token> tokens) {",
        "Digest BlockDigest(DigestKey key, const Digest&, std::span<const Token> tokens) {\n"
        "  const Digest parent{};",
    ),
    Fault(
        "an evicted block stays in the index",
        "prefix_cache.cc",
        "    Record(index_.DigestOf(block), false);\n    index_.Erase(block);\n  }\n  return",
        "    Record(index_.DigestOf(block), false);\n  }\n  return",
    ),
    Fault(
        "the end of a prefix outlives its beginning",
        "block_pool.cc",
        "    id = idle_first_;",
        "    id = idle_last_;",
    ),
    Fault(
        "rejected drafts count as computed",
        "transitions.h",
        "held.scheduled -= sampled.rejected;",
        "held.scheduled -= 0 * sampled.rejected;",
    ),
    Fault(
        "tokens past a stop are kept",
        "commit.cc",
        "if (how != Finish::kNo) break;",
        "if (how == Finish::kLength) break;",
    ),
    Fault(
        "a stop token counts before min_tokens",
        "commit.cc",
        "request.generated() >= request.min_tokens &&",
        "request.generated() + 1 >= request.min_tokens &&",
    ),
    Fault(
        "a row goes on past max_tokens",
        "decode.cc",
        "decoding.held.samples_in_flight < request.max_tokens",
        "decoding.held.samples_in_flight <= request.max_tokens",
    ),
    Fault(
        "what a step in flight samples is said again behind a run",
        "commit.cc",
        "if (forced > 0) Overtake(request);",
        "if (forced > 99) Overtake(request);",
    ),
    Fault(
        "a long run takes the tokens of those behind it",
        "decode.cc",
        "std::min(left, build.budget() - --behind)",
        "std::min(left, build.budget() - 0 * --behind)",
    ),
    Fault(
        "somebody before the needy one is preempted",
        "decode.cc",
        "const auto behind = std::upper_bound(running_.begin(), running_.end(), &request, Before);",
        "const auto behind = running_.begin();",
    ),
    Fault(
        "decode rows share the prompts' budget",
        "policy.cc",
        "const std::int64_t room = mix.step_tokens - mix.decode_tokens;",
        "const std::int64_t room = mix.step_tokens;",
    ),
    Fault(
        "a timer runs on while the request runs",
        "wait_queue.h",
        "    by_end_.erase(EndOf(request));",
        "    if (false) by_end_.erase(EndOf(request));",
    ),
    Fault(
        "what was cached before a reset is published after it",
        "held.cc",
        "if (held.cache_generation != cache_.generation()) continue;",
        "if (held.cache_generation > cache_.generation()) continue;",
    ),
    Fault(
        "a table entry is changed and not listed",
        "block_table.cc",
        "piece.dirty_end = std::max(piece.dirty_end, end);",
        "piece.dirty_end = std::max(piece.dirty_end, begin);",
    ),
    Fault(
        "a result reaches the next life of an id",
        "request_map.cc",
        "  ++generations_[index];",
        "  generations_[index] += 0;",
    ),
    Fault(
        "groups share digests",
        "digest.h",
        "return {digest.low ^ g * 0x9e3779b97f4a7c15ULL, digest.high ^ g * 0xc2b2ae3d27d4eb4fULL};",
        "return {digest.low ^ g * 0, digest.high};",
    ),
]
