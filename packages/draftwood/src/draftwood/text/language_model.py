"""A model, its tokenizer and a method: text in, text out."""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from draftwood import engine, methods
from draftwood.costs.calibration import Calibration
from draftwood.drafters.drafter import overlap_of
from draftwood.engine.method import Method
from draftwood.engine.options import Options
from draftwood.engine.scheduler import run_all
from draftwood.engine.task import Limits
from draftwood.heads.trained import TrainedHead
from draftwood.lazy import UNCOLLECTED
from draftwood.loading.draft_models import ModelInMemory
from draftwood.loading.names import DEFAULT_MODEL, require_token_by_token
from draftwood.methods import MethodSpec
from draftwood.methods.drafts import Drafts
from draftwood.model_names import ModelNames
from draftwood.model_set import ModelSet
from draftwood.models.model import InProcess, Model, PrefixStore
from draftwood.sampling import Sampling
from draftwood.sampling_params import SamplingParams, sampling_params, takes_options
from draftwood.sources.stored_prior import StoredPrior
from draftwood.stats import Step
from draftwood.storage.home import expanded
from draftwood.text.builder import StopStrings
from draftwood.text.prompts import (
    NO_NAMES,
    ChatTemplate,
    Prompt,
    TextEmbedder,
    Tokens,
    encode_chat,
    encode_text,
    predicted_text,
    require_prompt,
    several_prompts,
    token_ids,
)
from draftwood.text.stream import Generation, Stream
from draftwood.tokenizer.protocol import AnyTokenizer, special_id
from draftwood.validation import require_count, require_kind

if TYPE_CHECKING:
    from draftwood.drafters.overlap import Overlap
    from draftwood.engine.constraint import Constraint
    from draftwood.grammar.compiler import Compiler
    from draftwood.grammar.tools import Tool, ToolChoice
    from draftwood.learning.learning import Learning
    from draftwood.sources.stored_index import StoredIndex

One = str | Path | TrainedHead | Model | ModelInMemory
Drafting = One | Sequence[One] | None
"""A draft model or a trained head, by name or in memory, or one of each."""

WHOLE_WITHIN = 0.05  # seconds of steps in a row of texts that are told as a whole


