"""Tree decoding inside ``generate`` of Transformers, against ``generate`` itself."""

import copy
import pickle
import string
from collections import Counter
from contextlib import nullcontext
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
)
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

import draftwood
from draftwood.drafters import DraftModel
from draftwood.drafters.drafter import VerifiedTree
from draftwood.methods import Method
from draftwood.models.model import ModelOutput
from draftwood.moved import MovedWarning
from draftwood.rng import Rng
from draftwood.shapes import Widths
from draftwood.stats import Stats
from draftwood.testing import chi_square, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood.verifiers.verifier import NodeProbs, Verdict
from draftwood_methods.verifiers.typical import Typical
from draftwood_torch.models.transformers import TransformersModel
from letters import letters
from tiny_heads import tiny_drafter

PROMPT = torch.tensor([[5, 9, 5, 9, 5, 9, 7]])
METHODS = ["plain", "lookup", "recycling", "layer-skip", "rsd-s", "traversal"]
NEEDS_DRAFT = ("rsd-s", "traversal")
ALARM = 1e-4
LETTERS = string.ascii_letters + string.digits + "._"


@cache
def target() -> LlamaForCausalLM:
    return tiny_llama(layers=4)


def decoding(method: str, **options: object) -> dict[str, object]:
    draft = tiny_llama(seed=1, layers=1) if method in NEEDS_DRAFT else None
    return {"custom_generate": draftwood.custom_generate(method, draft_model=draft, **options)}  # type: ignore[arg-type]


def plain(inputs: Tensor = PROMPT, **options: object) -> Tensor:
    return target().generate(inputs, **{"do_sample": False, "max_new_tokens": 14, **options})  # type: ignore[arg-type]


def drafted(method: str = "recycling", inputs: Tensor = PROMPT, **options: object) -> Tensor:
    return plain(inputs, **decoding(method), **options)


def answer(sequences: Tensor) -> list[int]:
    return sequences[0, PROMPT.shape[1] :].tolist()


# Greedy decoding


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_of_generate(method: str) -> None:
    assert torch.equal(drafted(method), plain())


PROCESSORS: list[dict[str, object]] = [
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[14], [31, 34], [8, 31]]},
    {"sequence_bias": [[[5], 9.0], [[9, 5], -20.0]]},
    {"min_new_tokens": 9, "eos_token_id": list(range(32)), "pad_token_id": 0},
    {"suppress_tokens": list(range(30)), "repetition_penalty": 1.2},
    {"exponential_decay_length_penalty": (4, 1.8), "eos_token_id": 3, "pad_token_id": 0},
    {"forced_eos_token_id": 3, "eos_token_id": 3, "pad_token_id": 0},
]


@pytest.mark.parametrize("method", ["recycling", "rsd-s"])
@pytest.mark.parametrize("options", PROCESSORS, ids=lambda options: next(iter(options)))
def test_logits_processors_see_each_nodes_own_context(
    method: str, options: dict[str, object]
) -> None:
    wanted = plain(**options)
    assert torch.equal(drafted(method, **options), wanted)
    assert not torch.equal(wanted, plain())  # otherwise the option did nothing


@pytest.mark.parametrize("method", ["lookup", "recycling", "traversal"])
def test_the_end_of_text_token_ends_it_within_a_block(method: str) -> None:
    text = answer(plain())
    for end in sorted(set(text))[:4]:
        wanted = plain(eos_token_id=end, pad_token_id=0)
        assert answer(wanted) == text[: text.index(end) + 1]
        assert torch.equal(drafted(method, eos_token_id=end, pad_token_id=0), wanted)


@pytest.mark.parametrize("length", [8, 9, 12, 23])
def test_max_length(length: int) -> None:
    options = {"max_new_tokens": None, "max_length": length}
    assert torch.equal(drafted(**options), plain(**options))
    assert drafted(**options).shape == (1, length)


class EndsAfterPair(StoppingCriteria):
    """Stops once two given tokens stand next to each other."""

    def __init__(self, pair: list[int]) -> None:
        self.pair = torch.tensor(pair)

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        return (input_ids[:, -2:] == self.pair).all(-1)


