PORTABLE: int
AVX2: int
AVX512: int
AVX512_VNNI: int

def supports(isa: int) -> bool: ...

class PackedWeight:
    def __init__(self, format: str, data: int, rows: int, columns: int, bias: int) -> None: ...
    @property
    def bytes(self) -> int: ...
    def linear(self, isa: int, x: int, out: int, rows: int) -> None: ...

class Buffer:
    def __init__(self, bytes: int) -> None: ...
    def read(self, isa: int) -> float: ...

def prefer_huge_pages(data: int, bytes: int, /) -> bool: ...
def dot_rounds(isa: int, count: int, /) -> float: ...
def embed(format: str, table: int, columns: int, tokens: int, count: int, out: int, /) -> None: ...
def rms_norm(
    isa: int, x: int, weight: int, out: int, rows: int, dim: int, eps: float, /
) -> None: ...
def add_rms_norm(
    isa: int, x: int, residual: int, weight: int, out: int, rows: int, dim: int, eps: float, /
) -> None: ...
def silu_mul(isa: int, x: int, out: int, rows: int, inner: int, /) -> None: ...
def rope_kv_write(
    isa: int,
    qkv: int,
    q: int,
    positions: int,
    cos_sin: int,
    slots: int,
    k_cache: int,
    v_cache: int,
    q_norm: int,
    k_norm: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    eps: float,
    kv_bf16: bool,
    /,
) -> None: ...
def paged_attention(
    isa: int,
    q: int,
    out: int,
    k_cache: int,
    v_cache: int,
    block_tables: int,
    cu_query_lens: int,
    context_lens: int,
    rows: int,
    max_blocks: int,
    block_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    kv_bf16: bool,
    /,
) -> None: ...
def sample(
    isa: int,
    logits: int,
    rows: int,
    vocab: int,
    temperature: int,
    top_k: int,
    top_p: int,
    min_p: int,
    seeds: int,
    positions: int,
    tokens: int,
    /,
) -> None: ...
def log_softmax_topk(
    isa: int,
    logits: int,
    rows: int,
    vocab: int,
    k: int,
    chosen: int,
    chosen_logprob: int,
    top_values: int,
    top_ids: int,
    /,
) -> None: ...
def penalise(
    isa: int,
    logits: int,
    said: int,
    vocab: int,
    repetition: float,
    presence: float,
    frequency: float,
    /,
) -> None: ...
