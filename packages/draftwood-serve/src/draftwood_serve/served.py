"""A server's models: loaded when a request asks for one, left when another one needs its room."""

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from draftwood.storage.memory import LackOfMemoryError
from draftwood_serve.arenas import return_free_memory
from draftwood_serve.errors import ApiError, no_retry, one_line
from draftwood_serve.facts import ModelFacts
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.metrics import MetricFamilies, Metrics
from draftwood_serve.settings import ServeSettings
from draftwood_serve.thread import ModelThread
from draftwood_serve.token_texts import TokenTexts

POLL_SECONDS = 0.02
"""Between looks at a model that is to leave, and still runs texts or is still held."""
MOST_COLLECTIONS = 50
"""Collections of garbage for one model that leaves."""


class ModelHolder(Protocol):
    """A request for a model.

    Attributes:
        model: that it asks for.
        holds: whether the model must stay for it.
        keep_alive: seconds that the model is to stay behind it; None says nothing.
    """

    model: "ServedModel"
    holds: bool
    keep_alive: float | None


class ServedModel:
    """A model of a server, in memory or not.

    Args:
        settings: of the server, for this model.
        families: in which it counts.
        turns: that models in memory take.

    Attributes:
        thread, target, token_texts: while it is in memory; else the last two are missing.
        facts: what is told of it, as it was last loaded; None before.
        used: when a request last came or ended, in seconds of ``time.perf_counter``.
        leaves: whether it takes no requests, as it is about to leave.
        keep: seconds without requests after which it leaves.
    """

    target: LoadedTarget
    token_texts: TokenTexts

    def __init__(
        self, settings: ServeSettings, families: MetricFamilies, turns: threading.Lock
    ) -> None:
        self.settings, self.metrics = settings, Metrics(families, settings.names[0])
        self.thread: ModelThread | None = None
        self.facts: ModelFacts | None = None
        self.used, self.leaves, self.keep = 0.0, False, math.inf
        self._turns = turns

    @property
    def name(self) -> str:
        """Name that answers carry where a request gives none."""
        return self.settings.names[0]

    @property
    def is_loaded(self) -> bool:
        return self.thread is not None

    @property
    def left(self) -> float:
        """Seconds until it leaves, if no request comes."""
        return self.used + self.keep - perf_counter()

    @property
    def is_broken(self) -> bool:
        """True if its thread has ended by itself; any thread may ask."""
        thread = self.thread
        ended = thread is not None and not thread.alive and not self.leaves
        return ended and self.thread is thread  # else it has left meanwhile

    @property
    def running(self) -> ModelThread:
        """Thread that runs it; it must be in memory."""
        assert self.thread is not None, f"{self.name} is not in memory"
        return self.thread

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and answer; None for no limit, and while nobody knows it."""
        return self.settings.context if self.facts is None else self.facts.context_length

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, where it was in memory and tells them."""
        return 0 if self.facts is None else self.facts.weight_bytes

    def load(self) -> LoadedTarget:
        """Load it and wait; raises the error of what keeps it from that."""
        thread = ModelThread(self.settings, self.metrics, self._turns)
        return self._enter(thread, thread.start().result())

    async def load_meanwhile(self) -> LoadedTarget:
        """The same, while the event loop goes on."""
        thread = ModelThread(self.settings, self.metrics, self._turns)
        return self._enter(thread, await asyncio.wrap_future(thread.start()))

    def _enter(self, thread: ModelThread, target: LoadedTarget) -> LoadedTarget:
        self.thread, self.target, self.used = thread, target, perf_counter()
        self.keep, self.facts = math.inf, ModelFacts.of(target)
        self.token_texts = TokenTexts(target.plain.tokenizer)
        self.metrics.set_loaded(True)
        return target

    async def leave(self) -> None:
        """End its thread, and give its memory back."""
        if self.thread is None:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.thread.close)
        model = weakref.ref(self.target.plain.model)
        self.thread = None
        del self.target, self.token_texts
        self.metrics.set_loaded(False)
        for _ in range(MOST_COLLECTIONS):
            # a model and its caches refer to each other; a collection does nothing where another
            # thread's is under way, and a worker may hold its last request for a moment
            await loop.run_in_executor(None, gc.collect)
            if model() is None:
                break
            await asyncio.sleep(POLL_SECONDS)
        await loop.run_in_executor(None, return_free_memory)


