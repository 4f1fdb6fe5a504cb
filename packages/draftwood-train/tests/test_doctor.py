"""The doctor names each planted fault, and calls a sound head sound."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data_models import TEMPLATE, target
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.trained import TrainedHead
from draftwood.native.formats import HeadSizes
from draftwood.text.language_model import LanguageModel
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.tensors import as_tensor
from draftwood_train.by_kind import MEAN, KindFigures
from draftwood_train.card import TITLE, Promises, table_of
from draftwood_train.data.states import in_bytes, states_of
from draftwood_train.data.texts import StoredText
from draftwood_train.doctor.differences import Drafted
from draftwood_train.doctor.examination import Examination, examine, table
from draftwood_train.doctor.head import neighbours, rows_of
from draftwood_train.doctor.replay import Replay, ReplayedStep, _compare, _judge, drafts
from draftwood_train.doctor.texts import HeldText, of_target
from draftwood_train.recipe import TargetWeights
from draftwood_train.recipes.eagle import EagleRecipe

LAYERS = (2, 3, 6)
READS = (2, 3)
KINDS = [
    KindFigures("a", 1, 10, 0.4, 0.2, 0.1, 0.6, 1.0),
    KindFigures("b", 1, 10, 0.8, 0.7, None, 0.6, 1.0),
    KindFigures(MEAN, 2, 20, 0.6, 0.45, None, 0.6, 1.0),
]
PROMPTS = ("abc def", "bad cab", "feed a cab", "gag hag", "deaf", "each bead", "beg a hedge")


@dataclass(frozen=True, eq=False)
class Case:
    """A target, texts that it wrote, and a head that learnt them."""

    lm: LanguageModel
    texts: list[HeldText]
    weights: TargetWeights
    trained: TrainedHead


def weights_of(lm: LanguageModel, tokens: Tensor) -> TargetWeights:
    model = lm.model
    both = model.embeddings_and_head.weights()
    index = torch.full((model.vocab_size,), -1)
    index[tokens] = torch.arange(len(tokens))
    sizes = HeadSizes(model.hidden_size, 2 * model.hidden_size, 2, 2, model.hidden_size // 2)
    embedding, head = as_tensor(both.embedding).float(), as_tensor(both.head).float()
    return TargetWeights(model.layers, sizes, embedding, head[tokens], tokens, index)


def written(lm: LanguageModel) -> list[HeldText]:
    """Texts drawn at temperature 1, which do not go round in circles."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        asked = lm.encode(prompt)
        made = lm.generate(prompt, max_new_tokens=40, temperature=1.0, seed=number, ignore_eos=True)
        tokens = torch.tensor([*asked, *made.token_ids])
        kept = in_bytes(*states_of(lm.model, tokens, LAYERS))
        text = StoredText(tokens, len(asked), False, "own", kept.floats(), kept.log_normalizer)
        found.append(HeldText(prompt, text, LAYERS))
    return found


def learnt(
    weights: TargetWeights, texts: list[HeldText], late: int = 0, reads: tuple[int, ...] = READS
) -> EagleHead:
    """A head that knows the texts by heart; with ``late`` from labels that many places on."""
    torch.manual_seed(0)
    head = EagleHead(EagleConfig(weights.sizes, reads=reads))
    optimiser = torch.optim.Adam(head.parameters(), 5e-3)
    rows = [rows_of(text.stored, [LAYERS.index(layer) for layer in reads], 2) for text in texts]
    for _ in range(250):
        for row in rows:
            step = next(EagleRecipe(noise=0.0)._unrolled(head, row, weights, 1))
            logits = (step.states[0] @ weights.head.T)[: -3 - late]
            labels = weights.draft_index[row.tokens[0, 2 + late :][: len(logits)]]
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return head.eval().requires_grad_(False)


def with_network(trained: TrainedHead, head: torch.nn.Module) -> TrainedHead:
    return TrainedHead.with_fingerprint(head, trained.draft_tokens, trained.target)


