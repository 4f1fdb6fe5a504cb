import errno
import json
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import pytest
import torch

from data_models import data_options, prompt_file, target, texts
from draftwood.storage.atomic import LOCK
from draftwood.testing import TableModel
from draftwood_train.data import make, shards
from draftwood_train.data.barred import Bars, digest, is_held_out
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.jobs import OWN
from draftwood_train.data.make import Maker, expected_bytes
from draftwood_train.data.manifest import Manifest, TargetDigest
from draftwood_train.data.shards import Shard
from draftwood_train.data.states import spread_of

TOKENS = 450


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(make, "measured_prompts", lambda: [])


@pytest.fixture(scope="module")
def lm():
    return target()


@pytest.fixture
def file(tmp_path) -> str:
    return prompt_file(tmp_path)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "data"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, lm) -> tuple[Path, str]:
    """A data set that is left as it is, and its file of prompts."""
    place = tmp_path_factory.mktemp("finished")
    file = prompt_file(place)
    made(place / "data", lm, file)
    return place / "data", file


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def made(folder: Path, lm, file: str, tokens: int = TOKENS, at_once: int = 4, **chosen):
    return Maker(folder, lm, data_options(file, **chosen)).run(tokens, at_once).manifest


def test_the_same_command_gives_the_same_bytes(tmp_path, lm, file):
    manifest = made(tmp_path / "one", lm, file)
    made(tmp_path / "two", lm, file, at_once=7)
    made(tmp_path / "other", lm, file, seed=1)
    one, two, other = (content(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two != other
    assert len(one) == len(manifest.shards) + 1 > 2
    assert manifest.tokens >= TOKENS > manifest.tokens - manifest.shards[-1].tokens


def test_what_is_stored(folder, lm, file):
    manifest = made(folder, lm, file, tokens=1500)
    dataset = Dataset.open(folder, lm.model)
    assert dataset.layers == (2, 3, 6)
    both = [*dataset.texts("train"), *dataset.texts("held-out")]
    assert len(both) == manifest.counts()["texts"]
    assert sum(len(text.tokens) for text in both) == manifest.tokens
    assert {text.source for text in both} == {OWN, file} == set(manifest.sources)
    assert manifest.sources[file]["licence"] == "the user's own"
    own = sum(text.source == OWN for text in both)
    assert 0.3 < own / len(both) < 0.6
    greedy = sum(text.is_greedy for text in both)
    assert 0.25 < greedy / len(both) < 0.75
    for text in both[:4]:
        places = len(text.tokens)
        assert text.states.shape == (places, 3, 32)
        assert text.log_normalizer.shape == (places,)
        assert text.answer < places
        written = lm.generate(
            text.tokens[: text.answer].tolist(), max_new_tokens=places - text.answer
        )
        is_likeliest = list(written.token_ids) == text.tokens[text.answer :].tolist()
        assert is_likeliest == text.is_greedy


def test_a_run_goes_on_where_it_was_stopped(tmp_path, lm, file, monkeypatch):
    made(tmp_path / "whole", lm, file)
    store, stopped = make.write_shard, []

    def stop(path, *arguments):
        if path.name == shards.shard_name(2):
            stopped.append(path)
            raise KeyboardInterrupt
        store(path, *arguments)

    monkeypatch.setattr(make, "write_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "stopped", lm, file)
    assert len(Manifest.read(tmp_path / "stopped").shards) == 2
    monkeypatch.setattr(make, "write_shard", store)
    made(tmp_path / "stopped", lm, file)
    assert stopped
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_data_grow_with_more_tokens(tmp_path, lm, file):
    made(tmp_path / "small", lm, file, tokens=300)
    small = content(tmp_path / "small")
    made(tmp_path / "small", lm, file)
    made(tmp_path / "large", lm, file)
    large = content(tmp_path / "large")
    assert content(tmp_path / "small") == large
    assert all(large[name] == data for name, data in small.items() if name != "manifest.json")


def test_other_options_prompts_and_folders_are_refused(folder, lm, file):
    made(folder, lm, file, tokens=100)
    with pytest.raises(ValueError, match="begun with seed 0, not 5; give the same options"):
        made(folder, lm, file, seed=5)
    Path(file).write_text(json.dumps({"prompt": "quite another"}) + "\n")
    with pytest.raises(ValueError, match="a file of prompts changed"):
        made(folder, lm, file)
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="holds other files"):
        made(folder, lm, file)


def test_another_target_is_refused(folder, lm, file):
    made(folder, lm, file, tokens=100)
    Dataset.open(folder, target().model)  # the same weights again
    for other, what in ((target(seed=1), "whose weights differ"), (target(layers=4), "layers 6")):
        with pytest.raises(ValueError, match=f"written by tiny.*{what}.*load the model"):
            made(folder, other, file, layers=(2, 3, 4) if "layers" in what else (2, 3, 6))
        with pytest.raises(ValueError, match=what):
            Dataset.open(folder, other.model)


def test_a_torn_shard_is_named_and_made_anew(tmp_path, lm, file):
    folder = tmp_path / "data"
    made(folder, lm, file)
    whole = content(folder)
    path = folder / shards.shard_name(1)
    for torn, what in ((whole[path.name][:-9], "torn"), (b"", "empty"), (b"{}" * 40, "torn")):
        path.write_bytes(torn)
        for act in (lambda: Dataset.open(folder, lm.model), lambda: made(folder, lm, file)):
            with pytest.raises(ValueError, match=rf"{path.name} is {what}; delete it and give"):
                act()
    path.unlink()
    with pytest.raises(ValueError, match=rf"{path.name} is not there; give the command"):
        Dataset.open(folder, lm.model)
    made(folder, lm, file)
    assert content(folder) == whole


def without_digests(folder):
    """Make the manifest one of before it told the shards' digests."""
    path = folder / "manifest.json"
    told = json.loads(path.read_text())
    for shard in told["shards"]:
        del shard["sha256"]
    path.write_text(json.dumps(told))


@pytest.mark.parametrize("name", ["tokens", "codes"])
def test_a_shard_of_other_bytes_is_refused(folder, lm, file, name):
    made(folder, lm, file)
    path = folder / shards.shard_name(1)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    begins, _ = json.loads(content[8 : 8 + length])[name]["data_offsets"]
    content[8 + length + begins + 1] ^= 255  # a token of at least 65,280, or another state
    path.write_bytes(content)
    for act in (lambda: Dataset.open(folder, lm.model), lambda: made(folder, lm, file)):
        with pytest.raises(ValueError, match=rf"{path.name} is not what was written there"):
            act()
    without_digests(folder)
    if name == "codes":
        assert Dataset.open(folder, lm.model).layers
        return
    with pytest.raises(ValueError, match=rf"{path.name} is not what was written there"):
        Dataset.open(folder, lm.model)


def test_data_of_before_keep_their_digest(folder, lm, file):
    made(folder, lm, file)
    digest = Manifest.read(folder).digest
    without_digests(folder)
    found = Manifest.read(folder)
    assert found.digest != digest
    assert (
        found.digest
        == sha256(
            json.dumps(
                [
                    {name: each for name, each in asdict(shard).items() if name != "sha256"}
                    for shard in found.shards
                ]
            ).encode()
        ).hexdigest()
    )


def test_damaged_likeliest_tokens_are_named_when_they_are_read(folder, lm, file):
    made(folder, lm, file, states="recomputed")
    without_digests(folder)
    path = folder / shards.shard_name(0)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    begins, ends = json.loads(whole[8 : 8 + length])["top"]["data_offsets"]
    first, last = 8 + length + begins, 8 + length + ends
    path.write_bytes(whole[:first] + bytes(last - first) + whole[last:])
    found = Dataset.open(folder, lm.model).texts("train")
    with pytest.raises(ValueError, match=rf"{path.name} is torn: .*; delete it and give"):
        found.tokens_of(0)


def test_a_swapped_shard_is_refused(folder, lm, file):
    made(folder, lm, file)
    first, second = (folder / shards.shard_name(number) for number in (0, 1))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ValueError, match=r"00001.safetensors is not what was written there"):
        Dataset.open(folder)


def test_a_full_disk_is_one_clear_error(folder, lm, file, monkeypatch):
    whole = made(folder.with_name("whole"), lm, file)
    save = shards.save_file

    def full(tensors, path, metadata):
        save(tensors, path, metadata)
        if len(list(folder.glob("shard*"))) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "save_file", full)
    with pytest.raises(
        OSError, match=r"00001.*the disk is full; free some space, or .*the same command goes on"
    ):
        made(folder, lm, file)
    assert set(content(folder)) == {"manifest.json", shards.shard_name(0)}
    monkeypatch.setattr(shards, "save_file", save)
    assert made(folder, lm, file) == whole


