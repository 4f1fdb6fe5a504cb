"""Ends of requests: closed, dropped, failed or interrupted, they leave nothing in the cache."""

import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar
from weakref import ref

import pytest
import torch

import draftwood
from draftwood import methods
from draftwood.drafters import DraftModel, Nothing
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Options, Sequence, generate_batch
from draftwood.methods import Method
from draftwood.models.model import ForwardInput, Layers
from draftwood.sampling import Context
from draftwood.shapes import Widths
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from letters import letters

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"
PROMPT = [5, 9, 5, 9, 5, 9, 7]


@pytest.fixture
def lm() -> LanguageModel:
    target = LeanModel(tiny_llama())
    return LanguageModel(target, letters(LETTERS), methods.build("plain", target), "tiny")


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Whatever is freed here is freed because nothing refers to it, not because the collector
    happened to run.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_loop_that_is_left_keeps_nothing(lm: LanguageModel) -> None:
    for _ in lm.stream(PROMPT, max_new_tokens=20):
        assert lm.model.pool.used == {0}
        break
    assert not lm.model.pool.used


@pytest.mark.usefixtures("without_collector")
def test_a_stream_that_was_never_read_holds_nothing(lm: LanguageModel) -> None:
    stream = lm.stream(PROMPT, max_new_tokens=20)
    assert not lm.model.pool.used
    stream.close()
    assert list(stream) == []
    assert stream.result.token_ids == []


def test_a_closed_stream_is_over_and_keeps_its_text(lm: LanguageModel) -> None:
    whole = lm.generate(PROMPT, max_new_tokens=20).token_ids
    stream = lm.stream(PROMPT, max_new_tokens=20)
    pieces = [next(stream), next(stream), next(stream)]
    stream.close()
    assert not lm.model.pool.used
    stream.close()
    assert list(stream) == []
    assert stream.result.token_ids == whole[:3]
    assert stream.result.text == "".join(pieces)


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_tokens_that_are_asked_to_end_a_text_do(lm: LanguageModel, ignore_eos: bool) -> None:
    """``ignore_eos`` is about the model's own end."""
    wanted = lm.generate(PROMPT, max_new_tokens=20, temperature=0.0).token_ids
    end = wanted[4]
    stream = lm.stream(
        PROMPT, ends={end}, max_new_tokens=20, temperature=0.0, ignore_eos=ignore_eos
    )
    for _ in stream:
        pass
    assert list(stream.result.token_ids) == list(wanted[: wanted.index(end) + 1])
    assert stream.result.finish_reason == "stop"


def test_a_stream_ends_with_its_block(lm: LanguageModel) -> None:
    with lm.stream(PROMPT, max_new_tokens=20) as stream:
        next(stream)
        assert lm.model.pool.used == {0}
    assert not lm.model.pool.used
    assert len(stream.result.token_ids) == 1


def test_another_thread_may_close_a_stream_in_the_middle_of_a_step(lm: LanguageModel) -> None:
    stepping, closed = threading.Event(), threading.Event()

    class Waiting(Match):
        def __call__(self, tree, target, rng):
            stepping.set()
            assert closed.wait(10)
            return super().__call__(tree, target, rng)

    stream = lm.with_method(Method(Nothing(), Waiting())).stream(PROMPT, max_new_tokens=20)
    other = threading.Thread(target=lambda: (stepping.wait(10), stream.close(), closed.set()))
    other.start()
    assert len(list(stream)) == 2  # the prompt's token, and the step that was under way
    other.join()
    assert not lm.model.pool.used


@dataclass(frozen=True)
class Breaking(Drafter):
    """A drafter with a model of its own that raises at one of its acts."""

    name: ClassVar[str] = "breaking"
    inner: DraftModel
    act: str
    error: type[BaseException]

    def start(self, request: DraftRequest) -> DraftSession:
        session = _BreakingSession(self, self.inner.start(request))
        session.reach("start")
        return session


