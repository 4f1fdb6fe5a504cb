import functools

import pytest
import torch

from data_models import target
from draftwood.models.model import ModelOutput
from draftwood.testing import TableModel, tiny_llama
from draftwood_torch.models.transformers import TransformersModel
from draftwood_train.data.states import (
    bytes_per_token,
    default_layers,
    extend,
    in_bytes,
    likeliest,
    rows_of,
    spread_of,
    states_of,
)
from draftwood_train.data.write import BatchWriter, Request, goes_round

LAYERS = (2, 3, 6)
lm_of = functools.cache(target)


def request(prompt: str, seed: int | None, most: int = 20, keeps: bool = True) -> Request:
    lm = lm_of()
    return Request(tuple(lm.encode(prompt)), most, lm.end_tokens, seed, keeps)


def job(*requests: Request):
    made = []
    for each in requests:
        made.append((yield each))
    return made


def write(jobs, at_once: int, layers=LAYERS):
    """Run the writer; return the output of each job by number, and the writer."""
    writer = BatchWriter(lm_of().model, at_once, 96, layers)
    found = dict(writer.run(iter(enumerate(jobs))))
    return [found[number] for number in range(len(found))], writer


ASKED = [("abc de", None), ("hello there", 1), ("x", 2), ("some more words", None), ("x", 3)]


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_texts_are_those_that_decoding_writes(at_once):
    made, _ = write([job(request(*each)) for each in ASKED], at_once)
    for (prompt, seed), (text,) in zip(ASKED, made, strict=True):
        temperature = 0.0 if seed is None else 1.0
        alone = lm_of().generate(prompt, max_new_tokens=20, temperature=temperature, seed=seed)
        new = list(text.tokens[text.start :])
        assert new == list(alone.token_ids)[: len(new)]
        is_whole = len(new) == len(alone.token_ids)
        assert is_whole or goes_round(text.tokens, text.start)
    assert made[2][0].tokens != made[4][0].tokens  # another seed


@pytest.mark.gpu
@pytest.mark.parametrize(("layers", "top"), [(LAYERS, 0), (None, 5)])
def test_a_model_on_a_gpu_writes_them(layers, top):
    model = TransformersModel(tiny_llama(0, layers=6).cuda())
    writer = BatchWriter(model, 2, 96, layers, top)
    jobs = [job(request(*each)) for each in ASKED]
    found = dict(writer.run(iter(enumerate(jobs))))
    for (text,) in found.values():
        assert len(text.tokens) > text.start
        assert (text.states is None) == (layers is None)
        assert (text.top is None) == (top == 0)


def test_states_are_those_of_a_pass_over_the_whole_text():
    made, _ = write([job(request(*each)) for each in ASKED], at_once=3)
    spread = spread_of(lm_of().model, LAYERS)
    for (text,) in made:
        states, normalizers = states_of(lm_of().model, torch.tensor(text.tokens), LAYERS)
        stored = text.states
        assert len(stored.codes) == len(text.tokens)
        assert torch.equal(stored.log_normalizer, normalizers)
        again = in_bytes(states, normalizers, spread)
        assert torch.equal(stored.codes, again.codes)
        assert torch.equal(stored.scales, again.scales)
        step = spread * (states / spread).abs().amax(-1, keepdim=True) / 127
        assert bool(((stored.floats() - states).abs() <= 0.5001 * step).all())
        other, _ = states_of(lm_of().model, torch.tensor(text.tokens).flip(0), LAYERS)
        assert not bool(((stored.floats() - other).abs() <= 0.5001 * step).all())


def test_a_job_that_goes_on_runs_no_token_twice():
    first, second = request("hello there", None), request("hello there", 5)
    (both,), once = write([job(first, second)], at_once=1)
    _, apart = write([job(first), job(second)], at_once=1)
    prompt = len(first.tokens)
    assert once.tokens == apart.tokens  # a slot keeps its cache between jobs too
    assert once.tokens == sum(len(text.tokens) for text in both) - (prompt - 1)
    states, _ = states_of(lm_of().model, torch.tensor(both[1].tokens), LAYERS)
    again = in_bytes(states, states[:, 0, 0], spread_of(lm_of().model, LAYERS))
    assert torch.equal(both[1].states.codes, again.codes)


def test_without_states_the_texts_are_the_same():
    with_states, _ = write([job(request(*each)) for each in ASKED], at_once=3)
    without, writer = write([job(request(*each)) for each in ASKED], at_once=3, layers=None)
    assert [text.tokens for (text,) in without] == [text.tokens for (text,) in with_states]
    assert all(text.states is None for (text,) in without)
    # the newest token of each need not be run
    assert writer.tokens < sum(len(text.tokens) for (text,) in without)


