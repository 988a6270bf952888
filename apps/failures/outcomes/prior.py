"""The shipped weights, in log-odds: how strongly each sign indicated failure in 993 labelled runs
of tau-bench's **retail** agents (168 failed; nine sets of runs by two models, published by their
authors under MIT). None of those runs is in this repository.

A logistic regression with an L2 penalty of 100 on signs and on ranks of size, calibrated with Platt
scaling over five folds by task (AUC 0.69). Signs in under 3% of those runs (polite simulated users
neither correct nor give up) have their own likelihood ratio instead, shrunk by n / (n + 10) and
capped at 1.5. A sign whose fitted weight has the wrong sign because of how that benchmark works
(its conversations end with the user, its look-ups fail while a customer is being identified) is set
to 0: only a team's decisions can give it a weight. `docs/outcomes.md` has the table. The weights of
`peers` were fitted together with these, on two to five runs drawn per request; three signs
(asks_for_several, changed_and_handed_over, request_without_an_answer) were added later with about
two thirds of their fitted weight. The threshold is the lowest with at most 10% false alarms in the
development half of the airline runs (`bench.outcomes`).
"""

from __future__ import annotations

# Contradictions with the users' words, the tools' replies or the system prompt. Not part of the
# retail fit: likelihood ratios in the development half of tau-bench's airline runs (68 runs of 17
# tasks, 41 failed), shrunk by n / (n + 4), times 1.5, rounded.
CONTRADICTIONS = {
    "acted_on_the_past": 1.1,
    "another_was_named": 0.3,
    "breaks_a_condition": 0.8,
    "change_without_a_yes": 2.0,
    "changed_unseen": 0.2,
    "choice_not_asked": 1.5,
    "contradicts_a_tool": 1.3,
    "miscounted_time": 0.8,
    "other_than_refused": 1.2,
    "refuses_what_is_allowed": 2.0,
    "request_not_served": 0.6,
    "taken_on_trust": 0.2,
    "wrong_comparison": 0.8,
}
# Likelihood ratios in those airline runs and 475 retail runs of other agents (193 of the 543
# failed), shrunk by n / (n + 4).
LATER = {"agreed_and_not_done": 0.7, "locked_by_itself": 0.8, "miscounted": 0.9}
FROM_FEW = (
    CONTRADICTIONS | LATER
)  # weights based on few runs, which a team's decisions may move further
DENSE = FROM_FEW | {
    "action_failed": 0.03,
    "agent_hands_over": 0.17,
    "agent_in_trouble": 0.04,
    "agent_refuses": 0.30,
    "asks_for_several": 0.25,
    "called_again": 0.17,
    "changed_and_handed_over": 0.7,
    "ends_with_a_call": 1.50,
    "ends_with_a_promise": 0.06,
    "failed_again": 0.34,
    "found_nothing": 0.27,
    "in_the_minority": 0.28,
    "nothing_changed": 0.21,
    "number_from_nowhere": 0.08,
    "refusal_at_the_end": 0.28,
    "request_without_an_answer": 0.8,
    "user_changes_mind": 0.07,
    "user_confused": 0.13,
    "user_corrects": 0.30,
    "user_gives_up": 0.36,
    "user_insists": 0.20,
    "user_is_content": -0.09,
    "user_repeats": 0.46,
    "user_rephrases": 0.08,
    "user_wants_a_person": 0.01,
    "value_from_nowhere": 0.48,
    "peers_agree": -0.98,
    "peers_differ": 0.32,
    "size_calls": 0.45,
    "size_changes": 0.05,
    "size_messages": 0.42,
    "size_turns": 0.11,
    "size_words": 0.13,
}
INTERCEPT = -2.1
THRESHOLD = 0.7
