"""Processes that are forked from one that wrote: they write on, with the threads they can have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.native import library

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

# A vocabulary of so many tokens is work for several of PyTorch's threads.
FORKED = """
import os, sys
import torch
import draftwood
from draftwood import methods
from draftwood.models.native import NativeModel
from draftwood.native import threads
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from small_models import bytes_and_pairs

threads.cpus = threads.of_quota = lambda: 2
model, tokenizer = tiny_llama(0, vocab=60_000), bytes_and_pairs()
if sys.argv[1] == "native":
    target = NativeModel(model)
    lm = LanguageModel(target, tokenizer, methods.build(sys.argv[2], target), "tiny")
else:
    lm = draftwood.load(model, tokenizer, method=sys.argv[2])
several = torch.get_num_threads() > 1
def text(length=12):
    return lm.generate(
        "x", temperature=1.0, top_p=0.9, seed=3, max_new_tokens=length, ignore_eos=True
    ).token_ids
expected = text()
if several:
    assert threads.threads() == 2
for generation in range(2):  # a child, and its own
    child = os.fork()
    if child:
        break
    if torch.get_num_threads() != 1 or several and threads.threads() != 2:
        os._exit(6)
    if text() != expected:
        os._exit(7)
else:
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if several and torch.get_num_threads() == 1 and generation == 0:
    status = status or 8  # the parent keeps its own
os._exit(status or (0 if text() == expected else 9))
"""


@pytest.mark.parametrize(("way", "method"), [("native", "plain"), ("transformers", "auto")])
def test_a_forked_process_writes_the_same_text(way: str, method: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    helpers = str(Path(__file__).resolve().parents[1] / "grammar")
    environment["PYTHONPATH"] = os.pathsep.join([helpers, *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", FORKED, way, method],
        timeout=250,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


BUSY = """
import os, threading
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama

model = NativeModel(tiny_llama(0))
wanted = model.start().extend([1, 2, 3]).logits.tolist()
free = NativeModel(tiny_llama(0))
held, over = threading.Event(), threading.Event()

def write():
    with model.pool.lock:
        held.set()
        over.wait()

busy = threading.Thread(target=write)
busy.start()
held.wait()
child = os.fork()
if not child:
    try:
        model.start()
    except RuntimeError as error:
        print(error, flush=True)
        own = NativeModel(tiny_llama(0))
        same = [each.start().extend([1, 2, 3]).logits.tolist() == wanted for each in (own, free)]
        os._exit(0 if all(same) else 7)
    os._exit(6)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
over.set()
busy.join()
os._exit(status or (0 if model.start().extend([1, 2, 3]).logits.tolist() == wanted else 9))
"""


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
def test_a_process_forked_during_a_pass_is_told_and_does_not_wait() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "was forked while another thread used the model" in done.stdout
    assert "load the model once more in this process" in done.stdout
