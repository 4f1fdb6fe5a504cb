"""Records what the README and the server's page show: a race, pictures of the page, and a session
of `draftwood demo`. All of it is run, nothing is drawn by hand.

python docs/pictures.py race    # the server's static/race.json, shown at first sight
python docs/pictures.py page    # docs/page.png, docs/page-dark.png and docs/page-phone.png
python docs/pictures.py demo    # docs/demo.svg
python docs/pictures.py         # or: make pictures; all three

Run it on a machine that does nothing else. `page` needs playwright, pillow and Debian's chromium
(apt-get install -y chromium), `demo` needs pyte (pip install pyte).
"""

import argparse
import datetime
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from terminal_svg import as_svg, record

ROOT = Path(__file__).resolve().parents[1]
RACE = ROOT / "packages/draftwood-serve/src/draftwood_serve/static/race.json"
EXAMPLES = RACE.with_name("examples.js")
CHROMIUM = "/usr/bin/chromium"

METHOD, SEED, TOKENS = "auto", 0, 98  # to the end of the code
ROUNDS = 7  # of each in turn; the one whose ratio is in the middle is kept
WARM_UP = "Name three rivers."

DESKTOP, PHONE = (1280, 860), (360, 780)
PICTURES = {  # name: width and height, scale, colours, whether the tree is scrolled to
    "page": (DESKTOP, 1, "light", False),
    "page-dark": (DESKTOP, 1, "dark", False),
    "page-phone": (PHONE, 2, "light", True),
}
DEMO_COLUMNS, DEMO_ROWS = 84, 40


@contextmanager
def served() -> Iterator[str]:
    """The address of `draftwood serve`, run as a user runs it."""
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def example(name: str = "Edit code") -> str:
    """Read the prompt of one of the page's examples: a text in backquotes that holds the code."""
    script = EXAMPLES.read_text()
    code, prompt = (
        re.search(rf"{before} `((?:[^`\\]|\\.)*)`", script)
        for before in ("const CODE =", rf'\["{name}",')
    )
    if code is None or prompt is None:
        raise ValueError(f"{EXAMPLES} has no example {name!r} that holds the code")
    written = prompt[1].replace("\\n", "\n").replace("\\`", "`")
    return written.replace("${CODE}", code[1])


def answer(address: str, prompt: str, method: str) -> dict[str, Any]:
    """A whole answer, as the page asks for it."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "seed": SEED,
        "max_tokens": TOKENS,
        "speculative": {"method": method, "trace": "tree"},
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        told = json.load(response)
    return {
        "text": told["choices"][0]["message"]["content"],
        "tokens": told["usage"]["completion_tokens"],
        "seed": told["metrics"]["seed"],
        "steps": told["metrics"]["speculative_decoding"]["per_step_trees"],
    }


def seconds(made: dict[str, Any]) -> float:
    """From the first token to the last."""
    return (made["steps"][-1]["elapsed_ms"] - made["steps"][0]["elapsed_ms"]) / 1e3


def race() -> None:
    """Write one text plainly and with trees, in turn, several times; keep the median round."""
    prompt = example()
    with served() as address:
        with urllib.request.urlopen(f"{address}/page.json", timeout=30) as response:
            facts = json.load(response)
        for method in ("plain", METHOD):
            answer(address, WARM_UP, method)
        rounds = [
            [answer(address, prompt, method) for method in ("plain", METHOD)] for _ in range(ROUNDS)
        ]
    ratios = [seconds(plain) / seconds(trees) for plain, trees in rounds]
    print("times as fast:", ", ".join(f"{ratio:.2f}" for ratio in ratios))
    middle = ratios.index(sorted(ratios)[ROUNDS // 2])
    plain, trees = rounds[middle]
    for step in plain["steps"]:
        step["tree"] = None  # a lone root each
    found = {
        "prompt": prompt,
        **{key: facts[key] for key in ("model", "machine")},
        "date": datetime.date.today().isoformat(),
        "command": "python docs/pictures.py race",
        "rounds": ROUNDS,
        "method": METHOD,
        "seed": SEED,
        "plain": plain,
        "trees": trees,
    }
    RACE.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"wrote {RACE.relative_to(ROOT)}, {RACE.stat().st_size} bytes")


def page() -> None:
    """Pictures of what is seen before anything is typed."""
    from playwright.sync_api import sync_playwright

    if not Path(CHROMIUM).exists():
        sys.exit(f"page needs {CHROMIUM}: apt-get install -y chromium")
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, (size, scale, colours, scrolled) in PICTURES.items():
            view = browser.new_page(
                viewport={"width": size[0], "height": size[1]},
                device_scale_factor=scale,
                color_scheme=colours,  # type: ignore[arg-type]
            )
            view.goto(address)
            view.locator(".verdict strong").wait_for()
            view.wait_for_timeout(300)
            if scrolled:
                view.locator(".which").scroll_into_view_if_needed()
                view.locator("#steps").evaluate("each => each.scrollIntoView({block: 'end'})")
            target = ROOT / "docs" / f"{name}.png"
            view.screenshot(path=target)
            shrink(target)
            view.close()
        browser.close()


def shrink(path: Path) -> None:
    """A palette of 256 colours is enough for a page."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    small.save(path, optimize=True)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size} bytes")


def demo() -> None:
    """A session of `draftwood demo` on a terminal, with the times at which its lines came."""
    frames = record([sys.executable, "-m", "draftwood.cli.main", "demo"], DEMO_COLUMNS, DEMO_ROWS)
    target = ROOT / "docs" / "demo.svg"
    target.write_text(as_svg("draftwood demo", frames, DEMO_COLUMNS))
    print(f"wrote {target.relative_to(ROOT)}, {target.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = {"race": race, "page": page, "demo": demo}
    parser.add_argument("what", nargs="?", choices=known, help="all of it where left out")
    wanted = parser.parse_args().what
    for name in [wanted] if wanted else known:
        try:
            known[name]()
        except ModuleNotFoundError as missing:
            sys.exit(f"{name} needs {missing.name}: {sys.executable} -m pip install {missing.name}")


if __name__ == "__main__":
    main()
