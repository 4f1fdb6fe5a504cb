"""`draftwood report`: a page and Markdown tables of benchmark runs."""

import json
from pathlib import Path

import click

from draftwood.cli import options

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--output", type=FILE, default="report.html", show_default=True, help="The page.")
@click.option("--markdown", type=FILE, help="Also write the tables in Markdown here.")
@options.as_json
def report(folders: tuple[Path, ...], output: Path, markdown: Path | None, as_json: bool) -> None:
    """Write what `draftwood bench` measured in each DIR as one HTML page, which needs no network.

    \b
    Examples:
      draftwood report runs/first
      draftwood report runs/first runs/rsd --output results.html --markdown results.md
      draftwood report runs/foreal runs/entropy
    """
    from draftwood_bench.report import reading
    from draftwood_bench.report.markdown import markdown as as_markdown
    from draftwood_bench.report.page import page
    from draftwood_bench.report.sections import sections

    reading.require_apart([output] if markdown is None else [output, markdown], folders)
    told, left = sections(reading.distinct(folders))
    runs = [reading.read(folder) for folder in left]
    written = [(output, page(runs, told))]
    if markdown is not None:
        texts = [as_markdown(runs), *(each.markdown() for each in told)]
        written.append((markdown, "\n".join(filter(None, texts))))
    for path, text in written:
        reading.write(path, text)
    names = [str(path) for path, _ in written]
    click.echo(json.dumps({"written": names}) if as_json else f"wrote {' and '.join(names)}")
