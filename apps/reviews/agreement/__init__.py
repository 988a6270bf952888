"""Do people and the verifier agree? Pure: no Django, no torch."""

from apps.reviews.agreement.coefficients import (
    Bin,
    Correlation,
    Rate,
    alpha_interval,
    calibration,
    cohen_kappa,
    kappa_interval,
    krippendorff_alpha,
    ranks,
    rate,
    rates,
    spearman,
)
from apps.reviews.agreement.decision import (
    Agreement,
    Alpha,
    Judged,
    Verdict,
    alpha_of,
    assess,
    decide,
    disagreements,
    pairs_of,
)
from apps.reviews.agreement.edits import Change, EditEffect, edit_effect, is_held_out

__all__ = [
    "Agreement", "Alpha", "Bin", "Change", "Correlation", "EditEffect", "Judged", "Rate", "Verdict", "alpha_interval",
    "alpha_of", "assess", "calibration", "cohen_kappa", "decide", "disagreements", "edit_effect", "is_held_out",
    "kappa_interval", "krippendorff_alpha", "pairs_of", "ranks", "rate", "rates", "spearman",
]  # fmt: skip
