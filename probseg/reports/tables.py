"""Tables of an evaluation, one source for Markdown, the console and the page, and templates."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.console import Console

from probseg.evaluation.protocols import BEGINNINGS, Protocol
from probseg.evaluation.scores import SCORES
from probseg.evaluation.summary import Summary, Timing
from probseg.metrics import REPORTED_CLICKS, Interval
from probseg.terminal import Grid, print_table
from probseg.texts import count


class ScoreTable(NamedTuple):
    """A table of text: a column of names, then numbers; a cell of two lines has a line break."""

    title: str
    legend: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def score_tables(summaries: Mapping[str, Summary], protocol: Protocol) -> list[ScoreTable]:
    """Return the tables of a report on scores by data set.

    The empty mask before the first click is nobody's result and is left out; numbers of clicks are
    left out where there are none, or where runs end before all the IoUs that are counted to.
    """
    tables = [_means(summaries, protocol)]
    if protocol.max_clicks > 0 and any(summary.noc for summary in summaries.values()):
        tables.append(_counts(summaries, protocol))
    return [*tables, _others(summaries, protocol)]


def markdown_table(summaries: Mapping[str, Summary], protocol: Protocol) -> str:
    """Return the scores as Markdown: a heading, then each table with its legend."""
    heading = f"# {protocol.name} (version {protocol.version})"
    lines = [as_text(heading), "", as_text(protocol.description), ""]
    for table in score_tables(summaries, protocol):
        lines += [f"## {table.title}", "", table.legend, "", *as_markdown(table), ""]
    return "\n".join(lines)


def print_summary(console: Console, summaries: Mapping[str, Summary], protocol: Protocol) -> None:
    """Print the scores as tables."""
    for table in score_tables(summaries, protocol):
        title = f"{table.title}, protocol {protocol.name}"
        print_table(console, title, Grid(table.header, table.rows), table.legend)


def as_markdown(table: ScoreTable) -> list[str]:
    """Return header and rows as lines of Markdown; what looks like HTML is text."""

    def line(cells: Sequence[str]) -> str:
        safe = ["<br>".join(map(as_text, cell.split("\n"))).replace("|", "\\|") for cell in cells]
        return f"| {' | '.join(safe)} |"

    rule = f"|:--|{'--:|' * (len(table.header) - 1)}"
    return [line(table.header), rule, *(line(row) for row in table.rows)]


def as_text(text: object) -> str:
    """Return text for Markdown with no tag, entity, link, picture or line of its own.

    `p < 0.05` and `[1, 2]` stay.
    """
    line = str(text).replace("\n", " ").replace("](", "]\\(")
    return re.sub(r"[<&](?=\S)", lambda sign: html.escape(sign[0]), line)


def clicks_so_far(protocol: Protocol) -> str:
    """Describe the clicks of a protocol: "k corrective clicks after the box"."""
    return BEGINNINGS[protocol.begins_with].clicks


def listed(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def ending(protocol: Protocol) -> str:
    """Return a sentence with a space before it on the IoU at which runs end; "" without one."""
    if protocol.target_iou is None:
        return ""
    return (
        f" A run ended at an IoU of {100 * protocol.target_iou:g} %, and its last score counts "
        "from there on."
    )


def render(template: str, **values: Any) -> Markup:  # noqa: ANN401
    """Render `templates/<template>.j2`; in HTML, values are escaped unless they are `Markup`."""
    return Markup(_ENVIRONMENT.get_template(f"{template}.j2").render(values))


def _words(value: Any) -> str:  # noqa: ANN401
    """Spell out a JSON value."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _marked(text: str) -> Markup:
    """Return a sentence of a docstring with its marks as HTML."""
    text = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*([^*]+)\*", r"<em>\1</em>", text))


