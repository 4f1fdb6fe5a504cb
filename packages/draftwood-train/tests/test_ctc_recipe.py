"""CTC's losses are what the recursions say, and its recipe learns from answers alone."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.heads.lattice import Lattice, Prefix
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.layers import PairwiseTerm
from draftwood_train.ctc_losses import (
    ctc_loss,
    frame_loss,
    lk_loss,
    log_weights,
    next_token_laws,
    paces,
    prefix_loss,
)
from draftwood_train.recipe import PackedRows, TargetWeights
from draftwood_train.recipes.ctc import CtcRecipe

FRAMES, VOCAB = 4, 3
LABELS = torch.tensor([[0, 1, 2], [1, 1, 0], [2, 2, 2], [0, 2, 0]])
LENGTHS = torch.tensor([3, 3, 2, 1])


def logits(anchors: int = 4, frames: int = FRAMES) -> torch.Tensor:
    rng = torch.Generator().manual_seed(2)
    return torch.randn(anchors, frames, VOCAB + 1, generator=rng, dtype=torch.float64)


def prefixes(log_probs: torch.Tensor, labels: torch.Tensor = LABELS) -> list[list[Prefix]]:
    """Prefixes of each anchor's label, from the empty one on."""
    found = []
    for frames, label in zip(log_probs.exp(), labels.tolist(), strict=True):
        lattice = Lattice(frames)
        row = [lattice.start()]
        for token in label:
            row.append(lattice.extended(row[-1], token))
        found.append(row)
    return found


def mean_log(chances: list[float]) -> float:
    return float(-torch.tensor(chances).log().mean())


def test_losses_are_the_logarithms_of_what_the_lattice_says() -> None:
    log_probs = logits().log_softmax(-1)
    read = [row[length] for row, length in zip(prefixes(log_probs), LENGTHS.tolist(), strict=True)]
    found = float(ctc_loss(log_probs, LABELS, LENGTHS))
    assert found == pytest.approx(mean_log([prefix.ends for prefix in read]), abs=1e-5)
    found = float(prefix_loss(log_probs, LABELS, LENGTHS))
    assert found == pytest.approx(mean_log([prefix.chance for prefix in read]), abs=1e-6)


def test_labels_that_so_few_frames_cannot_say_spoil_nothing() -> None:
    log_probs = logits().log_softmax(-1).requires_grad_()
    labels, lengths = torch.tensor([[1, 1, 1]] * 4), torch.tensor([3] * 4)  # would take 5 frames
    assert ctc_loss(log_probs, labels, lengths).item() == 0.0
    loss = prefix_loss(log_probs, labels, lengths)
    loss.backward()
    wanted = mean_log([row[2].chance for row in prefixes(log_probs.detach(), labels)])
    assert loss.item() == pytest.approx(wanted, abs=1e-6)
    assert log_probs.grad is not None
    assert bool(log_probs.grad.isfinite().all())


def test_frames_alone_are_judged_at_their_own_depth() -> None:
    log_probs = logits().log_softmax(-1)
    scores = [
        log_probs[anchor, place, token]
        for anchor, (label, length) in enumerate(zip(LABELS, LENGTHS, strict=True))
        for place, token in enumerate(label[:length])
    ]
    wanted = -torch.stack(scores).mean()
    torch.testing.assert_close(frame_loss(log_probs, LABELS, LENGTHS), wanted)