def trained_of(head: torch.nn.Module, tokens: Tensor, lm: LanguageModel) -> TrainedHead:
    return TrainedHead.of(head, tokens, lm.model, lm.name)


@pytest.fixture(scope="module")
def case() -> Case:
    lm = target(seed=3)
    tokens = torch.arange(lm.model.vocab_size)
    texts, weights = written(lm), weights_of(lm, tokens)
    return Case(lm, texts, weights, trained_of(learnt(weights, texts), tokens, lm))


def examined(case: Case, **changed: object) -> Examination:
    given: dict[str, Any] = {**vars(case), "coverage": None, **changed}
    found = (given["trained"], given["lm"], given["texts"], given["weights"])
    return examine(*found, Promises(listed={"coverage": 1.0}), given["coverage"])


def faults(found: Examination) -> list[str]:
    return [each.fault for each in found.findings]


def changed(texts: list[HeldText], change: Callable[[StoredText], StoredText]) -> list[HeldText]:
    return [replace(text, stored=change(text.stored)) for text in texts]


def test_a_sound_head_is_called_sound(case: Case) -> None:
    found = examined(case)
    assert [str(each) for each in found.findings] == []
    assert found.is_sound
    assert found.replay.compared > 50
    rows = {row["kind"]: row for row in table(found)}
    decoding, training = map(float, rows["all"]["depth 1"].split(" / "))
    assert decoding == pytest.approx(training, abs=0.06)
    assert set(rows) == {"all", "own"}
    listed = Promises(listed={"guess_1": 0.5, "guess_2": 0.4})
    *rows, told = table(replace(found, promised=listed))
    assert rows == table(found)
    assert told["kind"] == "all, every place / card"
    assert told["depth 2"] == f"{found.replay.every['own'].share(1):.2f} / 0.40"
    assert told["depth 3"].endswith(" / -")


def test_figures_of_a_card_are_compared_with_those_of_every_place() -> None:
    found, text = Drafted(), [5, 6, 7, 8, 9, 10]
    # places 1 and 2 have two further tokens behind their own; the second draft counts by itself
    _judge(found, np.array([[0, 0, 9, 0], [0, 9, 10, 0]]), text, 2)
    assert (found.reached, found.right) == ([2, 2], [1, 2])


def test_another_template_is_named_with_its_first_place(case: Case) -> None:
    other = target(seed=3)
    other.tokenizer.chat_template = TEMPLATE.replace("A{%", "B{%")
    found = examined(case, lm=other)
    assert faults(found)[0] == "template"
    first = found.findings[0]
    assert (first.text, first.place) == (0, case.texts[0].stored.answer - 1)
    assert "'A' and 'B'" in first.says


def test_states_of_another_layer_are_named(case: Case) -> None:
    def wrong(text: StoredText) -> StoredText:
        every, _ = states_of(case.lm.model, text.tokens, (2, 4, 6))
        return replace(text, states=every)

    found = examined(case, texts=changed(case.texts, wrong))
    assert faults(found)[0] == "layer"
    assert "what the data hold as layer 3 is layer 4" in found.findings[0].says


def test_states_of_shifted_places_are_named(case: Case) -> None:
    shifted = changed(case.texts, lambda text: replace(text, states=text.states.roll(1, 0)))
    found = examined(case, texts=shifted)
    assert faults(found)[0] == "shifted labels"
    assert "the place 1 earlier" in found.findings[0].says


def test_states_of_another_precision_are_named(case: Case) -> None:
    def coarse(text: StoredText) -> StoredText:
        steps = text.states.abs().amax(-1, keepdim=True) / 3
        return replace(text, states=(text.states / steps).round() * steps)

    found = examined(case, texts=changed(case.texts, coarse))
    assert faults(found)[0] == "precision"
    assert found.findings[0].text == 0


def test_another_target_is_named(case: Case) -> None:
    with pytest.raises(ValueError, match="was trained for"):
        examined(case, lm=target(seed=4))

    def strange(text: StoredText) -> StoredText:
        return replace(text, states=states_of(target(seed=4).model, text.tokens, LAYERS)[0])

    found = examined(case, texts=changed(case.texts, strange))
    assert faults(found)[0] == "target"


