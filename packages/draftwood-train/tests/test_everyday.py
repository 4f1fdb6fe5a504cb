"""The everyday mix: many kinds of prompts, and held-out ones that share nothing with the others."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from data_models import data_options, target
from draftwood_train.data import make
from draftwood_train.data.barred import RUN, Known, words
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.everyday import sources
from draftwood_train.data.everyday.filling import broken, frames, with_article
from draftwood_train.data.everyday.functions import functions
from draftwood_train.data.everyday.material import COMMANDS, Foreign, Pool, apart, divided, load
from draftwood_train.data.everyday.mix import EverydayPrompts
from draftwood_train.data.everyday.reading import html_sections, pod_sections, prose_sections
from draftwood_train.data.everyday.wordnet import entities
from draftwood_train.data.jobs import SECOND_TURN
from draftwood_train.data.make import Maker
from everyday_texts import MODULE, PERSONS, manual, members, modules, texts, wordnet

COUNT = 3000


@pytest.fixture(scope="module")
def material():
    return load(texts())


@pytest.fixture(scope="module")
def prompts(material):
    return EverydayPrompts(material, 0, ())[:COUNT]


def of_split(prompts, held_out: bool) -> str:
    return "\n".join(each.text for each in prompts if each.held_out == held_out)


def test_the_same_seed_gives_the_same_prompts(material, prompts):
    again = EverydayPrompts(load(texts()), 0, ())
    assert again[COUNT - 1] == prompts[-1]
    assert again[:50] == prompts[:50]
    assert EverydayPrompts(material, 1, ())[:50] != prompts[:50]


def test_each_block_has_every_task_by_its_weight(material):
    mix = EverydayPrompts(material, 0, ())
    block = sum(task.weight for task in mix.tasks)
    wanted = Counter()
    for task in mix.tasks:
        wanted[task.kind] += task.weight
    for start in (0, block):
        assert Counter(each.kind for each in mix[start : start + block]) == wanted
    assert {"chat", "writing", "facts", "code", "sums", "summary", "rag"} <= set(wanted)
    assert {"translation into English", "translation out of English"} <= set(wanted)


def test_a_task_without_material_is_left_out():
    spoken = ("libreoffice", "home-assistant")
    few = {name: each for name, each in members().items() if not name.startswith(spoken)}
    kinds = {task.kind for task in EverydayPrompts(load(texts(few)), 0, ()).tasks}
    assert "translation out of English" not in kinds
    assert "facts" in kinds
    own = EverydayPrompts(load(texts({})), 0, ())  # frames with words of draftwood's own
    assert {task.kind for task in own.tasks} >= {"chat", "writing", "facts"}
    assert all("{" not in each.text for each in own[:200])


CODE_KINDS = {"functions", "edits", "tests", "explanations", "docstrings"}


def test_the_code_mix_has_the_everyday_tasks_and_as_many_about_functions(material):
    mix = EverydayPrompts(load(texts(members() | modules())), 0, ())
    everyday = EverydayPrompts(material, 0, ())
    kinds = {task.kind for task in everyday.tasks}
    assert {task.kind for task in mix.tasks} == kinds | CODE_KINDS
    assert not kinds & CODE_KINDS
    code = sum(task.weight for task in mix.tasks if task.kind in CODE_KINDS | {"code"})
    assert 0.4 < code / sum(task.weight for task in mix.tasks) < 0.55
    shown = [each for each in mix[:1500] if each.kind in CODE_KINDS]
    assert all("```" in each.text and each.source == "networkx" for each in shown)
    assert not any("def test_" in each.text or "def short" in each.text for each in shown)
    asked = [each.text for each in shown if each.kind == "functions"]
    assert all("Starts at" in text and "+=" not in text for text in asked)  # the body is wanted
    assert all("+=" in each.text for each in shown if each.kind not in {"functions"})
    functions = mix.material.functions
    assert {each.book for each in functions.train}.isdisjoint(
        each.book for each in functions.held_out
    )
    trained = " ".join(each.text for each in shown if not each.held_out)
    assert not [each for each in functions.held_out if each.signature in trained]


def test_functions_are_read_in_their_parts():
    (found,) = functions("box:part", MODULE.replace("{n}", "7"))
    assert found.signature == "def add_all7(items, start=0):"
    assert found.told == "Return the sum of items of kind 7.\n\nStarts at `start`."
    assert found.code.splitlines()[0] == "    total7 = start"
    assert found.whole == f"{found.stub}\n{found.code}"
    assert '"""' not in found.bare