def test_places_are_weighed_by_the_drafts_that_reach_them() -> None:
    confidences = torch.tensor([[0.5, 0.25, 1.0]])
    found = paces(confidences, smoothing=0.0)
    assert found.tolist() == [[0.5 + 0.125 + 0.125, 0.125 + 0.125, 0.125]]
    assert paces(confidences, smoothing=1.0).tolist() == [[3.0, 2.0, 1.0]]
    log_probs = logits().log_softmax(-1)
    even = torch.full_like(log_probs, 1 / (VOCAB + 1)).log()
    plain, weighed = (frame_loss(even, LABELS, LENGTHS, paced) for paced in (False, True))
    assert weighed.item() == pytest.approx(plain.item())
    # of two anchors the one whose first token is surely wrong says little of its second
    sure = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[1e-9, 1.0], [0.5, 0.5]]]).log()
    found = frame_loss(sure, torch.zeros(2, 2, dtype=torch.long), torch.tensor([2, 2]), paced=True)
    right, wrong = 0.55, 0.1  # smoothed confidences
    weights = [right + right**2, right**2, wrong + wrong * right, wrong * right]
    losses = [math.log(2), math.log(2), -math.log(1e-9), math.log(2)]
    wanted = sum(w * each for w, each in zip(weights, losses, strict=True)) / sum(weights)
    assert found.item() == pytest.approx(wanted, rel=1e-3)


def test_next_token_laws_are_the_normalised_rows_of_the_lattice() -> None:
    log_probs = logits().log_softmax(-1)
    found = next_token_laws(log_probs, LABELS, 3)
    for anchor, row in enumerate(prefixes(log_probs)):
        wanted = torch.from_numpy(Lattice(log_probs[anchor].exp()).rows(row[:3]))
        wanted = wanted / wanted.sum(-1, keepdim=True)
        torch.testing.assert_close(found[anchor], wanted, atol=1e-12, rtol=0)
    impossible = next_token_laws(log_probs[:, :2], torch.tensor([[1, 1, 1]] * 4), 3)
    assert impossible.sum(-1)[0].tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_gradients_are_those_of_small_differences() -> None:
    given = logits().requires_grad_()
    target = torch.rand(12, VOCAB, dtype=torch.float64).softmax(-1) * 0.9

    def prefix(raw: torch.Tensor) -> torch.Tensor:
        return prefix_loss(raw.log_softmax(-1), LABELS, LENGTHS)

    def divergence(raw: torch.Tensor) -> torch.Tensor:
        laws = next_token_laws(raw.log_softmax(-1), LABELS, 3).flatten(0, 1)
        return -(target * (laws + 0.01).log()).sum()  # some tokens cannot follow

    def frames(raw: torch.Tensor) -> torch.Tensor:
        return frame_loss(raw.log_softmax(-1), LABELS, LENGTHS)

    for loss in (prefix, divergence, frames):
        assert torch.autograd.gradcheck(loss, (given,))


@pytest.mark.parametrize("place", [VOCAB, 0, 1])
def test_logarithms_of_many_texts_are_those_of_the_prefixes_one_by_one(place: int) -> None:
    """They are, with the blank as the last symbol; in another place it is another law."""
    log_probs = logits().log_softmax(-1).roll(place - VOCAB, -1)
    for found, row in zip(
        zip(*(each.exp() for each in log_weights(log_probs, LABELS)), strict=True),
        prefixes(logits().log_softmax(-1)),
        strict=True,
    ):
        wanted = [(each.weights, each.repeats, each.chance, each.ends) for each in row]
        same = [
            torch.allclose(one, torch.tensor(other, dtype=torch.float64), atol=1e-12)
            for one, other in zip(found, zip(*wanted, strict=True), strict=True)
        ]
        assert all(same) == (place == VOCAB)


def test_lk_goes_from_divergence_to_total_variation() -> None:
    target = torch.tensor([[0.5, 0.3, 0.2]])
    assert lk_loss(target, target).item() == pytest.approx(0.0, abs=1e-6)
    draft = torch.tensor([[0.2, 0.3, 0.5]])
    weight = torch.tensor(-3 * 0.7).exp().item()
    divergence = (target * (target / draft).log()).sum().item()
    wanted = weight * divergence + (1 - weight) * 0.3
    assert lk_loss(target, draft).item() == pytest.approx(wanted, abs=1e-6)


DIM, TOKENS = 24, 12
SIZES = HeadSizes(hidden=DIM, intermediate_size=32, heads=2, num_kv_heads=1, head_dim=12)


