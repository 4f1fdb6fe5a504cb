"""Models small enough to run a whole command in a moment, saved like real ones."""

import string
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftwood import methods
from draftwood.methods import Method
from draftwood.verifiers import Verdict

# ByteLevel's space and line break
LETTERS = "Ġ" + "Ċ" + string.digits + string.ascii_letters + string.punctuation
MESSAGES = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
TEMPLATE = MESSAGES + "{% if add_generation_prompt %}a:{% endif %}"


def save_model(
    folder: Path,
    letters: str = LETTERS,
    template: str | None = TEMPLATE,
    layers: int = 4,
    context: int = 256,
) -> str:
    """A random Llama whose tokens are letters; nothing ends its text."""
    from transformers import PreTrainedTokenizerFast

    from draftwood.testing import tiny_llama

    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    whole.chat_template = template
    whole.save_pretrained(folder)
    tiny_llama(seed=layers, layers=layers, vocab=len(letters), context=context).save_pretrained(
        folder
    )
    return str(folder)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With room for texts that take a while."""
    return save_model(tmp_path_factory.mktemp("models") / "roomy", context=4096)


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Deep enough for drafters that read some of its layers."""
    return save_model(tmp_path_factory.mktemp("models") / "deep", layers=6)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "draft", layers=1)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same letters under other numbers."""
    return save_model(
        tmp_path_factory.mktemp("models") / "stranger", letters=LETTERS[::-1], layers=1
    )


@pytest.fixture(scope="session")
def mute(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has no chat template."""
    return save_model(tmp_path_factory.mktemp("models") / "mute", template=None, layers=1)


@pytest.fixture(scope="session")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that reads 32 tokens."""
    return save_model(tmp_path_factory.mktemp("models") / "forgetful", context=32)


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that writes for minutes."""
    return save_model(tmp_path_factory.mktemp("models") / "endless", layers=2, context=1_000_000)


class AcceptsEverything:
    """A verifier that follows first children to the leaf: fast and wrong."""

    name = "accepts-everything"
    exact_for = frozenset({"chosen"})

    def __call__(self, tree, target_probs, rng):
        node, path = 0, []
        while tree.children[node]:
            node = tree.children[node][0]
            path.append(node)
        return Verdict(path, rng.draw(target_probs[node]))


@pytest.fixture
def wrong(monkeypatch):
    """``recycling`` no longer looks at what the target says."""
    from draftwood_methods.drafters.token_recycling import TokenRecycling

    build = methods.build

    def wrongly(name, target, draft_model=None, **named):
        wrong = Method(TokenRecycling(), AcceptsEverything(), name)
        return wrong if name == "recycling" else build(name, target, draft_model, **named)

    monkeypatch.setattr(methods, "build", wrongly)
