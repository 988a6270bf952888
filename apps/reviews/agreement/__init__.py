"""Do people and the verifier agree? Pure: no Django, no torch."""

from apps.reviews.agreement.coefficients import (
    Bin,
    Correlation,
    Rate,
    alpha_interval,
    calibration,
    cohen_kappa,
    kappa_interval,
    kappa_standard_error,
    krippendorff_alpha,
    ranks,
    rate,
    rates,
    spearman,
    weighted_kappa,
)
from apps.reviews.agreement.decision import (
    DEFAULT_POLICY,
    Agreement,
    Between,
    Judged,
    Verdict,
    assess,
    between_reviewers,
    decide,
    disagreements,
    pairs_of,
    reviewers_alpha,
)
from apps.reviews.agreement.edits import Change, EditEffect, edit_effect, is_held_out

__all__ = [
    "DEFAULT_POLICY", "Agreement", "Between", "Bin", "Change", "Correlation", "EditEffect", "Judged", "Rate", "Verdict",
    "alpha_interval", "assess", "between_reviewers", "calibration", "cohen_kappa", "decide", "disagreements", "edit_effect",
    "is_held_out", "kappa_interval", "kappa_standard_error", "krippendorff_alpha", "pairs_of", "ranks", "rate", "rates",
    "reviewers_alpha", "spearman", "weighted_kappa",
]  # fmt: skip