def world(seed: int = 0) -> tuple[TargetWeights, PackedRows]:
    """Texts that step through the vocabulary by a stride of their own, told by their first tokens;
    the last token is outside the draft vocabulary.
    """
    rng = torch.Generator().manual_seed(seed)
    embedding = torch.randn(TOKENS, DIM, generator=torch.Generator().manual_seed(1))
    index = torch.arange(TOKENS)
    index[-1] = -1
    target = TargetWeights(5, SIZES, embedding, embedding[:-1], torch.arange(TOKENS - 1), index)
    rows, places = 8, 40
    segments = torch.zeros(rows, places, dtype=torch.long)
    segments[:, 20:], segments[:, 38:] = 1, -1
    positions = (
        torch.cat([torch.arange(20), torch.arange(18), torch.zeros(2)]).long().repeat(rows, 1)
    )
    start = torch.randint(TOKENS, (rows, 2), generator=rng)[:, [0] * 20 + [1] * 20]
    tokens = ((start + positions) % TOKENS).masked_fill(segments < 0, 0)
    final = embedding[(tokens + 1) % TOKENS]
    normalizer = (final @ embedding.T).logsumexp(-1)
    answers = (positions >= 3) & (segments >= 0)
    return target, PackedRows(
        *(tokens, segments, positions, answers, segments >= 0),
        *(final[:, :, None], final, normalizer),
    )


def trained(recipe: CtcRecipe, rows: PackedRows, target: TargetWeights, steps: int) -> CtcHead:
    torch.manual_seed(0)
    head = recipe.build(target)
    assert isinstance(head, CtcHead)
    optimiser = torch.optim.Adam(head.parameters(), 5e-3)
    for step in range(steps):
        loss, figures = recipe.loss(head, rows, target, step / steps)
        assert figures
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head


def efficiency(recipe: CtcRecipe, head: CtcHead, rows: PackedRows, target: TargetWeights) -> float:
    judged = recipe.judge(head, rows, target)
    assert judged.places > 20
    assert 0.0 <= judged.figures["first_guess"] <= judged.places
    return judged.figures["block_efficiency"] / judged.places


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_name": name} for name in ("ctc", "prefix", "prefix+lk", "ce", "kl")),
        {"loss_name": "ce", "paced": True, "layers": 2},
        {"loss_name": "kl", "paced": True, "form": "linear"},
        {"loss_name": "ce", "pairwise": 4},
        {"loss_name": "kl", "pairwise": 4},
    ],
    ids=str,
)
def test_every_objective_learns_what_can_be_known(options: Any) -> None:
    recipe = CtcRecipe(frames=6, anchors=8, **options)
    target, rows = world()
    before = efficiency(recipe, trained(recipe, rows, target, 0), rows, target)
    after = efficiency(recipe, trained(recipe, rows, target, 90), world(1)[1], target)
    # a text leaves the draft vocabulary every twelfth token
    assert before < 2.0
    assert after > 3.5


def test_a_pairwise_term_learns_what_independent_frames_cannot() -> None:
    """Let the second of two tokens follow from the first, which nobody can foresee."""
    labels = torch.tensor([[0, 1], [2, 0]] * 50)
    lengths = torch.full((100,), 2)
    torch.manual_seed(0)
    embedding, losses = torch.randn(VOCAB, 6), []
    for pairwise in (0, 2):
        frames = torch.zeros(2, VOCAB, requires_grad=True)
        term = PairwiseTerm(6, 2)
        learns = [frames, *(term.parameters() if pairwise else ())]
        optimiser = torch.optim.Adam(learns, 0.1)
        for _ in range(200):
            first = frames.expand(100, 2, VOCAB)
            after = term(embedding[labels[:, 0]]) @ embedding.T
            terms = torch.stack([torch.zeros(100, VOCAB), after], dim=1)
            log_probs = (first + (terms if pairwise else 0.0)).log_softmax(-1)
            loss = frame_loss(log_probs, labels, lengths)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(2), abs=0.01)
    assert losses[1] == pytest.approx(math.log(2) / 2, abs=0.01)


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="choose --loss-name kl"):
        CtcRecipe(pairwise=8)
    with pytest.raises(ValueError, match="choose --loss-name kl"):
        CtcRecipe(paced=True, loss_name="ctc")
    with pytest.raises(ValueError, match="linear ones no more"):
        CtcRecipe(form="linear", layers=2, loss_name="ce").build(world()[0])