def test_a_greedy_text_that_its_target_no_longer_writes_is_named(case: Case) -> None:
    feigned = changed(case.texts, lambda text: replace(text, is_greedy=True))
    assert "target" in faults(examined(case, texts=feigned))


def test_a_head_with_the_wrong_layers_in_its_folder_is_named(case: Case) -> None:
    blind = replace(case.weights, embedding=torch.zeros_like(case.weights.embedding))
    head = learnt(blind, case.texts, reads=(3,))  # which so knows the states alone
    moved = EagleHead(replace(head.config, reads=(5,)))
    moved.load_state_dict(head.state_dict())
    right, wrong = (with_network(case.trained, each) for each in (head, moved))
    found = examined(case, trained=wrong, weights=blind)
    assert "layer" in faults(found)
    assert any(
        "reads layers 5 " in each.says and "with 3 in" in each.says for each in found.findings
    )
    assert "layer" not in faults(examined(case, trained=right, weights=blind))


def test_labels_of_another_place_are_named(case: Case) -> None:
    head = learnt(case.weights, case.texts, late=1)
    found = examined(case, trained=with_network(case.trained, head))
    assert "shifted labels" in faults(found)
    assert any("3 places on" in each.says for each in found.findings)


@pytest.mark.parametrize(
    ("reads", "fault"), [((LAYERS[-1],), "little training"), (READS, "shifted labels")]
)
def test_a_head_that_says_what_its_state_does_has_learnt_little(
    case: Case, reads: tuple[int, ...], fault: str
) -> None:
    assert LAYERS[-1] == case.lm.model.layers
    assert LAYERS[-1] not in READS
    head = learnt(case.weights, case.texts, late=-1, reads=reads)
    found = examined(case, trained=with_network(case.trained, head))
    assert {"little training", "shifted labels"} & {*faults(found)} == {fault}
    assert any("that 1 places on" in each.says for each in found.findings)


@pytest.mark.parametrize(
    ("covers", "coverage", "named"),
    [
        (0.6, None, ""),  # other texts than in training have other tokens
        (0.2, None, "of these answers' tokens; import the head again"),
        (0.6, (0.6, 0.6), ""),
        (0.2, (0.2, 0.2), ""),
        (0.6, (0.598, 0.6), "has 0.598 of the held-out answers' tokens, its card says 0.600"),
    ],
)
def test_a_draft_vocabulary_with_less_than_its_card_says_is_named(
    case: Case, covers: float, coverage: tuple[float, float] | None, named: str
) -> None:
    answers = torch.cat([text.stored.tokens[text.stored.answer :] for text in case.texts])
    shares = torch.bincount(answers, minlength=case.lm.model.vocab_size) / len(answers)
    order = shares.sort().indices
    tokens = order[: int((shares[order].cumsum(0) <= covers).sum())].sort().values
    trained = replace(case.trained, draft_tokens=tokens.numpy())
    weights = weights_of(case.lm, tokens)
    found = examined(case, trained=trained, weights=weights, coverage=coverage)
    said = [each.says for each in found.findings if each.fault == "vocabulary"]
    assert [each for each in said if named in each] == said
    assert len(said) == bool(named)


def test_drafts_that_differ_in_decoding_are_named_with_their_first_place() -> None:
    found = Replay()
    text = [5, 6, 7, 8, 9, 10, 11, 12]
    _compare(found, 0, "own", ReplayedStep(0, (7, 8, 1, 2), 2), [7, 8, 9, 0], text)
    _compare(found, 0, "own", ReplayedStep(3, (1, 2, 3, 4), 0), [10, 2, 3, 4], text)
    assert (found.same, found.compared, found.first) == (2, 4, (0, 0, 3))
    assert found.decoding["own"].right[:3] == [1, 1, 0]
    assert found.training["own"].right[:3] == [2, 1, 1]
    said = drafts(found)
    assert said is not None
    assert (said.fault, said.text, said.place) == ("precision", 0, 0)
    assert drafts(Replay(same=9, compared=10)) is None
    assert drafts(Replay()) is None