def test_one_process_writes_a_folder(folder, lm, file):
    maker = Maker(folder, lm, data_options(file))
    before = content(folder)
    with pytest.raises(OSError, match=r"another process writes data into .*data; wait for it"):
        Maker(folder, lm, data_options(file))
    assert content(folder) == before
    whole = maker.run(TOKENS, 4).manifest
    assert made(folder, lm, file) == whole  # once the first one has ended


def test_a_folder_is_free_after_a_refusal(folder, lm, file):
    whole = made(folder, lm, file)
    with pytest.raises(ValueError, match="were begun with seed"):
        Maker(folder, lm, data_options(file, seed=1))
    assert made(folder, lm, file) == whole


def test_folders_of_other_files_are_left_alone(folder, lm, file):
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files; name a new folder"):
        Maker(folder, lm, data_options(file))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_prompts_that_run_out_end_the_data(folder, lm, file):
    done = Maker(folder, lm, data_options(file, self_written=0)).run(10**6, 4)
    assert done.ran_out
    counts = done.manifest.counts()
    assert sum(facts.prompts for facts in done.manifest.shards) == 40
    assert 36 <= counts["texts"] <= 40  # an answer may end before it begins
    again = Maker(folder, lm, data_options(file, self_written=0)).run(10**6, 4)
    assert again.manifest.counts() == counts


