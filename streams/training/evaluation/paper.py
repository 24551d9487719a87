"""The numbers that the paper prints, for the report to show beside the measured ones.

Gains are in points over Base, lifts in percent; None where the paper prints nothing. They were measured on production data that is not public, so
signs and order can be compared with ours, sizes cannot.

Source: AIF, Tables 2 and 3.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of Table 2: points of HR@100 and of GAUC over Base, percent of CTR and of RPM over Base."""

    hr_pt: float | None
    gauc_pt: float | None
    ctr_pct: float | None
    rpm_pct: float | None


TABLE_2 = {
    "base": PaperRow(0.0, 0.0, 0.0, 0.0),
    "full": PaperRow(8.45, 7.83, None, None),
    "aif": PaperRow(7.91, 7.29, 8.72, 5.80),
    "aif_without_async": PaperRow(3.99, 3.71, 4.43, 3.36),
    "aif_without_sim": PaperRow(5.97, 6.13, 6.11, 4.79),
    "aif_without_bea": PaperRow(5.86, 6.09, 7.19, 4.02),
    "aif_without_long_term": PaperRow(5.43, 5.98, 6.45, 3.71),
    "base_15_candidates": PaperRow(None, None, 3.75, 1.69),
    "base_15_parameters": PaperRow(None, None, 1.96, 1.07),
}

# By variant: (points of GAUC lost against DIN + SimTier, percent of the counted cost saved).
TABLE_3 = {
    "din_simtier": (0.0, 0.0),
    "lsh_din_simtier": (0.28, 43.75),
    "din_lsh_simtier": (0.37, 43.75),
    "mm_din_simtier": (0.23, 50.0),
    "lsh_256": (0.45, 93.75),
}
