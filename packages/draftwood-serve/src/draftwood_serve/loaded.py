"""The model of a server, and the methods that its requests ask for."""

from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from draftwood import engine, methods
from draftwood.learning.learning import Learning
from draftwood.loading.names import other_way, require_token_by_token
from draftwood.methods.answers import AnswersMethod
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.text.language_model import LanguageModel
from draftwood_serve.errors import one_line
from draftwood_serve.jobs import Speculation
from draftwood_serve.other_texts import served_method
from draftwood_serve.settings import ServeSettings

LEAST_TOKENS = 64
"""Tokens that a text takes beyond its prompt: a tree and the first ones."""
MOST_TREES = 32
"""Methods with trees of requests' own that are kept."""
MOST_NAMES = 64
"""Names of methods, with their knobs, that are looked up once."""


class LoadedTarget:
    """A target, what drafts for it, and methods over both.

    Loaded and used by the thread that runs the model, as building a method may measure it.

    Args:
        settings: of the model.
        turns: held while something is measured.

    Raises:
        ValueError: for unknown names and for methods that cannot be had.
    """

    def __init__(self, settings: ServeSettings, turns: AbstractContextManager[Any]) -> None:
        self.settings = settings
        self._require = lru_cache(MOST_NAMES)(partial(require_method, settings=settings))
        if self._require(settings.first_method) is None:
            methods.require_tree([settings.first_method], settings.tree, settings.drafts.levels)
        self.plain = LanguageModel.of(settings.load(), "plain")
        self.prefixes = self._limit_cache(self.plain.model)
        self._known: dict[tuple[str, str], LanguageModel] = {}
        self._with_trees: dict[tuple[str, str, str], LanguageModel] = {}  # the newest last
        self.learning: Learning | None = None
        self.idle_reason: str | None = None  # why it does not learn, though it was asked to
        with turns:
            self.method = self._usual_method()
            self.curve = self.plain.calibration.followed()
            self.using("", Speculation())
        if settings.learn:
            self._start_learning()
        with suppress(ImportError, ValueError):  # told to requests that ask for grammars
            self.plain.grammars.prepare()  # now, as it would keep all texts waiting

    def _usual_method(self) -> str:
        """The method of requests that name none.

        Raises:
            ValueError: for one that writes in another way than the model does.
        """
        settings, folder = self.settings, self.plain.calibration.folder
        other = other_way(folder)
        named = settings.first_method if settings.tree else settings.method
        found = None if named is None else served_method(named, settings, folder)
        if other is None:
            return named or self.plain.models.default_method()
        if named is not None and found is None:
            require_token_by_token(settings.model, folder)
        return named or other[1]

    @property
    def writes_by_token(self) -> bool:
        """False for a model that a package knows to write in another way."""
        return other_way(self.plain.calibration.folder) is None

    def other_method(self, wanted: Speculation) -> AnswersMethod | None:
        """A package's method that writes texts of a request; None where the engine's loop does."""
        return self._require(wanted.method or self.method)

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and answer: the model's, or fewer by ``--context`` or as the cache
        holds no more; None for no limit.
        """
        known = (self.own_context, self._held_tokens)
        return min((each for each in known if each is not None), default=None)

    @property
    def own_context(self) -> int | None:
        """The same, however much the cache holds."""
        known = (self.plain.model.context_length, self.settings.context)
        return min((each for each in known if each is not None), default=None)

    @property
    def _held_tokens(self) -> int | None:
        """Most tokens of one text that the cache can ever hold; None for no limit."""
        model = self.plain.model
        if not isinstance(model, NativeModel) or (limit := model.pool.limit) is None:
            return None
        blocks = max(0, limit // model.pool.block_bytes - model.pool.beside)
        return blocks * model.pool.places_per_block

    @property
    def exact(self) -> bool:
        """False where requests may ask for what changes the text, by ``--inexact``."""
        return not self.settings.inexact

    def _start_learning(self) -> None:
        """Let the head of the server's method learn; where it cannot, texts are served as ever."""
        owner = self.settings.learning_owner
        if owner is None:
            self.idle_reason = "several API keys are in use; name one of them with --learn-key"
            return
        try:
            self.learning = self.using(owner, Speculation()).learn(self.settings.learn_to)
        except (ImportError, ValueError, OSError) as error:
            self.idle_reason = one_line(error)

    def _built(self, owner: str, name: str, tree: str | None) -> LanguageModel:
        """Build a method; its head is the one that learns, for texts of the same owner."""
        found = self.plain.with_method(name, tree=tree)
        if self.learning is not None and owner == self.settings.learning_owner:
            found.learn_by(self.learning)
        return found

    def using(self, owner: str, wanted: Speculation) -> LanguageModel:
        """The target with the method that a request asks for.

        Args:
            owner: API key; a method that learns from texts learns from those of one owner only, as
                its speed would else tell what others wrote.

        Raises:
            ValueError: for an unknown method, one that lacks a part, a lossy one, and a budget or
                a tree that it does not take.
        """
        name = wanted.method or self.method
        if self._require(name) is not None:
            if wanted.tree is not None or wanted.budget is not None:
                raise ValueError(f"method {name!r} drafts nothing; leave tree and budget out")
            return self.plain
        if wanted.tree is not None:
            found = self._with_tree(owner, name, wanted.tree)
        else:
            if (owner, name) not in self._known:
                own = self.settings.tree if name == self.method else None
                self._known[owner, name] = self._built(owner, name, own)
            found = self._known[owner, name]
        return found if wanted.budget is None else _with_budget(found, wanted.budget)

    def knows(self, owner: str, wanted: Speculation) -> bool:
        """True if the method is built already, so that any thread may ask for it at once."""
        return wanted.tree is None and (owner, wanted.method or self.method) in self._known

    def _with_tree(self, owner: str, name: str, tree: str) -> LanguageModel:
        """A method with a tree; the oldest of too many are forgotten."""
        key = (owner, name, tree)
        found = self._with_trees.pop(key, None) or self._built(owner, name, tree)
        self._with_trees[key] = found
        while len(self._with_trees) > MOST_TREES:
            del self._with_trees[next(iter(self._with_trees))]
        return found

    @property
    def instructions(self) -> str | None:
        """Instructions that multiply matrices; None where PyTorch does."""
        model = self.plain.model
        return model.instructions if isinstance(model, NativeModel) else None

    @property
    def limits(self) -> engine.Limits:
        """Limits of the batch, by the costs of passes here."""
        settings = self.settings
        return engine.Limits(settings.max_batch).paced(self.curve, settings.max_step_ms / 1e3)

    def _limit_cache(self, model: Model) -> Prefixes | None:
        """Bound the cache, which then keeps prefixes too; None for a cache without blocks."""
        if not isinstance(model, NativeModel):
            if self.settings.cache_memory is not None:
                raise ValueError(
                    "--cache-memory is for models that run natively on the CPU, and this one does"
                    " not; leave it out"
                )
            return None
        pool, wanted = model.pool, self.settings.cache_memory
        pool.limit = wanted
        if wanted is None:
            pool.take_part(4 * self.settings.replicas_per_node)
        least = (pool.blocks_for(2 * LEAST_TOKENS) + pool.beside) * pool.block_bytes
        if pool.limit is not None and pool.limit < least:
            raise ValueError(
                f"a cache of {pool.limit} bytes holds next to nothing; give --cache-memory"
                f" {least // 2**20 + 1}m or more"
            )
        return Prefixes(model)

    def texts_at_once(self, prompt: int, answer: int) -> int:
        """Most texts of one prompt that the cache holds together, at least one."""
        held, model = self._held_tokens, self.plain.model
        if held is None or not isinstance(model, NativeModel):
            return self.settings.max_batch
        shared = prompt // model.pool.places_per_block
        own = model.pool.blocks_for(prompt + answer) - shared + model.pool.beside
        free = model.pool.blocks_for(held) - shared + model.pool.beside
        if own == 1:
            free -= 1  # the prompt's end stays as it is, for later ones
        return max(1, free // own)

    def require_room(self, tokens: int, answer: int | None) -> None:
        """Raise ValueError for a prompt that the cache can never hold with some of its answer.

        Args:
            answer: most tokens of the answer; None for as many as there is room for.
        """
        held, context = self._held_tokens, self.own_context
        left = None if context is None else context - tokens
        least = min(each for each in (LEAST_TOKENS, answer, left) if each is not None)
        if held is not None and tokens + least > held:
            beside = " beside its answer" if least else ""
            raise ValueError(
                f"the prompt has {tokens} tokens and the server's cache holds {held - least}"
                f"{beside}; shorten it, or start the server with more --cache-memory"
            )


def require_method(name: str, settings: ServeSettings) -> AnswersMethod | None:
    """Raise ValueError for an unknown method, one that lacks a part, and a lossy one.

    Returns:
        The method, if a package's writes its texts itself.
    """
    if (other := served_method(name, settings)) is not None:
        return other
    described = methods.listing(name)
    lacking = methods.lacking(described, settings.given)
    if lacking is not None:
        option = "--draft-model HEAD" if lacking == "head" else f"--{lacking}"
        raise ValueError(
            f"method {name!r} needs a {lacking}, and this server was started without {option}"
        )
    settings.require_allowed(name, described.promise)
    return None


def known_methods(settings: ServeSettings) -> list[methods.Listing]:
    """Descriptions of the methods that requests may ask for, whose parts are not imported."""
    found = []
    for described in methods.listings().values():
        with suppress(ValueError):
            require_method(described.name, settings)
            found.append(described)
    return found


def _with_budget(lm: LanguageModel, most: int) -> LanguageModel:
    """The same method with so many draft tokens in a step at most; its texts are learnt from too.

    It follows no head that learns: each request makes its own, with the head of that moment.
    """
    method = lm.method
    drafter: Any = method.drafter
    budget = getattr(drafter, "budget", None)
    if budget is None:
        raise ValueError(
            f"method {method.name!r} draws trees of a fixed size; speculative.budget is for methods"
            " that size them by what pays, such as auto and suffix"
        )
    smaller = replace(budget, max_draft_tokens=min(most, budget.max_draft_tokens))
    made = lm.with_method(replace(method, drafter=replace(drafter, budget=smaller)))
    made.learning = lm.learning
    return made
