"""A head that learns beside decoding: texts stay, rows are the target's, only better heads stay."""

import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import engine, methods
from draftwood.drafters import Eagle
from draftwood.engine import Options
from draftwood.engine.executors import native
from draftwood.engine.executors.native import NativeSteps
from draftwood.engine.scheduler import run_all
from draftwood.heads.trained import TrainedHead
from draftwood.learning import learner as learners
from draftwood.learning import watching
from draftwood.learning.folder import LearningFolder
from draftwood.learning.idle import EndedError, IdleGate
from draftwood.learning.learner import is_better
from draftwood.learning.learning import Learning
from draftwood.learning.texts import WatchedText
from draftwood.methods import Method
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.optional import install_command
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Step
from draftwood.testing import distance, outcomes, tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection
from letters import letters
from tiny_heads import tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [9, 2, 9], [1] * 40)


@dataclass
class ScriptedLearner:
    """Gives a new random head in each round, and the figures of a script when it judges."""

    target: NativeModel
    gains: list[float]
    steps: int = 0
    error: str | None = None

    def train(self, head: Any, new: Any, old: Any, pause: Callable[[], None]) -> Any:
        pause()
        if self.error is not None:
            raise ValueError(self.error)
        self.steps += 1
        return tiny_eagle(self.target, range(self.target.vocab_size), seed=self.steps).weights

    def judge(self, head: Any, texts: Any, pause: Callable[[], None]) -> Any:
        self.gains.append(self.gains.pop(0))
        return np.full((4, 2), self.gains[-1])


