"""What users and agents say when a run goes wrong, or well: English phrases that are not specific
to a product. Pure.

The patterns are compiled with RE2, as in `rules.words`, so no text can make them slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2


def any_of(patterns: Iterable[Any]) -> Any:
    """One pattern that matches wherever any of the given ones does."""
    return _phrases("|".join(f"(?:{pattern.pattern})" for pattern in patterns))


def _phrases(pattern: str) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    return re2.compile(pattern, options)


THANKS = _phrases(
    r"\b(?:thanks|thank you|thx|cheers|much appreciated|appreciate"
    r" (?:it|your|the)|merci|gracias|danke)\b"
)
PRAISE = _phrases(
    r"\b(?:perfect|great|awesome|excellent|wonderful|fantastic|that works|looks good|sounds"
    r" good|exactly what|works now)\b"
)
GIVES_UP = _phrases(
    r"\b(?:never ?mind|forget (?:it|about it|that)|i(?:'ll| will) (?:just )?(?:try|call|contact|do"
    r" it|handle|figure|look|go) "
    r"(?:\w+ ){0,3}(?:myself|elsewhere|directly|else|them|support|service|later)|i give up|waste of"
    r" (?:my )?time|"
    r"(?:this|it) is(?:n't| not) (?:working|helping|helpful)|you(?:'re| are) not"
    r" (?:helping|helpful)|not worth it|"
    r"i(?:'ll| will) (?:get back|reach out|come back|contact you)|leave it)\b"
)
FRUSTRATION = _phrases(
    r"\b(?:frustrat\w+|ridiculous|unacceptable|disappoint\w+|useless|annoy\w+|terrible|awful|fed"
    r" up|come on|seriously|"
    r"what the (?:hell|heck)|wtf)\b|[!?]{3,}"
)
WANTS_A_PERSON = _phrases(
    r"\b(?:speak|talk|connect(?: me)?|transfer(?: me)?|escalate|hand me over|put me"
    r" through)\b.{0,40}"
    r"\b(?:human|person|people|someone|somebody|agent|representative|manager|supervisor|support|team)\b"
    r"|\b(?:real|actual) (?:person|human)\b|\bsupervisor\b"
)
INSISTS = _phrases(
    r"\b(?:are you sure|(?:can|could|would) you (?:please )?(?:double[- ]?check|check again|try"
    r" again|recheck|verify again|"
    r"make an exception)|check (?:it |that )?again|try again|(?:any|another|no) (?:other )?way|any"
    r" exception|is there really|"
    r"i (?:really|still) (?:need|want)|regardless of|must be|there must|should (?:definitely"
    r" )?(?:be|have)|"
    r"i(?:'m| am) (?:pretty |quite )?(?:sure|certain|positive)|still"
    r" (?:not|doesn't|isn't|don't|can't|failing|broken)|"
    r"doesn't work|does not work|didn't work|not working|same (?:error|problem|issue))\b"
)
CONFUSION = _phrases(
    r"\b(?:mix[- ]?up|confus\w+|misunderst\w+|mistake|that(?:'s| is) (?:odd|strange|weird)|i"
    r" thought|i was under the impression|"
    r"doesn't (?:make sense|look right|seem right)|wait,|hold on,|actually, i"
    r" (?:was|wanted|meant|asked))"
)
ALL_OF_THEM = _phrases(r"\b(?:both|all (?:of|my)|each of|every)\b")
CHANGES_MIND = _phrases(
    r"\b(?:actually|instead|on second thought|changed my mind|in that case|rather than|what"
    r" if|alternatively)\b"
)
APOLOGY = _phrases(
    r"\b(?:i(?:'m| am)? (?:sincerely |so |very |truly )?(?:apologi[sz]e|sorry)|apologies|my"
    r" (?:mistake|bad)|sorry (?:for|about|that))"
)
TROUBLE = _phrases(
    r"\b(?:(?:there (?:was|is|were|seems)|it (?:seems|appears|looks like)|encounter\w*|ran"
    r" into|facing|experienc\w+)\b.{0,60}"
    r"\b(?:error|issue|problem|difficult\w+|discrepan\w+|not"
    r" enough|insufficient|unavailable|failed)|"
    r"(?:did not|didn't) (?:go through|work|succeed))\b"
)
PROMISE = _phrases(
    r"\b(?:i(?:'ll| will| am going to|'m going to)(?: now)?|let me|allow me to|one moment|please"
    r" (?:hold|wait|bear with)|"
    r"i(?:'m| am) (?:now )?(?:processing|checking|working|looking|transferring|connecting))\b"
)
ASKS_TO_CONFIRM = _phrases(
    r"\b(?:confirm|proceed|go ahead|shall i|(?:would you like|do you want) me to)\b"
)
