"""Texts whose answers a draft LM wrote, with what the target says of them.

Training on these is on-policy distillation: the LM learns where its own drafts lead (DistillSpec,
Zhou et al. 2024, arXiv:2310.08461). The target's states are computed when a text is read. Differs
from the paper: texts are written once before a training, not anew in each of its steps.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.heads.kinds import require_kind
from draftwood.heads.lm import LmConfig
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.tree import DraftTree
from draftwood_torch.heads.placed import placed
from draftwood_torch.heads.texts import LmText
from draftwood_train.data.dataset import Dataset, Split, Texts
from draftwood_train.data.states import states_of
from draftwood_train.data.texts import StoredText


class DraftedTexts(Sequence[StoredText]):
    """Texts with drafted answers, told as those of a data set.

    Args:
        rows: tokens of each text, and the place of its answer.
        layers: whose states are read.
        model: the target.
    """

    def __init__(
        self, rows: Sequence[tuple[Sequence[int], int]], layers: tuple[int, ...], model: Model
    ) -> None:
        self._rows, self._layers, self._model = rows, layers, model

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> StoredText: ...

    @overload
    def __getitem__(self, index: slice) -> "DraftedTexts": ...

    def __getitem__(self, index: int | slice) -> "StoredText | DraftedTexts":
        if isinstance(index, slice):
            return DraftedTexts(self._rows[index], self._layers, self._model)
        tokens, answer = self._rows[index]
        read = torch.tensor(tokens)
        states, normalizers = states_of(self._model, read, self._layers)
        return StoredText(read, answer, False, "drafted", states, normalizers)

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens, _ in self._rows]

    @property
    def answers(self) -> list[int]:
        return [answer for _, answer in self._rows]

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts together."""
        return sum(self.lengths)


class DraftedDataset(Dataset):
    """A data set whose training texts have drafted answers; the held-out ones stay the target's.

    Args:
        whole: the data set that the prompts come from.
        path: of a file that ``write_answers`` wrote.
    """

    def __init__(self, whole: Dataset, path: Path) -> None:
        super().__init__(whole.manifest, whole.shards, whole.model)
        self.rows = read_answers(path)

    def texts(self, split: Split) -> "Texts | DraftedTexts":  # type: ignore[override]
        """The texts of a split."""
        if split == "held-out":
            return super().texts(split)
        if self.model is None:
            raise ValueError("states of drafted answers come from the target; hand it over")
        return DraftedTexts(self.rows, self.layers, self.model)


def read_answers(path: Path) -> list[tuple[list[int], int]]:
    """Tokens of each text, and the place of its answer; an unfinished last line is left out."""
    if not path.is_file():
        return []
    lines = path.read_text().splitlines(keepends=True)
    told = (json.loads(line) for line in lines if line.endswith("\n"))
    return [(row["tokens"], row["answer"]) for row in told]


def write_answers(path: Path, texts: Texts, trained: TrainedHead, model: Model, tokens: int) -> int:
    """Let a draft LM answer the prompts of texts until there are so many tokens; goes on if begun.

    Args:
        path: of a file of JSON lines.
        texts: whose prompts are taken, in their order, and the lengths of whose answers bound the
            new ones; a text's number is the seed of its draws at temperature 1.

    Returns:
        Tokens that there are now.

    Raises:
        ValueError: for another kind of drafter, and where there are fewer prompts.
    """
    known = read_answers(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(_line, known)))
    written = sum(len(row) for row, _ in known)
    for number in range(len(known), len(texts)):
        if written >= tokens:
            break
        text = texts[number]
        prompt, most = text.tokens[: text.answer].tolist(), len(text.tokens) - text.answer
        drawn = torch.Generator().manual_seed(number)
        whole = [*prompt, *answers(trained, model, prompt, most, drawn)]
        with path.open("a") as file:
            file.write(_line((whole, len(prompt))))
        written += len(whole)
    if written < tokens:
        raise ValueError(f"all {len(texts)} prompts give {written:,} tokens; ask for no more")
    return written


def _line(row: tuple[Sequence[int], int]) -> str:
    return json.dumps({"tokens": list(row[0]), "answer": row[1]}) + "\n"


@torch.no_grad()
def answers(
    trained: TrainedHead, model: Model, prompt: Sequence[int], most: int, drawn: torch.Generator
) -> Iterator[int]:
    """Draw an answer from a draft LM at temperature 1, to its end or ``most`` tokens."""
    require_kind(trained.config, LmConfig, "on-policy data")
    head = placed(trained, model)
    text = LmText(head.network, model.embeddings_and_head, head.logits)
    text.take(prompt[:-1], {}, ())
    token = prompt[-1]
    for _ in range(most):
        logits: Float[Tensor, "1 vocab"] = text.level(DraftTree.of([token], [-1]), 0)
        text.take([token], {}, ())
        place = torch.multinomial(logits[0].float().softmax(-1).cpu(), 1, generator=drawn)
        token = int(trained.draft_tokens[place])
        yield token
        if token in model.end_tokens:
            return