def test_acceptance_counts_what_was_reached() -> None:
    drafted = Drafted()
    for right in (0, 0, 1, 4):
        drafted.add(right, 4)
    assert drafted.reached == [4, 2, 1, 1]
    assert drafted.right == [2, 1, 1, 1]
    assert drafted.share(0) == 0.5
    assert drafted.share(5) is None


def test_layers_that_are_tried_are_those_of_the_target() -> None:
    assert neighbours((0, 3), 4) == [(0, 3), (1, 3), (2, 3), (0, 2), (0, 4), (0, 1)]


def test_promises_are_read_from_the_card() -> None:
    card = "# A head\n\n- guess_1: 0.61\n- coverage: 9e-05\n- gsm8k: MIT\n"
    listed = Promises.of(card)
    assert listed.coverage("") is None  # of the training's answers
    known = Promises.of(f"{card}\nData, of digest 0123456789ab: the target's own answers")
    assert known.coverage("0123456789abcdef") == 9e-05
    assert known.coverage("123456789abcdef0") is None
    assert listed == Promises(listed={"guess_1": 0.61, "coverage": 9e-05})
    assert (listed.share(MEAN, 1), listed.share(MEAN, 2), listed.share("a", 1)) == (
        0.61,
        None,
        None,
    )
    assert Promises.of("") == Promises()
    kinds = [KindFigures(kind, 1, 10, 0.4, 0.2, None, 0.6, 2.0) for kind in ("a|b", MEAN)]
    told = Promises.of(f"{card}\n{TITLE}\n\nSo told.\n\n{table_of(kinds)}\n\n## Data\n\n| a |\n")
    assert told.kinds == {each.kind: each for each in kinds}
    assert (told.share(MEAN, 1), told.share("a|b", 2), told.share("a|b", 3)) == (0.4, 0.2, None)
    assert told.listed == listed.listed


@pytest.mark.parametrize(
    "wrong", ["", "| kind |\n|---|\n| a |", table_of(KINDS).replace("1.0", "x")]
)
def test_a_broken_table_in_a_card_is_refused_with_its_cure(wrong: str) -> None:
    with pytest.raises(ValueError, match="write it again with `draftwood train judge HEAD DATA"):
        Promises.of(f"# A head\n\n{TITLE}\n\n{wrong}\n")


def test_each_kind_stands_beside_its_promise() -> None:
    """Kinds that the card does not tell are left out, also of the mean."""
    every = {
        "a": Drafted([10, 10], [5, 2]),
        "b": Drafted([30, 30], [30, 9]),
        "c": Drafted([9], [1]),
    }
    own = {kind: Drafted([1], [1]) for kind in every}
    kinds = {each.kind: each for each in KINDS}
    told = table(Examination((), Replay(own, own, every), Promises(kinds, {"guess_1": 0.9})))
    rows = {row["kind"]: row for row in told}
    assert list(rows)[4:] == [f"{kind}, every place / card" for kind in ("a", "b", "all")]
    assert rows["a, every place / card"]["depth 1"] == "0.50 / 0.40"
    assert rows["b, every place / card"]["depth 2"] == "0.30 / 0.70"
    assert rows["all, every place / card"]["depth 1"] == "0.88 / 0.70"
    assert rows["all, every place / card"]["depth 3"] == "- / -"
    other = table(Examination((), Replay(own, own, {"c": every["c"]}), Promises(kinds)))
    assert other[-1]["depth 1"] == "0.11 / 0.60"  # the card's mean


def test_a_target_can_write_the_texts_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Prompt:
        text: str

    name = "draftwood_train.doctor.texts.collect"
    monkeypatch.setattr(name, lambda *given: [Prompt(text) for text in PROMPTS])
    texts = of_target(case.lm, READS, 3)
    assert [text.prompt for text in texts] == list(PROMPTS[:3])
    assert all(text.stored.states.shape[1] == 2 for text in texts)
    assert faults(examined(case, texts=texts)) == []