def test_likeliest_tokens_are_those_after_each_place_of_the_answer():
    writer = BatchWriter(lm_of().model, 3, 96, None, top=5)
    jobs = enumerate(job(request(*each)) for each in ASKED)
    for _, (text,) in writer.run(iter(jobs)):
        session = lm_of().model.start()
        logits = session.extend(list(text.tokens), keep="all").logits.float()
        session.close()
        after = logits[text.start - 1 :]
        wanted = after.log_softmax(-1).topk(5)
        assert text.top.tokens.shape == (len(text.tokens) - text.start + 1, 5)
        assert torch.equal(text.top.tokens, wanted.indices)
        assert torch.allclose(text.top.logs, wanted.values, atol=1e-4)
        assert torch.allclose(text.top.log_normalizer, after.logsumexp(-1), atol=1e-4)
        assert not torch.allclose(text.top.log_normalizer, logits[: len(after)].logsumexp(-1))


def test_the_next_job_is_asked_for_when_there_is_room():
    asked, ended = [], []

    def jobs():
        for number in range(6):
            asked.append(number)
            assert len(asked) - len(ended) <= 2
            yield number, job(request(*ASKED[number % 5], most=4 + number))

    for number, _ in BatchWriter(lm_of().model, 2, 96, None).run(jobs()):
        ended.append(number)
    assert sorted(ended) == asked == list(range(6))


def test_a_job_may_ask_for_nothing():
    def nothing():
        return "none"
        yield

    made, _ = write([nothing(), job(request("x", None)), nothing()], at_once=1)
    assert (made[0], len(made[1]), made[2]) == ("none", 1, "none")


def test_slots_are_given_back_when_the_reader_stops():
    model = lm_of().model
    running = BatchWriter(model, 3, 96, LAYERS).run(
        iter(enumerate(job(request(*each)) for each in ASKED))
    )
    next(running)
    assert model.pool.used
    running.close()
    assert not model.pool.used


def test_broken_numbers_are_refused():
    model = TableModel(torch.full((64, 64), float("nan")))
    with pytest.raises(ValueError, match="not finite"):
        list(BatchWriter(model, 1, 96, None).run(iter([(0, job(request("x", None)))])))


@pytest.mark.parametrize(
    ("text", "circles"),
    [
        ("once upon a time" + " and then" * 3, True),
        ("once upon a time" + "a" * 24, True),
        ("once upon a time" + "a" * 20, False),
        ("once upon a time" + " and then" * 2, False),
        ("the quick brown fox jumps over the lazy dog and runs away from here", False),
        ("x" + "0123456789abcdefghijklmnopqrstuvwxyz" * 3, True),
    ],
)
def test_texts_that_repeat_themselves_are_told_apart(text, circles):
    assert goes_round([ord(letter) for letter in text], 0) == circles


def test_what_the_prompt_repeats_does_not_count():
    tokens = [1, 2, 3, 4] * 10
    assert goes_round(tokens, 0)
    assert goes_round(tokens, 16)
    assert not goes_round(tokens, 17)


def test_normalizers_are_logs_of_sums():
    logits = torch.randn(7, 5000, generator=torch.Generator().manual_seed(0)) * 6 + 30
    best, normalizers = likeliest(logits)
    assert torch.equal(best, logits.argmax(-1))
    assert normalizers == pytest.approx(logits.double().logsumexp(-1), abs=2e-5)


def test_rows_are_put_together():
    whole = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    together = [ModelOutput(row) for row in whole.split(1)]
    assert rows_of(together).data_ptr() == whole.data_ptr()
    apart = [ModelOutput(row.clone()) for row in whole.split(1)]
    mixed = [together[0], *apart[1:]]
    for outputs in (together, apart, mixed, together[:1]):
        assert torch.equal(rows_of(outputs), whole[: len(outputs)])
    backwards = together[::-1]
    assert torch.equal(rows_of(backwards), whole.flip(0))


def test_entries_beside_a_huge_one_keep_their_digits():
    states = torch.randn(50, 2, 32, generator=torch.Generator().manual_seed(0))
    states[:, 1, 7] = 2000
    spread = states.square().mean(0).sqrt()
    even, spread_out = (in_bytes(states, states[:, 0, 0], each) for each in (None, spread))
    assert bool((even.floats()[:, 1, :7] == 0).all())
    off = (spread_out.floats() - states).square().mean(0).sqrt() / spread
    assert bool((off < 0.02).all())


def test_states_of_zeros_stay_zeros():
    stored = in_bytes(torch.zeros(2, 1, 4), torch.zeros(2))
    assert torch.equal(stored.floats(), torch.zeros(2, 1, 4))


def test_a_text_needs_a_token():
    with pytest.raises(ValueError, match="at least one token"):
        extend(lm_of().model.start(), [], LAYERS)


def test_default_layers():
    assert default_layers(30) == (2, 15, 27, 30)
    assert default_layers(6) == (2, 3, 6)
    assert default_layers(1) == (0, 1)
    assert bytes_per_token(4, 576) == 2328
