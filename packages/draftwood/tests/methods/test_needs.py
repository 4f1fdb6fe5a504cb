"""A missing or unused part is refused in the same words everywhere, before weights are loaded."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest
from click.testing import CliRunner

import draftwood
from draftwood import methods
from draftwood.cli.main import main
from draftwood.costs.budget import default_cost
from draftwood.costs.calibration import Calibration
from draftwood.drafters import Drafter, DraftModel, Nothing
from draftwood.drafters.resources import Later, Need, Resources
from draftwood.heads.folder import save
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.methods import Method, MethodSpec
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.moved import MovedWarning
from draftwood.shapes import BestFirst, Paths, Shape, Widths
from draftwood.sources import BigramPrior
from draftwood.sources.stored_prior import StoredPrior
from draftwood.testing import TableModel, tiny_llama
from draftwood.testing.promises import tables
from draftwood.verifiers import Match, Rejection
from draftwood_bench.plan.configurations import PLAIN
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_methods.verifiers.typical import Typical
from draftwood_torch.lean.model import LeanModel
from tiny_heads import tiny_drafter

NOWHERE = str(Path(__file__).parent)  # a folder that is never read
NAMES = list(methods.known())
TRAINED = TrainedHead(
    SimpleNamespace(kind="eagle"), {}, np.array([0]), TargetFingerprint("none", 4, 0, 0)
)


class LoadedError(AssertionError):
    """Weights were loaded."""


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads a model or a tokenizer fails."""

    def load(*given: object, **more: object) -> NoReturn:
        raise LoadedError(str(given))

    for module in ("loading.draft_models", "loading.models"):
        monkeypatch.setattr(f"draftwood.{module}.load_model", load)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained head in a folder, of a model that nothing else is asked of."""
    trained = tiny_drafter("eagle", LeanModel(tiny_llama(0, layers=4)))
    assert trained is not None
    return str(save(tmp_path_factory.mktemp("heads") / "eagle", trained, ""))


def needs(name: str) -> frozenset[Need]:
    return methods.spec(name).needs


def target() -> Model:
    return tables()[0]


def printed(*arguments: str) -> str:
    """The line in which a command refuses its input."""
    result = CliRunner().invoke(main, list(arguments))
    assert not isinstance(result.exception, LoadedError), result.exception
    assert result.exit_code == 2, result.output
    return result.stderr.removeprefix("draftwood: error: ").removesuffix("\n")


def raised(act: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="method") as caught:
        act()
    return str(caught.value)


def refusals(name: str, drafts: list[str], folder: Path) -> dict[str, str]:
    """Refusals by each way to ask for a method, with these draft models and heads."""
    model = ("--model", NOWHERE, *(word for each in drafts for word in ("--draft-model", each)))
    parts: dict[str, Any] = {
        "draft_model": tables()[1] if NOWHERE in drafts else None,
        "head": TRAINED if set(drafts) - {NOWHERE} else None,
    }
    asked = {
        "load": raised(lambda: draftwood.load(NOWHERE, method=name, draft_model=drafts)),
        "build": raised(lambda: methods.build(name, target(), **parts)),
        "recipe": raised(lambda: methods.build(methods.recipe(name), target(), **parts)),
        "generate": printed("generate", "hi", "--method", name, *model),
        "compare": printed("compare", "hi", "--methods", name, *model),
    }
    if name != PLAIN:  # which a benchmark always runs beside another method
        output = ("--output", str(folder / "run"))
        asked["bench"] = printed("bench", "spec-bench", "--methods", name, *output, *model)
    return asked


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_unused_draft_model_is_refused_alike(
    name: str, head: str, tmp_path: Path
) -> None:
    needed = "draft-model" in needs(name)
    drafts = [head] * ("head" in needs(name)) + [NOWHERE] * (not needed)
    said = refusals(name, drafts, tmp_path)
    assert len(set(said.values())) == 1, said
    words = f"method {name!r} drafts with a second" if needed else f"method {name!r} uses no draft"
    assert said["load"].startswith(words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["tinyllama-1.1b", "qwen2.5-coder-0.5b"])
@pytest.mark.parametrize("name", ["eagle", "rsd-s", "auto"])
def test_a_named_head_of_another_named_model_is_refused_before_anything_is_fetched(
    name: str, model: str
) -> None:
    given = ("--method", name, "--draft-model", "smollm2-135m-eagle", "--model", model)
    assert printed("generate", "hi", *given).endswith(
        f"was trained for smollm2-135m, not for {model}; take a drafter of this model, or train one"
    )


@pytest.mark.parametrize("name", [n for n in NAMES if "head" not in methods.spec(n).uses])
def test_a_missing_or_unused_head_is_refused_alike(name: str, head: str, tmp_path: Path) -> None:
    needed = "head" in needs(name)
    drafts = [NOWHERE] * ("draft-model" in needs(name)) + [head] * (not needed)
    said = refusals(name, drafts, tmp_path)
    assert len(set(said.values())) == 1, said
    words = (
        f"method {name!r} drafts with a trained head; name its folder with --draft-model"
        " (draft_model= in Python)"
        if needed
        else f"method {name!r} uses no trained head; leave it out"
    )
    assert said["load"].startswith(words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["eagle", "rsd-s", "auto"])
def test_a_head_of_another_model_is_refused_before_weights_are_loaded(
    name: str, head: str, tmp_path: Path
) -> None:
    given = ("--method", name, "--draft-model", head, "--model", str(tmp_path))
    (tmp_path / "config.json").write_text('{"hidden_size": 32, "num_hidden_layers": 9}')
    assert "was trained for tiny, and" in printed("generate", "hi", *given)
    assert printed("generate", "hi", *given).endswith(
        "has decoder layers 9, not 4; take a drafter of this model, or train one"
    )
    for text in ('{"hidden_size": 32, "num_hidden_layers": 4}', "{}", "torn"):  # seen later
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(LoadedError):
            draftwood.load(str(tmp_path), method=name, draft_model=head)


def test_a_head_that_is_nowhere_is_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    said = f"there is no folder and no file {nowhere}"
    given = ("--draft-model", nowhere, "--model", NOWHERE)
    output = ("--output", str(tmp_path / "run"))
    for asked in (
        ("generate", "hi", "--method", "rsd-s"),
        ("check", "--methods", "rsd-s"),
        ("tune", "--method", "rsd-s"),
        ("bench", "spec-bench", "--methods", "rsd-s", *output),
    ):
        assert printed(*asked, *given).startswith(said)
    with pytest.raises(FileNotFoundError, match="no folder and no file"):
        draftwood.load(NOWHERE, method="rsd-s", draft_model=tmp_path / "none")
    for ask in (
        lambda: draftwood.load(NOWHERE, method="eagle", drafter=nowhere),
        lambda: draftwood.custom_generate("eagle", drafter=nowhere),
    ):
        with (
            pytest.warns(MovedWarning, match="drafter is draft_model now"),
            pytest.raises(ValueError, match="no drafter's folder"),
        ):
            ask()
    assert not (tmp_path / "run").exists()


def test_what_goes_together_comes_to_loading() -> None:
    """Otherwise the refusals above might come from anything else."""
    for name in NAMES:
        draft = NOWHERE if "draft-model" in needs(name) else None
        drafts = [draft, TRAINED if "head" in needs(name) else None]
        with pytest.raises(LoadedError):
            draftwood.load(NOWHERE, method=name, draft_model=[each for each in drafts if each])


def headed(name: str) -> Model:
    """A model for a method with a head, run natively where mask rows of its own draft."""
    road = NativeModel if name.startswith("masked-") else LeanModel
    return road(tiny_llama(0))


@pytest.mark.parametrize("name", NAMES)
def test_an_unused_shape_is_refused(name: str) -> None:
    taken = methods.recipe(name).drafter
    draft = tables()[1] if "draft-model" in needs(name) else None
    model = headed(name) if "head" in needs(name) else target()
    trained = tiny_drafter(name, model)

    def build(shape: Shape) -> Method:
        return methods.build(name, model, draft, shape, head=trained)

    if "shape" not in taken.uses:
        assert raised(lambda: build(Widths())) == f"method {name!r} takes no shape"
    elif taken.shape_type.__name__ in ("BestFirst", "Gated"):
        wanted = taken.shape_type.__name__
        assert raised(lambda: build(Widths())).startswith(
            f"method {name!r} takes a {wanted} shape, not Widths("
        )
        own = BestFirst(size=5) if wanted == "BestFirst" else taken.shape_type()
        drafter: Any = build(own).drafter
        assert drafter.nodes == 5 if wanted == "BestFirst" else drafter.shape == own
    elif taken is TokenRecycling:
        assert raised(lambda: build(Widths())).startswith(
            f"method {name!r} takes a Paths shape, not Widths("
        )
        assert build(Paths()).drafter.shape == Paths()  # type: ignore[attr-defined]
    elif "layers" not in needs(name):  # a table has none
        drafter: Any = build(Widths((2, 1))).drafter
        first = getattr(drafter, "near", getattr(drafter, "drafters", [drafter])[0])
        assert first.shape == Widths((2, 1))


class Either(Nothing):
    """Drafts with a second model where there is one."""

    uses: ClassVar[frozenset[Need]] = frozenset({"draft-model"})

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls() if resources.draft_model is None else DraftModel(resources.draft_model)


def test_a_draft_model_may_be_used_without_being_needed() -> None:
    either = MethodSpec("either", "", "", Either, None, Match())
    assert "draft-model" in methods.spec(either).uses
    draft = tables()[1]
    built = methods.build(either, target(), draft).drafter
    assert isinstance(built, DraftModel)
    assert built.model is draft
    assert isinstance(methods.build(either, target()).drafter, Either)
    methods.require([either, "lookup"], {"draft-model"})
    with pytest.raises(ValueError, match="uses no draft model"):
        methods.require(["lookup"], {"draft-model"})
    with pytest.raises(ValueError, match="must name it in needs"):
        DraftModel.build(Resources(target()))


def test_several_methods_are_refused_together() -> None:
    several = printed("compare", "hi", "--methods", "lookup,aded", "--draft-model", NOWHERE)
    assert several.startswith("methods 'lookup', 'aded' use no draft model; leave it out")
    methods.require(["lookup", "rsd-s"], {"draft-model"})  # one of them uses it


def test_a_method_that_is_built_takes_no_further_parts() -> None:
    method = Method(Nothing(), Match(), "mine")
    assert methods.build(method, target()) is method
    said = "method 'mine' is built already and takes no further parts"
    assert said in raised(lambda: draftwood.load(NOWHERE, method=method, draft_model=NOWHERE))
    assert said in raised(lambda: methods.build(method, target(), shape=Widths()))


class Watched(Resources):
    """Resources that note what is asked for."""

    def __getattribute__(self, name: str) -> object:
        if name in Resources.__dataclass_fields__:
            vars(self).setdefault("asked", set()).add(name)
        return super().__getattribute__(name)


def undeclared(drafter: type[Drafter]) -> set[str]:
    """Resources that a drafter asks for beyond those it declares."""
    resources = Watched(TableModel(tables()[0].logits), tables()[1])
    try:
        drafter.build(resources)
    except ValueError:
        # a table has no layers, and nobody gave a trained head
        assert {"layers", "head"} & drafter.needs
    declared: frozenset[Need] = drafter.needs | drafter.uses
    return (
        vars(resources).get("asked", set())
        - {need.replace("-", "_") for need in declared}
        - {"target"}
    )


class Greedy(Nothing):
    """Asks for what it does not declare."""

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        assert resources.curve is None
        return cls()


def test_drafters_ask_for_what_they_declare() -> None:
    for kind in methods.known_parts().drafters.values():
        assert not undeclared(kind), kind.name
    assert undeclared(Greedy) == {"curve"}


class Unmeasured(Calibration):
    """A machine that counts how often it is measured."""

    def __init__(self) -> None:
        self.measured = 0

    def followed(self, measures: bool = True) -> Callable[[int], float]:
        self.measured += 1
        return default_cost


class Unread(StoredPrior):
    """A prior that counts how often it is made."""

    def __init__(self) -> None:
        self.made = 0

    @property
    def table(self) -> BigramPrior:
        self.made += 1
        return BigramPrior(np.arange(2), np.array([[1], [0]]), np.array([[0.5], [0.5]]))


def test_curve_and_prior_are_measured_only_where_they_are_used() -> None:
    measured = {}
    for name in NAMES:
        # a table has neither layers nor hidden states
        if not {"layers", "head"} & needs(name):
            curve, prior = Unmeasured(), Unread()
            draft = tables()[1] if "draft-model" in needs(name) else None
            later = Later(curve.followed), Later(lambda prior=prior: prior.table)
            methods.build(name, target(), draft, curve=later[0], prior=later[1])
            measured[name] = (curve.measured, prior.made)
    assert {name: counts for name, counts in measured.items() if any(counts)} == {
        **{"auto": (1, 1), "suffix": (1, 0), "sjd": (1, 0), "raced-jacobi": (1, 0)},
        **{"gsd": (1, 0)},
    }


def test_promises_are_computed() -> None:
    for recipe in methods.known().values():
        lossy = ("typical", "top-n", "specdec-relaxed", "gsd")
        assert (recipe.promise == "lossless") is (recipe.name not in lossy)
    for verifier in (Match(), Rejection(), Typical()):
        exact = "chosen" in verifier.exact_for
        assert Method(Nothing(), verifier).lossless is exact
    recipe = MethodSpec("mine", "", "", TokenRecycling, Paths(), Rejection(), "another aim")
    assert recipe.promise == "another aim"
    built = methods.build(recipe, target())
    assert (built.promise, built.lossless) == ("another aim", False)
    chosen = MethodSpec("tree", "", "", methods.recipe("rsd-s").drafter, BestFirst(), Rejection())
    assert chosen.promise == "trades quality"  # the rule is exact, but not for this draw


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "claim",
    [
        lambda: Method(Nothing(), Typical(), otherwise="lossless"),  # type: ignore[arg-type]
        lambda: MethodSpec("x", "", "", Nothing, None, Typical(), "lossless"),  # type: ignore[arg-type]
    ],
)
def test_nobody_claims_to_be_lossless(claim: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="computed"):
        claim()


def test_built_methods_promise_what_their_recipes_do() -> None:
    for name, recipe in methods.known().items():
        if "layers" not in needs(name):
            draft = tables()[1] if "draft-model" in needs(name) else None
            model = headed(name) if "head" in needs(name) else target()
            built = methods.build(name, model, draft, head=tiny_drafter(name, model))
            assert built.promise == recipe.promise
