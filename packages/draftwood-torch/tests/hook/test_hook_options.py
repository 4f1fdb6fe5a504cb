"""Every option of ``generate``: what the table says of it is what happens."""

import inspect
import warnings
from typing import Any

import pytest
import torch
from test_hooks import LETTERS, PROMPT, Recorder, answer, padded_batch, plain, target, tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import (
    GenerationMixin,
    MaxLengthCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation.logits_process import (
    UnbatchedClassifierFreeGuidanceLogitsProcessor as CachesBoth,
)

import draftwood
from draftwood_torch.hook.options import ARGUMENTS, OPTIONS, Option
from thinning import thinned

Options = dict[str, Any]
SYNTH_ID = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[3, 5, 7], context_history_size=64)
SAMPLED = {"do_sample": True, "top_k": 0}


def same(wanted: Any, given: Any) -> bool:
    """True if two outputs of generate hold the same: tokens exactly, numbers up to rounding."""
    if isinstance(wanted, Tensor):
        if wanted.is_floating_point():
            return wanted.shape == given.shape and torch.allclose(
                wanted, given, atol=1e-4, equal_nan=True
            )
        return torch.equal(wanted, given)
    if isinstance(wanted, DynamicCache):
        pairs = zip(wanted.layers, given.layers, strict=True)
        return all(
            same(ours.keys, theirs.keys) and same(ours.values, theirs.values)
            for ours, theirs in pairs
        )
    if isinstance(wanted, dict):
        return wanted.keys() == given.keys() and all(
            same(wanted[key], given[key]) for key in wanted
        )
    if isinstance(wanted, (tuple, list)):
        return len(wanted) == len(given) and all(
            same(*pair) for pair in zip(wanted, given, strict=True)
        )
    return wanted == given


def is_made(value: object) -> bool:
    """True if a callable is a value itself and not a factory of one."""
    return isinstance(value, (torch.nn.Module, PreTrainedTokenizerBase))


def run(hook: object = None, **options: Any) -> Any:
    """Generate with options, some of which are made for each call."""
    made = {
        name: value()
        if callable(value) and name != "prefix_allowed_tokens_fn" and not is_made(value)
        else value
        for name, value in options.items()
    }
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plain(
            made.pop("inputs", PROMPT),
            **({} if hook is None else {"custom_generate": hook}),
            **made,
        )


def healing_tokenizer() -> PreTrainedTokenizerBase:
    """One that can pad, as healing asks, and has a longer token for the prompt's last letter."""
    last = LETTERS[int(PROMPT[0, -1])]
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    vocabulary[last + LETTERS[9]] = vocabulary.pop(LETTERS[40])
    letters = Tokenizer(models.BPE(vocabulary, [(last, LETTERS[9])]))
    letters.pre_tokenizer, letters.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=letters, pad_token=LETTERS[0], bos_token=LETTERS[1]
    )


ENDS = {"eos_token_id": [3, 14], "pad_token_id": 0}

