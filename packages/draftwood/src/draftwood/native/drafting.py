"""Candidates of several sources merged in C++; see merging.h and source.h."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Array,
    Structure,
    addressof,
    byref,
    c_char,
    c_double,
    c_int32,
    c_int64,
    c_uint64,
    create_string_buffer,
    sizeof,
)
from struct import Struct
from typing import Any

import numpy as np

from draftwood.arrays import Float, Int, address_of, as_array
from draftwood.native import library
from draftwood.native.threads import threads

MAX_NAMES = 64  # a bit of a word for each

ASK = CFUNCTYPE(c_int64, c_int64, c_int64, c_int64, c_int64)
"""``ForeignSource::Ask`` of foreign.h."""


class CMergingSettings(Structure):
    """``MergingSettings`` of merging.h."""

    _fields_ = (
        ("before_evidence", POINTER(c_double)),
        ("bucket_of", POINTER(c_int32)),
        *((name, POINTER(c_double)) for name in ("asking_gain", "asking_reach")),
        *((name, c_int32) for name in ("buckets", "steps")),
        *((name, c_double) for name in ("rate", "strength", "decay", "floor")),
        *((name, c_double) for name in ("least_noise", "sharpness", "likeliest_child")),
        *((f"asking_{name}", c_double) for name in ("strength", "decay")),
        *((name, c_int32) for name in ("asking_trial", "slow")),
    )


@functools.cache
def kinds() -> dict[str, int]:
    """The kinds of sources that the library has, with their numbers."""
    found: dict[str, int] = {}
    while name := library.library().draftwood_source_kind(len(found)):
        found[name.decode()] = len(found)
    return found


@functools.cache
def checked_kind(kind: str, settings: type[Structure]) -> int:
    """Number of a kind of source whose settings are of this type.

    Raises:
        RuntimeError: where the library has no such kind, or settings of another size.
    """
    if kind not in kinds():
        raise RuntimeError(
            f"the library must know a source {kind!r}, but it knows {', '.join(kinds())}; call"
            " register_source in its file of native/sources"
        )
    _check_size(kinds()[kind], f"the source {kind!r}", settings)
    return kinds()[kind]


def _check_size(number: int, what: str, settings: type[Structure]) -> None:
    size = library.library().draftwood_settings_size(number)
    if size != sizeof(settings):
        raise RuntimeError(
            f"the settings of {what} must have {size} bytes, as in C++, but {settings.__name__} has"
            f" {sizeof(settings)}; give both the same fields"
        )


class SharedState:
    """State that the requests of a source share in C++, as tables that are kept.

    Args:
        kind: of the source.
        settings: of the source.
    """

    def __init__(self, kind: str, settings: Structure) -> None:
        compiled, number = library.library(), checked_kind(kind, type(settings))
        self.handle = compiled.draftwood_shared_new(number, byref(settings))
        library.freed_with(self, compiled.draftwood_shared_free, number, self.handle)


class Costs:
    """Costs of forward passes, and buffers for the trees that are grown by them.

    Args:
        costs: seconds of a step with 0, 1, 2, ... draft tokens.
        slopes: for each number of draft tokens the least that a further one costs, the last
            infinite.
    """

    def __init__(self, costs: Sequence[float], slopes: Sequence[float]) -> None:
        self.costs, self.slopes = library.doubles(costs), library.doubles(slopes)
        size = len(costs)
        self.tokens, self.parents = ((c_int64 * size)() for _ in range(2))
        self.chances = (c_double * size)()


class CandidateBuffer:
    """Buffer in which Python writes candidates for C++ to read, in the words of foreign.h."""

    def __init__(self) -> None:
        self._provide(1 << 12)

    def _provide(self, size: int) -> None:
        self.size = size
        self.memory: Array[c_char] = create_string_buffer(size)
        self.address = addressof(self.memory)

    def write(
        self, candidates: Iterable[tuple[Any, Mapping[int, float]]], numbers: Mapping[Any, int]
    ) -> int:
        """The address of what some kinds of evidence hold likely.

        Args:
            candidates: kinds, and tokens with probabilities.
            numbers: of the kinds.
        """
        count, end = 0, _WORD.size
        for kind, probs in candidates:
            layout = _layout(len(probs))
            start, end = end, end + layout.size
            if end > self.size:
                before = self.memory[:start]
                self._provide(2 * end)
                self.memory[:start] = before
            layout.pack_into(self.memory, start, numbers[kind], len(probs), *probs, *probs.values())
            count += 1
        _WORD.pack_into(self.memory, 0, count)
        return self.address


_WORD = Struct("=q")


@functools.lru_cache(maxsize=256)
def _layout(tokens: int) -> Struct:
    return Struct(f"={2 + tokens}q{tokens}d")


class Drafting:
    """Sources of one request in C++, and the draft trees made from them.

    Args:
        settings: of the merging; kept in memory with all that they point to.
    """

    def __init__(self, settings: CMergingSettings) -> None:
        self.library = library.library()
        _check_merging()
        self._kept: list[object] = [settings]
        self._errors: list[BaseException] = []  # of callbacks
        self.handle = self.library.draftwood_drafting_new(byref(settings))
        library.freed_with(self, self.library.draftwood_drafting_free, self.handle)

    def adder(self) -> Callable[[float, int], int]:
        """A function that makes a further kind of evidence and returns its number. It holds no
        reference to this object, and must not be called once that is gone.

        It takes the kind's log weight before evidence, and the number of its source's name, below
        ``MAX_NAMES``.
        """
        return functools.partial(self.library.draftwood_drafting_add_evidence, self.handle)

    def add_source(
        self, kind: str, settings: Structure, shared: object, evidence: Sequence[int]
    ) -> None:
        """Have the library make one more source.

        Args:
            kind: a name of ``kinds``.
            settings: of the source.
            shared: what its requests share, or anything that must stay in memory.
            evidence: numbers of its kinds of evidence.
        """
        self._kept.append((settings, shared))
        self.library.draftwood_drafting_add_source(
            self.handle,
            checked_kind(kind, type(settings)),
            byref(settings),
            shared.handle if isinstance(shared, SharedState) else None,
            (c_int32 * len(evidence))(*evidence),
            len(evidence),
        )

    def add_foreign(
        self,
        ask: Callable[[int, int, int, int], int],
        seconds: "Array[c_double] | None" = None,
        anywhere: bool = False,
    ) -> None:
        """Have the library ask Python for what one more source holds likely.

        Args:
            ask: takes the numbers of a node and of its parent, -1 above the root, the node's token
                and whether candidates are wanted; returns the address of a ``CandidateBuffer``.
                ``grow`` raises its errors.
            seconds: of asking at the root and at deeper nodes, read before each question; None asks
                at every node.
            anywhere: whether it may be asked below nodes at which it was not.
        """
        errors = self._errors

        def guarded(node: int, parent: int, token: int, wanted: int) -> int:
            try:
                return ask(node, parent, token, wanted)
            except BaseException as error:
                errors.append(error)
                return 0

        callback = ASK(guarded)
        self._kept.append((callback, seconds))
        self.library.draftwood_drafting_add_foreign(self.handle, callback, seconds, anywhere)

    def error(self) -> BaseException:
        """Take the error that a foreign source raised."""
        return self._errors.pop()

    def grow(
        self,
        root: int,
        costs: Costs,
        draw: tuple[int, int] | None,
        max_draft_len: int,
        others: float = 0.0,
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and chances of acceptance of a tree below ``root``, in falling order of
        the chances.

        Args:
            root: the newest token.
            costs: of forward passes over such trees.
            draw: key and number of the draw that decides about the root's children; None for greedy
                texts.
            max_draft_len: most draft tokens in a row.
            others: tokens that other texts are expected to emit in the same pass.
        """
        key, place = draw or (0, 0)
        count = self.library.draftwood_drafting_grow(
            self.handle,
            root,
            *(costs.costs, costs.slopes, others),
            *(draw is not None, key, place, max_draft_len, threads()),
            *(costs.tokens, costs.parents, costs.chances),
        )
        if count < 0:
            raise self.error()
        return costs.tokens[:count], costs.parents[:count], costs.chances[:count]

    def proposers(self, size: int) -> list[int]:
        """For the first ``size`` nodes of the last tree the names under which they were proposed,
        as bits.
        """
        bits = (c_uint64 * size)()
        self.library.draftwood_drafting_proposers(self.handle, size, bits)
        return bits[:]

    def learn(
        self,
        tokens: Int[np.ndarray, " nodes"],
        parents: Int[np.ndarray, " nodes"],
        path: Sequence[int],
        rows: tuple[Int[np.ndarray, "nodes ranks"], Float[np.ndarray, "nodes ranks"]] | None,
        hidden: Mapping[int, Any],
    ) -> None:
        """Take in what a forward pass of the target said.

        Args:
            tokens: of its nodes, 64-bit integers.
            parents: likewise.
            path: nodes that are now text.
            rows: the likeliest successors of each node and their probabilities; None takes in the
                path alone.
            hidden: states [nodes dim] of all layers of the target that sources read, None where
                they were not computed; none at all where nothing was.
        """
        states = {
            layer: np.ascontiguousarray(as_array(each), np.float32)
            for layer, each in hidden.items()
            if each is not None
        }
        addresses = library.integers(
            [
                address_of(states[layer]) if layer in states else 0
                for layer in range(1 + max(hidden))
            ]
            if states
            else []
        )
        addresses = addresses if states else None
        numbers = library.integers(path)
        best, probs, ranks = (None, None, 0)
        if rows is not None:
            best, probs, ranks = address_of(rows[0]), address_of(rows[1]), rows[0].shape[1]
        self.library.draftwood_drafting_learn(
            self.handle,
            address_of(tokens),
            address_of(parents),
            len(tokens),
            numbers,
            len(path),
            best,
            probs,
            ranks,
            addresses,
        )

    @property
    def is_open(self) -> bool:
        """False while all texts leave a source alone that was worth nothing."""
        return bool(self.library.draftwood_drafting_is_open(self.handle))

    def spent(self) -> float:
        """Seconds that sources took which take their time, since this was asked last."""
        return self.library.draftwood_drafting_spent(self.handle)


@functools.cache
def _check_merging() -> None:
    _check_size(-1, "the merging", CMergingSettings)
