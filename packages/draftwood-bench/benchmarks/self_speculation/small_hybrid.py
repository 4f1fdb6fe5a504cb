"""Trees and chains on a small hybrid of state-space layers and attention, trained on stories.

The target has six state-space layers and two of attention, its draft model one of each. Both are
trained here from the beginning on stories that stories-15m writes, which takes an hour, and
kept in draftwood's folder. Drafts are judged on stories that people collected.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

import draftwood
from benchmarks.common.turns import in_turn
from benchmarks.self_speculation.paired_counts import (
    Records,
    Row,
    Table,
    figure,
    numbers_of,
    over,
    side,
    speed,
)
from draftwood.drafters import Drafter, DraftModel, Nothing
from draftwood.engine import Options, generate
from draftwood.models.model import Model
from draftwood.sampling import Sampling
from draftwood.shapes import BestFirst, Paths, Shape, StochasticBeam, Widths
from draftwood.stats import Stats
from draftwood.storage.atomic import write_file
from draftwood.storage.data_sets import DataFile
from draftwood.storage.home import home
from draftwood.text.prompts import encode_text
from draftwood.verifiers import Match, Rejection
from draftwood.verifiers.verifier import Verifier
from draftwood_methods.drafters.token_recycling import TokenRecycling, published_tree
from draftwood_torch.general import general_model
from draftwood_train.data.write import BatchWriter, Request, Written

VOCAB, ROWS, LENGTH = 1024, 8, 128  # tokens known, and rows and tokens of a batch
STORIES, STORY_TOKENS, AT_ONCE = 6000, 256, 16  # written by stories-15m
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 16, 16, 96
PLAIN = "plain"

SHAPES: dict[str, dict[str, Shape]] = {
    "chain of 6": {
        "chain of 6": Widths((1,) * 6),
        "chain of 3": Widths((1,) * 3),
        "rsd-c (2, 1, 1)": Widths((2, 1, 1)),
        "rsd-c (3, 1)": Widths((3, 1)),
        "rsd-s, 2 beams of 3": StochasticBeam(2, 3),
        "best first, 6 nodes, 3 deep": BestFirst(3, 3, 6),
        "best first, 6 nodes, 6 deep": BestFirst(6, 3, 6),
    },
    "chain of 12": {
        "chain of 12": Widths((1,) * 12),
        "rsd-c (3, 1, 1, 1)": Widths((3, 1, 1, 1)),
        "rsd-s, 3 beams of 4": StochasticBeam(3, 4),
        "best first, 12 nodes, 4 deep": BestFirst(4, 4, 12),
        "best first, 12 nodes, 6 deep": BestFirst(6, 4, 12),
    },
}
"""Shapes for a draft model, by the chain with as many draft tokens that they are compared with."""

RECYCLED = {
    "recycling, chain of 6": Paths(tuple((0,) * length for length in range(1, 7))),
    "recycling, 6 nodes": Paths(((0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0))),
    "recycling, 80 nodes": published_tree(),
}

CHAINS = {name: chain for chain, group in SHAPES.items() for name in group} | dict.fromkeys(
    RECYCLED, "recycling, chain of 6"
)


@dataclass(frozen=True)
class Size:
    """A model to train: its width, layers, those of attention, and steps of training."""

    width: int
    layers: int
    attention: tuple[int, ...]
    steps: int


SIZES = {"target": Size(192, 8, (3, 7), 4000), "draft": Size(96, 2, (1,), 4000)}


def collected() -> list[str]:
    """Stories of the sample, which the models are judged on."""
    file = DataFile.named("tinystories_sample/tiny_stories.txt", "or leave this measurement out")
    text = file.text()
    return [line.strip() for line in text.splitlines() if len(line) > 200]


def written(folder: Path) -> list[str]:
    """Stories that stories-15m writes at temperature 1; from the folder if they are there."""
    file = folder / f"stories-{STORIES}.json"
    if not file.is_file():
        lm = draftwood.load("stories-15m")

        def story(seed: int) -> Generator[Request, Written, str]:
            begin = tuple(encode_text(lm.tokenizer, ""))  # what begins every text
            text = yield Request(begin, STORY_TOKENS, lm.end_tokens, seed, keeps_states=False)
            return str(lm.tokenizer.decode(list(text.tokens), skip_special_tokens=True)).strip()

        found = {}
        writer = BatchWriter(lm.model, AT_ONCE, STORY_TOKENS + 1, None)
        with closing(writer.run((seed, story(seed)) for seed in range(STORIES))) as running:
            for seed, text in running:
                found[seed] = text
                if len(found) % 500 == 0:
                    print("stories", len(found), flush=True)
        write_file(file, json.dumps([found[seed] for seed in sorted(found)]))
    return json.loads(file.read_text())


def tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Pairs of bytes, merged as often as the vocabulary has room for."""
    found: Any = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(texts, trainer)
    return found