class LanguageModel(ChatTemplate, TextEmbedder, InProcess):
    """A model that writes faster and says the same.

    Made by ``draftwood.load``; build it by hand to combine parts of your own. Several threads may
    use one at once: each text is the same as alone, and the threads' passes of the model take
    turns.

    Args:
        model: the target.
        tokenizer: of the target.
        method: a drafter and a verifier.
        name: for reports.
        calibration: what forward passes cost, for methods that weigh it; None measures it when one
            asks.
        prior: what the model says after single tokens, for methods that draft with it; None
            likewise.
        grammars: compiles grammars for this model; None makes one.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: AnyTokenizer,
        method: Method,
        name: str,
        calibration: Calibration | None = None,
        prior: StoredPrior | None = None,
        grammars: "Compiler | None" = None,
    ) -> None:
        self.model, self.tokenizer, self.method, self.name = model, tokenizer, method, name
        self.calibration = calibration or Calibration(model)
        self.prior = prior or StoredPrior.for_texts(model, tokenizer, self.calibration.folder)
        self.models = ModelSet(model, tokenizer, name, self.calibration, self.prior)
        self.learning: Learning | None = None
        if grammars is not None:
            self.grammars = grammars

    @cached_property
    def grammars(self) -> "Compiler":
        """Compiler of grammars for this model."""
        from draftwood.grammar.compiler import Compiler

        return Compiler(self.tokenizer, self.model.vocab_size, self.end_tokens)

    @classmethod
    def of(
        cls,
        models: ModelSet,
        method: str | MethodSpec | Method | None = None,
        measure: bool = True,
        grammars: "Compiler | None" = None,
        tree: str | None = None,
    ) -> "LanguageModel":
        """The target of a set of models, decoded by a method on them.

        Args:
            method: None takes the one that follows from what drafts.
            measure: as ``with_method`` takes it.
            grammars: as for the class.
            tree: as ``with_method`` takes it.
        """
        made = cls(
            *(models.model, models.tokenizer, models.method(method, measure, tree), models.name),
            *(models.calibration, models.prior, grammars),
        )
        made.models = models
        return made

    def with_method(
        self,
        method: str | MethodSpec | Method | None = None,
        draft_model: Drafting = None,
        measure: bool = True,
        drafter: str | Path | TrainedHead | None = None,
        datastore: "str | Path | StoredIndex | None" = None,
        overlap: "bool | Overlap | None" = None,
        tree: str | None = None,
    ) -> "LanguageModel":
        """The same model, decoded by another method, with what was loaded beside it.

        It does not learn, and drafts with the head as loaded, not with what ``learn`` made of it.

        Args:
            method: None takes the one that follows from what drafts; see ``load``.
            draft_model: what drafts in the place of what was loaded: a model or a trained head,
                or its name; ``none`` leaves out the head that comes with draftwood. Texts that are
                written at the same time share a draft model's passes.
            measure: False does without what would have to be measured first: the method drafts as
                on a machine where draft tokens are dear, until passes tell what they take.
            datastore: for methods that copy from one: its file, which ``draftwood datastore
                build`` makes, or what ``sources.stored_index.open_datastore`` gave.
            overlap: whether a draft model, or a trained head that reads tokens alone, drafts
                while the target runs, and how; texts stay the same.
            tree: as ``load`` takes it.
        """
        given: Any = {"draft_model": Drafts.of(draft_model, drafter), "datastore": datastore}
        names = ModelNames(**given)
        if method is not None:
            self._require(method, names, overlap)
            methods.require_tree([method], tree, names.drafts.levels)
        models = self.models.with_names(names, overlap)
        if method is None:
            method = models.default_method(measure)
            self._require(method, names, overlap)
        methods.require_tree([method], tree, models.drafts.levels)
        return LanguageModel.of(models, method, measure, self.grammars, tree)

    def _require(
        self,
        method: str | MethodSpec | Method,
        names: ModelNames,
        overlap: "bool | Overlap | None",
    ) -> None:
        """Refuse what a method lacks, and what is given and it does not use."""
        loaded = methods.taken(method, self.models.given)
        methods.require([method], names.given | loaded, bool(overlap))
        names.drafts.require_for(() if isinstance(method, Method) else [methods.spec(method)])

    def encode(
        self,
        prompt: Prompt,
        raw: bool = False,
        tools: "Sequence[Tool]" = (),
        tool_choice: "ToolChoice | None" = None,
        names: Mapping[str, Any] = NO_NAMES,
    ) -> list[int]:
        """Token ids of a prompt.

        It is read as a chat where the tokenizer has a chat template, unless ``raw``.

        Args:
            tools: that the answer may call; for chats.
            tool_choice: likewise.
            names: what the chat template may ask for, such as ``{"enable_thinking": False}``.
        """
        require_prompt(prompt)
        if not raw and self.tokenizer.chat_template is not None:
            single = [{"role": "user", "content": prompt}]
            messages = single if isinstance(prompt, str) else prompt
            return encode_chat(self.tokenizer, messages, tools, tool_choice, names)
        if not isinstance(prompt, str):
            why = "a raw prompt is no chat" if raw else f"{self.name} has no chat template"
            raise ValueError(f"{why}, so it takes a text, not a list of messages")
        return encode_text(self.tokenizer, prompt)

    def text_before(self, prompt: Sequence[int], raw: bool) -> Sequence[int]:
        """Tokens with which an answer goes on: the prompt's, but a chat's answer begins a text."""
        return prompt if raw or self.tokenizer.chat_template is None else ()

    @takes_options
    def stream(
        self,
        prompt: Prompt | Tokens,
        params: SamplingParams | None = None,
        *,
        prefixes: PrefixStore | None = None,
        ends: Set[int] = frozenset(),
        **options: Any,
    ) -> Stream:
        """Decode a prompt; iterate over the result for text as it is accepted.

        Args:
            prompt: a text, a list of messages with ``role`` and ``content``, or the token ids of
                one text: numbers, a tensor or an array, or what the tokenizer gives.
            params: options of the text.
            prefixes: what earlier texts have computed of their prompts and answers, for instance a
                ``models.native.prefixes.Prefixes``; what is known of it is not computed again.
            ends: tokens that end the text besides the model's own.
            options: fields of ``SamplingParams``, in place of ``params`` or over it.

        Raises:
            ImportError: for a schema or grammar where ``llguidance`` is missing.
            TypeError: for a prompt or an option of another type, and an unknown option.
            ValueError: for a prompt that is empty or too long, for options out of range, and for a
                schema or grammar that cannot be followed.
        """
        wanted = sampling_params(params, options)
        require_token_by_token(self.name, self.calibration.folder)
        constraint, tokens = self._constraint(wanted), token_ids(prompt)
        if tokens is None:
            tokens = self.encode(prompt, wanted.raw)  # type: ignore[arg-type]
        if constraint is not None and not wanted.raw:
            from draftwood.text.thoughts import with_closed_thought

            tokens = with_closed_thought(self.tokenizer, tokens, constraint)
        shown = {} if wanted.raw else self.shown_tokens
        behind = self.text_before(tokens, wanted.raw)
        stops = StopStrings(self.tokenizer, wanted.stops, wanted.min_tokens, behind, shown)
        ends = frozenset(ends if wanted.ignore_eos else self.end_tokens | ends)
        request = Options(
            Sampling.of(wanted, ends),
            wanted.max_new_tokens,
            ends,
            wanted.seed,
            wanted.exact,
            stop_rules=[stops],
            logprobs=wanted.logprobs,
            constraint=constraint,
            prefixes=prefixes,
            salt=wanted.salt,
            predicted=predicted_text(self.tokenizer, wanted.prediction),
            watch=None if self.learning is None else self.learning.watch,
            context=wanted.context,
        )
        method = self.method
        sequence = engine.Sequence(self.model, method.drafter, method.verifier, tokens, request)
        return Stream(sequence, self.name, method.name)

    def _constraint(self, params: SamplingParams) -> "Constraint | None":
        if params.json_schema is not None:
            return self.grammars.json_schema(params.json_schema)
        grammar = params.grammar
        return self.grammars.lark(grammar) if isinstance(grammar, str) else grammar

    @overload
    def generate(
        self,
        prompt: Prompt | Tokens,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        prefixes: PrefixStore | None = None,
        **options: Any,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        prefixes: PrefixStore | None = None,
        **options: Any,
    ) -> list[Generation]: ...

    @takes_options
    def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        prefixes: PrefixStore | None = None,
        **options: Any,
    ) -> Any:
        """Decode a prompt to its end, or several prompts in one batch.

        Args:
            prompt: as for ``stream``; a list of texts, of messages' lists or of token ids' lists
                is a batch, and gives a list. Each text is the one that the prompt gives alone.
            params: options of each text.
            n: answers to each prompt, which is run once; ``result.answers`` holds them all. Answer
                i is the text of seed + i.
            prefixes: as for ``stream``.
            options: fields of ``SamplingParams``, in place of ``params`` or over it.

        Raises:
            TypeError: as ``stream``, and for a list that mixes kinds of prompts.
            ValueError: as ``stream``, and for an empty list and an ``n`` below 1.
        """
        require_count("n", n)
        wanted = sampling_params(params, options)
        prompts = several_prompts(prompt)
        if prompts is None:
            return self._written([prompt], n, wanted, prefixes)[0]
        return self._written(prompts, n, wanted, prefixes)

    def _written(
        self, prompts: Sequence[Any], n: int, params: SamplingParams, prefixes: PrefixStore | None
    ) -> list[Generation]:
        """``n`` answers to each prompt, all in one batch."""
        # compiled once
        params = replace(params, json_schema=None, grammar=self._constraint(params))
        seed = params.seed
        seeds = [None if seed is None else seed + number for number in range(n)]
        own = [replace(params, seed=each) for each in seeds]
        firsts = [self.stream(prompt, own[0], prefixes=prefixes) for prompt in prompts]
        texts = [  # a prompt is encoded once
            [one, *(self.stream(one.sequence.prompt, of, prefixes=prefixes) for of in own[1:])]
            for one in firsts
        ]
        for each in [each for streams in texts for each in streams]:
            each.sequence.tell_within = WHOLE_WITHIN
        several = n > 1
        tasks = [
            engine.ParallelSampling([each.sequence for each in streams])
            if several
            else streams[0].sequence
            for streams in texts
        ]
        with closing(run_all(tasks, Limits())) as running:
            for place, made in running:
                for answer, step in [(0, made)] if isinstance(made, Step) else made:
                    texts[place][answer].take(step)
        found = [[stream.finish() for stream in streams] for streams in texts]
        return [replace(first, others=tuple(others)) for first, *others in found]

    def learn(self, folder: str | Path | None = None, **settings: Any) -> "Learning":
        """Let the head that drafts learn from its rejected drafts, while no text is written.

        It ends with ``Learning.close``, where nobody holds it any more, and with another call; one
        that fails leaves it as it is, but for one with its own folder.

        Args:
            folder: keeps the buffer and the head that was learnt; None writes nothing. Another call
                with a folder goes on from the head in it, or from the one before any learning; a
                call without one from the head in use.
            settings: of ``Learning``, for instance ``memory``.

        Raises:
            ImportError: where no package trains heads.
            TypeError: for settings that are none.
            ValueError: for a method without an EAGLE head, settings out of their range, and a
                folder of another head.
            OSError: where the disk refuses the folder.
        """
        from draftwood.learning.learning import Learning

        trained = self.method.drafter.learnable
        if trained is None:
            raise ValueError(
                f"{self.method.name} drafts with no head that can learn here; take auto or eagle"
                " with an EAGLE head of this model"
            )
        path = None if folder is None else expanded(folder)
        learning = Learning.behind(self.learning, self.model, trained, path, **settings)
        self.learn_by(learning)
        return learning

    def learn_by(self, learning: "Learning") -> None:
        """Share a head that learns, where the method drafts with one."""
        if self.method.drafter.learnable is not None:
            self.learning = learning
            learning.follow(self)

    def adopt(self, trained: TrainedHead) -> None:
        """Draft with other weights of the head from the next text on."""
        self.method = replace(self.method, drafter=self.method.drafter.with_head(trained))

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends its text."""
        own = special_id(self.tokenizer, "eos")
        return self.model.end_tokens | (set() if own is None else {own})


