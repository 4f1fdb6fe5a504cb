"""`draftwood check`: prove on this machine that methods leave the text alone."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import mark, output, progress

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.testing.promises import Check, CheckResult
    from draftwood.text.language_model import LanguageModel

TITLES = {
    "identity": "Text on {model} in {dtype}: the same as without drafts",
    "drafts": "Sampled text on {model} in {dtype}: each token beside the model's own distribution",
    "law": "Output distribution, beside the known one: chi-square over the engine",
    "rule": "Which draft tokens are kept: every outcome on small tables, under options of sampling",
    "control": "Rules known to be wrong: the checks must catch them",
}

DETAILS = ("identity", "rule")
"""Checks whose details tell all."""

TEXTS_ELSEWHERE = "--texts is for checks on a model that fills masks; leave it out"


@click.command()
@click.option(
    "--methods",
    callback=options.method_names,
    metavar="A,B,C",
    help="Which to check.  [default: all that are lossless, and what packages bring]",
)
@click.option(
    "--bisect",
    metavar="PROMPT",
    help=(
        "Name the part that changes the answer to this prompt, by switching parts off in turn;"
        " @FILE puts a file's text in, - reads it from standard input."
    ),
)
@options.model_options
@options.text_option("max_new_tokens", 24)
@click.option(
    "--texts",
    type=click.IntRange(1),
    help="Prompts of each check on a model that fills masks.  [default: 2]",
)
@options.as_json
@click.pass_context
def check(
    context: click.Context,
    methods: list[str] | None,
    bisect: str | None,
    names: "ModelNames",
    max_new_tokens: int,
    texts: int | None,
    as_json: bool,
) -> None:
    """Check that methods write what plain decoding writes, and that the check would notice if they
    did not.

    The model runs in float32 unless --dtype says otherwise: there the texts must be equal to the
    last token. In bfloat16 and float16 two texts may part where the two top logits are a tie within
    rounding, at most 4 spacings of the type apart.

    Each rule that keeps draft tokens is run through every outcome on small tables, and each method
    writes sampled text on a table. A table has neither layers nor hidden states, so its drafts
    stand for those of layers and heads there, and the drafters themselves sample text on the model.
    Methods that draft with a model or a trained head are run on the real one only with
    --draft-model. On a model that fills masks, freedave must write what one by one does.

    With --bisect one method (the default one unless --methods names another) answers a single
    prompt in the type in which the model is loaded anyway. Then its parts are switched off one
    after the other, down to plain PyTorch in float32, and the first that changes a token is named.

    The exit code is 1 if anything fails, or any part changes the text.

    \b
    Examples:
      draftwood check
      draftwood check --bisect "Why is the sky blue?" --max-new-tokens 100
      draftwood check --methods rsd-s,spectr --model TARGET --draft-model SMALLER
      draftwood check --model stories-diffusion --dtype int8 --texts 40
    """
    from draftwood.methods import lossless_names

    asked = methods or (lossless_names() if bisect is None else [names.drafts.method])
    _require_lossless(asked, names)
    if texts is not None and bisect is not None:
        raise ValueError(TEXTS_ELSEWHERE)
    if bisect is not None:
        _require_one(asked)
        from draftwood.cli.bisect import bisect_text
        from draftwood.cli.generate import whole_prompt

        written = whole_prompt(bisect)
        lm = options.load(names).with_method(asked[0] if methods else None)
        same = bisect_text(lm, written, max_new_tokens, as_json, names.adapter)
        context.exit(0 if same else 1)
    names = replace(names, dtype=names.dtype or "float32")
    names.require()
    from draftwood.loading.names import other_way, require_token_by_token
    from draftwood.testing import promises as checking

    plain = options.load(names)
    if (head := plain.models.drafts.head) is not None:
        head.target.require_model(plain.model, plain.name)
    if methods:
        require_token_by_token(plain.name, plain.calibration.folder)
    others = {} if methods else checking.checks_for(plain, texts or 2, max_new_tokens)
    if texts is not None and other_way(plain.calibration.folder) is None:
        raise ValueError(TEXTS_ELSEWHERE)
    label = str(names.dtype) if names.cache is None else f"{names.dtype}, cache in {names.cache}"
    findings: list[CheckResult] = []
    with progress() as bar:
        task = bar.add_task("wrong rules", total=_count(asked, plain) + len(others))
        steps = _steps(asked, others, plain, max_new_tokens)
        for following, finding in steps:
            findings.append(finding)
            bar.update(task, advance=1, description=following)
    passed = all(finding.passed is not False for finding in findings)
    if as_json:
        report = {
            "passed": passed,
            "model": names.model,
            "dtype": label,
            "findings": [f.as_json() for f in findings],
        }
        click.echo(json.dumps(report))
    else:
        _print(findings, names.model, label, passed)
    context.exit(0 if passed else 1)


def _require_lossless(names: list[str], models: "ModelNames") -> None:
    from draftwood import methods

    for method in map(methods.listing, names):
        if not method.lossless:
            raise ValueError(
                f"{method.name} changes what the model says by design, so there is nothing to"
                " check; leave it out"
            )
    if models.given:
        complete = [name for name in names if methods.lacking(name, models.given) is None]
        options.check_methods(complete or names, models.given, drafts=models.drafts)


def _require_one(names: list[str]) -> None:
    if len(names) > 1:
        raise ValueError(
            f"--bisect takes a single method apart, got {', '.join(names)}; name one with --methods"
        )


def _steps(
    names: list[str], others: "Mapping[str, Check]", plain: "LanguageModel", max_new_tokens: int
) -> Iterator[tuple[str, "CheckResult"]]:
    """Yield (name of the next check, finding), the quick checks first."""
    from draftwood import methods
    from draftwood.testing import acceptance
    from draftwood.testing import promises as checking

    recipes = [methods.recipe(name) for name in names]
    for finding in [*checking.check_controls(), *acceptance.check_wrong_rules()]:
        yield "rules", finding
    for rule in acceptance.rules_of(recipes):
        yield f"rule {rule.name}", acceptance.check_rule(rule)
    for recipe in recipes:
        yield f"output distribution of {recipe.name}", checking.check_law(recipe)
    for name, make in others.items():
        yield name, make()
    runnable, left_out = _runnable(names, plain)
    for finding in left_out:
        yield "greedy texts", finding
    if not runnable:
        return
    for finding in checking.check_identity(plain, runnable, max_new_tokens):
        yield f"greedy texts, after {finding.name}", finding
    for other in runnable:
        if checking.stood_for(methods.recipe(other.method.name)):
            yield f"sampled texts of {other.method.name}", acceptance.check_drafts(other)


def _count(names: list[str], plain: "LanguageModel") -> int:
    """Number of checks of draftwood itself, at most."""
    from draftwood import methods
    from draftwood.testing import acceptance
    from draftwood.testing import promises as checking

    recipes = [methods.recipe(name) for name in names]
    wrong = checking.CONTROLS + len(acceptance.WRONG_RULES)
    drafts = sum(
        checking.stood_for(recipe) and methods.lacking(recipe.name, plain.models.given) is None
        for recipe in recipes
    )
    return wrong + len(acceptance.rules_of(recipes)) + 2 * len(names) + drafts


def _runnable(
    names: list[str], plain: "LanguageModel"
) -> "tuple[list[LanguageModel], list[CheckResult]]":
    """The methods that can run on the model, and why the others cannot."""
    from draftwood import methods
    from draftwood.loading.names import other_way
    from draftwood.testing.promises import CheckResult

    found, left_out = [], []
    by_token = other_way(plain.calibration.folder) is None
    for name in names:
        need = methods.lacking(name, plain.models.given)
        why = f"needs {options.option_of(need)}" if need is not None else ""
        if not by_token:
            why = f"{plain.name} does not write token by token"
        try:
            found += [] if why else [plain.with_method(name)]
        except ValueError as error:  # too few layers to skip any, or another kind of drafter
            why = str(error)
        left_out += [CheckResult("identity", name, None, why)] if why else []
    return found, left_out


def _print(findings: list["CheckResult"], model: str, dtype: str, passed: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = output()
    for kind, title in TITLES.items():
        rows = [finding for finding in findings if finding.check == kind]
        made = [finding for finding in rows if finding.passed is not None]
        if not rows and kind == "drafts":  # no layers or heads among the methods
            continue
        console.print(title.format(model=model, dtype=dtype), style="bold", soft_wrap=True)
        table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
        for finding in made:
            value = "" if finding.p_value is None else f"p = {finding.p_value:.2g}"
            table.add_row(
                mark(bool(finding.passed)),
                finding.name,
                *([finding.detail] if kind in DETAILS else [value, _verdict(finding)]),
            )
        if made:
            console.print(table)
        for reason in dict.fromkeys(finding.detail for finding in rows if finding.passed is None):
            left_out = [
                finding.name
                for finding in rows
                if finding.passed is None and finding.detail == reason
            ]
            console.print(f"not run: {', '.join(left_out)} ({reason})\n", style="dim", markup=False)
    ran = [finding for finding in findings if finding.passed is not None]
    failed = sum(not finding.passed for finding in ran)
    verdict = (
        f"[green]all {len(ran)} checks passed[/]"
        if passed
        else f"[red]{failed} of {len(ran)} checks failed[/]"
    )
    console.print(verdict, style="bold")


def _verdict(finding: "CheckResult") -> str:
    from draftwood.testing.promises import OVER_A_TABLE

    if finding.check == "control":
        return finding.detail
    told = "as the model's own" if finding.passed else "not the model's distribution"
    if finding.check == "law" and finding.detail != OVER_A_TABLE:
        return told
    return f"{told}: {finding.detail}"
