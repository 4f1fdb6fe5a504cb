"""A stochastic tree of thoughts: sub-questions, their answers, and the likeliest path."""

import math
from collections.abc import Sequence
from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer, proposal_of, with_more
from draftwood_choices.search.word_bank import GRAMMARS, WORD, bank_grammar, prompt_text

ALIKE = 0.7
"""Share of common words from which two questions count as paraphrases."""
ANSWERABLE = 0.5
"""Probability from which the question counts as answerable."""
LOOKED_AT = 40
"""Likeliest tokens among which yes and no are looked for."""
STEP = 32
"""Tokens of a question or of its answer at most."""
BELOW = 4 * STEP
"""Tokens that are kept free below a step: a question, its answer, and what is asked of them."""

ASK = "\n{chain}\nWrite one short question whose answer helps with the question above:"
ANSWER = "\n{chain}\nAnswer in a few words, by the text above: {question}"
VALID = "\n{chain}\nIs this last step clear and right by the text above? Answer yes or no."
ENOUGH = "\n{chain}\nCan the question be answered now? Answer yes or no."
FINAL = "\n{chain}\nNow answer the question above in a few words."


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Grow a tree of sub-questions, and answer along its likeliest path.

    Bi et al. 2024, arXiv:2407.03687 (STOC-TOT). The prompt holds evidence and question. A step is
    worth the probability that the model gives to a yes where it is asked whether the step is right;
    the paper lets the model write a number. A path is worth the product, and paths of unequal
    lengths are compared by the geometric mean. The answer has words of the prompt alone, by a
    grammar. Paraphrases are told by common words, where the paper has a model for it.

    Raises:
        ValueError: for a prompt without any word.
    """
    proposer.refuse((*GRAMMARS, "min_tokens"), "it writes words of the task alone")
    grammar = bank_grammar(prompt_text(prompt))
    root = Proposal("", value=1.0, is_whole=False)
    tree, grown, notes = [root], set[int](), list[str]()
    best = root
    while len(grown) < options.rounds:
        open_steps = [each for each in tree if id(each) not in grown]
        if not open_steps:
            break
        step = max(open_steps, key=mean_value)
        room = proposer.room(with_more(prompt, ASK.format(chain=step.text)))
        if room is not None and room < BELOW:
            notes.append(f"the tree grows no further: {proposer.context} tokens are full")
            break
        if step.above is not None and yes(proposer, prompt, ENOUGH, step.text) >= ANSWERABLE:
            best = step
            break
        grown.add(id(step))
        tree += _expanded(proposer, prompt, step, options.answers)
        best = max(leaves(tree), key=mean_value)
    asked = with_more(prompt, FINAL.format(chain=best.text))
    (made,) = proposer.write(asked, temperature=0.0, grammar=grammar)
    last = proposal_of(made)
    last.value, last.above, last.step = best.value, best, made.text
    if proposer.checker is not None:
        last.judgement = proposer.judge(last.text)
    details = {"expansions": len(grown), "chain": best.text.strip()}
    return Solution(last, [*tree, last], details, notes)


def _expanded(proposer: Proposer, prompt: Any, step: Proposal, count: int) -> list[Proposal]:
    """Sub-questions below a step, with their answers."""
    short = {"max_new_tokens": STEP, "stop": "\n"}
    asked = proposer.write(with_more(prompt, ASK.format(chain=step.text)), count, **short)
    found = list[Proposal]()
    for question in unlike([each.text.strip() for each in asked]):
        wanted = with_more(prompt, ANSWER.format(chain=step.text, question=question))
        (answer,) = proposer.write(wanted, temperature=0.0, **short)
        told = f"{question} {answer.text.strip()}"
        chain = f"{step.text}\n{told}"
        value = step.value * yes(proposer, prompt, VALID, chain)
        found.append(Proposal(chain, value=value, above=step, step=told, is_whole=False))
    return found


def leaves(tree: Sequence[Proposal]) -> list[Proposal]:
    """Steps that no other goes on from."""
    inner = {id(each.above) for each in tree}
    return [each for each in tree if id(each) not in inner]


def mean_value(step: Proposal) -> float:
    """Geometric mean of the probabilities that a step and those above it are right."""
    return step.value ** (1.0 / max(1, step.depth))


def yes(proposer: Proposer, prompt: Any, question: str, chain: str) -> float:
    """Probability of a yes rather than a no; one half where the model says neither."""
    asked = with_more(prompt, question.format(chain=chain))
    wanted: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 1, "logprobs": LOOKED_AT}
    (made,) = proposer.write(asked, **wanted)
    said = {"yes": 0.0, "no": 0.0}
    for token, logprob in (made.logprobs or [])[0].top.items():
        text = str(proposer.lm.tokenizer.decode([token])).strip().lower()
        if text in said:
            said[text] += math.exp(logprob)
    total = sum(said.values())
    return said["yes"] / total if total else 0.5


def unlike(questions: list[str]) -> list[str]:
    """Questions of which no two are paraphrases; empty ones are left out."""
    kept = list[tuple[str, set[str]]]()
    for text in questions:
        words = {each.lower() for each in WORD.findall(text)}
        if words and all(len(words & old) < ALIKE * len(words | old) for _, old in kept):
            kept.append((text, words))
    return [text for text, _ in kept]