def load(
    model: str | ModelInMemory = DEFAULT_MODEL,
    tokenizer: AnyTokenizer | None = None,
    *,
    method: str | MethodSpec | Method | None = None,
    draft_model: Drafting = None,
    drafter: str | Path | TrainedHead | None = None,
    datastore: "str | Path | StoredIndex | None" = None,
    overlap: "bool | Overlap" = False,
    dtype: Any = None,
    device: Any = None,
    cache: str | None = None,
    adapter: str | Path | None = None,
    curve: Callable[[int], float] | None = None,
    tp: int = 1,
    tree: str | None = None,
) -> LanguageModel:
    """A language model by name, or around a Transformers model already in memory.

    Args:
        model: a folder, a GGUF file, a Hugging Face id, a built-in name, or a Transformers model.
        tokenizer: needed with a Transformers model.
        method: a name of ``draftwood methods``, a ``MethodSpec``, or a ``Method`` of your own. None
            takes ``auto``, or what follows from ``draft_model``: for a trained head the method of
            its kind, ``auto`` for an EAGLE head; for a second model the one that is fastest by what
            passes cost here, and by the acceptance that ``draftwood tune`` measured with it.
        draft_model: what drafts: a second model given like ``model``, or a trained head, its name
            or folder. ``none`` leaves out the head that ``auto`` takes by itself on CPUs.
        drafter: a trained head; ``draft_model`` takes it now.
        datastore: texts of files to copy from, as ``draftwood datastore build`` made them.
        overlap: whether a draft model, or a trained head that reads tokens alone, drafts while
            the target runs, and how. It wants a core or device for each; texts stay the same.
        dtype: for instance ``float32``, ``int8`` or ``int4``; None takes int8 on CPUs for weights
            that were quantised before, else the weights' own. Models given as objects keep theirs.
        device: for instance ``cuda``; None takes CUDA where there is one, else the CPU.
        cache: ``int8`` rounds keys and values to 8 bits, on CPUs: less memory, and faster behind
            long texts. None keeps them in floats.
        adapter: a LoRA adapter of PEFT, its folder or Hugging Face id, which is added to the
            model's weights.
        curve: seconds of a forward pass by number of nodes, for methods that choose the size of
            their trees by it, for instance a ``Curve`` of ``draftwood.costs.curve``. None takes the
            one that ``draftwood tune`` or an earlier load stored, or measures it, which takes at
            most 3 s, or 1 s for a model already in memory; on CPUs passes of texts correct that.
        tp: processes of torchrun that hold the target in parts. All of them call this; the first
            one gets the model, the others serve it and exit when it has ended.
        tree: the method's draft tree in the place of its usual one: ``4x3`` (4 beams or chains of 3
            tokens), ``3,2,1`` (children of each node, level by level), ``best:8`` or ``best:8x4``
            (the 8 best nodes, on at most 4 levels), ``4`` (a chain of 4 tokens).

    Raises:
        TypeError: for a curve that is no function or gives no numbers, and for parts of another
            type.
        ValueError: for unknown names, unsupported architectures, mismatched vocabularies, two
            language models or two heads that draft, a head, datastore or adapter that is not whole
            or belongs to another model, a tree that the method cannot draw, and a curve that is not
            finite and above 0, or falls.
        FileNotFoundError: for a model, head, datastore or adapter that is not there.
        OSError: where the network or the disk refuses.
        MemoryError: where the weights certainly do not fit.
    """
    drafts = Drafts.of(draft_model, drafter)
    given: Any = {"model": model, "draft_model": drafts, "datastore": datastore, "tp": tp}
    given |= {"dtype": dtype, "device": device, "cache": cache, "adapter": adapter and str(adapter)}
    names = ModelNames(**given)
    require_kind("method", method, (str, MethodSpec, Method), "a name, a MethodSpec or a Method")
    wanted = method or drafts.method  # refused before anything is loaded
    methods.require([wanted], names.given, overlap_of(overlap) is not None)
    if not isinstance(wanted, Method):
        drafts.require_for([methods.spec(wanted)])
    if tree is not None:
        method = wanted  # not the fastest, which may draw other trees
        methods.require_tree([method], tree, drafts.levels)
    with UNCOLLECTED:
        models = ModelSet.load(names, tokenizer, overlap=overlap, curve=curve)
        return LanguageModel.of(models, method, tree=tree)