def test_a_mix_to_judge_by_draws_from_what_no_head_is_trained_on(material, prompts):
    judged = EverydayPrompts(material, 1, (), only_held_out=True)
    assert all(each.held_out for each in judged[:COUNT])
    assert judged.split()["prompts"] == "all"
    assert not all(each.held_out for each in prompts)  # the control
    trained = {each.text for each in prompts if not each.held_out}
    assert not trained & {each.text for each in judged[:COUNT] if each.text}


def test_held_out_prompts_share_no_entity(material, prompts):
    trained, held = of_split(prompts, False), of_split(prompts, True)
    for kind in ("person", "place", "animal", "object"):
        pool = material.words[kind]
        assert not set(pool.train) & set(pool.held_out)
        said = set(words(trained)) if kind in ("animal", "object") else trained
        assert not [each for each in pool.held_out if each in said]
    kinds = ("person", "place", "animal", "object", "idea", "food")
    assert any(each in held for kind in kinds for each in material.words[kind].held_out)


def test_held_out_prompts_share_no_book(material, prompts):
    pool = material.shelves["postgresql-doc-15"]
    books = [{each.book for each in half} for half in (pool.train, pool.held_out)]
    assert all(books)
    assert not books[0] & books[1]
    reading = [each for each in prompts if each.kind in ("rag", "summary")]
    for each in reading:
        named = {word[0] for word in words(each.text) if word[1:2].isdigit() and "x" in word}
        assert {f"postgresql-doc-15:{book}" for book in named} <= books[each.held_out]
    assert {each.held_out for each in reading} == {True, False}


def test_held_out_prompts_share_no_frame(prompts):
    for pool in frames().values():
        assert pool.train
        assert not set(pool.train) & set(pool.held_out)
    wishes = {side: set(frames()["summary"].of(side)) for side in (True, False)}
    for each in prompts:
        if each.kind == "summary":
            others = wishes[not each.held_out]
            assert others.isdisjoint(each.text.split("\n\n"))


def test_one_language_and_one_kind_are_held_out_as_a_whole(prompts):
    alone = [each for each in prompts if each.kind in ("Italian into English", "sayings")]
    assert len(alone) > 10
    assert all(each.held_out for each in alone)
    trained = of_split(prompts, False)
    assert "Go on" not in trained
    assert "It lists" not in trained  # a page of Italian


def test_about_one_prompt_of_thirty_three_is_held_out(prompts):
    share = sum(each.held_out for each in prompts) / len(prompts)
    assert 0.02 < share < 0.06


def test_a_planted_prompt_of_the_measurements_is_barred(material, prompts):
    planted = next(
        each.text for each in prompts if each.kind == "sums" and len(words(each.text)) > 20
    )
    number = [each.text for each in prompts].index(planted)
    for measured in (planted, f"Quite new: {' '.join(words(planted)[2 : 2 + RUN])} and so on"):
        barred = EverydayPrompts(material, 0, [measured])
        assert barred[number].text != planted
        assert barred.is_measured(planted)
    shorter = EverydayPrompts(material, 0, [" ".join(words(planted)[2 : 1 + RUN])])
    assert shorter[number].text == planted


def test_lists_are_used_up_once(prompts):
    taken = [each.text.partition("?")[0] for each in prompts if each.source == "gsm8k"]
    trained = [
        text
        for text, each in zip(taken, (p for p in prompts if p.source == "gsm8k"), strict=True)
        if not each.held_out
    ]
    assert len(trained) == len(set(trained)) > 20
    assert any(not each.text for each in prompts)  # then their prompts are empty


def test_passages_have_the_lengths_of_real_ones(prompts):
    lengths = {
        kind: [len(each.text.split()) for each in prompts if each.kind == kind]
        for kind in ("rag", "summary")
    }
    assert 250 < sum(lengths["rag"]) / len(lengths["rag"]) < 650
    assert 250 < sum(lengths["summary"]) / len(lengths["summary"]) < 850
    assert max(lengths["summary"]) > 600


def test_some_prompts_have_a_second_and_a_third_turn(prompts):
    turns = Counter(len(each.follow_ups) for each in prompts)
    assert turns[0] > turns[1] > turns[2] > 0


