"""Servers over small models, each on a free port of this machine."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from transformers import PreTrainedTokenizerFast

from draftwood.testing import tiny_llama
from draftwood_serve.access_log import ServerLog
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.run import DrainingServer, address_of, bind, make_server
from draftwood_serve.service import TextService
from draftwood_serve.settings import ServeSettings
from letters import LETTERS, letters

TEMPLATE = (
    "{% if messages[0]['role'] == 'assistant' %}{{ raise_exception('who asks?') }}{% endif %}"
    "{% for m in messages %}{{ m['role'][0] }}.{{ m['content'] }}_{% endfor %}"
    "{% if add_generation_prompt %}a.{% endif %}"
)
NAME = "tiny"


def save_tiny(
    folder: Path,
    context: int = 512,
    layers: int = 2,
    end: str | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    template: str = TEMPLATE,
) -> str:
    """A random Llama whose tokens are letters; nothing ends its text, or this one does."""
    tokenizer = tokenizer or letters()
    tokenizer.eos_token = end
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = tiny_llama(layers=layers, vocab=len(LETTERS), context=context)
    model.save_pretrained(folder)
    return str(folder)


class RunningServer:
    """A server in this process, and plain ways to ask it."""

    def __init__(self, service: TextService, server: DrainingServer, address: str) -> None:
        self.service, self.server, self.address = service, server, address
        self.client = httpx.Client(base_url=address, timeout=60)

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a request that must succeed."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        """The error of a request that must fail so."""
        headers = {"content-type": "application/json"}
        # in ASCII, so that half a character can be sent
        response = self.client.post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def text(self, prompt: Any, **body: Any) -> str:
        """The text of a completion."""
        return self.post("/v1/completions", prompt=prompt, **body)["choices"][0]["text"]

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end well."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        if path != "/v1/responses":
            assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def metric(self, name: str, model: str = NAME) -> float:
        """A number of /metrics."""
        lines = self.client.get("/metrics").text.splitlines()
        found = f'draftwood:{name}{{model="{model}"}} '
        (line,) = [line for line in lines if line.startswith(found)]
        return float(line.split()[-1])

    def ends(self, model: str = NAME) -> dict[str, float]:
        """Requests of a model by their ends, as /metrics has them."""
        found = rf'^draftwood:requests_total{{end="(\w+)",model="{model}"}} (\S+)$'
        told = re.findall(found, self.client.get("/metrics").text, re.MULTILINE)
        return {end: float(count) for end, count in told}

    @property
    def target(self) -> LoadedTarget:
        """The first model."""
        return self.service.models.first.target

    @property
    def running_texts(self) -> int:
        """Texts that the first model writes."""
        return self.service.models.first.running.running_texts

    def idle(self) -> bool:
        return not self.service.open and not self.running_texts


def wait_for(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return as soon as this holds; fail where it does not in time."""
    until = time.perf_counter() + seconds
    while not holds():
        assert time.perf_counter() < until, "it did not come true in time"
        time.sleep(0.005)


@contextmanager
def running(
    model: str,
    drain_seconds: float = 0.5,
    others: Sequence[str] = (),
    log: ServerLog | None = None,
    **settings: Any,
) -> Iterator[RunningServer]:
    """A server that takes requests."""
    settings = {"method": "auto", "served_names": (NAME,), **settings}
    made = ServeSettings(model=model, port=0, **settings)
    several = [replace(made, model=each, served_names=(Path(each).name,)) for each in others]
    service = TextService(made, several, (log or ServerLog()).note)
    service.load()
    bound = bind("127.0.0.1", 0)
    server = make_server(service, log or ServerLog(), drain_seconds)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        found = RunningServer(service, server, address_of(bound))
        with found.client:
            yield found
    finally:
        server.should_exit = True
        thread.join(30)
        service.close()
        bound.close()
    assert not thread.is_alive()
