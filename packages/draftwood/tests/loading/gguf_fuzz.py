"""Loads damaged GGUF files one after the other, in a process that may die of it.

    python gguf_fuzz.py FOLDER FIRST LAST STEP [FAULT]

FOLDER holds whole files; seeds go from FIRST to LAST. Each begins with a line of its number, and
ends with one of JSON that says what came of it. FAULT plants one, see ``FAULTS``.
"""

import ctypes
import faulthandler
import json
import os
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwood.optional import install_command
from light_road import GUESTS, Hiding
from loading.gguf_mutations import Whole, mutate

MEMORY = 1 << 30
"""Bytes of addresses that a file may take; the files have less than one million."""
RESIDENT = 128 << 20
"""Bytes of memory that the process may grow by within one file."""
MOST_SECONDS = 10
DTYPES = (None, None, "float32", "bfloat16")
"""Ways to read a file: its own blocks, those with products of floats, and converted."""
PROMPT, COUNT = "a tat ta", 6
CURES = (
    *(install_command("draftwood-torch"), "its weights are damaged", "shorten the prompt"),
    *("it was made for another model", "a raw prompt needs none"),
)


def answer(path: Path, dtype: str | None) -> str:
    """Tokens of a text, after a prompt."""
    import draftwood

    lm = draftwood.load(str(path), method="plain", dtype=dtype)
    tokens = lm.generate(PROMPT, max_new_tokens=COUNT).token_ids
    assert len(tokens) <= COUNT, tokens
    assert all(0 <= each < lm.model.vocab_size for each in tokens), tokens
    return f"answered {tokens}"


def outcome(path: Path, dtype: str | None) -> tuple[bool, str]:
    """True for an answer or for a clear refusal, and what was said."""
    try:
        return True, answer(path, dtype)
    except (ValueError, ModuleNotFoundError) as error:
        said = str(error)
        return is_clear(said, path), f"{type(error).__name__}: {said}"
    except BaseException as error:  # a panic in Rust is no Exception
        return False, f"{type(error).__name__}: {error}"


def is_clear(said: str, path: Path) -> bool:
    """True for one line that is not without end and names the file and its cure.

    A file of so few bytes that is refused as memory ran out was read without bounds.
    """
    is_line = "\n" not in said and len(said) < 1000 and "MemoryError" not in said
    return is_line and (str(path) in said or any(cure in said for cure in CURES))


@contextmanager
def bounded() -> Iterator[None]:
    """End the process where something takes too long, and limit its memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def resident() -> int:
    """Most bytes of memory that the process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(wholes: list[Whole], folder: Path, seed: int, home: Path) -> dict[str, object]:
    """Load the file of a seed; says what came of it."""
    content, told = mutate(wholes, seed)
    path, before = folder / f"m{seed}.gguf", resident()
    path.write_bytes(content)
    with bounded():
        is_well, said = outcome(path, DTYPES[seed // len(wholes) % len(DTYPES)])
    if resident() - before > RESIDENT:
        is_well, said = False, f"took {(resident() - before) >> 20} MB; {said}"
    path.unlink()
    shutil.rmtree(home / "models", ignore_errors=True)
    return {
        "seed": seed,
        "well": is_well,
        "said": said.replace(str(folder), "")[:300],
        "told": told,
    }


def read(folder: Path) -> list[Whole]:
    """The whole files, in the order of their names."""
    return [Whole.of(path.read_bytes()) for path in sorted(folder.glob("*.gguf"))]


def without_bounds_of_layers() -> None:
    from draftwood.loading import gguf_settings

    gguf_settings.require_layers = lambda metadata, layers: None


def without_bounds_of_texts() -> None:
    from draftwood.tokenizer import gguf_vocabulary

    gguf_vocabulary.LONGEST = 1 << 62


def crash() -> None:
    import draftwood

    draftwood.load = lambda *_, **__: ctypes.string_at(0)  # type: ignore[assignment]


def hang() -> None:
    import draftwood

    draftwood.load = lambda *_, **__: time.sleep(10 * MOST_SECONDS)  # type: ignore[assignment]


FAULTS: dict[str, Callable[[], None]] = {
    "layers": without_bounds_of_layers,
    "texts": without_bounds_of_texts,
    "crash": crash,
    "hang": hang,
}


def main(folder: str, first: str, last: str, step: str, fault: str = "") -> None:
    sys.meta_path.insert(0, Hiding(GUESTS))
    warnings.simplefilter("ignore")  # of files that are converted, and of numbers that are none
    wholes, home = read(Path(folder)), Path(os.environ["DRAFTWOOD_HOME"])
    answer(min(Path(folder).glob("*.gguf")), None)  # whatever is imported is there by now
    if fault:
        FAULTS[fault]()
    for seed in range(int(first), int(last), int(step)):
        print(seed, flush=True)
        print(json.dumps(run(wholes, home, seed, home)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
