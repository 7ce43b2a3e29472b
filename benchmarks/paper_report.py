"""Writes what came out of a plan: a page with all tables, and a CSV file with all tests."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from paper_claims import Finding, Scored
from paper_rows import Figure, Plan
from paper_scores import Result

from probseg.metrics import (
    REPORTED_CLICKS,
    miou_at,
    noc,
    standard_error,
    standard_error_objects,
    standard_error_trials,
)
from probseg.paths import replacing
from probseg.reports.tables import ScoreTable, as_markdown, clicks_so_far, count, without_html

PERCENTS = (80, 85, 90)

HOW_TO_READ = """\
{about}

mIoU@k: mean IoU in percent after k {clicks}, ± standard error over objects ± standard error
over trials (as the paper has it), and ± standard error over training seeds where a row has several
networks. NoC@q: mean number of corrective clicks to an IoU of q percent, ± standard error over
objects; a run that never gets there counts as {cap}. Protocol `{name}`, version {version}, {trials}
trials; IoUs are rounded to four digits.

{tests}"""

BY_RANKS = """\
The tests are paired: each object counts with its mean over trials and networks, photographs with
the mean over their objects. p is from Wilcoxon's signed-rank test, corrected after Holm over all
tests of a figure; the interval is a bootstrap over photographs, not corrected; d is the mean of the
photographs' differences over their standard deviation. A claim holds where the corrected p is at
most 0.05 and ranks and mean both speak for it, and is contradicted where both speak against it.
"Not shown" does not mean that there is no effect. The tests ask whether these networks differ on
other photographs; how much another training would change, only several seeds tell."""

BY_SEEDS = """\
The tests are paired by photograph and seed, on the photographs of all data sets together: each
counts with the mean over its objects and trials. Photographs and seeds are crossed random effects,
so that p and the 95 % interval are about other photographs and other trainings (Banerjee 1960: the
size of the test is at most its level, whatever the number of seeds). p is corrected after Holm over
all tests of this page; the interval is not. "Detectable" is the difference that such a test shows
with a power of 80 %, before the correction; d is the mean of the photographs' differences over
their standard deviation. A claim holds where the corrected p is at most 0.05 and the mean speaks
for it, and is contradicted where it speaks against it. "Not shown" does not mean that there is no
effect."""


def write_claims(path: Path, findings: Sequence[Finding]) -> None:
    """Write a line for each test; numbers have four digits."""
    columns = [field.name for field in fields(Finding) if field.name != "direction"]
    columns += ["verdict", "sentence"]
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for finding in findings:
            writer.writerow([_short(getattr(finding, column)) for column in columns])


def write_report(
    path: Path,
    plan: Plan,
    scored: Mapping[str, Mapping[str, Scored]],
    findings: Sequence[Finding],
    results: Sequence[Result],
    missing: Sequence[str],
) -> None:
    """Write all tables, the verdicts and where the numbers come from.

    Args:
        path: The Markdown file; figures are expected beside it.
        plan: What was asked for.
        scored: By data set and row.
        findings: Of all figures.
        results: What the numbers come from.
        missing: What is not there, in sentences.
    """
    protocol = plan.protocol
    told = HOW_TO_READ.format(
        clicks=clicks_so_far(protocol),
        cap=protocol.max_clicks,
        name=protocol.name,
        version=protocol.version,
        trials=protocol.trials,
        about=plan.about,
        tests=BY_SEEDS if plan.pooled else BY_RANKS,
    )
    lines = [f"# {plan.title}", "", told, ""]
    for dataset, rows in scored.items():
        first = next(iter(rows.values()))
        lines += [f"## {dataset}", ""]
        extent = count(len(first.objects), "object"), count(len(set(first.photos)), "photograph")
        lines += [f"{' on '.join(extent)}.", ""]
        lines += [*as_markdown(_scores(plan, rows)), ""]
    for figure in plan.figures:
        drawn = [name for name in figure.rows if any(name in rows for rows in scored.values())]
        if drawn:
            mine = [finding for finding in findings if finding.figure == figure.name]
            lines += [
                f"## {figure.title}",
                "",
                f"![{figure.title}]({figure_name(plan, figure)})",
                "",
            ]
            lines += _claims(plan, figure, mine)
    if missing:
        lines += ["## What is missing", "", *(f"- {without_html(text)}" for text in missing), ""]
    lines += ["## What the numbers come from", "", *as_markdown(_sources(results))]
    with replacing(path) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def figure_name(plan: Plan, figure: Figure) -> str:
    """Return the name of a figure's file."""
    return f"{plan.name}_{figure.name}.png"


