"""Tensor parallelism: models split over several processes."""

import atexit
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

from draftwood.loading import hub
from draftwood.loading.folders import understood
from draftwood.storage.ranks import rank
from draftwood_torch.loading.pretrained import torch_device
from draftwood_torch.models.parallel import Channel, LeadingModel, follow, join, stay_behind

SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Settings that the number of processes must divide."""


def require_split(
    name: str,
    processes: int,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> Path:
    """Folder of a model that this number of processes can hold in equal parts.

    Raises:
        ValueError: for one that they cannot, for weights that are not floats, and for fewer GPUs.
    """
    if not dist.is_available():
        raise ValueError("this PyTorch runs in one process only; install another build, or no --tp")
    gpus = torch.cuda.device_count()
    if hub.device_of(device).type == "cuda" and gpus < processes:
        raise ValueError(
            f"{processes} processes need a GPU each, and there are {gpus}; take --tp {gpus}, or"
            " --device cpu"
        )
    if hub.integers_of(dtype) is not None:
        raise ValueError(
            f"several processes hold weights as floats, not in {dtype}; take --dtype bfloat16"
        )
    folder = hub.folder_of(name, dtype)
    with understood(folder):
        config = AutoConfig.from_pretrained(folder).get_text_config()
    if getattr(config, "base_model_tp_plan", None) is None:
        raise ValueError(
            f"Transformers cannot split a model of the kind {config.model_type}; leave --tp out"
        )
    counts = {each: getattr(config, each, None) for each in SPLIT}
    wrong = [f"{count} {each}" for each, count in counts.items() if count and count % processes]
    if wrong:
        fitting = [n for n in range(2, 17) if not any(c and c % n for c in counts.values())]
        cure = f"take --tp {' or '.join(map(str, fitting))}" if fitting else "leave --tp out"
        raise ValueError(
            f"{processes} processes cannot hold equal parts of {name}, which has"
            f" {', '.join(wrong)}; {cure}"
        )
    return folder


def load_parallel(
    name: str,
    processes: int,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> tuple[LeadingModel, hub.Pretrained]:
    """Load this process's part of a model.

    Only the first process gets one; the others serve it, and exit when it has ended.

    Raises:
        ValueError: as ``require_split`` and ``join``.
    """
    place = torch_device(device)
    folder = require_split(name, processes, dtype, device)
    join(processes, place)
    if rank():
        stay_behind()
    loaded = hub.read_folder(name, folder, dtype, place, _split(processes))
    channel = Channel()
    if rank():
        follow(loaded.model, channel)
        raise SystemExit(0)
    model = LeadingModel(loaded.model, channel)
    atexit.register(model.end)
    return model, loaded


def _split(processes: int) -> dict[str, Any]:
    """Arguments that make Transformers split a model; 5.10 and later versions name them
    differently.
    """
    from transformers.distributed import DistributedConfig

    try:
        return {"distributed_config": DistributedConfig(tp_size=processes, tp_plan="auto")}
    except TypeError:
        return {"tp_plan": "auto"}
