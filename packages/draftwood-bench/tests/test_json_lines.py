"""Records of measurements that were killed."""

from pathlib import Path

from benchmarks.common.json_lines import append, read


def test_a_line_that_was_not_written_whole_is_left_out_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "records.jsonl"
    assert read(path) == []
    append(path, {"text": "one"})
    whole = path.read_text()
    for torn in ('{"text": "tw', '{"text": "two"}', ""):
        path.write_text(whole + torn)
        assert read(path) == [{"text": "one"}]
        append(path, {"text": "three"})
        assert read(path) == [{"text": "one"}, {"text": "three"}]
    path.write_text('{"te')  # the first line
    append(path, {"text": "four"})
    assert read(path) == [{"text": "four"}]
