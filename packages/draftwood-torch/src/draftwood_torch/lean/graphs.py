"""Forward passes over a few rows, in fixed shapes and memory: a GPU repeats them without the host.

A step of decoding starts hundreds of small operations, and a fast GPU waits for the host to name
them. Here forward passes over up to ``MOST_ROWS`` rows of one sequence are sorted into buckets of
rows and context. The first pass of a bucket records its operations as a CUDA graph; every further
one copies a few numbers to the device and plays the graph back.

Apart from recording itself, everything runs on any device, and tests record on the CPU.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder_model import DecoderModel
from draftwood.models.model import Layers
from draftwood_torch.lean.attention import scored_attention
from draftwood_torch.lean.layer import Attend
from draftwood_torch.models.tensor_input import TensorInput

MOST_ROWS = 128
"""Larger trees, and prompts, keep a GPU busy without graphs."""

LEAST_CONTEXT = 256
"""Places of the cache up to which a shorter context saves nothing."""

STRETCH = 512
"""Places of the cache that one part of the GPU attends to while others attend to the next."""

MOST_GRAPHS = 64
"""Recorded at a time; the one that was not used for longest goes first."""

# finite, in every type: a stretch of which a row sees nothing then gets a weight of 0
_MASKED = -30000.0

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs work on fixed memory, or prepares to, and gives back what does the same again.

What is given back works on what is in the memory then.
"""

Decoded = tuple[Float[Tensor, "rows hidden"], dict[int, Tensor]]
"""Output of the layers: rows after the last norm, hidden states of the layers asked for."""


Decode = Callable[[Tensor, Tensor, Attend, Layers, tuple[int, ...]], Decoded]
"""Runs tokens [rows] at positions [rows] through layers; gives hidden states of those named."""


@dataclass(frozen=True)
class Bucket:
    """Scope of a recorded forward pass: so many rows, or fewer, of the sequence in a slot.

    Attributes:
        context: places of the cache that are looked at, the new rows' own among them; a power of
            two.
        layers: the layers that are run.
        hidden: layers whose hidden states are wanted.
    """

    slot: int
    rows: int
    context: int
    layers: Layers
    hidden: tuple[int, ...]

    @classmethod
    def of(cls, part: TensorInput, hidden: tuple[int, ...]) -> "Bucket":
        """The smallest bucket for this part."""
        rows = _power_of_two(part.place.count)
        context = _power_of_two(max(LEAST_CONTEXT, part.place.start + rows))
        return cls(part.place.slot, rows, context, part.layers, hidden)


