"""Disagreement of a smaller model with a larger one, by place in the sentence.

    draftwood bench frontier --leader LEADER --model FOLLOWER --prompts gsm8k --output FOLDER
    python -m benchmarks.disagreement FOLDER

FoReaL-Decoding (arXiv 2506.06998) lets the leader begin each sentence, since the two are said to
part there. This reads the leader's greedy texts, asks the follower for its likeliest token at each
place, and counts how often it is another, by the place's number in its sentence. Intervals come
from drawing whole texts again. The folder's file ``disagreement.jsonl`` keeps a line for each text.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.self_speculation.paired_counts import Side, figure, over
from draftwood import load
from draftwood.models.model import Model
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.statistics import Estimate
from draftwood_bench.run.describe import commit
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.asking import asked_of
from draftwood_choices.collaboration.ends import sentence_end
from draftwood_choices.frontier.points import AnswerRecord
from draftwood_choices.frontier.run import PROTOCOL

LEADER_ALONE = "leader alone"
PARTS = {"first three": (0, 3), "fourth to tenth": (3, 10), "past the tenth": (10, 1 << 30)}
RATIO = "first three over past the tenth"
TIMES = 2.0
"""Ratio that is asked, of disagreement in the first three tokens to that past the tenth."""


@dataclass(frozen=True)
class TextRecord:
    """Disagreement on one text.

    Attributes:
        prompt: its id.
        places: of each token in its sentence, from 0.
        others: 1 where the follower's likeliest token is another.
        commit: of the code that counted; None where files had changed since.
    """

    prompt: str
    places: list[int]
    others: list[int]
    commit: str | None


def places_in_sentences(pieces: Sequence[str]) -> list[int]:
    """Number tokens from 0 in each sentence, given the texts that they add.

    A token that holds a sentence's end is the last of it.
    """
    places, text, start, place = list[int](), "", 0, 0
    for piece in pieces:
        places.append(place)
        text, place = text + piece, place + 1
        while (end := sentence_end(text, start)) is not None:
            start, place = end, 0
    return places


def likeliest(model: Model, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """Likeliest tokens [len(text)] at a text's places, each behind the text's own tokens."""
    session = model.start()
    try:
        session.extend(prompt[:-1], keep="last") if len(prompt) > 1 else None
        return np.asarray(session.extend([prompt[-1], *text[:-1]]).logits).argmax(-1)
    finally:
        session.close()


def compare(folder: Path) -> Iterator[TextRecord]:
    """Compare the models on the folder's texts that have no record yet."""
    answers = RecordFolder(folder, PROTOCOL, AnswerRecord)
    kept, settings = RecordFolder(folder, "disagreement", TextRecord), answers.settings()
    done = {each.prompt for each in kept.read()}
    prompts = {each.id: each for each in load_prompts(settings["prompts"]).prompts}
    follower = load(settings["follower"], method="plain")
    for each in answers.read():
        if each.point != LEADER_ALONE or each.prompt in done or not each.text:
            continue
        asked = follower.encode(asked_of(prompts[each.prompt], follower))
        own = follower.tokenizer(each.text, add_special_tokens=False)["input_ids"]
        pieces = [str(follower.tokenizer.decode([token])) for token in own]
        others = likeliest(follower.model, asked, own) != np.array(own)
        record = TextRecord(
            *(each.prompt, places_in_sentences(pieces), others.astype(int).tolist(), commit())
        )
        kept.append(record)
        yield record


def side(records: Sequence[TextRecord], part: str) -> Side:
    """Other tokens, and all of them, in a part of sentences, by text."""
    first, end = PARTS[part]
    found = {}
    for each in records:
        pairs = zip(each.places, each.others, strict=True)
        inside = [other for place, other in pairs if first <= place < end]
        found[each.prompt] = float(sum(inside)), float(len(inside))
    return found


def shares(records: Sequence[TextRecord]) -> dict[str, Estimate]:
    """Shares of disagreement by part, and the first part's over the last one's."""
    sides = {part: side(records, part) for part in PARTS}
    found = {part: figure(own) for part, own in sides.items()}
    return {**found, RATIO: over(sides["first three"], sides["past the tenth"])}


def told(records: Sequence[TextRecord]) -> str:
    """Say how often the follower disagrees by place, and whether sentences' starts stand out."""
    found = shares(records)
    tokens = sum(len(each.places) for each in records)
    lines = [f"{name}: {estimate}" for name, estimate in found.items()]
    verdict = "holds" if found[RATIO].value >= TIMES else "does not hold"
    lines[-1] += f"; at least {TIMES:.0f} times: {verdict}"
    return "\n".join([f"{len(records)} texts, {tokens} tokens", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of draftwood bench frontier")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for record in compare(given.folder):
        print(
            f"{record.prompt}: {sum(record.others)} of {len(record.others)}",
            file=sys.stderr,
            flush=True,
        )
    records = RecordFolder(given.folder, "disagreement", TextRecord).read()
    if not records:
        raise SystemExit(f"{given.folder} holds no text of the leader alone yet")
    found = {name: asdict(each) for name, each in shares(records).items()}
    print(json.dumps(found) if given.json else told(records))


if __name__ == "__main__":
    main()
