"""One word for one thing: retired names stay away, class names are unique, prose uses the field's
words.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from checkout import ROOT, SOURCES

SOURCE = SOURCES["draftwood"] / "draftwood"
FOLDERS = [folder / name.replace("-", "_") for name, folder in SOURCES.items()]

# Old word and new. A word with an underscore, or in capitals, is a whole name; any other may also
# be a part of one: ``draw_softened`` holds ``softened``.
RETIRED = {
    "Recipe": "MethodSpec",
    "TargetMark": "TargetFingerprint",
    "Decoding": "Sequence",
    "Batch": "Scheduler",
    "Standing": "SequenceStatus",
    "Turn": "StepBudget",
    "Answers": "ParallelSampling",
    "give_way": "preempt",
    "Alike": "NearestState",
    "Horizontal": "PerLevel",
    "Measures": "Metrics",
    "SummedMetrics": "AggregatedMetrics",
    "softened": "softmax, draw_from_logits",
    "haste": "race_score",
    "twins": "with_token",
    "rival": "peer",
    "rivals": "peers",
    "entrant": "peer",
    "entrants": "peers",
    "News": "TargetUpdate",
}
PENDING: set[str] = set()
"""Names that are still in use; this set may only shrink."""

# A docstring opens with a verb in the imperative or with a noun.
OPENERS = re.compile(r"(What|Whether|How|Where|Of|Which|Those|So many|That)\b")
NOT_YET: set[str] = set()
"""Folders and files that still have others; this set may only shrink."""

# Folders and files whose docstrings and comments have been read for these words.
READ = [
    *("engine", "text", "loading", "costs", "storage", "models", "testing", "cli"),
    *("drafters", "sources", "shapes", "verifiers", "methods"),
    *("rng.py", "sampling.py", "stats.py", "tree.py", "validation.py"),
    "native",
]
PAGES = [
    *("README.md", "CONTRIBUTING.md", "Makefile"),
    *(f"docs/{name}.md" for name in ("how-it-works", "glossary", "benchmark", "add-a-method")),
    *(f"docs/{name}.md" for name in ("training", "methods", "transformers", "results")),
    *(f"docs/{name}.md" for name in ("serving", "reliability", "integrations")),
    "docs/self-speculation.md",
]
# ``law:`` opens the entry of a record's field, whose name is stored
OLD_PROSE = re.compile(r"\b(laws?(?!:)|guess(es|ed|ing)?|anew)\b", re.IGNORECASE)
OTHER_SENSE = {  # in C++: file and word
    ("native/matrices.h", "guess"): "what a CPU fetches from memory by itself",
}
# names of options, whose flags stay
FLAGS = re.compile(r"--[\w-]+")


def is_retired(name: str) -> bool:
    return name in RETIRED or any(word in RETIRED for word in name.split("_"))


def names_in(path: Path) -> set[str]:
    """The names that a file of Python uses; of C++ all words, comments included."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(re.findall(r"\w+", text))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def retired_names(folder: Path) -> set[tuple[str, str]]:
    """(file, name) for every retired name in a folder."""
    files = [path for ending in ("py", "h", "cpp") for path in folder.rglob(f"*.{ending}")]
    return {
        (path.relative_to(folder).as_posix(), name)
        for path in files
        for name in names_in(path)
        if is_retired(name)
    }


def repeated_classes(*folders: Path) -> dict[str, list[str]]:
    """Names that several classes have, private and nested ones included, and their files."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder, path in [(each, path) for each in folders for path in sorted(each.rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(folder).as_posix())
    return {name: files for name, files in found.items() if len(files) > 1}


def prose_of(text: str) -> Iterator[str]:
    """Docstrings and comments of a file, without code in backquotes."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield without_code(str(node.value.value))


def oddly_opened(path: Path) -> list[str]:
    """Docstrings of a file, those below attributes included, that open with one of ``OPENERS``."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Expr)]
    texts = [str(node.value.value) for node in nodes if isinstance(node.value, ast.Constant)]
    return [text.strip().partition("\n")[0] for text in texts if OPENERS.match(text.strip())]


def sources_and_tests() -> list[Path]:
    """Files of Python of all packages and of the repository's own folders."""
    places = [ROOT / "packages", ROOT / "tests", ROOT / "docs", ROOT / "examples"]
    built = {"build", ".venv", "node_modules"}
    found = (path for place in places for path in sorted(place.rglob("*.py")))
    return [path for path in found if not built.intersection(path.relative_to(ROOT).parts)]


def is_not_yet_done(path: Path) -> str | None:
    """The entry of ``NOT_YET`` that a file belongs to."""
    names = [path.relative_to(folder.parent) for folder in FOLDERS if folder in path.parents]
    return next(
        (entry for name in names for entry in NOT_YET if name.is_relative_to(entry)),
        None,
    )


def messages_of(text: str) -> Iterator[str]:
    """Strings of a file that hold a space: what users read, as errors, help and titles.

    Strings without one are keys and names, some of which are stored in records.
    """
    for node in ast.walk(ast.parse(text)):
        text_of = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text_of, str) and re.search(r"\s", text_of):
            yield without_code(text_of)


def words_of_cpp(path: Path) -> list[str]:
    """Old words among all names, comments and strings of a file of C++, part of a name or whole."""
    parts = re.findall(r"[A-Za-z][a-z]*", path.read_text())
    file = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else path.name
    return [word for word in old_words(parts) if (file, word) not in OTHER_SENSE]