@pytest.mark.parametrize(
    "more",
    [{"form": "layer"}, {"form": "layer", "layers": 2}, {"features": "three"}, {"pairwise": 4}],
    ids=str,
)
def test_parts_that_a_linear_head_gains_change_nothing_before_they_learn(more: Any) -> None:
    target, rows = world()
    rows = replace(rows, states=rows.states.expand(-1, -1, 3, -1))
    wide = torch.randn(rows.states.shape, generator=torch.Generator().manual_seed(5))
    rows = replace(rows, states=torch.cat([wide[:, :, :2], rows.states[:, :, 2:]], dim=2))
    linear = CtcRecipe(frames=4, anchors=8, loss_name="kl", form="linear")
    last = replace(rows, states=rows.states[:, :, 2:])
    old = trained(linear, last, target, 5)
    recipe = replace(linear, **more)
    new = recipe.build(target)
    new.load_state_dict({**new.state_dict(), **old.state_dict()})
    given = rows if recipe.features == "three" else last
    judged, before = recipe.judge(new, given, target), linear.judge(old, last, target)
    assert (judged.places, judged.figures) == (before.places, before.figures)
    losses = []
    for each, head, states in ((linear, old, last), (recipe, new, given)):
        torch.manual_seed(0)
        loss = each.loss(head, states, target, 0.0)[0]
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    learn = [name for name, each in new.named_parameters() if name not in old.state_dict()]
    found = dict(new.named_parameters())
    grads = [found[name].grad for name in learn]
    assert any(each is not None and bool(each.any()) for each in grads)  # but they do learn


def test_frames_learn_the_targets_distributions_at_their_own_places() -> None:
    """The loss is the mean divergence, told here from whole distributions."""
    target, rows = world()
    recipe = CtcRecipe(frames=3, anchors=40, loss_name="kl", form="linear")
    head: Any = recipe.build(target)
    loss, figures = recipe.loss(head, rows, target, 0.0)
    wanted = []
    for row in range(8):
        for place in range(40):
            inside = rows.segments[row] == rows.segments[row, place]
            for frame in range(3):
                ahead = place + 2 + frame
                if ahead >= 40 or not (inside & rows.is_answer[row])[ahead]:
                    break
                if frame == 0 and target.draft_index[rows.tokens[row, ahead]] < 0:
                    break
                embedded = target.embedding[rows.tokens[row, place + 1]]
                context = head.rows(rows.states[row, place, 0], embedded)
                state = head.norm(head.born(context))[frame]
                own = (target.head @ state).log_softmax(-1)
                true = (target.head @ rows.final[row, ahead - 1]).softmax(-1)
                wanted.append((true * (true.log() - own)).sum().item())
    assert loss.item() == pytest.approx(sum(wanted) / len(wanted), rel=1e-3)
    assert figures["kl"] == loss.item()


def test_states_in_the_wrong_places_teach_nothing() -> None:
    recipe = CtcRecipe(frames=6, anchors=8, reads_root=False)
    target, rows = world()
    order = torch.randperm(8 * 40, generator=torch.Generator().manual_seed(0))
    shuffled = rows.states.flatten(0, 1)[order].view_as(rows.states)
    head = trained(recipe, replace(rows, states=shuffled), target, 60)
    assert efficiency(recipe, head, world(1)[1], target) < 2.2


