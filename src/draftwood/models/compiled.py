"""Steps of a decoder compiled ahead of time to one C++ kernel each, kept on disk.

TorchInductor compiles the steps once per shape of model and kind of CPU; a later load takes milliseconds. Where there
is no C++ compiler, or it fails, the steps run as they are, with the same results up to rounding.
"""

import hashlib
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.models import linears, steps
from draftwood.models.folders import home, publish
from draftwood.models.progress import progress
from draftwood.models.steps import AddNorm, Attention, Gate, Heads, LibraryAttention, Sizes

Step = Callable[..., Any]
_STEPS = {"add_norm": AddNorm, "heads": Heads, "attention": Attention, "gate": Gate}


@dataclass(frozen=True, eq=False)
class Steps:
    """What runs between the products, as it is or compiled."""

    add_norm: Step
    heads: Step
    attention: Step
    attention_of_many_rows: Step
    gate: Step

    @classmethod
    def eager(cls, sizes: Sizes) -> "Steps":
        attention = LibraryAttention(sizes)
        return cls(AddNorm(sizes), Heads(sizes), attention, attention, Gate(sizes))


def compiled_steps(sizes: Sizes) -> Steps | None:
    """The steps compiled for this CPU, compiled now where that was not done before; None where that cannot be done."""
    folder = home() / "kernels" / _key(sizes)
    if not folder.is_dir():
        try:
            publish(folder, f"{sizes} for {_processor()}", lambda partial: _compile(sizes, partial))
        except Exception as error:  # compilers fail in every way there is, and this is only about speed
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"the fast kernels could not be compiled, decoding goes on slower ({reason})", stacklevel=2)
            return None
    loaded = {name: _load(folder / f"{name}.pt2") for name in _STEPS}
    return replace(Steps.eager(sizes), **loaded)


def _key(sizes: Sizes) -> str:
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (steps, linears)]
    identity = "\0".join([str(sizes), torch.__version__, _processor(), *sources])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _processor() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _load(path: Path) -> Step:
    loader: Any = vars(torch._C)["_aoti"].AOTIModelPackageLoader(str(path), "model", False, 1, -1)

    def step(*arguments: Tensor) -> Any:
        outputs = loader.boxed_run(list(arguments))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return step


@torch.no_grad()
def _compile(sizes: Sizes, folder: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    with progress("compiling fast kernels (once, about half a minute)"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, arguments in _examples(sizes).items():
            tensors = tuple(argument.distinct() for argument in arguments)
            program = torch.export.export(
                _STEPS[name](sizes), tensors, dynamic_shapes=tuple(argument.dynamic for argument in arguments)
            )
            options = {"cpp.dynamic_threads": True}
            aoti_compile_and_package(program, package_path=str(folder / f"{name}.pt2"), inductor_configs=options)


@dataclass(frozen=True, eq=False)
class _Example:
    """An argument of a step and which of its dimensions vary."""

    tensor: Tensor
    dynamic: dict[int, object]

    def distinct(self) -> Tensor:
        """A tensor like it: one that stood twice among the arguments would count as one."""
        return self.tensor.clone()


_ROWS, _WIDTH = 6, 40  # unlike each other, and small


def _examples(sizes: Sizes) -> dict[str, tuple[_Example, ...]]:
    """Arguments for each step."""
    rows, width = torch.export.Dim("rows", min=2, max=1 << 16), torch.export.Dim("width", min=2, max=1 << 24)
    products = torch.float32 if sizes.kind == "int8" else sizes.dtype
    cached = (sizes.key_value_heads, sizes.head_dim)
    group = sizes.heads // sizes.key_value_heads

    def by_rows(*shape: int, dtype: torch.dtype = torch.float32) -> _Example:
        return _Example(torch.ones(_ROWS, *shape, dtype=dtype), {0: rows})

    def product(outputs: int) -> tuple[_Example, ...]:
        bias = _Example(torch.ones(outputs, dtype=products), {})
        return by_rows(outputs, dtype=products), by_rows(1), bias

    angles, norm = by_rows(sizes.rotary_dim // 2), _Example(torch.ones(sizes.hidden), {})
    head_norm = _Example(torch.ones(sizes.head_dim if sizes.head_norms else 1), {})
    place = by_rows(*cached, dtype=sizes.dtype)
    past = _Example(torch.ones(_WIDTH, *cached, dtype=sizes.dtype), {0: width})
    mask = _Example(torch.ones(_ROWS, _WIDTH), {0: rows, 1: width})
    return {
        "add_norm": (by_rows(sizes.hidden), *product(sizes.hidden), norm, norm),
        "heads": (*product(sizes.mixed), angles, angles, head_norm, head_norm, place, place),
        "attention": (by_rows(sizes.key_value_heads, group, sizes.head_dim), past, past, mask),
        "gate": product(2 * sizes.inner),
    }