@pytest.mark.parametrize(("own", "per_shard"), [(0.5, 5), (0.7, 8), (0.5, 25)])
def test_prompts_that_ran_out_stay_so_beside_the_target_s_own(folder, lm, file, own, per_shard):
    options = data_options(file, self_written=own, prompts_per_shard=per_shard)
    first, again, third = (Maker(folder, lm, options).run(10**6, 4) for _ in range(3))
    assert first.ran_out
    assert again.ran_out
    assert first.manifest == again.manifest == third.manifest


def test_a_public_set_that_changed_is_refused(folder, lm, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path / "sets"))
    file = tmp_path / "sets" / "math_eval" / "svamp.jsonl"
    file.parent.mkdir(parents=True)
    rows = [json.dumps({"Body": text, "Question": "a b"}) for text in texts(20)]
    file.write_text("\n".join(rows[:-1]))
    chosen = {"files": (), "sets": ("svamp",), "self_written": 0, "max_prompt_tokens": 200}
    first = made(folder, lm, "", tokens=100, **chosen)
    assert made(folder, lm, "", tokens=100, **chosen) == first
    file.write_text("\n".join(rows))
    with pytest.raises(ValueError, match="a file of prompts changed since"):
        made(folder, lm, "", tokens=200, **chosen)
    manifest = folder / "manifest.json"
    told = json.loads(manifest.read_text())
    del told["sources"]["svamp"]["sha256"]  # as older data, which nobody can tell to be others
    manifest.write_text(json.dumps(told))
    made(folder, lm, "", tokens=100, **chosen)


def test_prompts_come_in_one_order_wherever_their_file_lies(tmp_path, lm, file):
    (tmp_path / "elsewhere").mkdir()
    moved = prompt_file(tmp_path / "elsewhere")
    written = []
    for number, place in enumerate((file, moved)):
        manifest = made(tmp_path / str(number), lm, place, self_written=0)
        shard = Shard(tmp_path / str(number) / manifest.shards[0].file)
        written.append(shard.prompt_texts())
    assert written[0] == written[1]


def test_own_prompts_alone_need_no_collected_ones(folder, lm):
    manifest = made(folder, lm, "", sets=(), files=(), self_written=1.0, tokens=600)
    assert set(manifest.sources) == {OWN}
    prompts = [
        text for facts in manifest.shards for text in Shard(folder / facts.file).prompt_texts()
    ]
    assert len({digest(text) for text in prompts}) == len(prompts) > 8


def test_an_own_prompt_that_is_barred_is_left_out(tmp_path, lm, file, monkeypatch):
    free = made(tmp_path / "free", lm, file, tokens=300)
    shard = Shard(tmp_path / "free" / free.shards[0].file)
    pairs = zip(shard.sources, shard.prompt_texts(), strict=True)
    planted = next(text for source, text in pairs if source == OWN)
    monkeypatch.setattr(make, "measured_prompts", lambda: [planted])
    barred = made(tmp_path / "barred", lm, file, tokens=300)
    prompts = Shard(tmp_path / "barred" / barred.shards[0].file).prompt_texts()
    assert planted not in prompts
    assert set(shard.prompt_texts()) - {planted} == set(prompts)


def test_data_go_on_where_all_own_prompts_of_a_shard_are_barred(tmp_path, lm, file, monkeypatch):
    free = made(tmp_path / "free", lm, file, tokens=1)
    (only,) = free.shards
    admits, barred = Bars.admits, set(Shard(tmp_path / "free" / only.file).prompt_texts())
    monkeypatch.setattr(
        Bars, "admits", lambda self, text: text not in barred and admits(self, text)
    )
    found = made(tmp_path / "barred", lm, file, tokens=free.tokens)
    assert found.tokens >= free.tokens
    assert len(found.shards) > 1


