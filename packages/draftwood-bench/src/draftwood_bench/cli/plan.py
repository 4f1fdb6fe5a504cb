"""`draftwood plan`: which drafts pay on a machine that need not be here."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output

if TYPE_CHECKING:
    from draftwood_bench.machine import Machine
    from draftwood_bench.planner import DraftSource, Plan, Planner
    from draftwood_bench.sizes import ModelSize

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Count(click.ParamType):
    """A number that may end in K, M, B or T."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"([0-9.]+)([KMBT]?)", str(value).strip().upper())
        try:
            assert found is not None
            return float(found[1]) * UNITS[found[2]]
        except (AssertionError, ValueError):
            self.fail(f"{value!r} is no number such as 7B or 135M", param, ctx)


@click.command()
@click.option(
    "--model",
    help="Read the size from a built-in name, a folder or a Hugging Face id.",
)
@click.option(
    "--parameters",
    type=Count(),
    help=(
        "Or give it: 7B, 135M. Keys and values of --context are those of full multi-head attention."
    ),
)
@click.option("--layers", type=click.IntRange(1), help="Of the model.  [default: by its size]")
@click.option(
    "--bits",
    type=options.NumberRange(0, min_open=True),
    help="Of a weight, scales included.  [default: 16; with --measure as measured]",
)
@click.option(
    "--hardware",
    metavar="NAME",
    help="a100-80g, h100, l40, rtx-4090, epyc-2-cores, ...; an unknown name lists all.",
)
@click.option(
    "--bandwidth", type=options.NumberRange(0, min_open=True), help="GB/s that passes read."
)
@click.option(
    "--compute", type=options.NumberRange(0, min_open=True), help="TFLOP/s that passes multiply."
)
@click.option(
    "--measure",
    is_flag=False,
    flag_value=options.DEFAULT_MODEL,
    metavar="[MODEL]",
    help=f"Measure this machine with a model instead.  [without a name: {options.DEFAULT_MODEL}]",
)
@click.option(
    "--engine",
    help="native, graphs, or transformers for layers launched one by one.  [default: the fast one]",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="NAME=ACCEPTANCE",
    help=(
        "copying, head or model (a draft model) with the share of first draft tokens that is"
        " accepted (0.6), shares by rank (0.6,0.15,0.07), or tokens a pass with so many draft"
        " tokens (3.6@60)."
        " Repeatable.  [default: all three, as Vicuna-7B has them]"
    ),
)
@click.option("--draft-parameters", type=Count(), help="Of the draft model.  [default: 1 %]")
@click.option("--texts", type=click.IntRange(1), default=1, show_default=True, help="At once.")
@click.option(
    "--context", type=click.IntRange(0), default=512, show_default=True, help="Tokens of each text."
)
@click.option(
    "--max-draft-tokens",
    type=click.IntRange(1, 256),
    default=64,
    show_default=True,
    help="Of a tree.",
)
@click.option(
    "--max-depth", type=click.IntRange(1, 16), default=8, show_default=True, help="Of a tree."
)
@options.as_json
def plan(
    sources: tuple[str, ...],
    texts: int,
    context: int,
    max_draft_tokens: int,
    max_depth: int,
    draft_parameters: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Say which drafts pay for a model on a machine, with how large a chain or tree, and how much
    faster texts are written than without.

    Passes take what reading the weights or multiplying takes; docs/scaling.md says how well that
    agrees with measured curves and published results.

    \b
    Examples:
      draftwood plan --parameters 7B --hardware a100-80g
      draftwood plan --parameters 70B --bits 4.5 --bandwidth 800 --compute 120 --texts 16
      draftwood plan --model tinyllama-1.1b --bits 8.5 --measure --source copying=0.35
    """
    from draftwood_bench.planner import Planner, Traffic
    from draftwood_bench.sizes import size_for

    names = sources or ("copying", "head", "model")
    if draft_parameters is not None and not any(each.startswith("model") for each in names):
        raise ValueError("--draft-parameters are of a draft model; add --source model, or leave it")
    machine, size = _read(given)
    small = None
    if draft_parameters is not None:
        small = size_for(draft_parameters, size.bits)
    planner = Planner(machine, size, Traffic(texts, context))
    chosen = [source_of(text, size, small) for text in names]
    _require_each_once([each.name for each in chosen])
    found = planner.choices(chosen, max_draft_tokens, max_depth)
    if as_json:
        click.echo(json.dumps(as_record(planner, found)))
    else:
        _print(planner, found)


def _read(given: dict[str, Any]) -> "tuple[Machine, ModelSize]":
    """The machine and the model that options name."""
    from draftwood_bench.machine import Machine, machine_of, with_engine

    numbers = given["bandwidth"], given["compute"]
    ways = [given["hardware"] is not None, any(numbers), given["measure"] is not None]
    if sum(ways) != 1 or (any(numbers) and not all(numbers)):
        raise ValueError(
            "say what the model runs on, in one way: --hardware NAME, --bandwidth GB/s with"
            " --compute TFLOP/s, or --measure"
        )
    measured = None
    if given["measure"] is not None:
        measured, machine = _measure(given["measure"])
    elif given["hardware"] is not None:
        machine = machine_of(given["hardware"])
    else:
        machine = Machine("as given", numbers[0] * 1e9, numbers[1] * 1e12)
    if given["engine"] is not None:
        machine = with_engine(machine, given["engine"])
    return machine, _size(given, measured)


def _size(given: dict[str, Any], measured: "ModelSize | None") -> "ModelSize":
    if given["model"] is not None and given["parameters"] is not None:
        raise ValueError("give --model or --parameters, not both")
    usual = 16.0 if measured is None else measured.bits
    if given["model"] is not None:
        options.check_weights(given["model"])
        from draftwood_bench.sizes import size_of

        size = size_of(given["model"])
    elif given["parameters"] is not None:
        from draftwood_bench.sizes import size_for

        size = size_for(given["parameters"], usual, given["layers"])
    elif measured is not None:
        size = measured
    else:
        raise ValueError("say how large the model is: --parameters 7B, or --model NAME")
    return replace(size, bits=given["bits"] or usual, layers=given["layers"] or size.layers)


def _measure(name: str) -> "tuple[ModelSize, Machine]":
    """A model's size as it runs here, and the machine that its stored or measured curve shows."""
    options.check_weights(name)
    import draftwood
    from draftwood.costs.curve import Curve
    from draftwood.models.native import NativeModel
    from draftwood_bench.machine import Machine
    from draftwood_bench.sizes import size_of

    lm = draftwood.load(name, method="plain")
    known = lm.calibration.followed()
    lm.calibration.mend()  # no pass corrects it here
    size, curve = size_of(name), lm.calibration.curve
    assert isinstance(curve, Curve)  # none was given to load
    beside = "" if getattr(known, "is_good", True) else ", beside other programs"
    if isinstance(lm.model, NativeModel):
        size = replace(size, bits=8 * lm.model.weight_bytes / size.parameters)
    return size, Machine.fitted(curve, size, f"measured here with {name}{beside}")


def _require_each_once(names: Sequence[str]) -> None:
    """Refuse two sources of one name, whose plans would look alike."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--source gives {name} more than once; plan with one after the other")


def source_of(text: str, size: "ModelSize", draft: "ModelSize | None") -> "DraftSource":
    """A source as ``--source`` names it.

    Raises:
        ValueError: for one that cannot be read.
    """
    from draftwood_bench.planner import MAX_DEPTH, acceptance_by_rank, acceptance_for, draft_source

    name, given, numbers = text.partition("=")
    ranks = None
    try:
        if "@" in numbers:
            tokens, _, count = numbers.partition("@")
            ranks = acceptance_for(float(tokens), int(count), MAX_DEPTH)
        elif given:
            values = tuple(float(value) for value in numbers.split(","))
            ranks = acceptance_by_rank(values[0]) if len(values) == 1 else values
    except ValueError as error:
        if "could not convert" not in str(error) and "invalid literal" not in str(error):
            raise
        raise ValueError(
            f"--source {text} is not understood; write head=0.6, head=0.6,0.15,0.07 or head=3.6@60"
        ) from None
    return draft_source(name, ranks, size, draft)


def recommendation(found: "list[Plan]") -> str:
    """Recommend a configuration in one line."""
    best = found[0]
    if best.source is None:
        return "Decode plainly: no draft pays here."
    name = "a draft model" if best.source == "model" else best.source
    tokens, levels = best.draft_tokens, len(best.widths)
    return (
        f"Draft by {name}, a {best.form} of {tokens} token{'s' * (tokens != 1)} on {levels}"
        f" level{'s' * (levels != 1)}: {best.speed_up:.2f} times as fast as plain decoding."
    )


def as_record(planner: "Planner", found: "list[Plan]") -> dict[str, object]:
    """The object that ``--json`` prints."""
    machine, size, traffic = planner.machine, planner.size, planner.traffic
    return {
        "machine": {
            "name": machine.name,
            "bytes_per_second": machine.bandwidth,
            "operations_per_second": machine.compute,
            "sharpness": machine.sharpness,
            "attention_share": machine.attention,
            "seconds_per_pass": machine.engine.per_pass,
            "seconds_per_layer": machine.engine.per_layer,
        },
        "model": {"parameters": size.parameters, "bits": size.bits, "layers": size.layers},
        "texts": traffic.texts,
        "context": traffic.context,
        "plans": [each.as_json() for each in found],
        "recommendation": recommendation(found),
    }


def _print(planner: "Planner", found: "list[Plan]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    machine, size, traffic, console = planner.machine, planner.size, planner.traffic, output()
    console.print(
        f"{size.parameters / 1e9:.3g} billion parameters of {size.bits:.3g} bits in"
        f" {size.layers} layers on {machine.name}: {machine.bandwidth / 1e9:.4g} GB/s,"
        f" {machine.compute / 1e12:.3g} TFLOP/s; {traffic.texts} text"
        f"{'s' if traffic.texts > 1 else ''} of {traffic.context} tokens",
        markup=False,
        soft_wrap=True,
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("drafts", no_wrap=True)
    table.add_column("form", no_wrap=True)
    for head in (
        "draft\ntokens",
        "by level",
        "tokens\n/pass",
        "ms\n/step",
        "tokens\n/s",
        "speed-up",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for number, each in enumerate(found):
        table.add_row(
            each.source or "none",
            each.form or "",
            str(each.draft_tokens or ""),
            "-".join(map(str, each.widths)),
            f"{each.tokens:.2f}",
            f"{each.seconds * 1e3:.2f}",
            f"{each.tokens_per_second:.1f}",
            f"{each.speed_up:.2f}x",
            style="" if number else "bold",
        )
    console.print(table)
    console.print(f"\n{recommendation(found)}", soft_wrap=True, markup=False)
