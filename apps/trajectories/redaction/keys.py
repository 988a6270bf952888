"""Keys and tokens by their form: vendors' prefixes, private keys, addresses that are a secret,
password hashes. Pure.
"""

from __future__ import annotations

import re

_PEM = r"PRIVATE KEY(?: BLOCK)?-----"
KEYS = "|".join(
    (
        r"{b}sk-[A-Za-z0-9_-]{20,}|{b}[sr]k_(?:live|test|prod)_[A-Za-z0-9]{16,}|{b}whsec_[A-Za-z0-9+/=]{24,}",
        r"{b}(?:AKIA|ASIA)[A-Z0-9]{16}[\s/:,|]{1,4}[A-Za-z0-9/+]{40}\b|{b}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b|{b}CCIPAT_[A-Za-z0-9_]{40,}|{b}gh[opusr]_[A-Za-z0-9]{36,}|{b}github_pat_[A-Za-z0-9_]{22,}",
        r"{b}gl(?:pat|ptt|rt|cbt|dt|soat|ft|imt|agent|oas)-[A-Za-z0-9_.-]{20,}|{b}hf_[A-Za-z0-9]{30,}|{b}ATBB[A-Za-z0-9]{28,}",
        r"{b}xox[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|{b}xapp-[A-Za-z0-9-]{10,}|{b}AIza[A-Za-z0-9_-]{35}|{b}ya29\.[A-Za-z0-9_-]{20,}",
        r"{b}GOCSPX-[A-Za-z0-9_-]{24,}|{b}1//0[A-Za-z0-9_-]{30,}|{b}fw_[A-Za-z0-9_-]{40,}|{b}npm_[A-Za-z0-9]{36}|{b}pypi-[A-Za-z0-9_-]{40,}",
        r"{b}SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{30,}|{b}key-[0-9a-f]{32}\b|{b}[0-9a-f]{32}-us\d{1,2}\b|{b}xkeysib-[0-9a-f]{64}-\w{16}",
        r"{b}do[opr]_v1_[0-9a-f]{60,}|{b}shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|{b}sq0(?:atp|csp|idb)-[A-Za-z0-9_-]{22,}|{b}EAAA[A-Za-z0-9_-]{60}",
        r"{b}dapi[0-9a-f]{32}(?:-\d)?|{b}[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}|{b}lin_(?:api|oauth)_[A-Za-z0-9]{32,}",
        r"{b}(?:ntn|secret)_[A-Za-z0-9]{40,}|{b}gsk_[A-Za-z0-9]{32,}|{b}r8_[A-Za-z0-9]{30,}|{b}pplx-[A-Za-z0-9]{32,}|{b}xai-[A-Za-z0-9]{40,}",
        r"{b}tvly-[A-Za-z0-9_-]{20,}|{b}fc-[0-9a-f]{32}\b|{b}pa-[A-Za-z0-9_-]{40,}|{b}ls(?:v2_)?(?:__|pt_|sk_)[A-Za-z0-9_]{30,}|{b}nvapi-[A-Za-z0-9_-]{40,}",
        r"{b}hv[sbr]\.[A-Za-z0-9_-]{20,}|{b}[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}|{b}gl(?:sa|c)_[A-Za-z0-9_=+/]{32,}",
        r"{b}NRAK-[A-Z0-9]{27}|{b}NRJS-[0-9a-f]{19}|{b}sntry[su]_[A-Za-z0-9+/=_]{40,}|{b}PMAK-[0-9a-f]{24}-[0-9a-f]{34}|{b}dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{40,}",
        r"{b}dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}|{b}figd_[A-Za-z0-9_-]{36,}|{b}pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|{b}AAAA[A-Za-z0-9_-]{7}:[A-Za-z0-9_-]{100,}",
        r"{b}pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,}|{b}rubygems_[0-9a-f]{48}|{b}CFPAT-[A-Za-z0-9_-]{43}|{b}EZ[AT]K[A-Za-z0-9]{54}",
        r"{b}ATATT3[A-Za-z0-9_=-]{60,}|{b}rk_[A-Za-z0-9_]{24,}|{b}sbp_[0-9a-f]{40}|{b}vercel_[A-Za-z0-9]{24,}|{b}nf[pcoub]_[A-Za-z0-9]{36}",
        r"{b}\d{8,10}:AA[A-Za-z0-9_-]{33}\b|{b}[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}",
        r"{b}fm[12]_[A-Za-z0-9+/=_]{40,}|{b}tskey-[a-z]+-[A-Za-z0-9-]{20,}|{b}tfp_[A-Za-z0-9_-]{40,}|{b}AKCp[A-Za-z0-9]{50,}",
        r"{b}AGE-SECRET-KEY-1[0-9A-Z]{58}|{b}sl\.[A-Za-z0-9_-]{100,}|{b}EAA[A-Za-z0-9]{80,}|{b}sk\.eyJ[A-Za-z0-9_.-]{40,}",
        # forms that gitleaks lists (MIT), without those that a word or a number may have
        r"{b}A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}\b",
        r"{b}ops_eyJ[A-Za-z0-9+/=_-]{100,}|{b}p8e-[a-z0-9]{32}\b|{b}LTAI[A-Za-z0-9]{17,22}\b",
        r"{b}cmVmd[A-Za-z0-9]{59}\b|{b}ABSK[A-Za-z0-9+/]{100,}|{b}bedrock-api-key-[A-Za-z0-9+/=]{20,}",
        r"{b}4b1d[A-Za-z0-9]{38}\b|{b}CLOJARS_[a-z0-9]{60}|{b}v1\.0-[a-f0-9]{24}-[a-f0-9]{146}",
        r"{b}duffel_(?:test|live)_[A-Za-z0-9_=-]{40,}|{b}dt0[a-z]\d\d\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}",
        r"{b}\d{15,16}[|%][0-9A-Za-z_-]{27,40}\b|{b}FLWSECK(?:_TEST)?-[a-z0-9]{12,40}",
        r"{b}fio-u-[A-Za-z0-9_=-]{60,}|{b}glffct-[A-Za-z0-9_-]{20,}|{b}GR1348941[A-Za-z0-9_-]{20,}",
        r"{b}eyJrIjoi[A-Za-z0-9+/]{60,}={0,3}|{b}[ps]at\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}\b",
        r"{b}HRKU-[A-Za-z0-9_-]{36,}|{b}ico-[A-Za-z0-9]{32}\b|{b}s-s4t2(?:ud|af)-[a-f0-9]{64}",
        r"{b}API-[A-Z0-9]{26,}\b|{b}sha256~[A-Za-z0-9_-]{43}|{b}pn[ub]_[A-Za-z0-9]{36}|{b}pul-[a-f0-9]{40}\b",
        r"{b}rdme_[a-z0-9]{70}|{b}tk-us-[A-Za-z0-9_-]{48}|{b}sm_(?:aat|pat|sat)_[A-Za-z0-9]{16,}",
        r"{b}sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}\b|{b}xoxe\.xox[bp]-\d-[A-Za-z0-9]{100,}",
        r"{b}SK[0-9a-fA-F]{32}\b|{b}[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk\b|{b}shippo_(?:live|test)_[0-9a-fA-F]{40}",
        r"{b}fo1_[A-Za-z0-9_-]{43}|_gitlab_session=([0-9a-z]{32})",
        r"{b}[LK5][1-9A-HJ-NP-Za-km-z]{51}\b|{b}xprv[1-9A-HJ-NP-Za-km-z]{100,}",
        # JSON Web Tokens, signed or encrypted
        r"{b}eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*)?",
        # addresses that are a secret: whoever has one may post
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{20,})|discord(?:app)?\.com/api/webhooks/(\d{10,}/[A-Za-z0-9_-]{20,})",
        r"\.webhook\.office\.com/(?:webhookb2/)?([A-Za-z0-9@/-]{60,})|hooks\.zapier\.com/hooks/catch/(\d+/[A-Za-z0-9]{5,})|/bot(\d{8,10}:[A-Za-z0-9_-]{35})",
        r"(?i:{b}bearer[\s:]{1,4}|{b}token\s{1,4}token=\"?)([A-Za-z0-9._~+/=-]{16,})",
        r"(?i:secret_?access_?key['\"]?\s{0,3}[:=]\s{0,3}['\"]?)([A-Za-z0-9/+]{40})\b",
        (
            rf"-----BEGIN [A-Z0-9 ]*{_PEM}(?:[A-Za-z0-9+/=\s\\:,.()]|-[A-Za-z0-9])*(?:-----END"
            rf" [A-Z0-9 ]*{_PEM})?"
        ),
        r"Private-Lines: \d+(?:\s|\\r|\\n)+([A-Za-z0-9+/=\s\\]+)",
        # password hashes: what they guard can be found from them
        r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}|\$(?:1|5|6|y|7)\$[./A-Za-z0-9$=,]{20,}|\$argon2(?:id|i|d)\$[A-Za-z0-9+/=,$]{30,}",
    )
)
KEYS_EXTRA = (
    r"(?i:bearer|token=)[^A-Za-z0-9]{1,8}|(?i:secret_?access_?key)|PRIVATE KEY|Private-Lines"
)
_ANY_LENGTH = (b"-----BEGIN", b"eyJ", b"AKIA", b"ASIA", b"ABIA", b"ACCA", b"$", b"AGE-")


def key(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Words joined by hyphens are not a key: one without any digit is left, unless its form is
    enough.
    """
    found = text[start:end]
    return (
        (start, end)
        if found.startswith(_ANY_LENGTH) or re.search(rb"\d|[a-z][A-Z][A-Z]?[a-z]", found)
        else None
    )