@pytest.mark.parametrize("method", ["lookup", "recycling", "rsd-s"])
def test_stopping_criteria_are_asked_after_every_token(method: str) -> None:
    text = answer(plain())
    criteria = StoppingCriteriaList([EndsAfterPair(text[6:8])])
    wanted = plain(stopping_criteria=criteria)
    assert len(answer(wanted)) <= 8
    assert torch.equal(drafted(method, stopping_criteria=criteria), wanted)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One letter per token."""
    return letters(LETTERS)


@pytest.mark.parametrize("method", ["recycling", "rsd-s"])
def test_stop_strings_given_as_a_criterion(method: str) -> None:
    text = answer(plain())
    strings = [LETTERS[text[5]] + LETTERS[text[6]], "not there"]
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer(), strings)])
    wanted = plain(stop_strings=strings, tokenizer=tokenizer())
    assert len(answer(wanted)) <= 7
    assert torch.equal(drafted(method, stopping_criteria=criteria), wanted)


class Recorder(BaseStreamer):
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        self.given.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def test_streamers_get_what_generate_gives_them() -> None:
    recorders = Recorder(), Recorder()
    plain(streamer=recorders[0])
    plain(**decoding("recycling", streamer=recorders[1]))
    assert recorders[0].given == recorders[1].given
    assert recorders[1].ended == recorders[0].ended == 1


def padded_batch() -> dict[str, Tensor]:
    rows = [[5, 9, 5, 9, 5], [3], [8, 8, 2]]
    width = max(map(len, rows))
    return {
        "inputs": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


@pytest.mark.parametrize("method", ["plain", "recycling", "rsd-s"])
def test_left_padded_batches(method: str) -> None:
    text = plain(**padded_batch())
    found = drafted(method, **padded_batch())
    assert torch.equal(found, text)
    assert found.is_contiguous()
    ends = [int(text[1, 9]), int(text[2, 12])]  # rows end at different lengths
    options = {**padded_batch(), "eos_token_id": ends, "pad_token_id": 63}
    wanted = plain(**options)
    assert (wanted[:, -1] == 63).any()
    assert torch.equal(drafted(method, **options), wanted)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("method", ["eagle", "medusa", "ctc"])
def test_heads_are_told_whole_prompts(
    method: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Transformers computes the logits of the last token alone."""
    told: list[list[int]] = []

    class Heard(VerifiedTree):
        def __init__(self, tree: DraftTree, path: Any, output: ModelOutput) -> None:
            assert {len(each) for each in output.hidden.values()} == {len(tree)}
            told.append(tree.token_list)
            super().__init__(tree, path, output)

    monkeypatch.setattr("draftwood_torch.hook.drafted.VerifiedTree", Heard)
    head = tiny_drafter(method, TransformersModel(target()))
    options = {**padded_batch(), "prefill_chunk_size": chunk}
    text = plain(**padded_batch())
    hook = draftwood.custom_generate(method, draft_model=head)
    assert torch.equal(plain(**options, custom_generate=hook), text)
    rows = [[token for token in row if token] for row in padded_batch()["inputs"].tolist()]
    known, wanted = ([token for row in several for token in row] for several in (told, rows))
    assert sorted(known) == sorted(wanted)
    if chunk is None:
        assert told == rows


@pytest.mark.parametrize("options", PROCESSORS, ids=lambda options: next(iter(options)))
def test_processors_count_padding_as_generate_does(options: dict[str, object]) -> None:
    options = {**padded_batch(), **options}
    assert torch.equal(drafted(**options), plain(**options))


def test_padding_is_the_end_of_text_where_there_is_no_padding_token() -> None:
    text = plain(**padded_batch())
    options = {**padded_batch(), "eos_token_id": int(text[1, 9])}
    assert torch.equal(drafted(**options), plain(**options))


def test_the_output_object_is_that_of_generate() -> None:
    given = drafted(return_dict_in_generate=True)
    assert isinstance(given, GenerateDecoderOnlyOutput)
    assert torch.equal(given.sequences, plain())