class _BreakingSession(DraftSession):
    def __init__(self, config: Breaking, inner: DraftSession) -> None:
        self.config, self.inner, self.updates = config, inner, 0

    def reach(self, act: str) -> None:
        if act == self.config.act:
            raise self.config.error(act)

    def propose(self, root: int, context: Context) -> DraftTree:
        tree = self.inner.propose(root, context)
        self.reach("propose")
        return tree

    def update(self, accepted: VerifiedTree) -> None:
        self.updates += 1
        self.inner.update(accepted)
        self.reach("prefill" if self.updates == 1 else "settle")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("act", ["start", "prefill", "propose", "forward", "settle"])
def test_a_failure_leaves_no_slot_taken(
    act: str, error: type[BaseException], lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = TransformersModel(tiny_llama(seed=1, layers=1))
    method = Method(Breaking(DraftModel(draft, Widths((2, 1))), act, error), Match())
    if act == "forward":

        def broken(*_: object) -> None:
            raise error(act)

        monkeypatch.setattr(lm.model, "forward", broken)
    sequences = [
        Sequence(lm.model, method.drafter, method.verifier, PROMPT, Options()) for _ in range(3)
    ]
    with pytest.raises(error, match=act) as batch:
        list(generate_batch(sequences))
    with pytest.raises(error, match=act) as single:
        lm.with_method(method).generate(PROMPT)
    # the frames are still there, and with them all that they refer to
    assert all((batch.tb, single.tb))
    assert not lm.model.pool.used
    assert not draft.pool.used


def test_the_hook_leaves_no_slot_taken_when_a_criterion_raises() -> None:
    model, draft = tiny_llama(), tiny_llama(seed=1, layers=1)
    pools = []
    real = TransformersModel.start

    def noted(self: TransformersModel) -> object:
        pools.append(self.pool)
        return real(self)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersModel, "start", noted)
        with pytest.raises(ZeroDivisionError) as caught:
            model.generate(
                torch.tensor([PROMPT]),
                custom_generate=draftwood.custom_generate("rsd-s", draft_model=draft),
                stopping_criteria=[broken],
                max_new_tokens=9,
            )
    assert caught.tb
    assert len(set(pools)) == 2
    assert not any(pool.used for pool in pools)


@pytest.mark.parametrize("method", ["plain", "layer-skip", "rsd-s", "auto"])
def test_the_hook_keeps_no_model(method: str) -> None:
    model = tiny_llama(layers=4)
    draft = tiny_llama(seed=1, layers=1) if method == "rsd-s" else None
    hook = draftwood.custom_generate(method, draft_model=draft)
    texts = [
        model.generate(torch.tensor([PROMPT]), custom_generate=hook, max_new_tokens=9)
        for _ in range(2)
    ]
    assert torch.equal(*texts)
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


def copies_of(lm: LanguageModel) -> dict[str, object]:
    session = lm.model.start()
    general = TransformersModel(tiny_llama())
    return {
        "LanguageModel": lm,
        "LeanModel": lm.model,
        "TransformersModel": general,
        "PooledSession": session,
        "Stream": lm.stream(PROMPT),
    }


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize(
    "name", ["LanguageModel", "LeanModel", "TransformersModel", "PooledSession", "Stream"]
)
def test_what_lives_in_a_process_is_not_copied(
    name: str, act: Callable[[object], object], lm: LanguageModel
) -> None:
    with pytest.raises(
        TypeError,
        match=f"{name} cannot be pickled or copied.*in another process load the model again",
    ):
        act(copies_of(lm)[name])


def test_a_closed_session_is_refused(lm: LanguageModel) -> None:
    session, skipped = lm.model.start(), Layers(without_mlp=frozenset({0}))
    session.extend(PROMPT)
    session.close()
    for act in (
        lambda: session.extend([1]),
        lambda: session.forward(DraftTree.chain([1])),
        lambda: session.commit([0]),
        lambda: session.rewind(1),
        lambda: lm.model.forward([ForwardInput(session, DraftTree.chain([1]), layers=skipped)]),
        lambda: session.fork(),
    ):
        with pytest.raises(ValueError, match="session that is closed; start another one"):
            act()
