"""`draftwood report` of frontier and solve: plots, texts by writer, search trees."""

import json
import re
from pathlib import Path

import pytest

from command import refused, run
from draftwood_bench.run import describe
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.frontier.points import AnswerRecord
from draftwood_choices.frontier.report import coloured, curve_of, curves, read
from draftwood_choices.frontier.report import report as frontier_report
from draftwood_choices.frontier.run import PROTOCOL as FRONTIER
from draftwood_choices.frontier.table import leader_written
from draftwood_choices.search.methods import Solution
from draftwood_choices.search.nodes import SearchNode, as_html, nodes_of
from draftwood_choices.search.proposals import Proposal
from draftwood_choices.search.view import draw_search
from draftwood_choices.solving.report import report as solve_report
from draftwood_choices.solving.run import PLAIN, SolvedRecord
from draftwood_choices.solving.run import PROTOCOL as SOLVE

SETTINGS = {"leader": "large", "follower": "small", "rule": "foreal", "knob": "n"}
PROMPTS = 20


def swept(folder: Path, rule: str = "foreal", **settings: str) -> Path:
    """A folder of a sweep whose rule loses a tenth of the leader's quality."""
    found = RecordFolder(folder, FRONTIER, AnswerRecord)
    found.begin({**SETTINGS, "rule": rule, **settings})
    points = {"leader alone": (0.0, 20), "follower alone": (0.5, 0), f"{rule},n=5": (0.2, 5)}
    points |= {f"{rule},n=15": (0.1, 10), f"random at {rule},n=5's share": (0.4, 5)}
    for number in range(PROMPTS):
        for point, (lost, led) in points.items():
            quality = (number + 0.5) / PROMPTS - lost
            parts = [("leader", "<a> 1."), ("follower", " & b")]
            record = AnswerRecord(
                *(point, str(number), "right number", quality, 20, led, 1, 5, 6, 7, 0.5),
                *("<a> 1. & b", parts),
            )
            found.append(record)
    return folder


def solved(folder: Path) -> Path:
    found = RecordFolder(folder, SOLVE, SolvedRecord)
    found.begin({"methods": "lite-search", "answers": 4})
    nodes = [
        SearchNode("1+1=3", 0.25, -0.5),
        SearchNode("1+1=2", 0.75, -0.25, None, True),
        SearchNode("2 <done>", 0.875, -0.125, 1, True),
    ]
    for number in range(PROMPTS):
        for point, right, tokens in ((PLAIN, number % 2, 10), ("lite-search", 1, 40)):
            kept = [vars(each) for each in nodes] if point != PLAIN else []
            costs = (right, right, tokens, 5, 3, 0.5)
            found.append(SolvedRecord(point, str(number), float(right), *costs, "text", kept))
    return folder


def test_points_lie_on_the_curves_of_their_rules() -> None:
    names = {
        "foreal,n=15": "foreal",
        "entropy-switch,tau=0.5": "entropy-switch",
        "random at foreal,n=15's share": "random",
        "first-n at foreal,n=15's share": "first-n",
        "leader alone": "leader alone",
        "random,share=0.5": "random",
    }
    assert {point: curve_of(point) for point in names} == names


def test_intervals_are_those_of_the_paired_difference(tmp_path: Path) -> None:
    """Prompts differ widely, and every one loses a tenth."""
    found = curves([read(swept(tmp_path / "run"))], leader_written)
    assert set(found) == {"leader alone", "follower alone", "foreal", "random"}
    (alone,) = found["leader alone"]
    assert alone[0] == 21.0
    assert alone[1].low == alone[1].high == alone[1].value
    at = dict(found["foreal"])
    assert set(at) == {6.0, 11.0}
    for cost, lost in ((6.0, 0.2), (11.0, 0.1)):
        assert at[cost].value == pytest.approx(alone[1].value - lost)
        assert at[cost].high - at[cost].low == pytest.approx(0.0, abs=1e-9)


def test_sweeps_of_the_same_prompts_share_a_figure(tmp_path: Path) -> None:
    one, two = swept(tmp_path / "one"), swept(tmp_path / "two", "entropy-switch")
    other = swept(tmp_path / "other", leader="another")
    first, second = frontier_report([one, two, other])
    assert list(first.folders) == [one, two]
    assert list(second.folders) == [other]
    for finding in first.findings:
        for name in ("foreal", "entropy-switch", "random", "leader alone", "follower alone"):
            assert name in finding.drawing
    assert "entropy-switch" not in second.findings[0].drawing
    assert [each.title.split()[-1] for each in first.findings] == ["wrote", "both"]


def test_a_text_is_coloured_by_writer() -> None:
    html = coloured([("leader", "<a>"), ("follower", "b")])
    assert '<span class="by leader" title="leader">&lt;a&gt;</span>' in html
    assert '<span class="by follower" title="follower">b</span>' in html