def test_data_go_on_with_the_measured_prompts_that_they_were_begun_with(
    folder, lm, file, monkeypatch
):
    begun = made(folder, lm, file, tokens=100)
    assert Manifest.read(folder).measured == begun.measured == "none"
    monkeypatch.setattr(make, "measured_prompts", lambda: ["one"])
    with pytest.raises(ValueError, match=r"other prompts of Spec-Bench barred \(SHA-256 none, now"):
        Maker(folder, lm, data_options(file))
    replace(begun, measured="").write(folder)  # as before it was told
    assert Maker(folder, lm, data_options(file)).manifest.measured == ""


def test_several_answers_to_a_prompt(folder, lm, file):
    made(folder, lm, file, answers_per_prompt=3, self_written=0, tokens=600)
    found = Dataset.open(folder).texts("train")
    texts = [found[number] for number in range(len(found.lengths))]
    by_prompt = [
        list(group)
        for _, group in groupby(texts, lambda text: tuple(text.tokens[: text.answer].tolist()))
    ]
    whole = [answers for answers in by_prompt if len(answers) == 3]  # some end in circles
    assert len(whole) >= 3
    for answers in whole:
        assert [text.is_greedy for text in answers] == [True, False, False]
        assert len({tuple(text.tokens.tolist()) for text in answers}) == 3


def test_recomputed_states_agree_with_stored_ones(tmp_path, lm, file):
    made(tmp_path / "stored", lm, file)
    made(tmp_path / "recomputed", lm, file, states="recomputed")
    stored = Dataset.open(tmp_path / "stored").texts("train")
    recomputed = Dataset.open(tmp_path / "recomputed", lm.model).texts("train")
    spread = spread_of(lm.model, Manifest.read(tmp_path / "stored").options.layers)
    assert len(stored) == len(recomputed)
    assert stored.lengths == recomputed.lengths
    for ours, theirs in zip(stored[:9], recomputed[:9], strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
        told = slice(ours.answer - 1, None)  # the prompt's are nobody's business
        assert torch.equal(ours.log_normalizer[told], theirs.log_normalizer[told])
        assert not theirs.log_normalizer[: ours.answer - 1].any()
        step = spread * (theirs.states / spread).abs().amax(-1, keepdim=True) / 127
        assert bool(((ours.states - theirs.states).abs() <= 0.5001 * step).all())
    size = {name: Manifest.read(tmp_path / name).counts() for name in ("stored", "recomputed")}
    assert size["recomputed"]["bytes"] < 0.3 * size["stored"]["bytes"]
    with pytest.raises(
        ValueError, match="recomputed on reading, which needs the target; load tiny"
    ):
        Dataset.open(tmp_path / "recomputed")


def test_the_announced_size_is_about_right(tmp_path, lm, file):
    for states in ("stored", "recomputed"):
        manifest = made(tmp_path / states, lm, file, states=states, prompts_per_shard=20)
        announced = expected_bytes(manifest.options, manifest.tokens, lm.model.hidden_size)
        assert announced == pytest.approx(manifest.counts()["bytes"], rel=0.3)


def test_the_split_is_that_of_the_hash(folder, lm, tmp_path):
    path = tmp_path / "many.jsonl"
    many = [text for text in texts(400, seed=1) if is_held_out(text)][:3] + texts(20)
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in many))
    made(folder, lm, str(path), self_written=0, tokens=10**6, max_answer_tokens=8)
    dataset = Dataset.open(folder)
    for split, wanted in (("train", False), ("held-out", True)):
        found = [lm.tokenizer.decode(text.tokens[: text.answer]) for text in dataset.texts(split)]
        assert sorted(found) == sorted(
            lm.tokenizer.decode(lm.encode(text))
            for text in set(many)
            if is_held_out(text) == wanted
        )
    assert len(dataset.texts("held-out")) >= 3


def test_draft_vocabulary_is_counted_on_the_answers_of_the_training_split(folder, lm, file):
    made(folder, lm, file)
    dataset = Dataset.open(folder)
    answers = torch.cat([text.tokens[text.answer :] for text in dataset.texts("train")])
    counts = dataset.token_counts()
    assert torch.equal(counts, answers.bincount(minlength=64))
    vocabulary = dataset.draft_vocabulary(10)
    assert torch.equal(vocabulary, vocabulary.sort().values)
    outside = torch.ones(64, dtype=torch.bool).index_fill(0, vocabulary, False)
    assert int(counts[vocabulary].min()) >= int(counts[outside].max())
    assert torch.equal(dataset.draft_vocabulary(1000), torch.arange(64))
    with pytest.raises(ValueError, match="at least 1"):
        dataset.draft_vocabulary(0)