def test_the_report_holds_the_calls_numbers() -> None:
    reports: list[Stats] = []
    sequences = plain(**decoding("recycling", report=reports.append))
    plain(**padded_batch(), **decoding("plain", report=reports.append))
    assert [stats.tokens for stats in reports] == [len(answer(sequences)), 42]
    assert reports[0].prefills == 1
    assert (reports[1].prefills, reports[1].block_efficiency) == (3, 1.0)


def test_methods_built_by_hand() -> None:
    model = TransformersModel(target())
    # the target drafts for itself
    method = Method(DraftModel(model, Widths((2, 1, 1))), Rejection())
    reports: list[Stats] = []
    hook = draftwood.custom_generate(method, report=reports.append)
    assert torch.equal(plain(custom_generate=hook), plain())
    assert reports[0].block_efficiency > 3.2
    assert torch.equal(plain(custom_generate=hook), plain())  # used a second time


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams asks for beam search"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha asks for contrastive search"),
        ({"dola_layers": "low"}, "dola_layers asks for dola generation"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens asks for assisted generation"),
        ({"prompt_lookup_num_tokens": 1}, "prompt_lookup_num_tokens asks for assisted generation"),
        ({"assistant_early_exit": 1}, "assistant_early_exit asks for assisted generation"),
        ({"assistant_model": "any"}, "give it to draftwood.custom_generate as draft_model"),
        ({"synced_gpus": True}, "their numbers of passes differ"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_ask_for_another_loop_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        drafted(**options)


def test_processes_that_share_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers then makes them wait for each other, whatever was asked for."""
    monkeypatch.setattr(transformers.generation.utils, "is_fsdp_managed_module", lambda model: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="their numbers of passes differ"):
        drafted()


def test_streamers_of_generate_are_fed_and_ended() -> None:
    streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=20)  # type: ignore[arg-type]
    text = drafted(streamer=streamer)
    assert "".join(streamer) == tokenizer().decode(answer(text))


def test_stop_strings_and_their_tokenizer() -> None:
    text = answer(plain())
    options = {"stop_strings": [LETTERS[text[5]] + LETTERS[text[6]]], "tokenizer": tokenizer()}
    wanted = plain(**options)
    assert len(answer(wanted)) <= 7
    assert torch.equal(drafted(**options), wanted)
    with pytest.raises(ValueError, match="must pass the model's tokenizer"):
        drafted(stop_strings=["a"])


def test_a_model_that_changes_its_type_under_the_same_hook() -> None:
    model, hook = tiny_llama(layers=3), draftwood.custom_generate("recycling")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        options = {"do_sample": False, "max_new_tokens": 3 if dtype == torch.bfloat16 else 12}
        assert torch.equal(
            model.generate(PROMPT, custom_generate=hook, **options),
            model.generate(PROMPT, **options),
        )


@pytest.mark.parametrize(
    "options", [{"max_new_tokens": 40}, {"max_new_tokens": 40, "do_sample": True, "top_k": 1}]
)
def test_texts_go_on_beyond_the_context_where_transformers_does(options: dict[str, object]) -> None:
    model = tiny_llama(layers=2, context=16)
    wanted = model.generate(PROMPT, **{"do_sample": False, **options})
    assert wanted.shape[1] == 47
    hook = draftwood.custom_generate("recycling")
    assert torch.equal(
        model.generate(PROMPT, custom_generate=hook, **{"do_sample": False, **options}), wanted
    )


@pytest.mark.parametrize("virtual", [True, False])
def test_prompt_tuning_is_seen(virtual: bool) -> None:
    """As PEFT does it: ``prepare_inputs_for_generation`` of the model itself is replaced."""
    model = tiny_llama(layers=3)
    original, extra = model.prepare_inputs_for_generation, torch.randn(1, 2, 32)

    class Tuned:
        active_peft_config = SimpleNamespace(is_prompt_learning=virtual)

        def prepare(
            self, input_ids: Tensor, is_first_iteration: bool = False, **options: object
        ) -> dict[str, object]:
            inputs = original(input_ids, is_first_iteration=is_first_iteration, **options)
            if virtual and is_first_iteration:
                embedded = model.get_input_embeddings()(inputs.pop("input_ids"))
                inputs["inputs_embeds"] = torch.cat([extra, embedded], dim=1)
            inputs.pop("position_ids", None)
            return inputs

    model.prepare_inputs_for_generation = Tuned().prepare  # type: ignore[method-assign]
    options = {"do_sample": False, "max_new_tokens": 12}
    wanted = model.generate(PROMPT, **options)
    assert torch.equal(wanted, tiny_llama(layers=3).generate(PROMPT, **options)) != virtual
    hook, reports = draftwood.custom_generate("recycling"), []
    hook.report = reports.append
    with pytest.warns(UserWarning, match="prompt tuning") if virtual else nullcontext():
        assert torch.equal(model.generate(PROMPT, custom_generate=hook, **options), wanted)
    assert (reports[0].drafted == 0) == virtual


def test_a_prefix_function_is_asked_for_what_its_row_wrote_alone() -> None:
    """A trie knows no way on from the tokens of another row."""
    rows = torch.cat([PROMPT, PROMPT + 1])

    def allowed(number: int, tokens: Tensor) -> list[int]:
        written = tokens[PROMPT.shape[1] :]
        known = bool((written % 2 == number).all())
        return list(range(number, 30, 2)) if known else []

    options = {"prefix_allowed_tokens_fn": allowed, "repetition_penalty": 1.3}
    assert torch.equal(drafted("recycling", rows, **options), plain(rows, **options))


def test_calls_in_inference_mode_leave_the_hook_as_it_was() -> None:
    model, hook = tiny_llama(layers=2), draftwood.custom_generate("recycling")
    options = {"do_sample": False, "max_new_tokens": 14, "custom_generate": hook}
    with torch.inference_mode():
        first = model.generate(PROMPT, **options)
    assert torch.equal(model.generate(PROMPT, **options), first)


class Bans(LogitsProcessor):
    """A processor of one's own that reads its row alone."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        return scores.scatter(1, input_ids[:, -2:], -torch.inf)


@pytest.mark.parametrize("batch", [False, True])
def test_processors_of_ones_own_run_with_drafts_where_they_are_said_to_be_stateless(
    batch: bool,
) -> None:
    options = {
        "logits_processor": LogitsProcessorList([Bans()]),
        **(padded_batch() if batch else {"inputs": PROMPT}),
    }
    wanted = plain(**options)
    reports: list[Stats] = []
    with pytest.warns(UserWarning, match=r"Bans may keep something .*stateless"):
        unsaid = plain(**decoding("recycling", report=reports.append), **options)
    said = plain(**decoding("recycling", report=reports.append, stateless=[Bans]), **options)
    assert torch.equal(unsaid, wanted)
    assert torch.equal(said, wanted)
    assert reports[0].drafted == 0 < reports[1].drafted
    assert reports[0].tokens == reports[1].tokens


def test_a_seeds_text_is_the_same_with_and_without_drafts() -> None:
    """With matching a text depends on the seed alone."""
    texts = []
    for hook in (decoding("plain"), decoding("recycling"), decoding("recycling", stateless=[])):
        torch.manual_seed(3)
        unknown = {"logits_processor": LogitsProcessorList([Nothing()])} if len(texts) == 2 else {}
        with pytest.warns(UserWarning, match="without drafts") if unknown else nullcontext():
            texts.append(plain(do_sample=True, top_k=0, num_return_sequences=3, **hook, **unknown))
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


class Nothing(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        return scores


def test_lossy_methods_are_refused() -> None:
    lossy = Method(DraftModel(TransformersModel(target()), Widths((1,))), Typical())
    with pytest.raises(ValueError, match="changes what the model would say"):
        plain(custom_generate=draftwood.custom_generate(lossy))


# Sampling

ROWS, LENGTH = 200, 3
TINY = {"vocab": 3, "dim": 16, "heads": 2}


@cache
def tiny(seed: int, layers: int = 1) -> LlamaForCausalLM:
    return tiny_llama(seed=seed, layers=layers, **TINY)


def sampled_with(method: Method, **options: object) -> Tensor:
    torch.manual_seed(0)
    prompt = torch.tensor([[1, 2, 1]])
    hook = draftwood.custom_generate(method)
    return tiny(0).generate(
        prompt,
        do_sample=True,
        max_new_tokens=LENGTH,
        num_return_sequences=ROWS,
        custom_generate=hook,
        **options,
    )[:, 3:]


@torch.no_grad()
def sampling_law(temperature: float, repetition_penalty: float) -> dict[tuple[int, ...], float]:
    """Distribution of the next tokens, from the model's own logits at every prefix."""
    law = {}
    for text in product(range(TINY["vocab"]), repeat=LENGTH):
        tokens = [1, 2, 1, *text]
        logits = tiny(0)(torch.tensor([tokens])).logits[0]
        chance = 1.0
        for place in range(3, 3 + LENGTH):
            row = logits[place - 1].clone()
            seen = list(set(tokens[:place]))
            row[seen] = torch.where(
                row[seen] < 0, row[seen] * repetition_penalty, row[seen] / repetition_penalty
            )
            chance *= float((row / temperature).softmax(-1)[tokens[place]])
        law[text] = chance
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-5)
    return law


def by_draft_model(verifier: Match | Rejection) -> Method:
    return Method(DraftModel(TransformersModel(tiny(1)), Widths((2, 1))), verifier)


@pytest.mark.parametrize(
    ("verifier", "temperature", "penalty"),
    [(Match(), 1.4, 1.6), (Rejection(), 1.0, 1.0)],
    ids=["match", "rejection"],
)
def test_the_law_of_sampled_text_is_the_models(
    verifier: Match | Rejection, temperature: float, penalty: float
) -> None:
    options = {"temperature": temperature, "repetition_penalty": penalty, "top_k": 0}
    texts = sampled_with(by_draft_model(verifier), **options)
    counts = Counter(tuple(text) for text in texts.tolist())
    assert chi_square(counts, sampling_law(temperature, penalty)) > ALARM
    assert chi_square(counts, sampling_law(temperature / 3, penalty)) < ALARM  # negative control


class TakesTheFirst(Match):
    """A wrong rule that claims to be exact: the first guess at each depth is always kept."""

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        path = [0]
        while tree.children[path[-1]]:
            path.append(tree.children[path[-1]][0])
        return Verdict(path[1:], rng.draw(target_probs[path[-1]]))


def test_a_wrong_verifier_would_be_noticed() -> None:
    """Negative control of the whole pipeline."""
    texts = sampled_with(by_draft_model(TakesTheFirst()), temperature=1.0, top_k=0)
    counts = Counter(tuple(text) for text in texts.tolist())
    assert chi_square(counts, sampling_law(1.0, 1.0)) < ALARM


def test_seeds_reproduce_and_differ() -> None:
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(drafted("rsd-s", do_sample=True, num_return_sequences=2, max_new_tokens=8))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0][0], texts[0][1])


def test_a_hook_may_be_copied_after_use() -> None:
    hook = draftwood.custom_generate("lookup")
    wanted = plain(custom_generate=hook)
    for copied in (pickle.loads(pickle.dumps(hook)), copy.deepcopy(hook)):
        assert torch.equal(plain(custom_generate=copied), wanted)
    assert torch.equal(plain(custom_generate=hook), wanted)


def test_auto_may_be_asked_for_without_a_trained_drafter() -> None:
    hook = draftwood.custom_generate("auto", draft_model="none")
    assert torch.equal(plain(custom_generate=hook), plain())
    with (
        pytest.warns(MovedWarning, match="drafter is draft_model now"),
        pytest.raises(ValueError, match="there is no drafter's folder nowhere"),
    ):
        draftwood.custom_generate("auto", drafter="nowhere")
