"""CTC head: frames that draft the next places all at once, with a blank among their symbols."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.heads.ctc import CtcConfig, frames_of
from draftwood.heads.lattice import Frames, Pairs
from draftwood.heads.prefix_search import likeliest_prefixes
from draftwood.tree import DraftTree
from draftwood_torch.heads.layers import (
    Attention,
    AttentionRule,
    DecoderLayer,
    HeadCache,
    Mlp,
    PairwiseTerm,
    RmsNorm,
    seen_by_frames,
)
from draftwood_torch.tensors import as_tensor


class CtcHead(nn.Module):
    """Drafts several places in parallel (CTC-drafter, Wen et al. 2024, arXiv:2412.00061).

    Row t of the context is the target's state at place t. Frame f = 1..F is a linear map of the
    newest row t, has position t + 1 + f, and attends to the context up to t and to all frames. The
    target's output head and a trained row for the blank turn its state into a distribution. Merging
    equal neighbours and dropping blanks gives the text after the root at t + 1; see
    ``draftwood.heads.lattice``.

    The paper leaves open how frames differ. Here each has a matrix and a vector, so that frames are
    told apart before they see each other.
    """

    config_type: ClassVar[type[CtcConfig]] = CtcConfig

    def __init__(self, config: CtcConfig) -> None:
        super().__init__()
        self.config, sizes = config, config.sizes
        dim = sizes.hidden
        if len(config.reads) > 1:
            self.fc_norm = nn.ModuleList(RmsNorm(dim, sizes.epsilon) for _ in config.reads)
            self.fc = nn.Linear(len(config.reads) * dim, dim, bias=False)
        self.frame_weight = nn.Parameter(torch.eye(dim).repeat(config.frames, 1, 1))
        self.frame_bias = nn.Parameter(torch.randn(config.frames, dim) * dim**-0.5)
        if config.reads_root:
            self.token_norm = RmsNorm(dim, sizes.epsilon)
            self.token_proj = nn.Linear(dim, dim, bias=False)
        if config.form == "layer":
            self.input_layernorm = RmsNorm(dim, sizes.epsilon)
            self.self_attn = Attention(sizes, dim)
            self.post_attention_layernorm = RmsNorm(dim, sizes.epsilon)
            self.mlp = Mlp(sizes)
            self.deeper = nn.ModuleList(DecoderLayer(sizes) for _ in range(config.layers - 1))
        self.norm = RmsNorm(dim, sizes.epsilon)
        if config.has_blank:
            self.blank = nn.Parameter(torch.zeros(dim))
        if config.pairwise:
            self.pairwise = PairwiseTerm(dim, config.pairwise)

    def combine(
        self, features: Float[Tensor, "... rows reads dim"]
    ) -> Float[Tensor, "... rows dim"]:
        """Combine the target's states of all layers that it reads into one."""
        last = features[..., -1, :]
        if len(self.config.reads) == 1:
            return last
        parts = zip(self.fc_norm, features.unbind(-2), strict=True)
        return last + self.fc(torch.cat([norm(part) for norm, part in parts], dim=-1))

    def rows(
        self, states: Float[Tensor, "... rows dim"], embedded: Float[Tensor, "... rows dim"]
    ) -> Float[Tensor, "... rows dim"]:
        """Rows of the context: the target's states, and the tokens at the next places.

        Args:
            embedded: the target's embedding of these tokens; unused if the head reads no tokens.
        """
        if not self.config.reads_root:
            return states
        return states + self.token_proj(self.token_norm(embedded))

    def born(self, rows: Float[Tensor, "... dim"]) -> Float[Tensor, "... frames dim"]:
        """Frames of each row, before attention."""
        return torch.einsum("...i,foi->...fo", rows, self.frame_weight) + self.frame_bias

    def forward(
        self,
        context: Float[Tensor, "... context dim"],
        frames: Float[Tensor, "... frames dim"],
        positions: Int[Tensor, "... rows"],
        attend: AttentionRule,
    ) -> Float[Tensor, "... frames dim"]:
        """The states of frames that the output head reads.

        Args:
            context: new rows of the context, which give keys and values alone.
            frames: of one row or, one after the other, of several.
            positions: of the context's rows, then of the frames.
            attend: which rows see which, the context's first.
        """
        if self.config.form == "layer":
            layers: tuple[Any, ...] = (self, *self.deeper)
            for number, layer in enumerate(layers):
                normed = layer.input_layernorm(torch.cat([context, frames], dim=-2))
                seen = layer.self_attn(normed, positions, number, attend)
                frames = frames + seen[..., context.shape[-2] :, :]
                frames = frames + layer.mlp(layer.post_attention_layernorm(frames))
        return self.norm(frames)

    def log_probs(
        self, frames: Float[Tensor, "... frames dim"], head: Float[Tensor, "draft_vocab dim"]
    ) -> Float[Tensor, "... frames symbols"]:
        """Distributions of symbols: the draft vocabulary and, last, the blank.

        Args:
            frames: what ``forward`` gave.
            head: the target's output head for the draft vocabulary.
        """
        return self.symbols(frames, frames @ head.to(frames.dtype).T)

    def symbols(
        self, frames: Float[Tensor, "... frames dim"], logits: Float[Tensor, "... frames vocab"]
    ) -> Float[Tensor, "... frames symbols"]:
        """Distributions of symbols from the output head's logits."""
        if self.config.has_blank:
            blank = (frames @ self.blank)[..., None].to(logits.dtype)
            logits = torch.cat([logits, blank], dim=-1)
        return logits.float().log_softmax(-1)

    def pairs(
        self,
        embedded: Float[Tensor, "vocab dim"] | Float[np.ndarray, "vocab dim"],
        logits: Callable[[Float[Tensor, "rank dim"]], Float[Tensor, "rank vocab"]],
    ) -> Pairs | None:
        """The pairwise term of all draft tokens; None without one.

        Args:
            embedded: the draft vocabulary's embedding.
            logits: what the output head says of states.
        """
        if not self.config.pairwise:
            return None
        return self.pairwise.pairs(as_tensor(embedded).to(self.frame_weight.dtype), logits)

    def frames(self, probs: Any, pairs: Pairs | None, merges: bool = True) -> Frames:
        """The distribution of texts that the frames of one place are taken for.

        Args:
            probs: of each symbol in each frame [frames symbols], as array or tensor.
            pairs: what ``pairs`` gives.
            merges: False reads frames with a blank as they are.
        """
        return frames_of(self.config, probs, pairs, merges)

    def tree(self, probs: Any, pairs: Pairs | None, nodes: int) -> DraftTree:
        """Tree of the most probable prefixes of one place's frames, as the drafter grows it.

        Tokens are places in the draft vocabulary, and -1 is the root.
        """
        return likeliest_prefixes(self.frames(probs, pairs), nodes)

    def draft(
        self, cache: HeadCache, rows: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "frames dim"]:
        """States of the frames after the newest row of one text; the cache takes its new rows.

        Args:
            cache: of the rows before.
            rows: new rows, at least one.
        """
        before, new, frames = cache.length, len(rows), self.config.frames
        last = before + new
        positions = torch.arange(before, last + 1 + frames, device=rows.device)
        positions = positions[positions != last]
        attend = cache.attend(seen_by_frames(before, new, frames, self.config.window, rows.device))
        states = self(rows, self.born(rows[-1]), positions, attend)
        cache.keep(last)
        return states
