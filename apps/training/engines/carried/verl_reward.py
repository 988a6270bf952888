"""veRL's reward hook (`reward.custom_reward_function`). A masked sample gets the reward 0 and is
counted in the metric `masked`.
"""

import json

from flywheel_environment import verified


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    found = verified(json.loads(ground_truth), solution_str)
    masked = found["score"] is None
    return {"score": 0.0 if masked else found["score"], "masked": float(masked)}
