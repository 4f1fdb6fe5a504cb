"""Tree decoding inside Transformers' own ``generate``."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

from draftwood import methods
from draftwood.engine import Decoding, Options, generate_batch
from draftwood.methods import Method
from draftwood.models.cache import CachePool
from draftwood.models.calibration import Calibration
from draftwood.models.transformers import TransformersModel
from draftwood.sampling import ProcessorSampling
from draftwood.stats import Stats

# How many tokens the engine may emit is Transformers' stopping criteria's business; this only bounds the loop.
_UNBOUNDED = 1 << 30

# Inputs of a model that say nothing tokens do not say, or that are read here.
_READ = frozenset(("attention_mask", "position_ids", "cache_position"))


def custom_generate(
    method: str | Method = "lookup",
    draft_model: PreTrainedModel | None = None,
    report: Callable[[Stats], None] | None = None,
    streamer: BaseStreamer | None = None,
) -> Callable[..., Tensor | GenerateDecoderOnlyOutput]:
    """A decoding loop for ``model.generate(**inputs, custom_generate=draftwood.custom_generate("recycling"))``.

    Transformers prepares everything as usual: logits processors run on each node's own context, stopping criteria after
    every token, left-padded batches share the target's runs. With sampling, ``torch.manual_seed`` before the call makes
    it reproducible.

    Transformers 5 hands neither ``streamer`` nor ``tokenizer`` of ``generate`` on to custom loops. Give the streamer
    here, and stop strings as ``stopping_criteria=[StopStringCriteria(tokenizer, strings)]``.

    Args:
        method: a name of ``draftwood.methods`` or a ``Method`` built by hand.
        draft_model: for methods that draft with a second model.
        report: called with the call's ``Stats`` at its end.
        streamer: gets the prompt, then tokens as they are accepted.

    Raises:
        ValueError: by the returned function, for options of ``generate`` that make no sense here.
    """
    used: WeakKeyDictionary[PreTrainedModel, _Used] = WeakKeyDictionary()
    starting = threading.Lock()  # two first calls at once would have a cache each

    def start(model: PreTrainedModel) -> tuple[TransformersModel, Method]:
        with starting:
            known = used.get(model)
            if known is not None:
                return TransformersModel(model, known.pool), known.method
            target = TransformersModel(model)
            chosen = method if isinstance(method, Method) else _named(method, target, draft_model)
            used[model] = _Used(target.pool, chosen)
            return target, chosen

    def decode(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs: object,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        _refuse(generation_config, model_kwargs)
        target, chosen = start(model)
        mask = model_kwargs.get("attention_mask")
        rows = _unpadded(input_ids, mask if isinstance(mask, Tensor) else None)
        decodings = []
        for number, row in enumerate(rows):
            process = _behind(input_ids, number, len(row), logits_processor)
            sampler = ProcessorSampling(process, greedy=not generation_config.do_sample)
            options = Options(sampler, _UNBOUNDED, seed=_seed())
            decodings.append(Decoding(target, chosen.drafter, chosen.verifier, row, options))
        answers, stats = _decode(decodings, input_ids, stopping_criteria, streamer)
        if report is not None:
            report(stats)
        sequences = _sequences(input_ids, answers, generation_config)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
        return sequences

    return decode


@dataclass(frozen=True)
class _Used:
    """What is kept of a model from call to call. It does not refer to the model, which may so be dropped."""

    pool: CachePool
    method: Method


def _named(name: str, target: TransformersModel, draft_model: PreTrainedModel | None) -> Method:
    draft = None if draft_model is None else TransformersModel(draft_model)
    curve = Calibration(target).curve if methods.recipe(name).uses_curve else None
    return methods.build(name, target, draft, curve=curve)


def _refuse(config: GenerationConfig, inputs: Mapping[str, object]) -> None:
    wanted = [
        name
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
        if getattr(config, name, False)
    ]
    if wanted:
        raise ValueError(f"{', '.join(wanted)} cannot be had from tree decoding; leave it out")
    if (config.num_beams or 1) > 1 or ((config.num_return_sequences or 1) > 1 and not config.do_sample):
        raise ValueError("tree decoding writes one text per prompt: num_beams and num_return_sequences must be 1")
    if config.guidance_scale not in (None, 1):
        raise ValueError("guidance_scale runs the model a second time with a state of its own; leave it out")
    unread = [name for name, value in inputs.items() if isinstance(value, Tensor) and name not in _READ]
    if unread:
        raise ValueError(f"tree decoding reads tokens only; leave out {', '.join(unread)}")


def _seed() -> int:
    return int(torch.randint(1 << 62, ()))


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    if mask is None or mask.shape != input_ids.shape:
        return input_ids.tolist()
    return [row[kept.bool()].tolist() for row, kept in zip(input_ids, mask, strict=True)]


def _behind(
    given: Tensor, number: int, prompt: int, processors: LogitsProcessorList
) -> Callable[[Tensor, Tensor], Tensor]:
    """The processors as Transformers calls them: on the row as given, padding and all, in its place of the batch."""

    def process(tokens: Tensor, scores: Tensor) -> Tensor:
        row = torch.cat([given[number][None].to(tokens.device), tokens[:, prompt:]], dim=1)
        batch = len(given)
        scores = scores.expand(batch, -1).clone()  # some processors keep one setting per row
        return processors(row.expand(batch, -1), scores)[number][None]  # type: ignore[arg-type]

    return process


def _decode(
    decodings: list[Decoding], input_ids: Tensor, criteria: StoppingCriteriaList, streamer: BaseStreamer | None
) -> tuple[list[list[int]], Stats]:
    """Answers of all rows; each ends with the token at which the stopping criteria say so."""
    answers: list[list[int]] = [[] for _ in decodings]
    stats = Stats()
    if streamer is not None:
        streamer.put(input_ids.cpu())
    with closing(generate_batch(decodings)) as steps:
        for number, step in steps:
            for taken, token in enumerate(step.tokens, start=1):
                answers[number].append(token)
                if streamer is not None:
                    streamer.put(torch.tensor([token]))
                so_far = torch.cat([input_ids[number], torch.tensor(answers[number], device=input_ids.device)])
                if bool(criteria(so_far.expand(len(input_ids), -1), None)[number]):  # type: ignore[arg-type]
                    decodings[number].finish_reason = "stop"
                    step = step.first(taken)
                    break
            stats.add(step)
    if streamer is not None:
        streamer.end()
    return answers, stats


def _sequences(input_ids: Tensor, answers: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and answers in one rectangle, padded on the right as Transformers pads."""
    longest = max(map(len, answers))
    pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    rows = [answer + [pad] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, device=input_ids.device, dtype=input_ids.dtype)], dim=1)