def _scores(plan: Plan, rows: Mapping[str, Scored]) -> ScoreTable:
    """Return the scores of a data set, a line for each row."""
    protocol = plan.protocol
    clicks = [k for k in REPORTED_CLICKS if protocol.first_answer <= k <= protocol.max_clicks]
    header = ["row", "networks", *(f"mIoU@{k}" for k in clicks), *(f"NoC@{q}" for q in PERCENTS)]
    lines = []
    for name, row in rows.items():
        together = row.ious.mean(axis=0)
        mean = 100 * miou_at(together)
        spreads = [standard_error_objects(together), standard_error_trials(together)]
        spreads.append(standard_error(row.ious.mean(axis=(1, 2))))
        line = [f"{plan.rows[name].label} (`{name}`)", f"{len(row.ious)}"]
        for k in clicks:
            known = [f"{100 * of[k]:.1f}" for of in spreads if np.isfinite(of[k])]
            line.append(" ± ".join([f"{mean[k]:.1f}", *known]))
        for q in PERCENTS:
            counts = np.mean([noc(ious, q / 100).mean(axis=1) for ious in row.ious], axis=0)
            line.append(f"{counts.mean():.2f} ± {standard_error(counts):.2f}")
        lines.append(line)
    return ScoreTable("", "", header, lines)


def _claims(plan: Plan, figure: Figure, findings: Sequence[Finding]) -> list[str]:
    """Return the verdicts on a figure's claims, and the numbers behind them."""
    lines = []
    for claim in figure.claims:
        rows = (claim.better, claim.than)
        mine = [of for of in findings if (of.better, of.than) == rows and of.claim == claim.text]
        told = " ".join(finding.sentence for finding in mine) or "Not tested: a row is missing."
        lines.append(f"- **{claim.text}** {told}")
    if findings:
        header = ["claim", "data", "k", "mIoU@k", "against", "difference", "95 % interval"]
        header += ["detectable"] if plan.pooled else []
        header += ["d", "ahead / level / behind", "p", "corrected p", "verdict"]
        table = ScoreTable("", "", header, [_cells(plan, finding) for finding in findings])
        lines += ["", *as_markdown(table)]
    return [*lines, ""] if lines else []


def _cells(plan: Plan, finding: Finding) -> list[str]:
    interval = effect = "n/a"
    if finding.low is not None and finding.high is not None:
        interval = f"{finding.low:+.2f} to {finding.high:+.2f}"
    if finding.effect_size is not None:
        effect = f"{finding.effect_size:+.2f}"
    return [
        f"`{finding.better}` over `{finding.than}`",
        finding.dataset,
        f"{finding.clicks}",
        f"{finding.better_miou:.2f}",
        f"{finding.than_miou:.2f}",
        f"{finding.difference:+.2f}",
        interval,
        *([f"{finding.detectable:.2f}"] if plan.pooled and finding.detectable is not None else []),
        effect,
        f"{finding.ahead} / {finding.level} / {finding.behind}",
        f"{finding.p:.2g}",
        f"{finding.corrected_p:.2g}",
        finding.verdict,
    ]


def _sources(results: Sequence[Result]) -> ScoreTable:
    """Return what each network's results were made with."""
    lines = {}
    for result in results:
        source = result.source
        given = [f"{k} {v:g}" for k, v in source["adaptation"].items()]
        lines[result.row, result.seed, source["weights_sha256"], source["commit"]] = [
            result.row,
            source["model"],
            ", ".join(given) or "as trained",
            source["weights_sha256"][:12],
            source["commit"] or "unknown",
            source["torch"],
            source["device"],
        ]
    header = ["row", "model", "adaptation", "weights", "commit", "torch", "device"]
    return ScoreTable("", "", header, list(lines.values()))


def _short(value: str | float | int | None) -> str | float | int | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value