class Graphs:
    """A model's recorded forward passes, by bucket.

    Args:
        record: what records.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.recorded: dict[Bucket, _FixedRun] = {}
        self.failed = False

    def run(
        self, model: DecoderModel, decode: Decode, part: TensorInput, hidden: tuple[int, ...]
    ) -> Decoded | None:
        """A part's forward pass; None once recording has failed.

        Rows that nobody asked for follow the part's own. The rows stay as they are until the next
        pass, hidden states for good.
        """
        if self.failed:
            return None
        try:
            recorded = self._recorded(model, decode, Bucket.of(part, hidden), part)
        except (RuntimeError, MemoryError) as error:
            self.failed = True
            self.recorded.clear()
            warnings.warn(
                f"decoding goes on slower than it could, without CUDA graphs: {error}", stacklevel=2
            )
            return None
        rows, states = recorded(part)
        return rows, {layer: state.clone() for layer, state in states.items()}

    def _recorded(
        self, model: DecoderModel, decode: Decode, bucket: Bucket, part: TensorInput
    ) -> "_FixedRun":
        model.pool.when_moved = self.recorded.clear  # the cache's addresses are in the graphs
        model.pool.reserve(bucket.context)
        model.pool.cover([replace(part.place, count=bucket.rows)])  # all that is written
        run = self.recorded.pop(bucket, None) or _FixedRun(model, decode, bucket, part, self.record)
        self.recorded[bucket] = run  # after all that were used before
        if len(self.recorded) > MOST_GRAPHS:
            del self.recorded[next(iter(self.recorded))]
        return run


class CudaRecord:
    """Records what is run on a CUDA device as graphs.

    They share the memory of what they compute on the way.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.memory = torch.cuda.graph_pool_handle()
        # PyTorch lets no graph into memory that none is left to share
        self.newest: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work once, since what libraries do at first cannot be recorded; then record it.

        Raises:
            RuntimeError: for work that cannot be recorded.
        """
        usual = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(usual)
        try:
            with torch.cuda.stream(self.stream):
                work()
        finally:
            usual.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(
            graph, self.memory, self.stream, capture_error_mode="thread_local"
        )
        # the first leaves the stream even if the second fails
        with torch.cuda.stream(self.stream), capture:
            work()
        self.newest = graph
        return graph.replay


class _FixedRun:
    """One bucket's forward pass: where its numbers come in, and what does it again.

    Rows that the bucket has too many repeat the last one after it. They see what it sees, write
    where the next pass writes anyway, and are seen by nobody.
    """

    def __init__(
        self, model: DecoderModel, decode: Decode, bucket: Bucket, part: TensorInput, record: Record
    ) -> None:
        self.rows = bucket.rows
        with torch.inference_mode(False):  # passes outside of it write to them too
            self.numbers = packed(part, self.rows).to(model.device)
        self.result: Decoded | None = None
        attend, numbers = _FixedAttention(model, bucket), self.numbers

        def work() -> None:
            given = _Numbers.of(numbers, bucket.rows)
            attend.prepare(given)
            self.result = decode(
                given.tokens, given.positions, attend, bucket.layers, bucket.hidden
            )

        with torch.inference_mode(False), torch.no_grad():
            self.again = record(work)

    def __call__(self, part: TensorInput) -> Decoded:
        numbers = packed(part, self.rows)
        if self.numbers.is_cuda and not numbers.is_cuda:
            numbers = numbers.pin_memory()
        self.numbers.copy_(numbers, non_blocking=True)
        self.again()
        assert self.result is not None  # recording ran or will run the work
        return self.result


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Numbers that differ from one forward pass of a bucket to the next, as views of one tensor.

    Attributes:
        before: committed tokens.
        start: place of the first row in the cache.
    """

    before: Int[Tensor, " 1"]
    start: Int[Tensor, " 1"]
    tokens: Int[Tensor, " rows"]
    positions: Int[Tensor, " rows"]
    tree_positions: Int[Tensor, " most_rows"]
    sees: Bool[Tensor, "rows most_rows"]

    @classmethod
    def of(cls, numbers: Int[Tensor, " numbers"], rows: int) -> "_Numbers":
        """The views of what ``packed`` made."""
        sizes = [1, 1, rows, rows, MOST_ROWS, rows * MOST_ROWS]
        before, start, tokens, positions, tree_positions, sees = numbers.split(sizes)
        return cls(
            before,
            start,
            tokens,
            positions,
            tree_positions,
            sees.unflatten(0, (rows, MOST_ROWS)) > 0,
        )


def packed(part: TensorInput, rows: int) -> Int[Tensor, " numbers"]:
    """A part's numbers one after the other, where its tree is.

    Its last row is repeated until there are ``rows``.
    """
    before, start = (
        torch.full((1,), number, device=part.tokens.device)
        for number in (part.before, part.place.start)
    )
    taken = torch.arange(rows, device=part.tokens.device).clamp(max=part.place.count - 1)
    rest = (0, MOST_ROWS - len(part.tree_positions))
    tree_positions, sees = (
        functional.pad(part.tree_positions, rest),
        functional.pad(part.sees[taken], rest),
    )
    return torch.cat(
        [before, start, part.tokens[taken], part.positions[taken], tree_positions, sees.flatten()]
    )