def test_the_path_to_the_chosen_answer_is_marked() -> None:
    task = Proposal("", is_whole=False)
    begun = Proposal("a", log_prob=-1.0, value=0.5, above=task, step="a", is_whole=False)
    other = Proposal("b", log_prob=-2.0, value=0.25, above=task, step="b", is_whole=False)
    ended = Proposal("a c", log_prob=-1.5, value=0.75, above=begun, step="c")
    found = Solution(ended, [task, begun, other, ended])
    nodes = nodes_of(found)
    assert [each.text for each in nodes] == ["a", "b", "c"]
    assert [each.above for each in nodes] == [None, None, 0]
    assert [each.is_chosen for each in nodes] == [True, False, True]
    html = as_html(nodes)
    assert html.count("✓") == html.count("node kept") == 2
    assert "value 0.25, log-probability -2" in html
    assert re.search(r">a<.*<ul><li><span[^>]*>c<", html)
    labels = [str(each.label) for each in draw_search(found).children]
    assert labels == ["a  ✓  value 0.5, log-probability -1", "b  value 0.25, log-probability -2"]


def test_an_answer_without_steps_is_no_task() -> None:
    empty = Proposal("", value=0.5)
    assert [each.is_chosen for each in nodes_of(Solution(empty, [empty]))] == [True]


def test_one_page_of_both_protocols(tmp_path: Path) -> None:
    page, tables = tmp_path / "report.html", tmp_path / "report.md"
    folders = (str(swept(tmp_path / "sweep")), str(solved(tmp_path / "search")))
    done = run("report", *folders, "--output", str(page), "--markdown", str(tables))
    assert done.exit_code == 0, done.output
    html, text = page.read_text(), tables.read_text()
    assert html.count("<svg") == 5  # two costs of the sweep, three of the search
    assert "foreal,n=15: quality 0.40 beside 0.50 of the leader alone, for 52% of its" in html
    assert f"lite-search solves 100% of 20 tasks, {PLAIN} 50%, for 4.0 times its tokens" in html
    assert "&lt;a&gt; 1.</span>" in html
    assert "2 &lt;done&gt;" in html
    assert "<done>" not in html
    assert not re.search(r"<(link|img|iframe|script)[^>]*(src|href)=|@import|url\((?!#)", html)
    assert "| foreal,n=15 | 20 |" in text
    assert "| lite-search | 20 | 1.00 [1.00, 1.00] |" in text


def test_folders_are_shown_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "commit", lambda: "abcdef123")
    folder = str(solved(tmp_path / "search"))
    told = run("bench", "show", folder, "--clean").stdout
    assert "lite-search solves 100% of 20 tasks" in told
    assert "commit abcdef123" in told
    assert "| lite-search | 20 |" in run("bench", "show", folder, "--markdown").stdout
    (table,) = json.loads(run("bench", "show", folder, "--json").stdout)["tables"]
    assert [row[0] for row in table["rows"]] == [PLAIN, "lite-search"]
    assert "--orderings is for rsd" in refused("bench", "show", folder, "--orderings")
    monkeypatch.setattr(describe, "commit", lambda: "abcdef123-dirty")
    sweep = str(swept(tmp_path / "sweep"))
    assert "foreal,n=5" in run("bench", "show", sweep).stdout
    left = run("bench", "show", sweep, "--clean").stdout
    assert "left out" in left
    assert "foreal,n=5" not in left


def test_searches_are_drawn_where_there_is_something_to_draw(tmp_path: Path) -> None:
    (section,) = solve_report([solved(tmp_path / "run")])
    (gallery,) = section.galleries
    assert {each.group for each in gallery.drawings} == {"lite-search"}
    assert len(gallery.drawings) == 6
    assert all("prompt" in each.label and "✓" in each.body for each in gallery.drawings)


def test_records_of_old_runs_have_no_drawings(tmp_path: Path) -> None:
    folder = swept(tmp_path / "run")
    file = folder / "frontier.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        del line["passages"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (section,) = frontier_report([folder])
    assert not section.galleries[0].html()
    assert len(section.findings) == 2


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    folder = swept(tmp_path / "run")
    output = ("--output", str(tmp_path / "report.html"))
    lines = (folder / "frontier.jsonl").read_text().splitlines(keepends=True)
    (folder / "frontier.jsonl").write_text("".join(lines[1:3]))
    assert "no answer of the leader alone yet" in refused("report", str(folder), *output)
    (folder / "frontier.jsonl").write_text("".join(lines))
    (folder / "frontier.json").unlink()
    assert "does not hold the settings" in refused("report", str(folder), *output)
    (folder / "frontier.jsonl").write_text("{}\n")
    assert "frontier.jsonl:1 is no record" in refused("report", str(folder), *output)
    assert not (tmp_path / "report.html").exists()
