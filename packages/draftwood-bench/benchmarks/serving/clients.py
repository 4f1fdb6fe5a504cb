"""Clients that people use, against a server: llm, LangChain and lm-eval.

    python -m benchmarks.serving.clients     # prepares an environment for them, serves, asks, tells

Greedy texts must be those that the server gives a plain request; log-likelihoods of lm-eval's
`local-completions` those of its own `hf` model on the same float32 weights, within 1e-4.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.processes import ROOT, environment
from benchmarks.serving.servers import OFFLINE, Server, System
from draftwood.loading.hub import blocks_of, folder_of
from draftwood_bench.peers import environments
from draftwood_bench.plan.prompts import BUILT_IN, WIKITEXT, load_prompts, load_text

MODEL, NAME = "smollm2-135m", "served"
TOLERANCE = 1e-4  # nats of a continuation
DOCUMENTS, CHOICES = 24, 3
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
class Place(BaseModel):
    name: str
    people: int
address, name, question = sys.argv[1:]
chat = ChatOpenAI(base_url=address, api_key="none", model=name, temperature=0, max_tokens=48)
longer = ChatOpenAI(base_url=address, api_key="none", model=name, temperature=0)
place = longer.with_structured_output(Place, method="json_schema")
tool = longer.bind_tools([Place], tool_choice="Place", strict=True).invoke(question)
print(json.dumps({
    "invoke": chat.invoke(question).content,
    "stream": "".join(str(each.content) for each in chat.stream(question)),
    "tool": [each["name"] for each in tool.tool_calls],
    "structured": sorted(place.invoke(question).model_dump()),
}))
"""


def weights_with_template(work: Path) -> Path:
    """A folder with the built-in model's weights as floats, and its chat template."""
    floats, blocks = folder_of(MODEL, "bfloat16").resolve(), blocks_of(MODEL)
    assert blocks is not None  # it is a GGUF file
    folder = work / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (folder / name).symlink_to(floats / name)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).symlink_to(blocks / name)
    return folder


@contextmanager
def served(folder: Path, work: Path) -> Iterator[str]:
    """The address of a server of these float32 weights."""
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", str(folder)]
    more = ["--dtype", "float32", "--served-model-name", NAME]
    told = lambda port: [*command, *more, "--port", str(port)]  # noqa: E731
    system = System(None, told, NAME, variables=environment(ROOT))
    with Server(system, work / "server.log") as server, server.awake() as address:
        yield f"{address}/v1"


def run(program: str, *arguments: str, **variables: str) -> str:
    """Run a program of the clients' environment and return its output, or raise SystemExit."""
    command = [str(environments.folder("clients") / "bin" / program), *arguments]
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env={**without, **OFFLINE, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{program} failed: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def plain_text(address: str, question: str, tokens: int) -> str:
    """A chat as the server answers it without any client's library."""
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
    sent = httpx.post(
        f"{address}/chat/completions", json={**body, "max_tokens": tokens}, timeout=120
    )
    return sent.raise_for_status().json()["choices"][0]["message"]["content"]


def with_llm(address: str, question: str, work: Path) -> dict[str, bool]:
    """llm's chats, whole and streamed, and its way to the responses endpoint."""
    common = {"model_name": NAME, "api_base": address}
    models = [
        {"model_id": "own", **common},
        {"model_id": "own-responses", **common, "responses": True},
    ]
    (work / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    wanted = plain_text(address, question, 48).strip()

    def said(*options: str) -> str:
        given = ["-o", "temperature", "0", *options, question]
        return run("llm", *given, LLM_USER_PATH=str(work), OPENAI_API_KEY="none").strip()

    length = ["-o", "max_tokens", "48"]
    return {
        "llm, streamed": said("-m", "own", *length) == wanted,
        "llm, whole": said("-m", "own", "--no-stream", *length) == wanted,
        "llm, responses": bool(said("-m", "own-responses")),
    }


def with_langchain(address: str, question: str) -> dict[str, bool]:
    found = json.loads(run("python", "-c", LANGCHAIN, address, NAME, question))
    wanted = plain_text(address, question, 48)
    return {
        "LangChain, whole": found["invoke"] == wanted,
        "LangChain, streamed": found["stream"] == wanted,
        "LangChain, tool": found["tool"] == ["Place"],
        "LangChain, structured": found["structured"] == ["name", "people"],
    }


def write_task(work: Path) -> None:
    """A task of lm-eval: which passage goes on from this one."""
    text = load_text(WIKITEXT)
    pieces = [text[400 * place : 400 * (place + 1)] for place in range(5 * DOCUMENTS)]
    rows = []
    for number in range(DOCUMENTS):
        right = number % CHOICES
        others = [pieces[DOCUMENTS + number * CHOICES + place][:80] for place in range(CHOICES)]
        others[right] = pieces[number][300:380]
        row = {"context": pieces[number][:300], "choices": others, "answer": right}
        rows.append(json.dumps(row))
    (work / "passages.jsonl").write_text("\n".join(rows) + "\n")
    task = {
        "task": "passages",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(work / "passages.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (work / "passages.yaml").write_text(json.dumps(task))


def log_likelihoods(work: Path, model: str, arguments: dict[str, Any]) -> list[tuple[float, bool]]:
    """Log-likelihood of every choice, in order, and whether it is greedy, as lm-eval keeps them."""
    given = ",".join(f"{name}={value}" for name, value in arguments.items())
    place = work / model
    run(
        *("lm_eval", "--model", model, "--model_args", given, "--tasks", "passages"),
        *("--include_path", str(work), "--log_samples", "--output_path", str(place)),
        *("--batch_size", "1", "--device", "cpu"),
        HF_DATASETS_OFFLINE="1",
        OPENAI_API_KEY="none",
    )
    (samples,) = place.rglob("samples_*.jsonl")
    rows = sorted((json.loads(line) for line in samples.open()), key=lambda row: row["doc_id"])
    return [
        (float(value), str(greedy) == "True")
        for row in rows
        for value, greedy in (each[0] for each in row["resps"])
    ]


def with_lm_eval(address: str, folder: Path, work: Path) -> dict[str, bool]:
    write_task(work)
    expected = log_likelihoods(work, "hf", {"pretrained": folder, "dtype": "float32"})
    asked = {"model": NAME, "base_url": f"{address}/completions", "tokenizer": folder}
    found = log_likelihoods(
        work, "local-completions", {**asked, "num_concurrent": 4, "tokenized_requests": True}
    )
    gaps = [abs(one[0] - other[0]) for one, other in zip(expected, found, strict=True)]
    print(f"lm-eval: {len(gaps)} log-likelihoods, farthest apart {max(gaps):.2e} nats")
    return {
        f"lm-eval within {TOLERANCE:g}": max(gaps) < TOLERANCE,
        "lm-eval greedy flags": [one[1] for one in expected] == [other[1] for other in found],
    }


def main() -> int:
    argparse.ArgumentParser(description=__doc__.split("\n\n")[0]).parse_args()
    environments.prepare("clients")
    question = load_prompts(BUILT_IN, limit=1).prompts[0].turns[0]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = weights_with_template(work)
        with served(folder, work) as address:
            held = [
                told(with_llm(address, question, work)),
                told(with_langchain(address, question)),
                told(with_lm_eval(address, folder, work)),
            ]
    return 0 if all(held) else 1


def told(found: dict[str, bool]) -> bool:
    """Print what holds and what does not; whether all does."""
    for what, holds in found.items():
        print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
    return all(found.values())


if __name__ == "__main__":
    sys.exit(main())
