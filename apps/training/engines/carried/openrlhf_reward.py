"""OpenRLHF's reward hook (`--reward.remote_url FILE`). A masked sample gets the reward 0 and is
logged as `masked`.
"""

import json

import torch
from flywheel_environment import verified


def reward_func(queries, prompts, labels, **_):
    """`queries` are prompt and answer decoded together, with special tokens. The end token is not
    part of the answer.
    """
    found = [
        verified(json.loads(label), answer(query, prompt))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    rewards = torch.tensor([one["score"] or 0.0 for one in found], dtype=torch.float32)
    masked = torch.tensor([float(one["score"] is None) for one in found])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"masked": masked}}


def answer(query, prompt):
    text = query[len(prompt) :] if query.startswith(prompt) else query.rpartition(prompt[-200:])[2]
    for end in (
        "<|im_end|>",
        "<|eot_id|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<|return|>",
        "<|call|>",
    ):
        text = text.split(end)[0]
    return text