class ServedModels:
    """The models of a server, of which as many are in memory as fit.

    Where one does not fit beside the others, the one that was idle for the longest leaves. One that
    runs texts stays until they end, and takes no further ones meanwhile.

    Args:
        settings: of each model, the first one being what requests without a name get.
        open: requests under way.
        say: takes lines about what is loaded.
    """

    def __init__(
        self,
        settings: Sequence[ServeSettings],
        open: Collection[ModelHolder],
        say: Callable[[str], None],
    ) -> None:
        self.families, self.open, self.say = MetricFamilies(), open, say
        turns = threading.Lock()
        self.all = [ServedModel(each, self.families, turns) for each in settings]
        self.most = settings[0].max_models or len(settings)
        self._by_name = {name: each for each in self.all for name in each.settings.names}
        if len(self._by_name) < sum(len(each.settings.names) for each in self.all):
            raise ValueError("two models have one name; tell them apart with --served-model-name")
        self._loads: dict[ServedModel, asyncio.Task[None]] = {}
        self._timers: dict[ServedModel, asyncio.TimerHandle] = {}
        self._expiring: dict[ServedModel, asyncio.Task[None]] = {}  # the loop keeps none alive
        self._one_at_a_time = asyncio.Lock()

    @property
    def first(self) -> ServedModel:
        return self.all[0]

    @property
    def names(self) -> list[str]:
        """Names that requests may ask for."""
        return list(self._by_name)

    def named(self, name: str | None) -> ServedModel:
        """The model of a name, or the first one.

        Raises:
            KeyError: for a name that is not served.
        """
        return self.first if name is None else self._by_name[name]

    @property
    def loaded(self) -> list[ServedModel]:
        """Models in memory, the one that was idle for the longest first."""
        return sorted((each for each in self.all if each.is_loaded), key=lambda each: each.used)

    def is_busy(self, model: ServedModel) -> bool:
        """True if a request needs the model in memory."""
        return any(each.holds and each.model is model for each in self.open)

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Let a model stay for so many seconds behind its last request; None changes nothing.

        One that cannot be loaded again stays as it is.
        """
        if seconds is not None and model.settings.may_leave:
            model.keep = seconds

    def released(self, model: ServedModel) -> None:
        """Note that a request for a model has ended, which leaves once it was idle for long."""
        model.used = perf_counter()
        self._watch(model)

    def _watch(self, model: ServedModel) -> None:
        """Look again when a model may leave."""
        if timer := self._timers.pop(model, None):
            timer.cancel()
        if model.is_loaded and model.keep < math.inf:
            loop = asyncio.get_running_loop()
            self._timers[model] = loop.call_later(model.left, self._begin_expiring, model)

    def _begin_expiring(self, model: ServedModel) -> None:
        self._expiring[model] = asyncio.ensure_future(self.expire(model))

    async def expire(self, model: ServedModel) -> None:
        """Let a model leave that was idle for as long as it was to stay."""
        async with self._one_at_a_time:
            if not model.is_loaded or self.is_busy(model):
                return
            if model.left > 0:
                return self._watch(model)
            model.leaves = True
            try:
                await model.leave()
            finally:
                model.leaves = False
            self.say(f"{model.name} has left, as it was to stay for {model.keep:g} s")

    async def hold(self, request: ModelHolder) -> None:
        """Wait until a request's model is in memory, where it stays for the request.

        Raises:
            ApiError: where it cannot be loaded, or does not fit.
        """
        model = request.model
        if not model.is_loaded or model.leaves:
            if model not in self._loads:
                self._loads[model] = asyncio.ensure_future(self._load(model))
            load = self._loads[model]
            load.add_done_callback(partial(self._heard, request))  # also where it leaves meanwhile
            await asyncio.shield(load)
        self.keep(model, request.keep_alive)
        model.used, request.holds = perf_counter(), True

    def _heard(self, request: ModelHolder, load: "asyncio.Task[None]") -> None:
        """Let a model that was loaded for a request stay for as long as that wants."""
        if not load.cancelled() and load.exception() is None:
            self.keep(request.model, request.keep_alive)
            self._watch(request.model)

    async def _load(self, model: ServedModel) -> None:
        try:
            async with self._one_at_a_time:
                while not model.is_loaded:
                    if len(self.loaded) >= self.most:
                        await self._make_room(model)
                    else:
                        await self._try(model)
                # before the next one in line looks for room
                for each in self.open:
                    each.holds = each.holds or each.model is model
        finally:
            del self._loads[model]

    async def _try(self, model: ServedModel) -> None:
        """Load a model, or make room for it."""
        since = perf_counter()
        try:
            await model.load_meanwhile()
        except LackOfMemoryError as error:
            error.__traceback__ = None  # whose frames hold what was read so far
            gc.collect()
            room = error.left + sum(each.weight_bytes for each in self.loaded)
            if error.needed > room or not self.loaded:
                own = LackOfMemoryError(f"the model {model.name!r}", error.needed, room)
                raise _not_loaded(str(own), "insufficient_memory") from None
        except Exception as error:
            told = f"the model {model.name!r} could not be loaded: {one_line(error)}"
            raise _not_loaded(told, "model_not_loaded") from error
        else:
            self.say(f"{model.name} is loaded, in {perf_counter() - since:.1f} s")
            return
        await self._make_room(model)

    async def _make_room(self, model: ServedModel) -> None:
        """Let the model leave that was idle for the longest, once one is idle."""
        leaving: ServedModel | None = None
        try:
            while self._is_wanted(model):
                idle = [each for each in self.loaded if not self.is_busy(each)]
                if idle:
                    leaving = idle[0]
                    leaving.leaves = True
                    await leaving.leave()
                    self.say(f"{leaving.name} has left, to make room for {model.name}")
                    return
                if leaving is None:
                    leaving = self.loaded[0]
                    leaving.leaves = True
                await asyncio.sleep(POLL_SECONDS)
            raise _not_loaded(f"nobody waits for {model.name!r} any more", "model_not_loaded")
        finally:
            for each in self.all:
                each.leaves = False

    def _is_wanted(self, model: ServedModel) -> bool:
        return any(each.model is model for each in self.open)

    def close(self) -> None:
        """End the threads of all models."""
        for each in self.loaded:
            if each.thread is not None:
                each.thread.close()


def _not_loaded(message: str, code: str) -> ApiError:
    return no_retry(503, message, code)