def new_model(size: Size) -> Any:
    from transformers import AutoModelForCausalLM, BambaConfig

    config = BambaConfig(
        vocab_size=VOCAB,
        hidden_size=size.width,
        intermediate_size=8 * size.width // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_indices=list(size.attention),
        mamba_n_heads=2 * size.width // 64,
        mamba_d_head=64,
        mamba_d_state=32,
        mamba_n_groups=1,
        mamba_expand=2,
        mamba_chunk_size=32,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def trained(name: str, size: Size, tokens: Tensor, folder: Path) -> Any:
    """A model that has read so many batches; from the folder where it was trained before."""
    from transformers import AutoModelForCausalLM

    place = folder / f"{name}-{size.width}-{size.layers}-{size.steps}"
    if (place / "config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(place).eval()
    model, chance = new_model(size), torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, size.steps, pct_start=0.1)
    for step in range(size.steps):
        starts = torch.randint(len(tokens) - LENGTH - 1, (ROWS,), generator=chance)
        rows = tokens[starts[:, None] + torch.arange(LENGTH + 1)]
        logits = model(rows[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % 25 == 0:
            print(name, step, round(float(loss.detach()), 3), flush=True)
    model.save_pretrained(place)
    return model.eval()


def arms(draft: Model) -> dict[str, tuple[Drafter, Verifier]]:
    """Drafts of the draft model, and of a table that costs no pass."""
    found: dict[str, tuple[Drafter, Verifier]] = {PLAIN: (Nothing(), Match())}
    for group in SHAPES.values():
        for name, shape in group.items():
            rule = Match() if shape.draw == "chosen" else Rejection()
            found[name] = (DraftModel(draft, shape), rule)
    return found | {name: (TokenRecycling(paths), Match()) for name, paths in RECYCLED.items()}


def run(records: Records) -> None:
    folder = home() / "hybrids"
    texts = written(folder)
    known = tokenizer(texts)
    ids = torch.tensor([token for text in texts for token in known.encode(text).ids])
    target, draft = (
        general_model(trained(name, size, ids, folder)) for name, size in SIZES.items()
    )
    ways = arms(draft)
    for temperature in (0.0, 1.0):
        for number, text in enumerate(collected()[:PROMPTS]):
            prompt = known.encode(text).ids[:PROMPT_TOKENS]
            for name, (drafter, verifier) in in_turn(ways.items(), number):
                if temperature == 0.0 and name.startswith("rsd"):
                    continue  # drawn without replacement: a chain where nothing is drawn
                if records.has(name, f"story {number}", temperature):
                    continue
                options = Options(Sampling(temperature), NEW_TOKENS, seed=number)
                steps = list(generate(target, drafter, verifier, prompt, options))
                tokens = [token for step in steps for token in step.tokens]
                numbers = numbers_of(Stats.of(steps), tokens)
                records.add(name, f"story {number}", temperature, **numbers)
            print("hybrids", temperature, number, flush=True)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for temperature in (0.0, 1.0):
        own = [row for row in rows if row["temperature"] == temperature]
        for arm in dict.fromkeys(row["arm"] for row in own if row["arm"] != PLAIN):
            passes = side(own, arm, "tokens", "passes", temperature)
            chain = CHAINS[arm]
            base = side(own, chain, "tokens", "passes", temperature)
            lines.append(
                {
                    "T": f"{temperature:g}",
                    "drafts": arm,
                    "draft tokens": str(figure(side(own, arm, "drafted", "passes", temperature))),
                    "tokens per pass": str(figure(passes)),
                    "over the chain": "" if arm == chain else str(over(passes, base)),
                    "speed over plain": speed(own, arm, PLAIN, temperature),
                }
            )
    yield "A hybrid of six state-space layers and two of attention", lines
