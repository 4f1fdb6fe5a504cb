"""Describe a run: hardware, versions, commit, the verify-cost curve, sizes of weights."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import draftwood
from draftwood.costs.curve import Curve
from draftwood.heads import folder as heads
from draftwood.heads.trained import TrainedHead
from draftwood.loading.weights import WeightsFolder
from draftwood.models.native import NativeModel
from draftwood.storage.machine import device_name
from draftwood_bench.plan.prompts import PromptSet
from draftwood_bench.plan.protocols import Protocol, as_json, timed
from draftwood_bench.records.files import RunInfo
from draftwood_bench.records.machine import bandwidth, processor
from draftwood_bench.records.matrices import matrix_sizes
from draftwood_bench.run.workbench import Workbench

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "ray")
RECORDS_OF_PAGES = "packages/draftwood-bench/benchmarks/results"
READ_BYTES = 1 << 30  # far more than any cache holds


def describe(
    bench: Workbench, protocol: Protocol, prompts: PromptSet, rule: str, command: str
) -> RunInfo:
    """The common part of a run's records.

    Measures the bandwidth of memory, and the curve where none is stored that is to be trusted.
    """
    models = bench.models
    device = bench.plain.model.device
    folder, threads = bench.folder, torch.get_num_threads()
    return RunInfo(
        protocol=protocol.name,
        options=as_json(protocol),
        command=command,
        **here(device_name(device)),
        model=models.model,
        **models.recorded,
        dtype=bench.dtype,
        curve=curve_of(bench) if timed(protocol) else None,
        bandwidth=bandwidth(torch.ones(READ_BYTES // 4), threads) if device.type == "cpu" else None,
        weight_bytes=_weight_bytes(bench, folder),
        prompts={
            **{
                "source": prompts.source,
                "note": prompts.note,
                "count": len(prompts.prompts),
                "rule": rule,
            },
            "digest": digest(prompts),
        },
        draft_ratio=_draft_ratio(bench),
        **digests(bench),
    )


def _draft_ratio(bench: Workbench) -> float | None:
    """Size of the draft model, or of the head that stands in for it, over the target's."""
    models = bench.models
    if models.drafts.model is not None:
        return size_ratio(models.drafts.model, models.model, models.dtype)
    head = bench.plain.models.drafts.head
    target = None if bench.folder is None else matrix_sizes(bench.folder)
    return None if head is None or not target else head_size(head) / target


def head_size(trained: TrainedHead) -> int:
    """Count the weights of a head that a level reads, output rows of its draft vocabulary too."""
    state = trained.weights
    own = sum(weight.size for weight in state.values())
    config: Any = trained.config
    rows = 0 if "lm_head.weight" in state else len(trained.draft_tokens) * config.sizes.hidden
    return own + rows


def here(device: str) -> dict[str, Any]:
    """The fields of ``RunInfo`` that tell where, on which device, and when a run is started."""
    return {
        "commit": commit(),
        "versions": versions(),
        "hardware": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "device": device,
        },
        "threads": torch.get_num_threads(),
        "started": now(),
    }


def digests(bench: Workbench) -> dict[str, Any]:
    """Digests of the weights of target, draft model and head, and of the datastore.

    They have the names of ``RunInfo``.
    """
    draft, head = bench.models.drafts.model, bench.models.drafts.head
    folders = {
        "weights": bench.folder,
        "draft_weights": draft and WeightsFolder.of(draft, bench.models.dtype).path,
        "drafter_weights": head and heads.folder_of(head),
    }
    datastore = bench.models.datastore
    return {
        **{
            name: WeightsFolder(Path(folder)).digest if folder else None
            for name, folder in folders.items()
        },
        "datastore_file": datastore and _datastore_digest(datastore),
    }


def _datastore_digest(datastore: str) -> str:
    """Digest of the header of a datastore, which holds that of all else in it."""
    with Path(datastore).open("rb") as file:
        return sha256(file.read(int.from_bytes(file.read(8), "little"))).hexdigest()


def _weight_bytes(bench: Workbench, folder: Path | None) -> int | None:
    """Bytes of weights, as stored in memory, that a forward pass of one token reads."""
    if isinstance(bench.plain.model, NativeModel):
        return bench.plain.model.weight_bytes
    sizes = None if folder is None else matrix_sizes(folder)
    return None if sizes is None or bench.dtype not in BYTES else sizes * BYTES[bench.dtype]


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Commit of the checkout that holds a folder, marked if files differ from it.

    Records do not count: they grow while they are measured, and change nothing of it. None outside
    of a checkout, and where it holds none of the folder's files, such as those of an environment.
    """
    places = (":(top)", f":(top,exclude){RECORDS_OF_PAGES}")
    try:
        if not _git(folder, "ls-files", "."):
            return None
        found = _git(folder, "rev-parse", "--short=9", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *places)
        # parts and C++ are found by their folders, whether git knows their files or not
        sources = ":(top)packages/*/src/*"
        changed += _git(folder, "status", "--porcelain", "--untracked-files=all", "--", sources)
    except OSError:
        return None
    return f"{found}-dirty" if found and changed else found or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python, draftwood and the packages that matter, those that bring methods too."""
    found = {"python": platform.python_version(), "draftwood": draftwood.__version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | _of_methods()


def _of_methods() -> dict[str, str]:
    """Versions of packages of others that bring methods, with a digest of their source, which may
    change under one version; the commit tells draftwood's own.
    """
    found: dict[str, str] = {}
    for entry in metadata.entry_points(group="draftwood"):
        if entry.dist is not None and not entry.dist.name.startswith("draftwood"):
            before = found.get(entry.dist.name, entry.dist.version)
            found[entry.dist.name] = f"{before}, {entry.value} {_source_digest(entry.value)}"
    return found


def _source_digest(module: str) -> str:
    """Digest of the files of a module or a package; it is not imported for that."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # its package is broken, which another warning tells
        spec = None
    if spec is None or spec.origin is None:
        return "missing"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    texts = [file.read_bytes() for file in files or [Path(spec.origin)]]
    return sha256(b"".join(texts)).hexdigest()[:9]


def digest(prompts: PromptSet) -> str:
    """Digest of a set of prompts."""
    return sha256(repr(prompts.prompts).encode()).hexdigest()[:16]


def size_ratio(draft_model: str, model: str, dtype: str | None = None) -> float | None:
    """Numbers in the weights that a token of the draft model needs over those of the target.

    None where one of them is not on this machine, or not in safetensors.
    """
    try:
        draft, target = (
            matrix_sizes(WeightsFolder.of(name, dtype).path) for name in (draft_model, model)
        )
    except (OSError, ValueError):
        return None
    return draft / target if draft and target else None


def curve_of(bench: Workbench) -> dict[str, list]:
    """Seconds of passes of the target; measured again where a stored curve is doubtful."""
    calibration = bench.plain.calibration
    calibration.followed()
    calibration.mend()  # no pass corrects it here, so a busy hour's would decide all trees
    curve = calibration.curve
    nodes = getattr(curve, "nodes", Curve.usual_nodes)
    seconds, per_context_token = (
        [curve(each) for each in nodes],
        getattr(curve, "per_context_token", 0.0),
    )
    return {"nodes": list(nodes), "seconds": seconds, "per_place": [per_context_token]}