def test_an_intent_is_held_out_in_every_language(material):
    def intents(texts: Sequence[Foreign]) -> set[str]:
        books = {each.book for each in texts if each.book.startswith(COMMANDS)}
        return {book.rpartition("/")[2] for book in books}

    pools = [material.foreign[speech] for speech in ("English", "German")]
    trained, held = (
        set().union(*(intents(pool.of(side)) for pool in pools)) for side in (False, True)
    )
    assert trained
    assert held
    assert not trained & held
    said = material.lists["commands"]
    assert {*said.held_out} <= {each.text for each in pools[0].held_out}
    assert {*said.train} <= {each.text for each in pools[0].train}


def test_jokes_are_at_nobodys_expense(material):
    jokes = material.lists["jokes"]
    assert len(jokes.train) + len(jokes.held_out) == 30
    assert all("duck" in each for each in (*jokes.train, *jokes.held_out))


def test_divisions_are_those_of_groups():
    items = [f"{group} {number}" for group in range(30) for number in range(3)]
    pool = divided("test", items, lambda item: item.split()[0])
    assert {item.split()[0] for item in pool.train}.isdisjoint(
        item.split()[0] for item in pool.held_out
    )
    assert len(pool.train) + len(pool.held_out) == 90
    again = divided("test", reversed(items), lambda item: item.split()[0])
    assert set(again.held_out) == set(pool.held_out) != set()
    assert set(divided("other", items, lambda item: item.split()[0]).held_out) != set(pool.held_out)
    assert not divided("few", "ab").held_out
    assert not Pool([1], [])


def test_training_items_that_overlap_with_held_out_ones_are_left_out():
    run = " ".join(f"word{number}" for number in range(RUN))
    near = f"quite another {run} text"
    far = f"a third {' '.join(run.split()[1:])} text"
    assert apart(Pool([near, far], [f"held out {run}"])) == Pool([far], [f"held out {run}"])


def test_no_trained_passage_shares_thirteen_words_with_a_held_out_one(material):
    held = Known(
        text
        for pool in material.shelves.values()
        for each in pool.held_out
        for text in each.paragraphs
    )
    trained = [
        text
        for pool in material.shelves.values()
        for each in pool.train
        for text in each.paragraphs
    ]
    assert trained
    assert not [text for text in trained if held.shares_a_run(text)]


def test_entities_are_read_with_their_kinds():
    files = wordnet()
    found = {
        each.name: each
        for each in entities(
            files["usr/share/wordnet/data.noun"], files["usr/share/wordnet/index.noun"]
        )
    }
    assert found[f"{PERSONS[0]} Smith"].kind == "person"
    assert found[f"{PERSONS[0]}ville"].kind == "place"
    assert found["animala"].gloss == "a kind of animal"
    assert found["metalb"].kind == "substance"


def test_sections_follow_headings_and_leave_code_out():
    found = list(html_sections("book", manual("q", 3)))
    assert [each.title for each in found] == [f"About q part{number}" for number in range(3)]
    assert all("code" not in text for each in found for text in each.paragraphs)
    pod = "=head1 NAME\n\n=head2 Why is C<int()> broken?\n\nYour C<int> is most probably working"
    (section,) = pod_sections(
        "faq", f"{pod} just fine, see L<perlop|there>.\n\n    print int(1);\n"
    )
    assert section.title == "Why is int() broken?"
    assert section.paragraphs == ("Your int is most probably working just fine, see there.",)
    prose = list(
        prose_sections("b", " ".join(["It was a dark and stormy night in the town."] * 300))
    )
    assert len(prose) >= 2
    assert all(each.words >= 900 for each in prose)


def test_articles_and_broken_sentences():
    import random

    assert (with_article("owl"), with_article("cat")) == ("an owl", "a cat")
    said = "We did not understand what he wanted to say."
    assert all(broken(said, random.Random(seed)) != said.rstrip(".") for seed in range(20))


def test_sources_that_are_missing_or_unknown_are_named(monkeypatch):
    monkeypatch.delenv("DRAFTWOOD_DATA", raising=False)
    with pytest.raises(ValueError, match=r"--without takes .*gsm8k.*, not 'nothing'"):
        sources.gather(("nothing",), {})
    with pytest.raises(FileNotFoundError, match="--without svamp --without mbpp --without self_"):
        sources.gather(("gsm8k",), {})
    left = sources.gather(sources.SETS, {})
    assert set(left.facts) == {"composed"}


