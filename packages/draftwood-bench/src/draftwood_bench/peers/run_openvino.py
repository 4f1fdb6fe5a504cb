"""Adapter for OpenVINO GenAI, which reads the GGUF file itself; speculation is its prompt lookup.

Its reader rounds the minima of Q4_1, so texts differ; with --folder-of-values the matrices are
8-bit integers of the others' values instead, see openvino_int8.py.
"""

import argparse
from functools import cache
from pathlib import Path

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
import openvino_genai  # pyright: ignore[reportMissingImports]
import openvino_int8
from protocol import LoadedPeer, PeerRequest, Reply, parser, serve

GRAPH = "openvino_model.xml"


def load(arguments: argparse.Namespace) -> LoadedPeer:
    folder = converted(Path(arguments.weights), Path(arguments.folder), arguments.folder_of_values)
    options = {"INFERENCE_NUM_THREADS": arguments.threads, "PERFORMANCE_HINT": "LATENCY"}
    plan = openvino_genai.SchedulerConfig()
    # as of the others, no prompt is remembered, and each is read in one pass
    plan.enable_prefix_caching, plan.max_num_batched_tokens = False, 2**31 - 1

    @cache  # a pipeline is made for one mode; the first request of a mode pays for it
    def pipeline(mode: str) -> openvino_genai.LLMPipeline:
        lookup = {"prompt_lookup": True} if mode == "speculation" else {}
        return openvino_genai.LLMPipeline(
            str(folder), "CPU", scheduler_config=plan, **options, **lookup
        )

    end = pipeline("plain").get_generation_config().eos_token_id

    def answer(request: PeerRequest) -> Reply:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = request.max_new_tokens, False
        config.eos_token_id, config.ignore_eos = end, request.ignore_eos
        if request.mode == "speculation":
            config.num_assistant_tokens, config.max_ngram_size = (
                arguments.assistant_tokens,
                arguments.ngram,
            )
        prompt = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        result = pipeline(request.mode).generate(prompt, config)
        measured = result.perf_metrics.raw_metrics
        first = measured.m_times_to_first_token[0] / 1e6
        per_run = list(measured.m_batch_sizes)
        decode = max(0.0, measured.generate_durations[0] / 1e6 - first)
        return Reply(list(result.tokens[0]), first, decode, len(per_run) - 1, per_run[0])

    weights = (
        "int8 of the GGUF's values, a scale per row"
        if arguments.folder_of_values
        else "u4 and u8 by its reader"
    )
    size = openvino_int8.matrix_bytes(folder / GRAPH)
    return LoadedPeer(answer, weights, size, {"openvino-genai": openvino_genai.__version__})


def converted(gguf: Path, folder: Path, values: str | None) -> Path:
    """The model as OpenVINO saves it after reading the GGUF file; made once.

    It has other matrices where asked.
    """
    if not (folder / ".ready").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / gguf.name  # it saves beside the file it read
        link.unlink(missing_ok=True)
        link.symlink_to(gguf)
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        if values:
            openvino_int8.convert(folder / GRAPH, Path(values), folder / f"int8_{GRAPH}")
            for suffix in (".xml", ".bin"):
                (folder / f"int8_{GRAPH}").with_suffix(suffix).replace(
                    (folder / GRAPH).with_suffix(suffix)
                )
        (folder / ".ready").touch()
    return folder


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", required=True, help="where the converted model is kept")
    options.add_argument(
        "--folder-of-values", help="a model folder with bfloat16 values to hold as 8-bit integers"
    )
    options.add_argument("--assistant-tokens", type=int, default=5)
    options.add_argument("--ngram", type=int, default=3)
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