class User:
    """Holds a method, as a language model does."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def adopt(self, trained: TrainedHead) -> None:
        self.method = replace(self.method, drafter=self.method.drafter.with_head(trained))


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=6), "float32")


@pytest.fixture
def trained(target: NativeModel) -> TrainedHead:
    return tiny_eagle(target, range(target.vocab_size))


def a_learning(target: NativeModel, trained: TrainedHead, *gains: float, **more: Any) -> Learning:
    given = ScriptedLearner(target, list(gains) or [0.0, 1.0])
    return Learning(target, trained, given, **{"round_rows": 10**9, "least_judged": 1, **more})


def text_of(
    target: NativeModel,
    method: Method,
    prompt: Sequence[int],
    temperature: float,
    learning: Learning | None = None,
    tokens: int = 40,
) -> engine.Sequence:
    watch = None if learning is None else learning.watch
    options = Options(Sampling(temperature), tokens, seed=3, watch=watch)
    return engine.Sequence(target, method.drafter, method.verifier, prompt, options)


def written(text: engine.Sequence) -> list[int]:
    return [token for _, step in run_all([text]) for token in step.tokens]


@pytest.mark.parametrize("name", ["auto", "eagle", "eagle-rsd"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_stay_while_heads_change_between_them(
    name: str, temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    user = User(methods.build(name, target, head=trained))
    wanted = [written(text_of(target, user.method, each, temperature)) for each in PROMPTS]
    learning = a_learning(target, trained)
    learning.follow(user)
    for prompt, said in zip(PROMPTS, wanted, strict=True):
        method = user.method
        found = written(text_of(target, method, prompt, temperature, learning))
        # drawn drafts take part in the draws
        if name != "eagle-rsd" or temperature == 0.0 or prompt is PROMPTS[0]:
            assert found == said
        learning.catch_up()
    assert learning.status.texts == len(PROMPTS)
    assert learning.status.swaps == len(PROMPTS) - 1  # the newest text alone is held out
    assert user.method.drafter.learnable is learning.trained is not trained
    learning.close()


@pytest.mark.parametrize("name", ["auto", "eagle"])
def test_rows_are_the_target_s_states_and_distributions(
    name: str, target: NativeModel, trained: TrainedHead
) -> None:
    method, learning = methods.build(name, target, head=trained), a_learning(target, trained)
    prompt = PROMPTS[2]
    steps = [step for _, step in run_all([text_of(target, method, prompt, 0.0, learning)])]
    (text,) = learning.buffer.texts
    said = [*prompt, *(token for step in steps for token in step.tokens)]
    rows = len(text.tokens)
    assert text.answer == 32
    assert text.tokens.tolist() == said[8 : 8 + rows]
    assert rows == len(said) - 8 - 1  # the newest token was not run
    config: Any = trained.config
    reads = config.reads
    own = target.start().extend(said, hidden=(*reads, target.layers))
    states, final = text.part(0, rows)
    for place, layer in enumerate(reads):
        true = own.states(layer)[8 : 8 + rows].numpy()
        assert np.abs(states[:, place] - true).max() <= 0.01 * np.abs(true).max()
    true = own.states(target.layers)[40 : 8 + rows].numpy()
    assert np.abs(final[32:] - true).max() <= 0.01 * np.abs(true).max()
    logits = target.embeddings_and_head.logits(torch.from_numpy(final[32:]), normed=True)
    assert (logits.argmax(-1) == torch.tensor(said[41:])).float().mean() > 0.9  # of 16 bits
    assert not final[:32].any()
    assert text.rejected.sum() == sum(_is_rejected(step) for step in steps[1:])
    assert text.rejected[32:].any()
    assert not text.rejected[:32].any()


@pytest.mark.parametrize("name", ["auto", "eagle"])
def test_rows_are_the_same_in_steps_in_a_row_and_beside_other_texts(
    name: str, target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, made, commit = methods.build(name, target, head=trained), [0], NativeSteps.commit

    def counted(self: NativeSteps, *given: Any) -> Any:
        steps = commit(self, *given)
        made[0] = max(made[0], len(steps))
        return steps

    def watched(prompts: Sequence[Sequence[int]], in_a_row: int) -> list[WatchedText]:
        monkeypatch.setattr(native, "IN_A_ROW", in_a_row)
        made[0], learning = 0, a_learning(target, trained)
        texts = [text_of(target, method, each, 0.0, learning) for each in prompts]
        for text in texts:
            text.tell_within = 60.0
        for _ in run_all(texts):
            pass
        assert (made[0] > 1) == (in_a_row > 1)
        return learning.buffer.texts

    monkeypatch.setattr(NativeSteps, "commit", counted)
    singly, in_a_row = (
        [each for prompt in PROMPTS for each in watched([prompt], most)] for most in (1, 8)
    )
    for found in (in_a_row, watched(PROMPTS, 8)):
        assert len(found) == len(PROMPTS)
        # whether a head that rests reads the prompt goes by its time
        pairs = zip(*(sorted(map(_of_answer, each)) for each in (found, singly)), strict=True)
        assert all(one == other for one, other in pairs)


def _of_answer(text: WatchedText) -> tuple[list[int], bytes, bytes]:
    """Tokens, states and final states of the answer's rows."""
    rows = slice(text.answer, None)
    return text.tokens[rows].tolist(), text.states[rows].tobytes(), text.final[rows].tobytes()


def _is_rejected(step: Step) -> bool:
    newest = step.path[-1] if step.path else 0
    assert step.tree is not None
    return len(step.tree) == 1 or newest in step.tree.parent_list


def test_a_text_under_way_keeps_its_head(target: NativeModel, trained: TrainedHead) -> None:
    user = User(methods.build("eagle", target, head=trained))
    alone = [step.tree for _, step in run_all([text_of(target, user.method, PROMPTS[0], 0.0)])]
    learning = a_learning(target, trained, gate=IdleGate(0.0))
    learning.follow(user)
    for prompt in PROMPTS[:2]:
        written(text_of(target, user.method, prompt, 0.0, learning))
    before = user.method
    running = run_all([text_of(target, before, PROMPTS[0], 0.0)])
    trees = [next(running)[1].tree for _ in range(4)]
    learning.catch_up()
    assert user.method is not before
    trees += [step.tree for _, step in running]
    assert [tokens_of(each) for each in trees] == [tokens_of(each) for each in alone]
    new = [step.tree for _, step in run_all([text_of(target, user.method, PROMPTS[0], 0.0)])]
    assert [tokens_of(each) for each in new] != [tokens_of(each) for each in alone]