class TestMaking:
    """Data of the mix, written by a tiny target."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(make, "measured_prompts", lambda: [])
        monkeypatch.setattr(make, "gather", lambda without, packages: texts())

    def made(self, folder, **chosen):
        options = data_options(
            "",
            **{"files": (), "mix": "everyday", "states": "recomputed", "self_written": 0.15}
            | {"max_prompt_tokens": 400, "prompts_per_shard": 20}
            | chosen,
        )
        return Maker(folder, target(), options).run(9000, 8)

    def test_kinds_splits_and_second_turns_are_stored(self, tmp_path):
        manifest = self.made(tmp_path / "data").manifest
        dataset = Dataset.open(tmp_path / "data", target().model)
        train, held_out = dataset.texts("train"), dataset.texts("held-out")
        assert {"chat", "writing", "facts", "own", SECOND_TURN} <= set(train.kinds)
        assert "sayings" not in train.kinds
        assert len(held_out) >= 1
        chats = train.of_kind("chat")
        assert set(chats.kinds) == {"chat"}
        text = chats.tokens_of(0)
        places = len(text.tokens) - text.answer + 1
        assert text.top.tokens.shape == (places, 16)
        assert manifest.split["languages"] == ["Italian"]
        assert manifest.sources["wordnet-base"]["licence"] == "MIT"
        stored = json.loads((tmp_path / "data" / "manifest.json").read_text())
        assert stored["options"]["mix"] == "everyday"

    def test_a_second_turn_begins_with_the_first_and_its_answer(self, tmp_path):
        self.made(tmp_path / "data")
        train = Dataset.open(tmp_path / "data", target().model).texts("train")
        texts_of = [train.tokens_of(number) for number in range(len(train))]
        pairs = [
            (one, two)
            for one, two in pairwise(texts_of)
            if two.kind == SECOND_TURN and one.kind != SECOND_TURN
        ]
        assert pairs
        for one, two in pairs:
            prompt = one.tokens[: one.answer - 1].tolist()  # without the mark of an answer
            assert two.tokens[: len(prompt)].tolist() == prompt
            assert two.answer > len(prompt)

    def test_the_same_command_gives_the_same_bytes_and_goes_on(self, tmp_path):
        self.made(tmp_path / "one")
        self.made(tmp_path / "two")
        content = [
            {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
            for name in ("one", "two")
        ]
        assert content[0] == content[1]
        assert len(content[0]) > 3
        last = sorted(content[0])[-1]
        (tmp_path / "two" / last).unlink()
        self.made(tmp_path / "two")
        assert (tmp_path / "two" / last).read_bytes() == content[0][last]

    def test_what_does_not_go_with_it_is_refused(self, tmp_path):
        for chosen, what in (
            ({"sets": ("composed",)}, "leave out --sets and --prompts"),
            ({"self_written": 0.5}, "at most 0.15 of the everyday mix"),
            ({"mix": "collected", "without": ("gsm8k",)}, "goes with --mix everyday"),
        ):
            with pytest.raises(ValueError, match=what):
                self.made(tmp_path / "data", **chosen)

    def test_the_code_mix_fetches_packages_of_code_too(self, tmp_path, monkeypatch):
        fetched = []

        def gather(without, packages):
            fetched.append(set(packages))
            return texts(members() | modules())

        monkeypatch.setattr(make, "gather", gather)
        self.made(tmp_path / "everyday")
        self.made(tmp_path / "code", mix="code")
        everyday, code = fetched
        assert code - everyday == {"networkx", "boltons", "more-itertools", "toolz"}
        kinds = Dataset.open(tmp_path / "code", target().model).texts("train").kinds
        assert set(kinds) & CODE_KINDS
        with pytest.raises(ValueError, match="begun with mix everyday, not code"):
            self.made(tmp_path / "everyday", mix="code")

    def test_a_source_that_changed_is_named(self, tmp_path, monkeypatch):
        self.made(tmp_path / "data")
        found, other = texts(), {"licence": "MIT", "origin": "another"}
        for facts, told in (
            ({**found.facts, "gsm8k": other}, "gsm8k changed since the data"),
            ({**found.facts, "a-package": other}, "a-package has come since the data"),
            ({k: v for k, v in found.facts.items() if k != "gsm8k"}, "gsm8k has gone since"),
        ):
            now = sources.SourceTexts(found.members, facts)
            monkeypatch.setattr(make, "gather", lambda without, packages, now=now: now)
            with pytest.raises(ValueError, match=told):
                self.made(tmp_path / "data")
