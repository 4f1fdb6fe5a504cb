"""Systems beside each other on one GGUF file.

Each is a process of its own that starts, reads the file and answers; all take turns, stopped while
another is measured.
"""

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

from draftwood.loading.weights import WeightsFolder
from draftwood_bench.peers import environments
from draftwood_bench.peers.process import Adapter, AdapterError
from draftwood_bench.peers.protocol import PeerRequest, Reply
from draftwood_bench.peers.systems import on_file
from draftwood_bench.plan.measurements import MODES_OF, SameFile
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.files import Record
from draftwood_bench.run.blank import blank

OWN = "draftwood"
START_TOKENS = 16  # of the prompt whose first token a cold start waits for


def records(asked: SameFile, model: str) -> list[Record]:
    """One for each system and mode, without stats."""
    return [
        blank(name, mode, model) for name in dict.fromkeys(asked.systems) for mode in MODES_OF[name]
    ]


class Systems:
    """All systems on one file at a time.

    Args:
        asked: systems and requests.
        threads: that each may use; None takes PyTorch's number.
    """

    def __init__(self, asked: SameFile, threads: int | None) -> None:
        self.asked, self.threads = asked, threads or torch.get_num_threads()
        self._prompts: list[list[int]] = []
        self._name, self._file, self._commands = "", Path(), dict[str, list[str]]()

    def use(self, name: str) -> None:
        """Find a model's file and make every system ready to read it.

        Raises:
            ValueError: where the name means no GGUF file, or one in parts. OSError: where a
            system cannot be fetched or compiled.
        """
        if name == self._name:
            return
        folder = WeightsFolder.of_blocks(name)
        if folder is None or len(files := folder.gguf_files) > 1:
            raise ValueError(
                f"{name} is no single GGUF file whose matrices are used as they are; give one"
            )
        self._name, self._file = name, files[0].resolve()
        tokenizer = folder.tokenizer()
        found = load_prompts(self.asked.prompts, self.asked.per_category).prompts
        self._prompts = []
        for prompt in found:
            messages = prompt.messages(())
            chats = tokenizer.chat_template is not None
            text: Any = messages[-1]["content"]
            if chats:
                text = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
            self._prompts.append(tokenizer(text, add_special_tokens=not chats)["input_ids"])
        systems = dict.fromkeys(self.asked.systems)
        self._commands = {each: on_file(each, self._file, self.threads) for each in systems}

    def measure(self, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Stats of these records, which are of one model."""
        self.use(wanted[0].model or "")
        names = list(dict.fromkeys(record.method for record in wanted))
        starts = {name: self._starts(name) for name in names}
        with ExitStack() as stack:
            adapters = {name: stack.enter_context(self._started(name)) for name in names}
            pairs = [(record.method, record.at) for record in wanted]
            reading = {pair: list[float]() for pair in pairs}
            speeds = {pair: list[float]() for pair in pairs}
            texts = {pair: list[list[int]]() for pair in pairs}
            for turn in range(self.asked.rounds + 1):
                turned = pairs[turn % len(pairs) :] + pairs[: turn % len(pairs)]
                for pair in turned:
                    prompt = self._long_prompt()
                    spent = self._ask(adapters, pair, prompt, 1).prefill_seconds
                    if turn:  # the first turn warms up
                        reading[pair].append(len(prompt) / spent)
                rates = {pair: [0, 0.0] for pair in pairs}
                for prompt in self._prompts:
                    for pair in turned:
                        reply = self._ask(adapters, pair, prompt, self.asked.max_new_tokens)
                        rates[pair][0] += len(reply.token_ids) - reply.first_tokens
                        rates[pair][1] += reply.decode_seconds
                        if not turn:
                            texts[pair].append(reply.token_ids)
                if turn:
                    for pair, (tokens, seconds) in rates.items():
                        speeds[pair].append(tokens / seconds)
            memory = {name: _peak_bytes(adapter.process.pid) for name, adapter in adapters.items()}
            told = {name: adapter.description for name, adapter in adapters.items()}
        plain, ends = texts.get((OWN, "plain")), told.get(OWN, {}).get("end_tokens", ())
        return [
            {
                "tokens_per_second": round(median(speeds[pair]), 1),
                "lowest": round(min(speeds[pair]), 1),
                "highest": round(max(speeds[pair]), 1),
                "prompt_tokens_per_second": round(median(reading[pair]), 1),
                "first_token_seconds": starts[pair[0]],
                "memory_bytes": memory[pair[0]],
                "weights": told[pair[0]]["weights"],
                "same_texts": None
                if plain is None
                else sum(
                    agree(own, other, ends) for own, other in zip(texts[pair], plain, strict=True)
                ),
                "texts": len(texts[pair]),
            }
            for pair in pairs
        ]

    def _long_prompt(self) -> list[int]:
        tokens = [token for prompt in self._prompts for token in prompt]
        times = -(-self.asked.prompt_tokens // len(tokens))
        return (tokens * times)[: self.asked.prompt_tokens]

    def _starts(self, name: str) -> float:
        """Seconds from starting a process to its first token; the median of the rounds."""
        times = []
        for turn in range(self.asked.rounds + 1):
            since = time.perf_counter()
            with self._started(name) as adapter:
                first = PeerRequest(self._long_prompt()[:START_TOKENS], 1, MODES_OF[name][0], True)
                self._answer(name, adapter, first)
                if turn:  # by now the file is in memory, and what is made once is made
                    times.append(time.perf_counter() - since)
        return round(median(times), 2)

    def _started(self, name: str) -> Adapter:
        log = environments.folder("logs") / f"gguf-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            return Adapter(self._commands[name], log)
        except AdapterError as error:
            raise self._unable(name, error) from error

    def _unable(self, name: str, error: AdapterError) -> ValueError:
        return ValueError(
            f"{name} does not run {self._file.name}, and --systems can leave it out: {error}"
        )

    def _ask(
        self,
        adapters: dict[str, Adapter],
        pair: tuple[str, str],
        prompt: list[int],
        tokens: int,
    ) -> Reply:
        name, mode = pair
        return self._answer(
            name, adapters[name], PeerRequest(prompt, tokens, mode, ignore_eos=True)
        )

    def _answer(self, name: str, adapter: Adapter, request: PeerRequest) -> Reply:
        try:
            return adapter.ask(request)
        except AdapterError as error:
            raise self._unable(name, error) from error


def agree(text: Sequence[int], plain: Sequence[int], ends: Collection[int]) -> bool:
    """True if a text is plain decoding's up to the first of its tokens that ends a text.

    What is asked to go on after it may not write that token, as llama.cpp, or may, as draftwood.
    """
    end = next((place for place, token in enumerate(plain) if token in ends), None)
    return text[:end] == plain[:end]


def _peak_bytes(group: int) -> int:
    """The most memory that the processes of a group have held, each counted by itself."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if int((status.parent / "stat").read_text().rpartition(")")[2].split()[2]) != group:
                continue
            lines = status.read_text().splitlines()
        except (OSError, ValueError):  # it ended meanwhile
            logging.getLogger(__name__).debug("a process ended: %s", status)
            continue
        peak = next((line.split()[1] for line in lines if line.startswith("VmHWM")), "0")
        total += int(peak) * 1024
    return total