def without_code(text: str) -> str:
    """A text without what stands in backquotes and without flags."""
    return FLAGS.sub("", re.sub(r"`+[^`]*`+", "", text))


def old_words(parts: Iterable[str]) -> list[str]:
    return [match.group() for part in parts for match in OLD_PROSE.finditer(part)]


def read_files() -> list[Path]:
    packages = [
        SOURCES[f"draftwood-{name}"] / f"draftwood_{name}" for name in ("bench", "methods", "serve")
    ]
    places = [*(SOURCE / name for name in READ), *packages]
    return [
        path
        for place in places
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    ]


def test_no_retired_name_is_used() -> None:
    found = {each for folder in FOLDERS for each in retired_names(folder)}
    told = [
        f"{path}: {name} is {RETIRED.get(name, 'retired')} now"
        for path, name in sorted(found)
        if name not in PENDING
    ]
    assert not told


def test_pending_names_are_still_in_use() -> None:
    used = {name for folder in FOLDERS for path in folder.rglob("*.py") for name in names_in(path)}
    assert used >= PENDING, f"take {PENDING - used} out of PENDING"


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("one.py", "def give_way() -> None: ...\n", "give_way"),
        ("two.py", "rows = draw_softened(logits)\n", "draw_softened"),
        ("three.py", "class News: ...\n", "News"),
        ("four.h", "int32_t draw_twins;\n", "draw_twins"),
        ("five.cpp", "float haste(float x);\n", "haste"),
    ],
)
def test_a_planted_retired_name_is_found(tmp_path: Path, file: str, text: str, name: str) -> None:
    (tmp_path / "healthy.py").write_text("# News: the softened laws of a cell\nnewest = 1\n")
    assert not retired_names(tmp_path)
    (tmp_path / file).write_text(text)
    assert retired_names(tmp_path) == {(file, name)}


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    odd = {path: lines for path in sources_and_tests() if (lines := oddly_opened(path))}
    assert not {path: lines for path, lines in odd.items() if is_not_yet_done(path) is None}
    waiting = {is_not_yet_done(path) for path in odd} - {None}
    assert waiting == NOT_YET, f"take {NOT_YET - waiting} out of NOT_YET"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What is run."""\n', ["What is run."]),
        ('def f():\n    """Whether it is.\n\n    More."""\n', ["Whether it is."]),
        ('X = 1\n"""Of a tree."""\n', ["Of a tree."]),
        ('class A:\n    """Whatever it is, howitzers too."""\n', []),
        ('def f():\n    """Count what is run."""\n    "What?".upper()\n', []),
    ],
)
def test_a_planted_opening_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "one.py").write_text(text)
    assert oddly_opened(tmp_path / "one.py") == found


def test_a_class_name_exists_once() -> None:
    assert not repeated_classes(*FOLDERS)


def test_a_planted_class_of_the_same_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("class _Drawing: ...\n")
    (tmp_path / "two.py").write_text("class Drawing: ...\n")
    assert not repeated_classes(tmp_path)
    (tmp_path / "inner" / "three.py").write_text("def f():\n    class _Drawing: ...\n")
    assert repeated_classes(tmp_path) == {"_Drawing": ["inner/three.py", "one.py"]}


@pytest.mark.parametrize("path", read_files(), ids=lambda path: path.name)
def test_prose_uses_the_words_of_the_field(path: Path) -> None:
    text = path.read_text()
    assert not old_words([*prose_of(text), *messages_of(text)])


@pytest.mark.parametrize(
    "path",
    sorted(path for ending in ("h", "cpp") for path in SOURCE.rglob(f"*.{ending}")),
    ids=lambda path: path.name,
)
def test_cpp_uses_the_words_of_the_field(path: Path) -> None:
    assert not words_of_cpp(path)


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_the_words_of_the_field(page: str) -> None:
    assert not old_words([without_code((ROOT / page).read_text())])


def test_planted_old_prose_is_found() -> None:
    healthy = '"""law: a field. ``law`` and `guess` are code."""\nlaw = "guess"\n'
    assert not old_words(prose_of(healthy))
    assert old_words(prose_of("x = 1  # Guesses of the model\n")) == ["Guesses"]
    assert old_words(prose_of('def f():\n    """Follows the law."""\n')) == ["law"]
    assert old_words(prose_of('X = 1\n"""Measured anew."""\n')) == ["anew"]


def test_planted_old_messages_are_found() -> None:
    assert not old_words(messages_of('KEYS = ["law", "--law-samples"]\nlaw = f"`law` of {KEYS}"\n'))
    assert old_words(messages_of('raise ValueError(f"{law} guesses fit")\n')) == ["guesses"]
    assert old_words(messages_of('help = "the law of a text"\n')) == ["law"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("// a guess is made anew", ["guess", "anew"]),
        ("struct Guess {};", ["Guess"]),
        ("int32_t keepGuesses, most_guesses;", ["Guesses", "guesses"]),
        ('throw Error("no law");', ["law"]),
        ("int32_t lawn; // unguessable", []),
    ],
)
def test_planted_old_words_of_cpp_are_found(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "one.h").write_text(line + "\n")
    assert words_of_cpp(tmp_path / "one.h") == words
