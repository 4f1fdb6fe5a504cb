"""Texts of two models, from what is loaded."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwood.models.model import PrefixStore
from draftwood.sampling_params import SamplingParams
from draftwood.text import prompts
from draftwood.text.language_model import LanguageModel
from draftwood_choices.collaboration.loop import Collaboration
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.writer import LocalWriter, PassageWriter

OPTIONS = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "raw")
"""Options of a text that several models write.

Others count tokens from the answer's begin, or hold for a whole answer, and a turn knows neither.
"""


def collaborate(
    prompt: prompts.Prompt | prompts.Tokens,
    leader: LanguageModel | PassageWriter,
    follower: LanguageModel,
    rule: CollaborationRule,
    params: SamplingParams | None = None,
    shared: Mapping[str, PrefixStore | None] | None = None,
    **options: Any,
) -> Collaboration:
    """Let two models write one text; iterate over the result for its passages, or ``run`` it.

    Args:
        prompt: of both; each reads it in its own chat template.
        leader: a model, or another writer, for instance a ``RemoteWriter``.
        follower: the smaller model.
        rule: says who writes next.
        params: options of the text, of which ``OPTIONS`` mean something here.
        shared: keep prompts for other texts, by writer.
        options: fields of these, over them.

    Raises:
        ValueError: for options that a turn cannot keep, for a prompt that does not fit, and for a
            rule that needs one vocabulary where there are two.
    """
    wanted = replace(params or SamplingParams(), **options)
    for name in wanted.given():
        if name not in (*OPTIONS, "exact"):
            raise ValueError(f"{name} has no meaning for a text that several models write")
    if wanted.exact:
        raise ValueError(
            f"rule {rule.name!r} changes what either model would say; --inexact, in Python"
            " exact=False, allows that"
        )
    own = SamplingParams(**{name: getattr(wanted, name) for name in OPTIONS})
    known = shared or {}
    ahead = leader
    if isinstance(leader, LanguageModel):
        ahead = LocalWriter(leader, prompt, own, known.get(LEADER))
    writers = {LEADER: ahead, FOLLOWER: LocalWriter(follower, prompt, own, known.get(FOLLOWER))}
    for name, writer in writers.items():
        if isinstance(writer, LocalWriter) and (room := writer.room([])) is not None and room <= 0:
            raise ValueError(
                f"the prompt has {len(writer.prompt)} tokens and the {name}'s context is"
                f" {room + len(writer.prompt)}; shorten the prompt"
            )
    return Collaboration(rule, writers, own.max_new_tokens, own.seed)


def prompt_text(lm: LanguageModel, prompt: prompts.Prompt, raw: bool) -> str:
    """A prompt in the form in which a model reads it, for a server that completes texts.

    Args:
        lm: whose chat template is taken; the server's model should be of its family.
    """
    template = None if raw else lm.tokenizer.chat_template
    if template is None:
        if not isinstance(prompt, str):
            raise ValueError(f"{lm.name} has no chat template; give a text")
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return str(
        lm.tokenizer.apply_chat_template(
            prompts.plain_messages(messages), tokenize=False, add_generation_prompt=True
        )
    )
