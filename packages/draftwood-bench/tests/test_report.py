"""Reports of records written down by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages.headlines import (
    method_sentences,
    peer_sentences,
    quality_sentences,
    speed_sentences,
)
from draftwood_bench.records.files import Record
from draftwood_bench.records.notes import notes
from draftwood_bench.records.statistics import pooled
from draftwood_bench.report import trees
from draftwood_bench.report.findings import accepted, findings, per_token
from draftwood_bench.report.method_speeds import measured_speeds
from draftwood_bench.report.overview import chosen, facts, overview
from draftwood_bench.report.page import headline, page
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import tables
from draftwood_bench.run.blank import blank
from making import record, run_info

PLAIN = [record("plain", prompt, runs=10) for prompt in "123"]
AUTO = [record("auto", prompt, runs=runs) for prompt, runs in zip("123", (5, 4, 2), strict=True)]
CASES = ((("rsd-s", 0), ("rsd-c", 0)), (("rsd-s", 0), ("rsd-c", 9)))
PLACE = {
    "position": 3,
    "plain_token": 1,
    "other_token": 2,
    "margin": 0.25,
    "tolerance": 0.0,
    "tie": False,
}
DRAWN = {  # 0 - 1 - 2 - 3 was kept; 4 and 5 fork from 1
    **{
        "step": 2,
        "context_tail": "a <b>",
        "tokens": ["r", " x", "y\n", "z", "<p>", "w"],
        "parents": [-1, 0, 1, 2, 1, 4],
    },
    **{
        "probabilities": [None, 0.5, 0.25, 1.0, 0.1, 0.1],
        "sources": [],
        "path": [1, 2, 3],
        "emitted": " xyz!",
    },
}


def measured(records: list[Record], **more) -> MeasuredRun:
    return MeasuredRun(Path("run"), run_info(**more), records, {"auto": [DRAWN]})


def test_one_row_per_method_and_no_empty_columns() -> None:
    table = overview([*PLAIN, *AUTO], run_info(), 0.0)
    alone, whole = "speed-up over plain, decoding alone [95 %]", "speed-up, end to end [95 %]"
    assert table.head[:7] == (
        *("method", "prompts", "tokens per pass [95 %]", "tokens/s", alone),
        "tokens/s, end to end",
        whole,
    )
    assert not any("alpha*" in name for name in table.head)
    assert [row[:2] for row in table.rows] == [("plain", "3"), ("auto", "3")]
    assert table.rows[1][4].startswith("2.50 [")
    assert table.rows[1][6].startswith("1.67 [")  # 1.5 seconds over 0.9 on the prompt in the middle


def of_so_many(passes: int) -> list[Record]:
    """Plain decoding, and a method whose every share comes from so many passes, in two categories
    of one prompt and of two.
    """
    of_category = dict(zip("123", ("math", "chat", "chat"), strict=True))
    found = []
    for prompt, category in of_category.items():
        drafted = record("auto", prompt, tokens=2 * passes + 1, runs=passes, category=category)
        drafted.stats.update(
            accepted_by_depth=[passes // 4],
            bounded_runs=passes,
            root_acceptance=0.0,
            root_acceptance_bound=0.25,
        )
        plain = record("plain", prompt, tokens=90, runs=89, category=category)
        found += [plain, drafted]
    return found


def cells_of(records: list[Record], title: str) -> dict[str, str]:
    """The row of ``auto`` by column, of the table whose title holds these words."""
    found = [overview(records, run_info(), 0.0), *tables(records, run_info())]
    table = next(table for table in found if title in table.title)
    [row] = [row for row in table.rows if row[0] == "auto"]
    return dict(zip(table.head, row, strict=True))


@pytest.mark.parametrize(("passes", "is_told"), [(6, False), (7, True)])
def test_what_few_passes_would_tell_is_hidden_and_n_stands_beside_the_rest(
    passes: int, is_told: bool
) -> None:
    records = of_so_many(passes)  # three prompts of 6 are 18 passes, of 7 are 21
    first, proof = cells_of(records, "T = 0"), cells_of(records, "proof")
    said = f"0.00 / 0.25 ({3 * passes})" if is_told else f"- ({3 * passes})"
    assert first["accepted at the root / alpha* (passes)"] == said
    assert first["tokens per pass [95 %]"].startswith("2.00 [" if is_told else "-")
    assert proof["accepted"] == ("0.00" if is_told else "-")
    assert (proof["alpha*"], proof["of passes"]) == ("0.25" if is_told else "-", str(3 * passes))
    assert first["prompts"] == cells_of(records, "speed")["prompts"] == "3"
    by_category = cells_of(records, "by category")
    assert [name for name in by_category if "n = " in name] == ["math (n = 1)", "chat (n = 2)"]
    assert all(cell.endswith(" (-)") for name, cell in by_category.items() if "n = " in name)
    (note,) = [each for each in notes(records, run_info()) if "fewer than 20 forward" in each]
    assert "more prompts or tokens fill it" in note  # by category
    assert ("--bound-prompts and --bound-tokens fill accepted" in note) != is_told
    shown = findings(measured(records), 0.0)
    depths = [each.caption for each in shown if each.title.startswith("auto keeps a draft token")]
    assert len(depths) == is_told
    assert all(f"passes, {3 * passes} of each method" in caption for caption in depths)


def test_nothing_is_said_of_hidden_figures_where_none_is() -> None:
    """Negative control."""
    records = of_so_many(40)
    assert not any("fewer than 20" in note for note in notes(records, run_info()))
    assert "(2.00)" in cells_of(records, "by category")["math (n = 1)"]


def test_tables_name_a_commit_from_which_files_differed() -> None:
    records = [*PLAIN, *AUTO]
    for more in (
        {"commit": "abc-dirty"},
        {"commit": "abc", "resumed": [{"commit": "abc-dirty"}, {"commit": None}]},
    ):
        run = run_info(**more)
        assert all(
            table.title.endswith(", measured at abc-dirty") for table in tables(records, run)
        )
        assert overview(records, run, 0.0).title == "T = 0, measured at abc-dirty"
        assert notes(records, run)[1].startswith("abc-dirty: files differed from this commit")
    clean = run_info(commit="abc")
    assert not any(
        "abc" in each
        for each in [*notes(records, clean), *(t.title for t in tables(records, clean))]
    )


def test_a_refused_speed_up_shows_the_place_instead_of_a_number() -> None:
    wrong = [replace(AUTO[0], identical_to_plain=False, divergence=PLACE), *AUTO[1:]]
    shown = overview([*PLAIN, *wrong], run_info(), 0.0).rows[1][4]
    assert shown == "none: 1 texts differ, first at token 3 of 1, top logits 0.25 apart"
    assert (
        headline(measured([*PLAIN, *wrong]))
        == "auto: texts differ from plain decoding's, so no speed-up is told"
    )
    told = headline(measured([*PLAIN, *AUTO]))
    assert told.startswith(
        "auto decodes 2.50 times as fast as plain decoding (1.67 times end to end)"
    )


def test_a_refused_method_takes_no_part_in_the_figure_by_category() -> None:
    wrong = [replace(AUTO[0], identical_to_plain=False, divergence=PLACE), *AUTO[1:]]
    told = findings(measured([replace(r, category=r.prompt) for r in [*PLAIN, *AUTO]]), 0.0)
    refused = findings(measured([replace(r, category=r.prompt) for r in [*PLAIN, *wrong]]), 0.0)
    assert [found.title for found in told] == [
        "auto gains most in 3 (5.00 times), least in 1 (2.00)"
    ]
    assert refused == []


def test_methods_at_fixed_budgets_stand_with_their_best_shape_at_the_largest() -> None:
    sizes = {
        ("budget 6", "a"): 20,
        ("budget 30", "b"): 40,
        ("budget 30", "c"): 30,
        ("length 5", "d"): 10,
    }
    cells = [
        record("rsd-s", tokens=101, at=at, cell=f"rsd-s | {at} | {shape}", runs=runs)
        for (at, shape), runs in sizes.items()
    ]
    (found,) = chosen(cells, run_info(protocol="rsd"), 0.0)
    assert found.cell == "rsd-s | budget 30 | c"
    titles = [each.title for each in findings(measured(cells, protocol="rsd"), 0.0)]
    assert titles[0] == "At budget 30, rsd-s yields most: 3.33 tokens per pass"


def test_a_leader_within_the_intervals_of_others_is_not_called_clear() -> None:
    def title(other: int) -> str:
        cells = [
            record(m, str(n), at="budget 6", cell=m, runs=4 + n % 2 + d)
            for m, d in CASES[other]
            for n in range(9)
        ]
        return findings(measured(cells, protocol="rsd"), 0.0)[0].title

    assert title(0).endswith("not clearly more than rsd-c")
    assert title(1).endswith("tokens per pass")


def test_sums_by_depth_and_phase() -> None:
    stats = {"tokens": 11, "target_runs": 5, "accepted_by_depth": [4, 1], "seconds": {"draft": 0.5}}
    group = [
        replace(AUTO[0], stats=stats),
        replace(AUTO[1], stats={**stats, "accepted_by_depth": [1]}),
    ]
    assert pooled(group, accepted(0)) == pytest.approx(0.5)
    assert pooled(group, accepted(1)) == pytest.approx(0.1)
    assert pooled(group, per_token("draft")) == pytest.approx(0.05)
    assert pooled(group, per_token("verify")) is None
    assert pooled(AUTO, accepted(0)) is None


def test_spec_bench_is_named_as_its_half() -> None:
    prompts = {"source": "spec-bench", "note": "even half", "count": 3, "rule": "none is left out"}
    assert "even half" in facts(run_info(prompts=prompts), AUTO)["prompts"]


def test_a_tree_marks_what_was_kept_and_shows_tokens_as_they_are() -> None:
    drawing = trees.tree(DRAWN)
    assert drawing.count("✓") == 3
    # what was not kept is one line: two nodes without a fork
    assert drawing.count("<details>") == 0
    assert "&lt;p&gt;" in drawing
    assert "y↵" in drawing
    assert drawing.index("y↵") < drawing.index("&lt;p&gt;")
    assert trees.count(DRAWN) == "step 2: 3 of 5 draft tokens accepted"


def test_what_comes_from_outside_is_escaped() -> None:
    html = page([measured([*PLAIN, *AUTO], model="<script>alert(1)</script>")])
    assert "<script>alert" not in html
    assert "a·&lt;b&gt;" in html


def test_the_package_tells_a_speed_for_each_setting() -> None:
    drawn = [replace(r, temperature=1.0, identical_to_plain=None) for r in [*PLAIN, *AUTO]]
    speeds = measured_speeds([measured([*PLAIN, *AUTO, *drawn])])
    assert speeds.keys() == {"auto"}  # plain decoding has none
    assert [(each.temperature, each.end_to_end, each.decoding) for each in speeds["auto"]] == [
        (0.0, 1.67, 2.5),
        (1.0, 1.67, 2.5),
    ]


def test_a_run_that_timed_nothing_stands_for_no_method() -> None:
    lookup = [record("lookup", prompt, runs=6) for prompt in "123"]
    untimed = [
        replace(each, stats={"tokens": 11, "target_runs": 5}, seconds_end_to_end=None)
        for each in [*PLAIN, *AUTO, *lookup]
    ]
    timed = measured([*PLAIN, *AUTO], model="timed", drafter="heads/mine")
    (speed,) = measured_speeds([measured(untimed, model="untimed"), timed])["auto"]
    assert (speed.model, speed.dtype, speed.draft) == ("timed", "float32", "mine")
    others = [replace(each, at="budget 30") for each in AUTO]  # not the method's own tree
    assert not measured_speeds([measured([*PLAIN, *others])])


def test_a_method_stands_with_the_run_that_is_stated_for_it() -> None:
    """The package and the pages would else tell two figures of one method."""
    lookup = [record("lookup", prompt, runs=6) for prompt in "123"]
    few, most = measured([*PLAIN, *AUTO], model="few"), measured([*PLAIN, *AUTO, *lookup])
    for stated, model in (({}, "tiny"), ({"auto": few}, "few")):
        speeds = measured_speeds([few, most], stated)
        assert speeds["auto"][0].model == model
        assert speeds["lookup"][0].model == "tiny"


def test_sentences_on_methods_tell_gains_from_losses_and_tokens_from_speed() -> None:
    """Whole requests take `runs / 10 + 0.5` seconds here, whatever they emit."""
    many = [record("recycling", prompt, runs=2, seconds_end_to_end=9.0) for prompt in "123"]
    level = [record("lookup", prompt, runs=10, seconds_end_to_end=1.498) for prompt in "123"]
    gains, most = method_sentences(measured([*PLAIN, *AUTO, *many, *level]))
    faster, slower, same = gains.removeprefix("**Whole requests, greedy:** ").split("; ")
    assert faster.startswith("faster than plain decoding `auto` (1.67 [")
    assert slower.startswith("slower `recycling` (0.17 [")
    assert same == "level `lookup` (1.00 [1.00, 1.00])."
    assert "greedy:** `recycling`, 5.00 [5.00, 5.00], at 0.17 [" in most


def test_one_prompt_makes_no_method_faster() -> None:
    told = measured([PLAIN[0], AUTO[0]])
    gains, _ = method_sentences(told)
    assert gains == "**Whole requests, greedy:** level `auto` (1.50)."
    assert measured_speeds([told]) == {}
    by_category = [replace(each, category=each.prompt) for each in [*PLAIN, *AUTO]]
    assert "So few prompts" in findings(measured(by_category), 0.0)[0].caption  # and it is drawn


def test_figures_in_front_tell_whole_requests_too() -> None:
    speeds = {"peer:slow": (4, 0.1), "peer:quick": (2, 3.0)}
    peers = [
        replace(
            record(name, runs=runs, at="plain", cell=name, identical_to_plain=False),
            seconds_end_to_end=seconds,
        )
        for name, (runs, seconds) in speeds.items()
    ]
    found = measured([*PLAIN, *AUTO, *peers], hardware={"device": "fake", "cores": 2})
    (speed,) = speed_sentences(found, "auto")
    assert "`auto` answers whole requests, prompt included, 1.67 [" in speed
    assert speed.index("decoding alone is 2.50 [") > speed.index("1.67 [")
    (beside,) = peer_sentences(found, "auto")  # who decodes fastest is not who answers fastest
    assert (
        "0.1 times the tokens per second of the fastest peer, slow with plain (13 against 110)"
        in beside
    )
    assert "decoding alone 0.5 times (27 against 50, quick with plain)" in beside
    assert peer_sentences(measured([*PLAIN, *AUTO]), "auto") == []
    assert peer_sentences(found, "lookup") == []
    assert speed_sentences(measured(PLAIN), "auto") == []
    shares = {"float32": 1.0, "int8": 0.9646, "bfloat16": 0.993}
    records = [replace(blank(n), stats={"same_likeliest": s}) for n, s in shares.items()]
    (told,) = quality_sentences(measured(records, protocol="quality"))
    assert "tiny beside float32:** the likeliest" in told
    assert "96.5 % of places in int8, 99.3 % of places in bfloat16" in told
    assert quality_sentences(measured(records[:1], protocol="quality")) == []
