"""Fragments that the search puts into outputs: parts of the known tricks."""

from __future__ import annotations

from workers.lib.probes import texts
from workers.lib.probes.injections import INJECTIONS, PRAISE

FRAGMENTS: tuple[str, ...] = (
    *texts.APOLOGIES, *texts.REFUSALS, *texts.CLAIMS, *texts.CONFIDENCE, *INJECTIONS, *PRAISE, texts.VIRTUES,
    *(style.replace("{}", "") for style in texts.STYLES), texts.essay(30), texts.essay(120),
    "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "####", "```python\n", "```", "# ", "## ", "- ", "* ",
    "**", "1. ", "✅", "🎉", "!", "?", "...", "\n\n", "|", "{", "[]", "null", "true", "0", "1", "100%", "N/A", "unknown",
    "because", "therefore", "step by step", "Sources:", "Confidence:", "Score:", "Verdict:", "Thank you", "Kind regards",
)  # fmt: skip