def test_only_answers_of_the_same_text_are_learnt() -> None:
    recipe, (target, rows) = CtcRecipe(frames=4, anchors=40), world()
    head = recipe.build(target)
    none = replace(rows, is_answer=torch.zeros_like(rows.is_answer))
    assert recipe.loss(head, none, target, 0.0)[1] == {}
    assert recipe.judge(head, none, target).places == 0
    # a label never reaches into the next text or the padding, so what stands there changes nothing
    one = replace(rows, is_answer=rows.is_answer & (rows.segments == 0))
    other = torch.where(rows.segments == 0, rows.tokens, (rows.tokens + 5) % TOKENS)

    def loss(tokens: torch.Tensor) -> float:
        return recipe.loss(head, replace(one, tokens=tokens), target, 0.0)[0].item()

    assert loss(rows.tokens) == pytest.approx(loss(other), abs=1e-6)
    # but what stands in the answer does
    other = torch.where(rows.is_answer, (rows.tokens + 5) % TOKENS, rows.tokens)
    assert loss(rows.tokens) != pytest.approx(loss(other), abs=1e-3)


def test_a_text_is_counted_as_deep_as_the_tree_holds_it() -> None:
    """The tree of a head that says one text for sure is that text."""
    recipe, (target, rows) = (
        CtcRecipe(frames=3, anchors=8, reads_root=False, form="linear"),
        world(),
    )
    head = recipe.build(target)
    assert isinstance(head, CtcHead)
    said = [2, 3, 4]
    with torch.no_grad():
        head.frame_weight.zero_()
        head.frame_bias.copy_(target.embedding[said])
        head.norm.weight.mul_(20.0)
    judged = recipe.judge(head, rows, target)
    every = []
    for tokens, segments, answers in zip(rows.tokens, rows.segments, rows.is_answer, strict=True):
        possible = [
            place
            for place in range(38)
            if segments[place + 2] == segments[place] and answers[place + 2]
        ]
        for place in possible[::8]:
            depth = 0
            while (
                depth < 3
                and segments[min(place + 2 + depth, 39)] == segments[place]
                and tokens[place + 2 + depth] == said[depth]
            ):
                depth += 1
            every.append(depth)
    assert judged.places == len(every)
    assert judged.figures["block_efficiency"] == sum(every) + len(every)
    assert judged.figures["first_guess"] == sum(depth > 0 for depth in every) > 0
    # where some texts are greedy the others do not count
    greedy = (torch.arange(8) < 4)[:, None] & (rows.segments >= 0)
    assert recipe.judge(head, replace(rows, is_greedy=greedy), target).places == len(every) / 2


def test_the_layer_starts_as_the_last_one_of_the_target() -> None:
    target, _ = world()
    last = {"self_attn.q_proj.weight": torch.ones(24, DIM), "mlp.up_proj.weight": torch.ones(3, 3)}
    norm = torch.full((DIM,), 3.0)
    known = replace(target, last_layers=[last], final_norm=norm)
    head = CtcRecipe().build(known).state_dict()
    assert torch.equal(head["norm.weight"], norm)
    assert torch.equal(
        CtcRecipe(start_from="random").build(known).state_dict()["norm.weight"], norm / 3
    )
    assert torch.equal(head["self_attn.q_proj.weight"], torch.ones(24, DIM))
    assert head["mlp.up_proj.weight"].shape == (32, DIM)  # of another shape, so its own
    assert "blank" in head
    assert "blank" not in CtcRecipe(loss_name="ce").build(target).state_dict()


@pytest.mark.parametrize(
    "wrong",
    [
        {"frames": 0},
        {"loss_name": "mse"},
        {"form": "round"},
        {"label_length": 2, "law_depth": 3},
        {"label_length": 4, "loss_name": "kl"},
        {"law_depth": 2, "loss_name": "prefix"},
        {"law_weight": 1.0, "loss_name": "ctc"},
        {"law_weight": math.nan},
        {"law_weight": math.inf},
        {"law_weight": -1.0},
        {"pairwise": -4, "loss_name": "kl"},
    ],
)
def test_a_recipe_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CtcRecipe(**wrong)


def test_a_label_may_be_shorter_than_what_lk_would_look_at() -> None:
    assert CtcRecipe(label_length=2, loss_name="ctc").label_length == 2