class _FixedAttention:
    """Attention of a bucket's forward pass, over as much of the cache as the bucket has."""

    def __init__(self, model: DecoderModel, bucket: Bucket) -> None:
        layers = (model.pool.layer(index) for index in range(model.layers))
        self.caches = [(keys[bucket.slot], values[bucket.slot]) for keys, values in layers]
        self.windows, self.dtype, self.context = model.windows, model.dtype, bucket.context
        self.group = model.sizes.heads // model.sizes.num_kv_heads
        self.cap = model.scales.score_cap

    def prepare(self, numbers: _Numbers) -> None:
        """Work out where rows are written and what they see, for all layers."""
        self.places = numbers.start + torch.arange(
            len(numbers.tokens), device=numbers.tokens.device
        )
        self.biases = {window: self._bias(numbers, window) for window in self.windows}

    def __call__(
        self,
        index: int,
        window: int | None,
        query: Float[Tensor, "shared stacked dim"],
        key: Float[Tensor, "rows shared dim"],
        value: Float[Tensor, "rows shared dim"],
    ) -> Float[Tensor, "shared stacked dim"]:
        for cache, new in zip(self.caches[index], (key, value), strict=True):
            cache.index_copy_(0, self.places, new.to(self.dtype))
        keys, values = (cache[: self.context] for cache in self.caches[index])
        query = query.to(self.dtype)
        if self.cap is not None:
            keys, values = keys.transpose(0, 1), values.transpose(0, 1)
            return scored_attention(query, keys, values, self.biases[window], self.cap)
        return attention(query, keys, values, self.biases[window])

    def _bias(self, numbers: _Numbers, window: int | None) -> Float[Tensor, "stacked context"]:
        """Terms of scores: 0 for what a row sees of the cache, much less for the rest."""
        columns = torch.arange(self.context, device=numbers.tokens.device)
        nodes = columns - numbers.before
        near = nodes.clamp(0, MOST_ROWS - 1)
        committed = nodes < 0
        sees = committed | (numbers.sees[:, near] & (nodes < MOST_ROWS))
        if window is not None:
            positions = torch.where(committed, columns, numbers.tree_positions[near])
            sees = sees & (positions > numbers.positions[:, None] - window)
        bias = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device).masked_fill(
            ~sees, _MASKED
        )
        return bias[:, None].expand(-1, self.group, -1).flatten(0, 1)


def attention(
    query: Float[Tensor, "heads rows dim"],
    keys: Float[Tensor, "context heads dim"],
    values: Float[Tensor, "context heads dim"],
    bias: Float[Tensor, "rows context"],
) -> Float[Tensor, "heads rows dim"]:
    """Attention of few rows to a long context, a power of two.

    One block of a GPU's threads takes one head's rows along the whole context, and there are far
    fewer heads than a GPU has room for blocks. So stretches of the context are attended to side by
    side, and their results weighed by the sums of their exponentials, as in Flash-Decoding (Dao et
    al. 2023).
    """
    stretches = max(1, len(keys) // STRETCH)
    keys, values = (cache.unflatten(0, (stretches, -1)).transpose(1, 2) for cache in (keys, values))
    bias = (
        bias.unflatten(1, (stretches, -1)).transpose(0, 1)[:, None].expand(-1, len(query), -1, -1)
    )
    mixed, sums = _fused(query.expand(stretches, -1, -1, -1), keys, values, bias)
    return mixed[0] if stretches == 1 else (mixed * sums.softmax(0)[..., None]).sum(0)


def _fused(
    query: Float[Tensor, "stretches heads rows dim"],
    keys: Float[Tensor, "stretches heads stretch dim"],
    values: Float[Tensor, "stretches heads stretch dim"],
    bias: Float[Tensor, "stretches heads rows stretch"],
) -> tuple[Float[Tensor, "stretches heads rows dim"], Float[Tensor, "stretches heads rows"]]:
    """Attention within each stretch, and the logarithm of the sum of its exponentials.

    PyTorch's own front hides the latter.

    On CUDA rows of ``bias`` must begin at multiples of 16 bytes, and it must have the type of the
    others.
    """
    if query.is_cuda:
        mixed, sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, bias, True
        )
        return mixed, sums[..., : query.shape[2]]  # the kernel rounds the number of sums up
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=bias
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
