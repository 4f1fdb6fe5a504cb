"""Users choose a method's tree by a text; a head stands in for a draft model."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import draftwood
from command import refused, run
from draftwood import methods
from draftwood.drafters import CtcDrafter, Eagle, Hydra, Medusa
from draftwood.drafters.overlap import Overlap
from draftwood.heads import folder
from draftwood.loading.models import load_model
from draftwood.methods import taken
from draftwood.methods.drafts import Drafts
from draftwood.methods.listings import listings
from draftwood.methods.trees import MOST_NODES, Tree, require_tree, shape_of, trees_of
from draftwood.shapes import (
    BestFirst,
    Independent,
    Paths,
    Sequoia,
    Shape,
    StochasticBeam,
    Widths,
)
from draftwood.testing import tiny_llama
from draftwood.testing.promises import tables
from draftwood_methods.shapes import Until
from draftwood_torch.lean.model import LeanModel
from tiny_heads import TINY, tiny_ctc, tiny_eagle, tiny_medusa

DRAWN: list[tuple[str, str, Shape]] = [
    ("rsd-s", "4x3", StochasticBeam(4, 3)),
    ("rsd-s", "3", StochasticBeam(1, 3)),
    ("traversal", "2x3", StochasticBeam(2, 3)),
    ("spectr", "4x3", Independent(4, 3)),
    ("rsd-c", "3,2,1", Widths((3, 2, 1))),
    ("rsd-c", " 3, 2 ", Widths((3, 2))),
    ("rsd-c", "4", Widths((1, 1, 1, 1))),
    ("specinfer", "3,2", Widths((3, 2), "independent")),
    ("greedy-plus-one", "3,2", Widths((3, 2), "greedy-plus-one")),
    ("speculative", "5", Widths((1,) * 5)),
    ("block", "5", Widths((1,) * 5)),
    ("until", "5", Until(5)),
    ("eagle", "best:8", BestFirst(4, 3, 8)),
    ("eagle", "Best:8x2", BestFirst(2, 4, 8)),
    ("eagle", "best:2", BestFirst(2, 3, 2)),
    ("eagle", "3", BestFirst(3, 1, 3)),
    ("medusa", "2,1", Paths(((0,), (1,), (0, 0), (1, 0)))),
    ("recycling", "9,1", Paths(tuple((i,) for i in range(9)) + tuple((i, 0) for i in range(9)))),
    ("sequoia", "best:9", Sequoia(budget=9, max_depth=6)),
    ("sequoia", "best:9x2", Sequoia(budget=9, max_depth=2)),
    ("sequoia", "3", Sequoia((0.6,), budget=3, max_depth=3)),
    ("ctc", "best:9", BestFirst(9, 4, 9)),
]


@pytest.mark.parametrize(("name", "text", "shape"), DRAWN)
def test_a_text_is_a_shape_of_the_methods_own_draw(name: str, text: str, shape: Shape) -> None:
    recipe = methods.recipe(name)
    found = methods.shape_of(text, recipe)
    assert found == shape
    assert found.nodes == Tree.of(text).nodes
    if recipe.shape is not None:
        assert recipe.drafter.labels(found) <= recipe.verifier.exact_for
    require_tree([name], text)


@pytest.mark.parametrize("text", ["", "0", "-3", "0x4", "4x0", "3,0", "best:", "x", "4x", "3,,2"])
def test_a_text_that_is_no_tree_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no tree; write 4x3 .* 3,2,1 .* best:8 .* or 4 "):
        Tree.of(text)


@pytest.mark.parametrize(
    "text", ["257", "99999999x1", "10000000", "16x17", "4,4,4,4,4", "best:257x2"]
)
def test_a_tree_of_too_many_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_NODES} nodes"):
        Tree.of(text)
    assert Tree.of("16x16").nodes == MOST_NODES
    with pytest.raises(ValueError, match="more levels than nodes"):
        Tree.of("best:8x9")


def test_what_is_no_text_is_no_tree() -> None:
    with pytest.raises(TypeError, match="a text such as 4x3, got 4"):
        require_tree(["rsd-s"], 4)  # type: ignore[arg-type]


def test_a_tree_that_a_method_cannot_draw_is_refused_with_those_it_can() -> None:
    for name, text, drawn in (
        ("rsd-s", "3,2,1", "write 4x3"),
        ("rsd-c", "4x3", "write 3,2,1"),
        ("speculative", "2,1", "write 4 (a chain of 4 tokens)"),
        ("eagle", "4x3", "write 3,2,1"),
        ("auto", "4", "takes no tree; leave it out"),
    ):
        with pytest.raises(ValueError, match=f"'{name}'") as caught:
            require_tree([name], text)
        assert drawn in str(caught.value)
        assert "choose another method, for instance" in str(caught.value)


def test_one_of_several_methods_must_draw_a_tree() -> None:
    require_tree(["auto", "rsd-s"], "4x3")
    assert trees_of(["auto", "rsd-s"], "4x3") == {"auto": None, "rsd-s": "4x3"}
    assert trees_of(["auto", "rsd-s"], None) == {"auto": None, "rsd-s": None}
    with pytest.raises(ValueError, match="'auto' takes no tree"):
        require_tree(["auto", "rsd-c"], "4x3")


def test_default_trees_are_small_and_listed_as_users_write_them() -> None:
    written = {name: each for name, each in listings().items() if each.tree is not None}
    assert {"rsd-s", "rsd-c", "spectr", "sequoia", "until", "eagle", "typical"} <= set(written)
    for name, each in written.items():
        recipe = methods.recipe(name)
        usual, made = recipe.shape, shape_of(each.tree, recipe)
        assert made == usual
        assert Tree.of(each.tree).nodes == each.nodes <= 8


def test_a_usual_tree_beyond_what_users_may_write_stands_in_no_way() -> None:
    recipe = replace(methods.recipe("rsd-s"), shape=StochasticBeam(32, 10))
    assert shape_of("4x3", recipe) == StochasticBeam(4, 3)
    cut = replace(methods.recipe("rsd-s"), shape=StochasticBeam(4, 3, budget=10))
    assert shape_of("3x3", cut) == StochasticBeam(3, 3)


def test_a_built_method_takes_no_tree() -> None:
    with pytest.raises(ValueError, match="'plain' is built already; leave the tree out"):
        require_tree([methods.build("plain", tables()[0])], "4")


def test_a_tree_may_not_be_deeper_than_head_and_context() -> None:
    model = LeanModel(tiny_llama(0, layers=4, context=16))
    heads: dict[str, Any] = {
        "medusa": tiny_medusa(model, heads=3),
        "ctc": tiny_ctc(model, frames=3),
        "eagle": tiny_eagle(model),
    }
    levels = {name: Drafts(head=head).levels for name, head in heads.items()}
    assert levels == {"medusa": 3, "ctc": 3, "eagle": None}
    for head in (heads["medusa"], heads["ctc"]):
        assert methods.build("rsd-s", model, shape=StochasticBeam(2, 3), head=head)
        with pytest.raises(ValueError, match="has 4 levels and the head drafts 3; write a tree of"):
            methods.build("rsd-s", model, shape=StochasticBeam(2, 4), head=head)
    for name in ("ctc", "ctc-paper"):
        assert methods.build(name, model, shape=BestFirst(3, 3, 8), head=heads["ctc"])
        with pytest.raises(ValueError, match="has 4 levels and the head drafts 3; write a tree of"):
            methods.build(name, model, shape=BestFirst(4, 3, 8), head=heads["ctc"])
    assert methods.build("rsd-s", model, shape=StochasticBeam(1, 15), head=heads["eagle"])
    with pytest.raises(ValueError, match="has 16 levels and the model reads 16 tokens"):
        methods.build("rsd-s", model, shape=StochasticBeam(1, 16), head=heads["eagle"])


@pytest.mark.parametrize("kind", ["eagle", "medusa", "hydra", "ctc", "lm"])
def test_a_head_stands_in_for_a_draft_model(kind: str) -> None:
    model = LeanModel(tiny_llama(0, layers=4))
    head = TINY[kind](model)
    for name in ("rsd-s", "rsd-c", "specinfer", "spectr"):
        methods.require([name], {"head"})
        built = methods.build(name, model, head=head)
        assert (built.name, built.lossless) == (name, True)
        assert built.drafter.name == kind
        assert built.drafter.shape == methods.recipe(name).shape  # type: ignore[attr-defined]
        if not built.drafter.drafts_ahead:
            with pytest.raises(ValueError, match=f"method '{kind}' reads the target's hidden"):
                methods.build(name, model, head=head, overlap=Overlap())
    kinds = {"eagle": Eagle, "medusa": Medusa, "hydra": Hydra, "ctc": CtcDrafter}
    assert isinstance(built.drafter, kinds.get(kind, object))


def test_a_head_stands_in_where_there_is_no_draft_model_alone() -> None:
    listed = methods.listing("rsd-s")
    assert taken(listed, {"head", "draft-model"}) == {"draft-model"}
    assert taken(listed, {"head"}) == {"head"}
    assert methods.lacking("rsd-s", {"head"}) is None
    assert methods.lacking("cascade", {"head"}) == "draft-model"  # its drafter runs a model itself
    with pytest.raises(ValueError, match="'rsd-s' uses no trained head"):
        methods.require(["rsd-s"], {"head", "draft-model"})


def test_a_head_of_another_target_is_refused_under_every_name() -> None:
    head = tiny_eagle(LeanModel(tiny_llama(1, layers=4)))
    for name in ("eagle", "rsd-s"):
        with pytest.raises(ValueError, match="was trained for tiny, and this model has"):
            methods.build(name, LeanModel(tiny_llama(0, layers=4)), head=head)


def test_a_model_that_gives_no_states_is_refused_by_that() -> None:
    model = LeanModel(tiny_llama(0, layers=4))
    heads = {"eagle": tiny_eagle(model), "ctc": tiny_ctc(model, reads=(1, 2, 4))}
    for kind, head in heads.items():
        for name in (kind, "rsd-s"):
            with pytest.raises(ValueError, match=f"'{name}' with this head needs .* hidden"):
                methods.build(name, tables()[0], head=head)


@pytest.mark.parametrize("name", ["rsd-s", "rsd-c", "specinfer", "spectr", "eagle"])
def test_a_grammar_of_tokens_that_no_head_drafts_is_written_all_the_same(
    name: str, target: str, heads: dict[str, str], tmp_path: Path
) -> None:
    """The head drafts every other token; the text is the one that plain decoding writes."""
    ending = shutil.copytree(target, tmp_path / "ending")
    config = ending / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token": "~"}))
    given = {"draft_model": heads["eagle"], "dtype": "float32"}
    lm = draftwood.load(str(ending), method="eagle", **given)  # type: ignore[arg-type]
    grammar = 'start: ("a" | "b" | "c") ("b" | "d") ("A" | "B") "!"'
    plain = lm.with_method("plain").generate("hi", grammar=grammar, max_new_tokens=8)
    found = lm.with_method(name).generate("hi", grammar=grammar, max_new_tokens=8)
    assert found.token_ids == plain.token_ids
    drawn = [
        lm.with_method(name).generate("hi", grammar=grammar, temperature=1.0, seed=seed).text
        for seed in range(4)
    ]
    assert all(re.fullmatch("[abc][bd][AB]!", text) for text in drawn)


def test_a_search_takes_the_size_of_its_tree() -> None:
    model = LeanModel(tiny_llama(0, layers=4))
    head = tiny_ctc(model)
    for name in ("ctc", "ctc-paper", "ctc-raw"):
        shape = methods.shape_of("best:6x2", methods.recipe(name))
        drafter: Any = methods.build(name, model, shape=shape, head=head).drafter
        assert (drafter.shape, drafter.nodes, drafter.depth) == (None, 6, 2)


@pytest.fixture(scope="module")
def heads(target: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    model = load_model(target, "float32").model
    place = tmp_path_factory.mktemp("heads")
    made: dict[str, Any] = {"eagle": tiny_eagle(model), "ctc": tiny_ctc(model, frames=4)}
    return {kind: str(folder.save(place / kind, head, "")) for kind, head in made.items()}


def test_texts_stay_the_same_with_trees_of_every_form(target: str, heads: dict[str, str]) -> None:
    lm = draftwood.load(target, method="eagle", draft_model=heads["eagle"], dtype="float32")
    plain = lm.with_method("plain").generate("hello", max_new_tokens=16).token_ids
    for name, tree in (
        *(("rsd-s", "4x3"), ("rsd-c", "3,2"), ("specinfer", "2,2"), ("spectr", "3x2")),
        *(("eagle", "best:6"), ("eagle", "2,2"), ("recycling", "2,2"), ("sequoia", "best:6")),
    ):
        stream = lm.with_method(name, tree=tree).stream("hello", max_new_tokens=16)
        list(stream)
        assert stream.result.token_ids == plain, name
        assert stream.result.stats.drafted > 0
        deepest = max(step.tree.depth for step in stream.steps if step.tree is not None)
        assert deepest <= Tree.of(tree).depth or tree == "best:6"
    lm = draftwood.load(
        target, method="rsd-s", tree="2x2", draft_model=heads["ctc"], dtype="float32"
    )
    assert lm.method.drafter.shape == StochasticBeam(2, 2)  # type: ignore[attr-defined]


def test_commands_take_a_tree(target: str, draft: str, heads: dict[str, str]) -> None:
    given = ("--model", target, "--dtype", "float32", "--max-new-tokens", "12")
    head = ("--draft-model", heads["eagle"])
    rsd = ("--method", "rsd-s", "--tree", "2x2", *head)
    assert run("generate", "hi", *given, *rsd).exit_code == 0
    told = run("compare", "hi", "--methods", "rsd-s,auto", "--tree", "2x2", *head, *given)
    assert told.exit_code == 0, told.output
    said = run("chat", *given, *rsd, given="hi\n/method rsd-c 2,1\nho\n/method rsd-c 2x1\n").stderr
    assert "method: rsd-c" in said
    assert "draws no such tree" in said
    model = ("--draft-model", draft, "--tree", "3")
    assert run("generate", "hi", *given, *model).exit_code == 0  # a chain: the published method


def test_commands_refuse_trees_before_anything_is_loaded(
    heads: dict[str, str], tmp_path: Path
) -> None:
    nothing = ("--model", str(tmp_path))
    ctc = ("--draft-model", heads["ctc"])
    for words, told in (
        (("--method", "rsd-s", "--tree", "0x3", *ctc), "is no tree"),
        (("--method", "rsd-s", "--tree", "3,2", *ctc), "draws no such tree"),
        (("--method", "rsd-s", "--tree", "2x5", *ctc), "has 5 levels and the head drafts 4"),
        (("--tree", "2x5"), "method 'auto' takes no tree"),
    ):
        assert told in refused("generate", "hi", *words, *nothing)
        assert told in refused("chat", *words, *nothing)
        assert told in refused("serve", *words, nothing[1])
        several = ["--methods" if word == "--method" else word for word in words]
        names = () if "--methods" in several else ("--methods", "auto")
        assert told in refused("compare", "hi", *names, *several, *nothing)
        output = ("--output", str(tmp_path / "run"))
        assert told in refused("bench", "spec-bench", *names, *several, *nothing, *output)
    assert not (tmp_path / "run").exists()
