"""Insertion: tokens go between those that stand there already, into all gaps at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_diffusion.training.decoder import Sight, StreamDecoder


@dataclass(frozen=True)
class Insertion:
    """Training and writing by insertion (Stern et al. 2019, arXiv:1902.03249).

    A model that has learnt it writes n tokens in about log2(n) passes, as each gap takes the token
    in its middle. Differs from the paper: a gap is read from the row before it, which sees both
    sides.

    Attributes:
        begin: token behind the prompt, whose row is the first gap's.
        end: token that says that a gap stays empty.
        sharpness: of the middle of a gap; the paper's temperature of its balanced tree is its
            inverse.
    """

    begin: int
    end: int
    sharpness: float = 1.0

    def loss(
        self,
        decoder: StreamDecoder,
        prompts: Int[Tensor, "texts prompt"],
        texts: Int[Tensor, "texts places"],
        count: int,
        chance: torch.Generator,
    ) -> Tensor:
        """Mean cross-entropy of gaps, where ``count`` places of each text stand there already."""
        places = texts.shape[1]
        chosen = torch.rand(texts.shape, generator=chance).argsort(1)[:, :count]
        shown = chosen.sort(1).values
        logs = self._logs(decoder, prompts, texts.gather(1, shown))
        order = torch.arange(places).expand(len(texts), -1).contiguous()
        gap = torch.searchsorted(shown, order, right=True)  # of each place, were it missing
        ends = functional.pad(shown, (1, 0), value=-1), functional.pad(shown, (0, 1), value=places)
        middle = (ends[0] + ends[1]).gather(1, gap) / 2
        missing = torch.ones_like(order, dtype=torch.bool).scatter_(1, shown, False)
        near = (-(order - middle).abs() * self.sharpness).exp() * missing
        sums = torch.zeros(logs.shape[:2]).scatter_add_(1, gap, near)
        shares = near / sums.gather(1, gap).clamp(min=1e-9)
        losses = -logs.gather(1, gap[..., None].expand(-1, -1, logs.shape[2])).gather(
            2, texts[..., None]
        )
        stays_empty = -logs[..., self.end] * (sums == 0)
        return ((losses[..., 0] * shares).sum() + stays_empty.sum()) / logs[..., 0].numel()

    @torch.no_grad()
    def written(
        self, decoder: StreamDecoder, prompt: Int[Tensor, " prompt"], most: int, longest: int
    ) -> tuple[list[int], int]:
        """Text behind a prompt, and its passes: every gap takes its likeliest token in each.

        Args:
            most: passes at most.
            longest: tokens of a right text at most; none is taken away, so a longer one ends here.
        """
        text = list[int]()
        for passes in range(1, most + 1):
            logs = self._logs(decoder, prompt[None], torch.tensor([text], dtype=torch.long))
            found = logs[0].argmax(-1).tolist()
            if all(token == self.end for token in found):
                return text, passes
            pairs = zip(found, [*text, self.end], strict=True)
            text = [token for pair in pairs for token in pair if token != self.end]
            if len(text) > longest:
                return text, passes
        return text, most

    def _logs(
        self, decoder: StreamDecoder, prompts: Tensor, shown: Tensor
    ) -> Float[Tensor, "texts gaps vocab"]:
        """Log-probabilities of what goes into each gap."""
        begin = torch.full((len(prompts), 1), self.begin)
        rows = torch.cat([prompts, begin, shown], dim=1)
        every = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool)
        states = decoder(rows[:, None], Sight(every, every))[:, 0, prompts.shape[1] :]
        return decoder.logits(states).float().log_softmax(-1)
