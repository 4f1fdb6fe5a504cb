"""Small texts of the sources of the everyday mix, in the forms that their packages have."""

import json
from collections.abc import Mapping

from draftwood_train.data.everyday.sources import HELP_FOLDER, WORDS, SourceTexts

PERSONS = [f"{one}{two}" for one in ("Ann", "Bea", "Cid", "Dan") for two in ("a", "o", "is", "ek")]
NOUNS = {"05": "animal", "06": "object", "13": "food", "09": "idea", "20": "plant", "27": "metal"}


def wordnet() -> dict[str, str]:
    """A few synsets as WordNet's files have them."""
    data, index, number = [], [], 1000

    def add(file: str, words: str, pointer: str, gloss: str) -> int:
        nonlocal number
        number += 1
        names = words.replace(" ", "_").split("|")
        told = " ".join(f"{name} 0" for name in names)
        data.append(
            f"{number:08d} {file} n {len(names):02x} {told} 001 {pointer} 00000900 n 0000 | {gloss}"
        )
        return number

    for person in PERSONS:
        add("18", f"{person}|{person} Smith", "@i", "somebody who lived (1801-1850)")
        add("15", f"{person}ville", "@i", "a town in the north")
        add("28", f"Battle of {person}", "@i", "a battle")
        add("17", f"Mount {person}", "@i", "a mountain")
    for file, kind in NOUNS.items():
        for place in "abcdefghijklmnop":
            gloss = f'a kind of {kind}; "the {kind} of our neighbours is number {place * 3}"'
            offset = add(file, f"{kind}{place}", "@", gloss)
            index.append(f"{kind}{place} n 1 1 @ 1 1 {offset:08d}")
    return {
        "usr/share/wordnet/data.noun": "  1 header\n" + "\n".join(data) + "\n",
        "usr/share/wordnet/index.noun": "  1 header\n" + "\n".join(index) + "\n",
    }


def page(*sections: tuple[str, str]) -> str:
    body = "".join(f"<h2>1.2. {title}</h2><p>{text}</p><pre>code</pre>" for title, text in sections)
    return f"<html><head><title>t</title></head><body>{body}</body></html>"


def sentence(book: str, number: int) -> str:
    words = " ".join(f"{book}{number}x{place}" for place in range(14))
    return f"The {words} end."


def manual(book: str, sections: int = 8) -> str:
    return page(
        *(
            (
                f"About {book} part{number}",
                " ".join(sentence(book, 20 * number + place) for place in range(9)),
            )
            for number in range(sections)
        )
    )


def help_page(code: str, topic: str) -> str:
    lines = [
        f'<p id=\'x\'></p><p id="par_id{number}" class="p">{code.title()} {topic} choose this'
        f" entry number{number} and then click on it here.</p>"
        for number in range(6)
    ]
    return f"<html><title>Doing {topic} well</title><body>{''.join(lines)}</body></html>"


JOKES = [
    *({"body": f"What is {n} plus a duck? A bill.", "tags": ["animal", "puns"]} for n in range(30)),
    {"body": "Somebody laughs at others.", "tags": ["animal", "insults"]},
    {"body": "What the fuck is that?", "tags": ["animal"]},
]


def intents(verb: str) -> str:
    """Templates of thirty intents, two each."""
    templates = [f"({verb}|flip) the lamp[s] number {{count}} [please] now", "{name} to the room"]
    told = {
        "intents": {f"Intent{n}": {"data": [{"sentences": templates}]} for n in range(30)},
        "lists": {"count": {"range": {"from": 1, "to": 1000}}, "name": {"wildcard": True}},
        "expansion_rules": {},
    }
    return json.dumps(told)


def members() -> dict[str, list[tuple[str, str]]]:
    """Members of the sources by name."""
    postgres = [(f"html/{book}-x.html", manual(book)) for book in "abcdefgh"]
    talk = "conversations:\n" + "".join(f"- - Do you like thing{n}?\n  - Yes.\n" for n in range(9))
    found = {
        "wordnet-base": list(wordnet().items()),
        "postgresql-doc-15": postgres,
        "chatterbot-corpus": [
            ("chatterbot_corpus/data/english/food.yml", talk),
            ("chatterbot_corpus/data/german/food.yml", talk.replace("Do you like", "Magst du")),
        ],
        "inspirational-quotes": [
            ("package/data/data.json", json.dumps([{"text": f"Go on {n}."} for n in range(9)]))
        ],
        "home-assistant-intents": [
            (f"home_assistant_intents/data/{code}.json", intents(verb))
            for code, verb in (("en", "switch on"), ("de", "schalte ein"))
        ],
        "one-liner-joke": [("package/jokes.json", json.dumps(JOKES))],
        "gsm8k": [
            (f"train {n}", f"Jo has {n} pens. How many are {n} times {n}?") for n in range(40)
        ],
    }
    for code, folder in (("en-us", "en-US"), ("de", "de"), ("it", "it")):
        found[f"libreoffice-help-{code}"] = [
            (f"{HELP_FOLDER}/{folder}/text/swriter/guide/{topic}.html", help_page(code, topic))
            for topic in ("lists", "tables", "colours", "pages", "fonts", "rulers", "notes")
        ]
    return found


MODULE = '''
def add_all{n}(items, start=0):
    """Return the sum of items of kind {n}.

    Starts at `start`.
    """
    total{n} = start
    for each{n} in items:
        total{n} += each{n}
    return total{n}


def test_add_all{n}():
    """Not a function to ask about."""
    items = [1, 2]
    expected = {n}
    assert add_all{n}(items) == expected


class Box{n}:
    def short{n}(self):
        """Return {n}."""
        return {n}
'''


def modules() -> dict[str, list[tuple[str, str]]]:
    """Members of the packages of code."""
    names = [f"networkx/part{n}.py" for n in range(30)]
    return {"networkx": [(name, MODULE.replace("{n}", str(n))) for n, name in enumerate(names)]}


def texts(sources: Mapping[str, list[tuple[str, str]]] | None = None) -> SourceTexts:
    found = members() if sources is None else sources
    facts = {name: {"licence": "MIT", "origin": name} for name in found}
    return SourceTexts(found, {"composed": WORDS, **facts})