# For each option: calls that make a difference, of which each must give what Transformers gives or
# be refused.
CASES: dict[str, list[Options]] = {
    "max_length": [{"max_new_tokens": None, "max_length": 12}],
    "max_new_tokens": [{"max_new_tokens": 5}, {"max_new_tokens": 1}],
    "min_length": [{"min_length": 18, "eos_token_id": list(range(32)), "pad_token_id": 0}],
    "min_new_tokens": [{"min_new_tokens": 9, "eos_token_id": list(range(32)), "pad_token_id": 0}],
    "max_time": [{"max_time": 1e-9}],
    "stop_strings": [{"stop_strings": ["{stop}"], "tokenizer": tokenizer}],
    "do_sample": [{"do_sample": True, "top_k": 1}],
    "num_beams": [{"num_beams": 2}],
    "num_beam_groups": [{"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5}],
    "penalty_alpha": [{"penalty_alpha": 0.6, "top_k": 4}],
    "dola_layers": [{"dola_layers": "high"}],
    "constraints": [{"constraints": [object()], "num_beams": 2}],
    "force_words_ids": [{"force_words_ids": [[5]], "num_beams": 2}],
    "use_mtp": [{"use_mtp": True}],
    "use_cache": [{"use_cache": False}],
    "cache_implementation": [{"cache_implementation": name} for name in ("dynamic", "static")],
    "max_cache_len": [{"cache_implementation": "static", "max_cache_len": 64}],
    "prefill_chunk_size": [{"prefill_chunk_size": 3}],
    "temperature": [{**SAMPLED, "temperature": 1e-4}],
    "top_k": [{"do_sample": True, "top_k": 1}],
    "top_p": [{**SAMPLED, "top_p": 1e-6}],
    "min_p": [{**SAMPLED, "min_p": 1.0}],
    "top_h": [{**SAMPLED, "top_h": 1e-6}],
    "typical_p": [{**SAMPLED, "typical_p": 1e-6}],
    "epsilon_cutoff": [{**SAMPLED, "epsilon_cutoff": 0.9999}],
    "eta_cutoff": [{**SAMPLED, "temperature": 0.02, "eta_cutoff": 0.9}],
    "repetition_penalty": [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 1.7, **padded_batch()},
    ],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 0.3}],
    "no_repeat_ngram_size": [
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1, **padded_batch()},
    ],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": 1}],
    "bad_words_ids": [{"bad_words_ids": [[14], [31, 34], [8, 31]]}],
    "renormalize_logits": [{"renormalize_logits": True}],
    "forced_bos_token_id": [{"forced_bos_token_id": 4, "inputs": PROMPT[:, :1]}],
    "forced_eos_token_id": [{"forced_eos_token_id": 3, "eos_token_id": 3, "pad_token_id": 0}],
    "remove_invalid_values": [{"remove_invalid_values": True}],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": (4, 1.8), **ENDS}],
    "suppress_tokens": [{"suppress_tokens": list(range(30))}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": list(range(30))}],
    "sequence_bias": [{"sequence_bias": [[[5], 9.0], [[9, 5], -20.0]]}],
    "token_healing": [{"token_healing": True, "tokenizer": healing_tokenizer}],
    "guidance_scale": [{"guidance_scale": 2.5}],
    "watermarking_config": [
        {"watermarking_config": WatermarkingConfig(bias=9.0)},
        {"watermarking_config": WatermarkingConfig(bias=9.0), **padded_batch()},
        {"watermarking_config": SYNTH_ID, "do_sample": True, "top_k": 1},
        {"watermarking_config": SYNTH_ID, "do_sample": False, **padded_batch()},
    ],
    "num_return_sequences": [{"num_return_sequences": 3, "do_sample": True, "top_k": 1}],
    "output_scores": [
        {"output_scores": True, "return_dict_in_generate": True, "repetition_penalty": 1.5},
        {"output_scores": True, "return_dict_in_generate": True, **padded_batch()},
        {"output_scores": True, "return_dict_in_generate": True, "do_sample": True, "top_k": 1},
    ],
    "output_logits": [
        {"output_logits": True, "return_dict_in_generate": True, "repetition_penalty": 1.5},
        {
            "output_logits": True,
            "return_dict_in_generate": True,
            "output_scores": True,
            **padded_batch(),
        },
    ],
    "return_dict_in_generate": [
        {"return_dict_in_generate": True},
        {"return_dict_in_generate": True, "max_new_tokens": 1},
        {"return_dict_in_generate": True, "eos_token_id": "{end}", "pad_token_id": 0},
        {"return_dict_in_generate": True, **padded_batch()},
    ],
    "output_attentions": [{"output_attentions": True, "return_dict_in_generate": True}],
    "output_hidden_states": [{"output_hidden_states": True, "return_dict_in_generate": True}],
    "pad_token_id": [{"eos_token_id": "{end}", "pad_token_id": 11, **padded_batch()}],
    "bos_token_id": [{"bos_token_id": 6, "inputs": None}],
    "eos_token_id": [{"eos_token_id": "{end}", "pad_token_id": 0}],
    "prompt_lookup_num_tokens": [{"prompt_lookup_num_tokens": 3}],
    "assistant_early_exit": [{"assistant_early_exit": 1}],
}
IGNORED: dict[str, Any] = {  # these change nothing in Transformers either
    "early_stopping": True,
    "length_penalty": 2.0,
    "low_memory": True,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "max_matching_ngram_size": 3,
    "disable_compile": True,
}
# Options that nothing here can switch on: they need other models, libraries or modes.
UNTRIED = {
    *(
        "decoder_start_token_id",
        "cache_config",
        "compile_config",
        "continuous_batching_config",
        "transformers_version",
    ),
    *("assistant_ensemble_weight", "speculation_type", "diversity_penalty", "is_assistant"),
}


