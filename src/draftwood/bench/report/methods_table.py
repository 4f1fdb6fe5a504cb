"""The table of methods with what runs found, for README."""

from collections.abc import Sequence

from draftwood.bench.report.overview import chosen, is_refused
from draftwood.bench.report.reading import Measured
from draftwood.bench.statistics import Summary
from draftwood.bench.tables import Table, proof, speed_up, temperatures

HEAD = ("method", "what it does", "tokens per run [95 %]", "x plain [95 %]", "same text", "measured on")


def methods_table(runs: Sequence[Measured]) -> Table:
    """One row per method, run and temperature, in the order of the methods; those that no run measured stand last."""
    from draftwood.methods import RECIPES

    rows = []
    for name, recipe in RECIPES.items():
        found = [
            (f"`{name}`", recipe.summary, *_figures(each), _place(each, measured))
            for measured in runs
            for temperature in temperatures(measured.records)
            for each in chosen(measured.records, measured.run, temperature)
            if each.method == name
        ]
        rows += found or [(f"`{name}`", recipe.summary, "", "", "", "")]
    return Table("methods", HEAD, tuple(sorted(rows, key=lambda row: not row[-1])))


def _figures(each: Summary) -> tuple[str, str, str]:
    efficiency = "" if each.block_efficiency is None else str(each.block_efficiency)
    gain = "none: texts differ" if is_refused(each) else speed_up(each, each.speed_up)
    return (efficiency, gain, proof(each) if each.same is not None else "")


def _place(each: Summary, measured: Measured) -> str:
    run = measured.run
    draft = "" if run.draft_model is None else f" + {run.draft_model}"
    at = "" if each.at == "default" else f", {each.at}"
    what = f"{run.model}{draft}, {run.dtype}, T = {each.temperature:g}{at}"
    commits = f", at {', '.join(run.dirty)}" if run.dirty else ""
    return f"{what}, {each.prompts} prompts of {run.prompts['source']}{commits}"