def test_what_does_not_fit_the_target_is_refused(folder, lm, file):
    for chosen, what in (
        ({"max_answer_tokens": 600}, "need a context of 648"),
        ({"layers": (2, 7)}, "layers are numbers from 0 to 6"),
        ({"layers": (3, 2)}, "layers ascend"),
        ({"max_prompt_tokens": 1}, "the chat template alone"),
        ({"states": "kept"}, "stored or recomputed"),
        ({"self_written": 2.0}, "share from 0 to 1"),
        ({"answers_per_prompt": 0}, "at least 1"),
        ({"files": ()}, "there are no prompts"),
    ):
        with pytest.raises(ValueError, match=what):
            made(folder, lm, file, **chosen)
    table = target(model=TableModel(torch.zeros(64, 64)))
    with pytest.raises(ValueError, match="training data needs a model that gives hidden states"):
        made(folder, table, file)
    mute = target()
    mute.tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"no chat template.*--self-written 0"):
        made(folder, mute, file)
    assert not folder.exists()
    made(folder, mute, file, self_written=0, tokens=50)


def test_prompts_that_are_all_too_long_are_told(folder, lm, file, monkeypatch):
    with pytest.raises(ValueError, match=r"none of 40 prompts.*raise --max-prompt"):
        made(folder, lm, file, self_written=0, max_prompt_tokens=8)
    monkeypatch.setattr(make, "FRUITLESS", 8)  # prompts of packages have no end
    with pytest.raises(ValueError, match="none of 8 prompts"):
        made(folder.with_name("other"), lm, file, self_written=0, max_prompt_tokens=8)


@pytest.mark.parametrize("per_shard", [4, 64])
def test_data_without_a_text_bind_no_options(folder, lm, file, per_shard):
    chosen = {"self_written": 0, "prompts_per_shard": per_shard}
    with pytest.raises(ValueError, match="none of 40 prompts gave a text"):
        made(folder, lm, file, max_prompt_tokens=8, **chosen)
    whole = made(folder.with_name("whole"), lm, file, **chosen)
    assert made(folder, lm, file, **chosen) == whole
    assert content(folder) == content(folder.with_name("whole"))


def test_a_prompt_that_gives_no_text_ends_nothing(tmp_path, lm):
    path = tmp_path / "prompts.jsonl"
    prompts = [*texts(6), " ".join(texts(20))]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    chosen = {"self_written": 0, "prompts_per_shard": 1}
    manifest = made(tmp_path / "data", lm, str(path), tokens=10**6, **chosen)
    assert [facts.texts for facts in manifest.shards].count(0) == 1
    assert len(Dataset.open(tmp_path / "data").shards) == 6
    again = Maker(tmp_path / "data", lm, data_options(str(path), **chosen))
    assert again.manifest == manifest


def test_folders_without_data_are_told(tmp_path, lm):
    with pytest.raises(FileNotFoundError, match=r"no training data.*draftwood train data"):
        Dataset.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="damaged or of another version"):
        Dataset.open(tmp_path)
    options = data_options("", files=(), self_written=1.0)
    Manifest(TargetDigest.of(lm.model, "tiny"), options, {}).write(tmp_path)
    with pytest.raises(ValueError, match="no texts yet"):
        Dataset.open(tmp_path)


def test_a_digest_does_not_ask_for_the_last_bit(lm):
    digest = TargetDigest.of(lm.model, "tiny")
    close = replace(digest, probe=tuple(number * 1.001 for number in digest.probe), name="other")
    digest.require(close)
    with pytest.raises(ValueError, match="weights differ"):
        digest.require(replace(digest, probe=tuple(number * 1.1 for number in digest.probe)))
    with pytest.raises(ValueError, match="products float32, but tiny has int8"):
        digest.require(replace(digest, products="int8"))


def test_bars_of_own_prompts_are_known_after_a_stop(folder, lm, file):
    manifest = made(folder, lm, file, tokens=300)
    again = Maker(folder, lm, data_options(file))
    own = [
        prompt
        for facts in manifest.shards
        for shard in [Shard(folder / facts.file)]
        for source, prompt in zip(shard.sources, shard.prompt_texts(), strict=True)
        if source == OWN
    ]
    assert own
    assert not any(again._bars.admits(prompt) for prompt in own)
    assert all(Bars().admits(prompt) for prompt in own)