class Counts(StoppingCriteria):
    """Ends every text once it has been asked so many times, in the third call with one row's number
    alone.
    """

    def __init__(self, calls: int, row: int | None) -> None:
        self.calls, self.row = calls, row

    def __call__(self, input_ids: Tensor, scores: object, **options: object) -> Tensor:
        self.calls -= 1
        done = torch.zeros(len(input_ids), dtype=torch.bool)
        if self.calls == 0:
            done[slice(None) if self.row is None else self.row] = True
        return done


class EndsAllWithOne(StoppingCriteria):
    """Ends the whole batch once any row holds a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Tensor, scores: object, **options: object) -> Tensor:
        return (input_ids[:, 7:] == self.token).any().expand(len(input_ids))


class Remembers(LogitsProcessor):
    """Forbids what it has let through most in any row since it was made."""

    def __init__(self) -> None:
        self.seen = torch.zeros(50)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        self.seen = (
            self.seen[: scores.shape[1]]
            if len(self.seen) >= scores.shape[1]
            else torch.zeros(scores.shape[1])
        )
        self.seen.index_add_(0, scores.argmax(-1), torch.ones(len(scores)))
        return scores - 3.0 * self.seen


class ReadsTheBatch(LogitsProcessor):
    """Lets no two rows write the same token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        scores = scores.clone()
        for row in range(1, len(scores)):
            scores[row, scores[row - 1].argmax()] = -torch.inf
        return scores


def criteria(*made: StoppingCriteria) -> StoppingCriteriaList:
    return StoppingCriteriaList(list(made))


def cached(tokens: int = 4) -> DynamicCache:
    cache = DynamicCache(config=target().config)
    with torch.no_grad():
        target()(PROMPT[:, :tokens], past_key_values=cache)
    return cache


ONE = torch.ones(1, 7, dtype=torch.long)
RIGHT = {"inputs": torch.tensor([[5, 9, 5, 9, 0, 0], [8, 8, 2, 5, 9, 4]])}
HOLES = torch.tensor([[1, 0, 1, 1, 0, 1, 1]])


def embedded() -> Tensor:
    return target().get_input_embeddings()(PROMPT)