_ENVIRONMENT = Environment(
    loader=PackageLoader("probseg.reports"),
    autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.filters |= {
    "code": lambda text: "`" + str(text).replace("\n", " ").replace("`", "'") + "`",
    "anchor": lambda title: title.lower().replace(" ", "-"),
    "count": count,
    "markdown": lambda table: "\n".join(as_markdown(table)),
    "marked": _marked,
    "text": as_text,
    "words": _words,
}


def _means(summaries: Mapping[str, Summary], protocol: Protocol) -> ScoreTable:
    last = protocol.max_clicks
    clicks = [k for k in REPORTED_CLICKS if protocol.first_result <= k <= last]
    clicks += [last] if last not in clicks else []
    over_trials = any(summary.n_trials > 1 for summary in summaries.values())
    legend = (
        f"mIoU@k: mean IoU in percent after k {clicks_so_far(protocol)}, ± standard error over "
        f"objects{' ± standard error over trials' if over_trials else ''}; below it the 95 % "
        "interval of a bootstrap over photographs."
    ) + ending(protocol)
    rows = []
    for name, summary in summaries.items():
        row = [name, f"{summary.n_objects}", f"{summary.n_photos}", f"{summary.n_trials}"]
        errors = [summary.se_objects, summary.se_trials][: 1 + over_trials]
        for k in clicks:
            spreads = [_percent(None if error is None else error[k]) for error in errors]
            mean = "±".join([f"{100 * summary.miou[k]:.1f}", *spreads])
            row.append(f"{mean}\n{_interval(summary.interval(k), 1, 100)}")
        rows.append(row)
    header = ["data", "objects", "photos", "trials", *(f"mIoU@{k}" for k in clicks)]
    return ScoreTable("Mean IoU", legend, header, rows)


def _counts(summaries: Mapping[str, Summary], protocol: Protocol) -> ScoreTable:
    cap = protocol.max_clicks
    legend = (
        f"NoC@q: mean number of {clicks_so_far(protocol)} to an IoU of q percent, ± standard error "
        "over objects, and the 95 % interval of a bootstrap over photographs. A run that never got "
        f"there counts as {cap}. Median: fewest clicks after which at least half of the runs were "
        f"there. Of all runs (an object in a trial), those under ≥ {cap} needed all {cap} clicks "
        "or never got there, those under never are the latter alone."
    ) + ending(protocol)
    if protocol.target_iou is not None:
        legend += " Higher IoUs are left out."
    rows = [
        [
            name,
            f"NoC@{percent}",
            f"{summary.noc[percent]:.2f}±{_number(summary.noc_se[percent], 2)}",
            _interval(summary.noc_ci[percent], 2),
            _number(summary.noc_median[percent], 0, missing=f"> {cap}"),
            f"{summary.n_objects * summary.n_trials}",
            f"{summary.failures_at_cap[percent]}",
            f"{summary.failures_never[percent]}",
        ]
        for name, summary in summaries.items()
        for percent in summary.noc
    ]
    header = ["data", "score", "mean", "95 % interval", "median", "runs", f"≥ {cap}", "never"]
    return ScoreTable("Number of clicks", legend, header, rows)


def _others(summaries: Mapping[str, Summary], protocol: Protocol) -> ScoreTable:
    last = protocol.max_clicks
    scores = [
        score
        for name, score in SCORES.items()
        if name != "iou" and (last > 0 or not score.needs_clicks)
    ]
    legend = (
        "AUC: area under the curve of IoU over clicks from the first result on, as a mean IoU in "
        "percent, ± standard error over objects; below it the 95 % interval."
        f"{ending(protocol)} {' '.join(score.help for score in scores)}"
    )
    header = ["data", "AUC"]
    header += [score.title if score.of_click else f"{score.title}@{last}" for score in scores]
    if last > 0:
        legend += (
            " Worse: percent of the clicks on an earlier result after which the IoU was lower, and "
            "by how many points in the mean."
        )
        header.append("worse")
    legend += (
        " Seconds of the model's first answer, which takes in the image, and of the next ones: "
        "median / 95th percentile."
    )
    header += ["first answer (s)", "next answer (s)"]
    rows = []
    for name, summary in summaries.items():
        row = [
            name,
            f"{100 * summary.auc:.1f}±{_percent(summary.auc_se)}\n"
            f"{_interval(summary.auc_ci, 1, 100)}",
        ]
        for score in scores:
            of_click = summary.of_clicks.get(score.name)
            value = of_click if score.of_click else summary.scores[score.name][last]
            row.append(_number(None if value is None else score.scale * value, score.digits))
        if last > 0:
            size = _percent(summary.regression_size)
            row.append(f"{_percent(summary.regressions)} (by {size})")
        rows.append([*row, _timing(summary.first_seconds), _timing(summary.next_seconds)])
    return ScoreTable("Other scores", legend, header, rows)


def _number(value: float | None, digits: int, missing: str = "n/a") -> str:
    return missing if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return _number(None if value is None else 100 * value, 1)


def _interval(bounds: Interval | None, digits: int, factor: float = 1) -> str:
    if bounds is None:
        return "[n/a]"
    low, high = bounds
    return f"[{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def _timing(timing: Timing | None) -> str:
    return "n/a" if timing is None else f"{timing.median:.3g} / {timing.p95:.3g}"
