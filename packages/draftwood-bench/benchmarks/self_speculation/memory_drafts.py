"""Drafts from what was written before: earlier prompts, earlier edits, places that are alike."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Table,
    figure,
    gain,
    kept_tokens,
    loaded,
    over,
    side,
    spec_bench,
    speed,
)
from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, MultiSource, VerifiedTree
from draftwood.engine.method import Method
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import EarlierTexts, NearestState, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Merger
from draftwood.storage.data_sets import DataFile
from draftwood.text.language_model import LanguageModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_bench.plan.prompts import load_prompts

CATEGORIES = ("math_reasoning", "translation", "qa", "summarization", "rag")
BEFORE, AFTER = 16, 8  # prompts of a category that are remembered, and that are counted
NEW_TOKENS, LONGEST = 64, 600
NODES = (1, 8)
FILES, EDIT_TOKENS = 8, 96
EDITS = (
    "Write this Python file again, with a docstring in each function.",
    "Write this Python file again, with one more blank line before each return.",
)
SOURCES = ("auto", "memory", "shuffled memory")


def with_memory(lm: LanguageModel, texts: Sequence[Sequence[int]]) -> LanguageModel:
    """``auto`` that also remembers these texts."""
    auto, memory = lm.method.drafter, EarlierTexts()
    assert isinstance(auto, MultiSource)
    for text in texts:
        request = DraftRequest(Sampling(), Rng(0), lm.model.start())
        chain = DraftTree.chain(list(text))
        merger = Merger((memory,), Estimator(), request)
        merger.learn(VerifiedTree(chain, range(len(text))), quiet=True)
        request.target.close()
    more = replace(auto, sources=(*auto.sources, memory))
    return lm.with_method(Method(more, Match()))


def shuffled(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same tokens of each text in another order."""
    return [random.Random(0).sample(list(text), len(text)) for text in texts]


def arms_of(
    lm: LanguageModel, kind: str, texts: Sequence[Sequence[int]]
) -> dict[str, LanguageModel]:
    ways = (lm, with_memory(lm, texts), with_memory(lm, shuffled(texts)))
    return {f"{kind}: {name}": way for name, way in zip(SOURCES, ways, strict=True)}


def answers(lm: LanguageModel, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Each prompt and its answer."""
    plain = lm.with_method("plain")
    made = plain.generate([list(prompt) for prompt in prompts], max_new_tokens=tokens)
    return [[*prompt, *each.token_ids] for prompt, each in zip(prompts, made, strict=True)]


def run(records: Records) -> None:
    lm = loaded("smollm2-135m").with_method("auto", draft_model="none")
    run_edits(records, lm)
    run_alike(records, lm)
    run_categories(records, lm)


def run_categories(records: Records, lm: LanguageModel) -> None:
    decoder = Decoder(records, NEW_TOKENS)
    for category in CATEGORIES:
        prompts = load_prompts("spec-bench", categories=(category,), limit=BEFORE + AFTER).prompts
        last = f"{category} {prompts[-1].id}"
        if all(records.has(f"{category}: {name}", last) for name in SOURCES):
            continue
        tokens = [lm.encode(prompt.messages([]))[-LONGEST:] for prompt in prompts]
        before = answers(lm, tokens[:BEFORE], NEW_TOKENS)
        for number, (prompt, own) in enumerate(zip(prompts, tokens, strict=True)):
            if number >= BEFORE:
                arms = arms_of(lm, category, before)  # none remembers what is counted
                decoder.run(arms, [(f"{category} {prompt.id}", own)], 0.0, number)


def run_edits(records: Records, lm: LanguageModel) -> None:
    """A file is edited once, and then in the same way and in another one."""
    decoder = Decoder(records, EDIT_TOKENS)
    rows = list(DataFile.named("mbpp/mbpp.jsonl", "or leave this measurement out").rows())
    tidy = [row["code"].replace("\r\n", "\n").expandtabs(4) for row in rows]
    codes = sorted((code for code in tidy if len(code) < 700), key=len)[-FILES:]
    for number, code in enumerate(codes):
        prompts = [
            lm.encode([{"role": "user", "content": f"{edit}\n```python\n{code}\n```"}])
            for edit in EDITS
        ]
        before = answers(lm, prompts[:1], EDIT_TOKENS)
        for kind, own in zip(("same edit", "other edit"), prompts, strict=True):
            arms = {f"{kind}: plain": lm.with_method("plain"), **arms_of(lm, kind, before)}
            decoder.run(arms, [(f"{kind} {number}", own)], 0.0, number)


def run_alike(records: Records, lm: LanguageModel) -> None:
    """Trees as large as they may be, of one source or two."""
    depth, width = lm.model.layers, lm.model.hidden_size
    arms = {}
    for nodes in NODES:
        free = Budget(lambda count: 1.0 + 1e-6 * count, 0.0, 0.0, nodes)
        for name, sources in (
            ("longest match", (Suffix(),)),
            ("alike", (NearestState(depth // 2, width),)),
            ("both", (Suffix(), NearestState(depth // 2, width))),
            ("alike by embeddings", (NearestState(0, width),)),
        ):
            method = Method(MultiSource(sources, free), Match())
            arms[f"{name}, {nodes}"] = lm.with_method(method)
    # the first two prompts of some categories are those that the layer was chosen on
    texts = spec_bench(lm, 1, skipped=2, longest=LONGEST)
    Decoder(records, NEW_TOKENS, shares=False).run(arms, texts, 0.0)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for category in (*CATEGORIES, None):
        line = {"category": category or "all"}
        sides = [
            {
                prompt: own
                for each in CATEGORIES
                if category in (each, None)
                for prompt, own in side(rows, f"{each}: {name}", "tokens", "passes").items()
            }
            for name in SOURCES
        ]
        line |= {name: str(figure(own)) for name, own in zip(SOURCES, sides, strict=True)}
        line["memory adds"] = str(gain(sides[1], sides[0]))
        line["shuffled adds"] = str(gain(sides[2], sides[0]))
        lines.append(line)
    yield f"Tokens per pass after {BEFORE} other prompts of a category", lines
    yield "A file edited again", edit_rows(rows)
    yield "Draft tokens kept per pass, in trees of so many nodes at most", alike_rows(rows)


def edit_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for kind in ("same edit", "other edit"):
        base = side(rows, f"{kind}: auto", "tokens", "passes")
        for name in SOURCES:
            own = side(rows, f"{kind}: {name}", "tokens", "passes")
            lines.append(
                {
                    "after an edit": f"the {kind}",
                    "drafts": name,
                    "tokens per pass": str(figure(own)),
                    "over auto": "" if name == "auto" else str(over(own, base)),
                    "speed over plain": speed(rows, f"{kind}: {name}", f"{kind}: plain"),
                }
            )
    return lines


def alike_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for nodes in NODES:
        base = side(rows, f"longest match, {nodes}", kept_tokens, "passes")
        for name in ("longest match", "alike", "both", "alike by embeddings"):
            arm = f"{name}, {nodes}"
            own = side(rows, arm, kept_tokens, "passes")
            lines.append(
                {
                    "nodes at most": str(nodes),
                    "drafts": name,
                    "drafted": str(figure(side(rows, arm, "drafted", "passes"))),
                    "kept": str(figure(own)),
                    "over the longest match": "" if own == base else str(over(own, base)),
                }
            )
    return lines
