"""Block efficiency for little: only the nodes that are read are run, and many texts share each run.

The engine, the drafters and the verifiers are the library's own. Rules that walk from the root read the target's
distribution at the accepted nodes alone, so these nodes are run when they are asked for, and the sequences under way
share one padded run. Rules that read the leaves first (traversal) get whole trees. The texts are those of ordinary
decoding; times mean nothing.
"""

from collections.abc import Callable, Sequence

import torch
from greenlet import getcurrent, greenlet

from draftwood.bench.cells import Cell
from draftwood.drafters import DraftModel, Nothing
from draftwood.engine import Options, generate
from draftwood.models.base import Keep, Output, Run
from draftwood.models.session import Part, PooledSession
from draftwood.models.transformers import TransformersModel
from draftwood.stats import Step
from draftwood.tree import DraftTree
from draftwood.verifiers import Traversal


def decode_together(
    target: object,
    draft: object,
    cell: Cell,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Options],
    whole_trees: bool = False,
) -> list[list[Step]]:
    """Decode every prompt plainly or by a method with a draft model; for each the steps, without sensible times.

    Args:
        target: a causal language model of Transformers.
        draft: another one, of the same vocabulary.
        cell: which shape and verifier; without a shape nothing is drafted.
        prompts: token ids.
        options: for each prompt.
        whole_trees: run every node of every tree in any case.
    """
    together = Together()
    whole = whole_trees or isinstance(cell.rule, Traversal)
    model = (Shared if whole else Thrifty)(target, together)
    drafter = Nothing() if cell.tree is None else DraftModel(Shared(draft, together), cell.tree)
    found: list[list[Step]] = [[] for _ in prompts]

    def task(number: int) -> Callable[[], None]:
        return lambda: found[number].extend(generate(model, drafter, cell.rule, prompts[number], options[number]))

    with torch.no_grad():
        together.run([task(number) for number in range(len(prompts))])
    return found


class Together:
    """Runs several tasks in turns on one thread and merges the model runs they wait for into padded batches."""

    def __init__(self) -> None:
        self.waiting: dict[greenlet, tuple[Shared, Part]] = {}
        self.scheduler = getcurrent()

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run the tasks to their ends; an error of one ends all."""
        ready: list[tuple[greenlet, Output | None]] = [(greenlet(task), None) for task in tasks]
        while ready:
            for task, answer in ready:
                task.switch() if answer is None else task.switch(answer)
            ready = self._serve() if self.waiting else []

    def wait(self, model: "Shared", part: Part) -> Output:
        """Called by a task: the output of a run of this model over this part."""
        self.waiting[getcurrent()] = (model, part)
        return self.scheduler.switch()

    def _serve(self) -> list[tuple[greenlet, Output | None]]:
        """One run, of the cheaper model if any task waits for it, so that runs of the dear one serve many."""
        model = min({model for model, _ in self.waiting.values()}, key=lambda candidate: candidate.size)
        tasks = [task for task, (wanted, _) in self.waiting.items() if wanted is model]
        tasks.sort(key=lambda task: self.waiting[task][1].place.slot)
        parts = [self.waiting.pop(task)[1] for task in tasks]
        return list(zip(tasks, TransformersModel.run(model, parts), strict=True))


class Shared(TransformersModel):
    """A model whose runs are merged with those of the other tasks."""

    def __init__(self, hf_model: object, together: Together) -> None:
        super().__init__(hf_model)  # type: ignore[arg-type]
        self.together = together
        self.size = sum(parameter.numel() for parameter in hf_model.parameters())  # type: ignore[attr-defined]

    def run(self, parts: Sequence[Part], keep: Keep = "all", hidden: Sequence[int] = ()) -> list[Output]:
        if len(parts) > 1:
            return super().run(parts, keep, hidden)
        output = self.together.wait(self, parts[0])
        return [Output(output.logits[-1:] if keep == "last" else output.logits)]


class Thrifty(Shared):
    """A target that runs a node when its distribution is asked for."""

    def start(self) -> PooledSession:
        return ThriftySession(self)

    def forward(self, runs: Sequence[Run], hidden: Sequence[int] = ()) -> list[Output]:
        return [Output(RowsOnDemand(run.session, run.tree)) for run in runs]  # type: ignore[arg-type]


class ThriftySession(PooledSession):
    def commit(self, path: Sequence[int]) -> None:
        """The accepted nodes were run one after the other, so they are in the cache already."""


class RowsOnDemand:
    """Logits by node, for verifiers that read a node only after its parent was accepted."""

    def __init__(self, session: ThriftySession, tree: DraftTree) -> None:
        self.session, self.tree, self.depth = session, tree, -1

    def cpu(self) -> "RowsOnDemand":
        return self

    def __getitem__(self, rows: slice) -> torch.Tensor:
        depth = len(self.tree.path_to(rows.start))
        if depth != self.depth + 1:
            raise RuntimeError("this verifier does not walk from the root; run whole trees")
        self.depth = depth
        return self.session.extend([self.tree.token_list[rows.start]]).logits