ARGUMENT_CASES: dict[str, list[Options]] = {
    "inputs": [{"inputs": PROMPT[:, :3]}],
    "generation_config": [
        {"generation_config": GenerationConfig(repetition_penalty=1.5, do_sample=False)}
    ],
    "logits_processor": [
        {"logits_processor": lambda: LogitsProcessorList([Remembers()])},
        {"logits_processor": lambda: LogitsProcessorList([Remembers()]), **padded_batch()},
        {"logits_processor": lambda: LogitsProcessorList([ReadsTheBatch()]), **padded_batch()},
    ],
    "stopping_criteria": [
        {"stopping_criteria": lambda: criteria(Counts(5, None))},
        {"stopping_criteria": lambda: criteria(Counts(5, None)), **padded_batch()},
        {"stopping_criteria": lambda: criteria(Counts(5, 1)), **padded_batch()},
        {
            "stopping_criteria": lambda: criteria(Counts(5, 1)),
            "eos_token_id": 63,
            "pad_token_id": 0,
            **padded_batch(),
        },
        {
            "stopping_criteria": lambda: criteria(EndsAllWithOne(answer(plain())[4])),
            **padded_batch(),
        },
        {"stopping_criteria": lambda: criteria(MaxLengthCriteria(10)), "max_new_tokens": 14},
    ],
    "prefix_allowed_tokens_fn": [
        {
            "prefix_allowed_tokens_fn": lambda row, tokens: [
                3 * row + 1,
                20 - row,
                int(tokens[-1]),
            ],
            **padded_batch(),
        }
    ],
    "synced_gpus": [{"synced_gpus": True}],
    "assistant_model": [{"assistant_model": target}],
    "streamer": [{"streamer": Recorder}],
    "negative_prompt_ids": [
        {"guidance_scale": 2.5, "negative_prompt_ids": torch.tensor([[4, 4, 8]])}
    ],
    "negative_prompt_attention_mask": [
        {
            "guidance_scale": 2.5,
            "negative_prompt_ids": torch.tensor([[4, 4, 8]]),
            "negative_prompt_attention_mask": torch.tensor([[0, 1, 1]]),
        }
    ],
    "tokenizer": [{"stop_strings": ["{stop}"], "tokenizer": tokenizer}],
    "attention_mask": [
        {"attention_mask": ONE},
        {"attention_mask": HOLES},
        {**RIGHT, "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])},
        padded_batch(),
    ],
    "position_ids": [
        {"position_ids": torch.arange(7)[None]},
        {"position_ids": torch.arange(7)[None] + 3},
        {"position_ids": torch.tensor([[0, 1, 2, 4, 6, 8, 10]])},
    ],
    "past_key_values": [
        {"past_key_values": cached},
        {"past_key_values": cached, "inputs": PROMPT[:, 4:], "attention_mask": ONE},
        {"past_key_values": cached, "inputs": PROMPT[:, 4:], "attention_mask": HOLES},
        {
            "past_key_values": cached,
            "inputs": PROMPT[:, 4:],
            "attention_mask": ONE,
            "return_dict_in_generate": True,
        },
        {
            "past_key_values": lambda: DynamicCache(config=target().config),
            "return_dict_in_generate": True,
        },
    ],
    "inputs_embeds": [{"inputs_embeds": embedded, "inputs": None}, {"inputs_embeds": embedded}],
}
UNTRIED_ARGUMENTS = {
    *("custom_generate", "assistant_tokenizer", "trust_remote_code"),
    # below, on models that have them
    *("token_type_ids", "pixel_values and other inputs of a model"),
}


def filled_in(options: Options) -> Options:
    """Tokens that the plain text holds in place of their names."""
    text = answer(plain())
    letters = tokenizer().convert_ids_to_tokens(text[5:7])
    names = {"{end}": text[6], "{stop}": "".join(letters)}
    return {
        name: [names.get(v, v) if isinstance(v, str) else v for v in value]
        if name == "stop_strings"
        else names.get(value, value)
        if isinstance(value, str)
        else value
        for name, value in options.items()
    }


def test_the_table_has_every_field_of_the_configuration_and_no_other() -> None:
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert set(OPTIONS) == fields
    arguments = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert arguments <= set(ARGUMENTS)


def test_every_option_is_tried() -> None:
    assert set(CASES) | set(IGNORED) | UNTRIED == set(OPTIONS)
    assert set(ARGUMENT_CASES) | UNTRIED_ARGUMENTS == set(ARGUMENTS)


ALL = [
    pytest.param(option, case, id=f"{name}-{number}")
    for table, cases in ((OPTIONS, CASES), (ARGUMENTS, ARGUMENT_CASES))
    for name, option in table.items()
    for number, case in enumerate(cases.get(name, []))
]


@pytest.mark.parametrize("method", thinned(["recycling", "lookup"], 2))
@pytest.mark.parametrize(("option", "case"), thinned(ALL, 6))
def test_an_option_does_what_the_table_says(option: Option, case: Options, method: str) -> None:
    options = filled_in(case)
    hook = draftwood.custom_generate(method)
    if option.outcome == "refused":
        with pytest.raises(ValueError, match=r"leave it out|give it to|differ; call generate"):
            run(hook, **options)
        return
    streamers = [options[name]() for name in ("streamer",) if name in options for _ in range(2)]
    caches = (
        [made() for made in [options["past_key_values"]] for _ in range(2)]
        if "past_key_values" in options
        else []
    )
    here, there = dict(options), dict(options)
    for pair, name in ((streamers, "streamer"), (caches, "past_key_values")):
        if pair:
            here[name], there[name] = pair
    wanted, given = run(**there), run(hook, **here)
    assert type(given) is type(wanted)
    assert same(wanted, given)
    if streamers:
        assert streamers[0].given == streamers[1].given
        assert streamers[0].ended == streamers[1].ended == 1
    if caches:
        assert caches[0].get_seq_length() == caches[1].get_seq_length() > 7
        assert same(caches[1], caches[0])


@pytest.mark.parametrize("name", IGNORED)
def test_options_that_transformers_does_not_read_here_change_nothing(name: str) -> None:
    assert torch.equal(
        run(draftwood.custom_generate("recycling"), **{name: IGNORED[name]}), plain()
    )


def test_two_streamers_are_refused_and_one_may_be_given_twice() -> None:
    ours, theirs = Recorder(), Recorder()
    with pytest.raises(ValueError, match="give one streamer, to either of them"):
        run(draftwood.custom_generate("lookup", streamer=ours), streamer=lambda: theirs)
    assert ours.given == []
    run(draftwood.custom_generate("lookup", streamer=ours), streamer=lambda: ours)
    assert sum(map(len, ours.given)) == PROMPT.shape[1] + len(answer(plain()))
    assert ours.ended == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"report": []}, TypeError, "report must be a function"),
        ({"report": "x"}, TypeError, "report must be a function"),
        ({"stateless": LogitsProcessor}, TypeError, "stateless must be a list of classes"),
        ({"stateless": [Remembers()]}, TypeError, "stateless must be a list of classes"),
        ({"stateless": [CachesBoth]}, ValueError, "keeps a second cache between tokens; leave it"),
        ({"method": "nope"}, ValueError, "nope"),
        ({"method": "speculative"}, ValueError, "drafts with a second, smaller model"),
        ({"method": "lookup", "draft_model": target()}, ValueError, "uses no draft model"),
        ({"draft_model": [target(), "smollm2-135m-eagle"]}, ValueError, "uses no draft model"),
        ({"method": "auto", "draft_model": "smollm2-135m-ctc"}, ValueError, "for method 'ctc'"),
    ],
)
def test_what_makes_no_hook_is_refused_before_any_text(
    options: Options, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        draftwood.custom_generate(**options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_cache": False}, "use_cache=False keeps no cache"),
        ({"guidance_scale": 2.5}, "guidance_scale keeps a second cache between tokens"),
        ({"watermarking_config": SYNTH_ID, **SAMPLED}, "what it has marked between tokens"),
    ],
)
def test_the_warning_tells_why_there_are_no_drafts(options: Options, reason: str) -> None:
    with pytest.warns(UserWarning, match="runs without drafts") as found:
        plain(PROMPT, custom_generate=draftwood.custom_generate("recycling"), **options)
    (told,) = (str(each.message) for each in found if "without drafts" in str(each.message))
    assert reason in told
    assert "stateless" not in told
