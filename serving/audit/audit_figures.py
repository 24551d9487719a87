"""The figures of `aif verify-answers`: declared and filled in. Not here: the audit (parity.py)."""

from infra.bench.declared import Bench, Figure
from infra.bench.report import Figures
from serving.audit.parity import Report

VERIFY_ANSWERS = Bench(
    "verify-answers",
    "Recorded answers, each recomputed with the reference network from the files and deltas of the version it names.",
    (
        Figure("answers", "count", "answers in the file"),
        Figure("answers_recomputed", "count", "of these, recomputed"),
        Figure("mixed_versions", "count", "answers that are not what the reference model gives, within the tolerance"),
        Figure("versions", "count", "versions that the answers name"),
        Figure("score_error_max", "tolerances", "largest difference of a score, in units of the derived tolerance"),
        Figure("seconds_total", "s", "the whole audit"),
    ),
    goals=("mixed_versions == 0", "score_error_max <= 1"),
    options="FILE",
    asked=("sample",),
)


def audit_figures(report: Report, file: str, sample: int | None) -> Figures:
    """What an audit found; `file` is the name of the file with the answers."""
    figures = Figures(VERIFY_ANSWERS, {"file": file, "sample": sample, "reasons": report.reasons})
    figures.add("answers", report.answers)
    figures.add("answers_recomputed", report.recomputed)
    figures.add("mixed_versions", report.mismatched)
    figures.add("versions", len(report.versions))
    figures.add("score_error_max", report.error_max)
    figures.add("seconds_total", report.seconds)
    return figures