def tokens_of(tree: DraftTree | None) -> list[int]:
    return [] if tree is None else tree.token_list


class FromAnotherHead(Eagle):
    """Draws with one head, and tells the verifier the probabilities of another."""

    def start(self, request: Any) -> Any:
        session = super().start(request)
        row = torch.randn(4, generator=torch.Generator().manual_seed(0)).softmax(-1).numpy()
        propose = session.propose

        def planted(root: int, context: Any) -> DraftTree:
            tree = propose(root, context)
            return replace(tree, rows=None, probs=np.tile(row, (len(tree), 1)))

        session.propose = planted  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize(("drafter", "holds"), [(Eagle, True), (FromAnotherHead, False)])
def test_the_distribution_holds_with_a_head_that_took_over(
    drafter: type[Eagle], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every outcome of a text behind two others, from which its head follows."""
    target = NativeModel(tiny_llama(2, layers=6, vocab=4), "float32")
    first = tiny_eagle(target, range(4))
    user = User(Method(drafter(first, target, Widths((2,))), Rejection()))
    learning = a_learning(target, first)
    learning.follow(user)
    for prompt in ([1, 2, 3], [3, 2, 1]):
        written(text_of(target, user.method, prompt, 1.0, learning))
    learning.catch_up()
    assert user.method.drafter.learnable is not first

    def write(rng: Rng) -> tuple[int, ...]:
        monkeypatch.setattr("draftwood.engine.sequence.Rng", lambda seed, noise: rng)
        return tuple(written(text_of(target, user.method, [1, 2, 3], 1.0, learning, tokens=3)))

    found: dict[tuple[int, ...], float] = {}
    for probability, tokens in outcomes(write):
        found[tokens] = found.get(tokens, 0.0) + probability
    assert (distance(found, chances(target, [1, 2, 3], 3)) < 1e-4) is holds


def chances(target: NativeModel, prompt: list[int], count: int) -> dict[tuple[int, ...], float]:
    """The target's own probabilities of all texts of ``count`` tokens."""
    if not count:
        return {(): 1.0}
    row = target.start().extend(prompt).logits[-1].double().softmax(-1).tolist()
    rest = [chances(target, [*prompt, token], count - 1) for token in range(len(row))]
    return {
        (token, *more): chance * p
        for token, chance in enumerate(row)
        for more, p in rest[token].items()
    }


def test_weights_that_are_not_better_are_dropped(target: NativeModel, trained: TrainedHead) -> None:
    user = User(methods.build("auto", target, head=trained))
    learning = a_learning(target, trained, 0.5, 0.4)
    learning.follow(user)
    for prompt in PROMPTS:
        written(text_of(target, user.method, prompt, 0.0, learning))
    learning.catch_up()
    learning.catch_up()  # nothing came since
    assert (learning.status.swaps, learning.status.drops, learning.status.steps) == (0, 1, 1)
    assert user.method.drafter.learnable is trained


def test_who_comes_while_a_head_takes_over_has_it(
    target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (User(methods.build("auto", target, head=trained)) for _ in range(2))
    learning = a_learning(target, trained)
    learning.follow(first)
    monkeypatch.setattr(first, "adopt", lambda head: learning.follow(second))
    new = tiny_eagle(target, range(target.vocab_size), seed=5)
    learning._swap(new)
    assert second.method.drafter.learnable is new


def test_better_means_more_overlap_and_no_fewer_first_tokens() -> None:
    def figures(*rows: tuple[float, float]) -> np.ndarray:
        return np.array(rows)

    before = figures((0.4, 1), (0.4, 0))
    assert is_better(before, figures((0.5, 1), (0.49, 0)))
    assert not is_better(before, figures((0.5, 1), (0.4, 0)))  # may be chance
    assert not is_better(before[:1], figures((0.5, 1)))
    assert not is_better(before, before)
    assert not is_better(before, figures((0.6, 0), (0.6, 0)))
    assert not is_better(before, figures((np.nan, 1), (0.6, 1)))
    assert not is_better(np.zeros((0, 2)), np.zeros((0, 2)))


@pytest.mark.parametrize(("errors", "least", "most"), [(learners.ERRORS, 0.0, 0.05), (0.0, 0.4, 1)])
def test_gains_of_chance_hardly_ever_take_over(
    errors: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control asks for any gain at all, however small."""
    monkeypatch.setattr(learners, "ERRORS", errors)
    drawn, taken = np.random.default_rng(0), 0
    for _ in range(500):
        before, after = drawn.uniform(size=(2, 128, 2))
        before[:, 1] = after[:, 1] = 0.0  # first tokens decide nothing
        taken += is_better(before, after)
    assert least <= taken / 500 <= most


def test_nothing_is_learnt_before_enough_is_held_out(
    target: NativeModel, trained: TrainedHead
) -> None:
    user = User(methods.build("auto", target, head=trained))
    learning = a_learning(target, trained, least_judged=60)
    for prompt in PROMPTS:
        written(text_of(target, user.method, prompt, 0.0, learning))  # 39 rows each
    learning.catch_up()
    assert learning.status.steps == 0
    written(text_of(target, user.method, PROMPTS[0], 0.0, learning, tokens=80))
    learning.catch_up()  # from what waited, too
    assert (learning.status.steps, learning.status.swaps) == (1, 1)


def test_the_thread_learns_when_nothing_runs(target: NativeModel, trained: TrainedHead) -> None:
    user = User(methods.build("eagle", target, head=trained))
    gate = IdleGate(0.01)
    with a_learning(target, trained, round_rows=40, gate=gate) as learning:
        learning.follow(user)
        gate.enter()
        for prompt in PROMPTS:
            written(text_of(target, user.method, prompt, 0.0, learning))
        assert learning.learner.steps == 0
        gate.leave()
        for _ in range(500):
            if learning.status.swaps:
                break
            time.sleep(0.01)
        assert learning.status.swaps == 1
    assert user.method.drafter.learnable is learning.trained


def test_texts_that_begin_at_once_start_one_thread(
    target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_learning(target, trained) as learning:
        started, begin = list[threading.Thread](), learning._started
        session: Any = None
        request: Any = SimpleNamespace(sampler=Sampling(1.0))

        def slowly() -> threading.Thread:
            time.sleep(0.05)
            started.append(begin())
            return started[-1]

        monkeypatch.setattr(learning, "_started", slowly)
        texts = [threading.Thread(target=learning.watch, args=(session, request)) for _ in range(4)]
        for each in texts:
            each.start()
        for each in texts:
            each.join()
        assert len(started) == 1


def test_learning_ends_before_python_does(tmp_path: Path) -> None:
    script = tmp_path / "learns.py"
    script.write_text(
        "import atexit\n"
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from test_learning import *\n"
        "target = NativeModel(tiny_llama(0, layers=6), 'float32')\n"
        "trained = tiny_eagle(target, range(target.vocab_size))\n"
        "learning = a_learning(target, trained, gate=IdleGate(0.0), round_rows=1)\n"
        "atexit.register(lambda: print(learning._thread.is_alive()))\n"
        "method = methods.build('eagle', target, head=trained)\n"
        "print(len(written(text_of(target, method, PROMPTS[0], 0.0, learning))))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "40\nFalse\n"), done.stderr


def language_model(target: NativeModel, trained: TrainedHead) -> LanguageModel:
    return LanguageModel(target, letters(), methods.build("eagle", target, head=trained), "tiny")


def test_learning_ends_where_nobody_holds_it(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    gate = IdleGate(0.0)
    gate.enter()  # all that comes waits
    given: Any = {"learner": ScriptedLearner(target, [0.0]), "gate": gate}
    lm = language_model(target, trained)
    learning = lm.learn(tmp_path, **given)
    written(text_of(target, lm.method, PROMPTS[0], 0.0, learning))
    thread, left = learning._thread, weakref.ref(learning)
    assert thread is not None
    assert thread.is_alive()
    del lm, learning
    gc.collect()
    assert left() is None
    thread.join(10.0)
    assert not thread.is_alive()
    assert len(list((tmp_path / "texts").iterdir())) == 1
    LearningFolder(tmp_path, trained).close()  # others may have it


def test_another_call_ends_learning_and_goes_on_from_its_folder(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    lm = language_model(target, trained)
    given: Any = {"least_judged": 1, "round_rows": 10**9}
    first = lm.learn(tmp_path, learner=ScriptedLearner(target, [0.0, 1.0]), **given)
    for prompt in PROMPTS:
        written(text_of(target, lm.method, prompt, 0.0, first))
    first.catch_up()
    assert first.status.swaps == 1
    second = lm.learn(tmp_path, learner=ScriptedLearner(target, [0.0]), **given)
    assert lm.learning is second
    assert first._thread is not None
    assert not first._thread.is_alive()
    assert second.status.texts == len(PROMPTS)
    found, wanted = (each.trained.weights["fc.weight"] for each in (second, first))
    assert np.abs(found - wanted).max() < 0.01
    assert np.abs(found - trained.weights["fc.weight"]).max() > 0.01
    names = {each.name for each in (tmp_path / "texts").iterdir()}
    first.close()  # once more, and nothing of the folder changes
    assert {each.name for each in (tmp_path / "texts").iterdir()} == names
    third = lm.learn(learner=ScriptedLearner(target, [0.0]), **given)
    assert third.given is second.trained
    fourth = lm.learn(tmp_path, learner=ScriptedLearner(target, [0.0]), **given)
    assert fourth.given is trained
    assert np.abs(fourth.trained.weights["fc.weight"] - wanted).max() < 0.01
    other = tiny_eagle(target, range(target.vocab_size), seed=9)
    lm.adopt(other)
    with pytest.warns(UserWarning, match="was learnt from another one than is given now"):
        fifth = lm.learn(tmp_path, learner=ScriptedLearner(target, [0.0]), **given)
    assert fifth.given is other
    fifth.close()


def test_a_call_that_fails_leaves_learning_as_it_is(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    lm, learner = language_model(target, trained), ScriptedLearner(target, [0.0])
    (tmp_path / "text").write_text("something else")
    learning = lm.learn(tmp_path / "own", learner=learner)
    with pytest.raises(ValueError, match="something else than a learning buffer"):
        lm.learn(tmp_path, learner=learner)
    with pytest.raises(ValueError, match="memory must be at least 1, got 0"):
        lm.learn(learner=learner, memory=0)
    assert lm.learning is learning
    lm.generate(PROMPTS[0], max_new_tokens=20)
    assert learning.status.texts == 1
    learning.close()


@pytest.mark.parametrize("name", ["memory", "round_rows", "least_judged"])
def test_sizes_are_whole_numbers_above_zero(
    name: str, target: NativeModel, trained: TrainedHead
) -> None:
    for size, error in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"{name} must be "):
            a_learning(target, trained, **{name: size})


def test_an_interrupt_in_a_watched_step_reaches_the_caller(
    target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = language_model(target, trained)
    learning = lm.learn(learner=ScriptedLearner(target, [0.0]))
    states, left = watching.as_array, [0]

    def interrupted(given: Any) -> np.ndarray:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return states(given)

    monkeypatch.setattr(watching, "as_array", interrupted)
    for count in range(41, 45):  # at each of the states of a step
        left[0] = count
        with pytest.raises(KeyboardInterrupt):
            lm.generate([1, 2, 3], max_new_tokens=200)
    assert learning.status.texts == 4  # of the steps before
    assert learning.gate._running == 0
    learning.close()


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_texts_under_a_grammar_keep_their_temperature(
    temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    lm = language_model(target, trained)
    lm.tokenizer.eos_token = "."  # type: ignore[attr-defined]
    learning = lm.learn(learner=ScriptedLearner(target, [0.0]))
    for grammar in (None, "start: /[a-z]{20,30}/"):
        lm.generate("ab", grammar=grammar, max_new_tokens=20, temperature=temperature, seed=1)
    assert [text.temperature for text in learning.buffer.texts] == 2 * [temperature]
    learning.close()


def test_texts_of_a_sampler_without_a_temperature_are_not_watched(
    target: NativeModel, trained: TrainedHead
) -> None:
    learning, session = a_learning(target, trained), Eagle(trained, target)
    other: Any = SimpleNamespace(sampler=SimpleNamespace(greedy=False))
    given: Any = session
    assert learning.watch(given, other) is session


def test_a_text_that_the_garbage_collector_ends_waits_for_no_lock(
    target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It collects while a thread starts, and while the buffer drops a text."""
    lm = language_model(target, trained)
    learning = lm.learn(learner=ScriptedLearner(target, [0.0]), memory=100_000)
    started, drawn = learning._started, learning.buffer._random.randrange

    def abandoned() -> None:
        cycle = list[Any]()
        cycle.extend((cycle, lm.stream(PROMPTS[0], max_new_tokens=200)))
        for _ in range(6):
            next(cycle[1])

    def collecting(act: Callable[..., Any]) -> Callable[..., Any]:
        def collected(*given: Any) -> Any:
            gc.collect()
            return act(*given)

        return collected

    def write() -> None:
        for _ in range(20):
            abandoned()
            learning._thread = None
            lm.generate(PROMPTS[0], max_new_tokens=40)

    monkeypatch.setattr(learning, "_started", collecting(started))
    monkeypatch.setattr(learning.buffer._random, "randrange", collecting(drawn))
    writing = threading.Thread(target=write, daemon=True)
    gc.disable()
    try:
        writing.start()
        writing.join(60.0)
    finally:
        gc.enable()
    assert not writing.is_alive()
    buffer = learning.buffer
    assert not buffer.largest_missed
    assert buffer.is_full
    assert buffer.memory == sum(text.memory for text in buffer.texts) <= buffer.limit


def test_a_gate_lets_nobody_through_while_anything_runs() -> None:
    gate = IdleGate(0.0)
    gate.pause()
    gate.enter()
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (gate.pause(), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    gate.leave()
    assert passed.wait(5.0)
    waiting.join()
    gate.close()
    with pytest.raises(EndedError):
        gate.pause()


def test_a_learner_that_fails_ends_learning_with_one_line(
    target: NativeModel, trained: TrainedHead
) -> None:
    user = User(methods.build("eagle", target, head=trained))
    wanted = written(text_of(target, user.method, PROMPTS[0], 0.0))
    learning, lines = a_learning(target, trained), list[str]()
    learning.learner.error = "its loss is no number"  # type: ignore[attr-defined]
    learning.say = lines.append
    learning.follow(user)
    for prompt in PROMPTS:
        written(text_of(target, user.method, prompt, 0.0, learning))
    learning.catch_up()
    assert lines == ["the head learns no more: its loss is no number"]
    assert learning.status.error == lines[0]
    assert written(text_of(target, user.method, PROMPTS[0], 0.0, learning)) == wanted
    assert learning.status.texts == len(PROMPTS)  # no further ones are watched


def test_a_missing_trainer_is_named(
    target: NativeModel, trained: TrainedHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "entry_points", lambda group: ())
    with pytest.raises(ImportError, match=f"{re.escape(install_command('draftwood-train'))}$"):
        Learning(target, trained)
