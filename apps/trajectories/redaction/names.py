"""Names whose values let somebody in, and which values can be a secret at all. Pure.

A name is what its words say (`dbPassword`, `AWS_SECRET_ACCESS_KEY`, `new-password`), not what it
contains: `tokens`, `password_policy` and `api_key_id` name no secret, nor does `session.id`, by
which traces name a conversation (a cookie's `sessionid` does). A value that cannot be one (a
placeholder, a variable, a word of a sentence) stays.
"""

from __future__ import annotations

import re
from functools import lru_cache

SURE, LIKELY = 2, 1
LONG = 16  # characters


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


WORDS = re.compile(r"[A-Z]?[^\W\dA-Z_]+|[A-Z]+(?![a-z])|\d+")
TRAILING = _set(  # words after the name that change nothing
    "value text plain plaintext cleartext raw new old current confirm confirmation repeat again b64"
    " base64 string str data base field input textbox box 1 2 3"
)
NAMES = _set(
    "password passwords passwd passphrase passcode pwd pw mdp secret credential credentials"
    " authorization cvv cvc cvv2 psk mnemonic apikey authtoken accesstoken accesskey secretkey"
    " privatekey clientsecret sessionid phpsessid jsessionid storepass keypass pgpassword passwort"
    " kennwort passe contrasena contraseña senha wachtwoord lozinka haslo hasło parola пароль 密码"
    " 密碼 비밀번호 パスワード şifre salasana lösenord heslo jelszó"
)
STEMS = ("password", "passwort", "passwd", "kennwort", "passphrase")
OFTEN_NONE = _set("authorization sessionid phpsessid jsessionid credentials secret")
HALF_NAMES = _set("token jwt pat otp pass auth cookie dsn sig signature sas salt authkey")
BEFORE_KEY = _set(
    "api access secret private signing encryption master account shared preshared auth"
    " authentication storage subscription service deploy license webhook client sdk hmac fernet aes"
    " ssh admin app application write root role server session jwt ingest consumer cookie"
    " decryption recovery vault pass"
)
BEFORE_CODE = _set("security recovery backup verification login otp mfa")
_NOT_TOKENS = _set(
    "page next continuation cursor pagination sync csrf xsrf eos bos pad unk sep mask cls start end"
    " stop per special"
)
_BEFORE_PIN = _set("card user account sim security my your door")


@lru_cache(maxsize=4096)
def named(name: str) -> int:
    """How surely a name says that its value lets somebody in: 0, LIKELY (the value must look like
    it, too) or SURE.
    """
    words = [word.lower() for word in WORDS.findall(name[-80:])]
    while len(words) > 1 and words[-1] in TRAILING:
        words.pop()
    if not words:
        return 0
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in NAMES or last.endswith(STEMS):
        return LIKELY if last in OFTEN_NONE and len(words) < 2 else SURE
    if (last == "key" and before in BEFORE_KEY) or (last == "code" and before in BEFORE_CODE):
        return SURE if before != "session" else LIKELY
    if (last, before) in (("word", "pass"), ("phrase", "seed"), ("phrase", "recovery")):
        return SURE
    if last in HALF_NAMES and before not in _NOT_TOKENS:
        return LIKELY
    if last in ("d", "k") and len(words) == 1:  # of a JSON Web Key
        return LIKELY
    return SURE if last == "pin" and (not before or before in _BEFORE_PIN) else 0


# Values

_PLACEHOLDER = re.compile(
    r"<.*>?|![a-z]+|\[.*\]?|\$\{?\w+.*|\$\(.*|\{\{.*|%\w+%|@\w+|[*xX.•#_…?-]+|[*•]{2,}.{0,6}|[xX]{3,}.{0,4}|:\w+|\\?[\"']?"
    r"|null|none|nil|true|false|undefined|n/?a|na|todo|tbd|string|str|text|number|boolean|object|password|passwd|passwort|kennwort"
    r"|contraseña|mot de"
    r" passe|secret|token|required|optional|missing|invalid|incorrect|wrong|expired|redacted|hidden|masked|filtered"  # noqa: E501
    r"|empty|unset|set|yes|no|on|off|ok|prompt|env|basic|bearer|digest|negotiate|oauth2?"
    r"|(?:process\.env|os\.environ|os\.getenv|getenv|env|config|settings|secrets?|vars?|self|this|ctx|req(?:uest)?|args|opts|options"
    r"|input|data|user|body|params|form|vault|ref|file|arn|projects|aws-sm|op)[.:/\[(\\].*"
    r"|(?:your|my|the|a|an|some|insert|enter|replace|change|example)[-_"
    r" ].*|[a-z_-]*[_-](?:here|id|name)|.*(?:placeholder|example\.com).*",
    re.I | re.S,
)
_CALL = re.compile(r"[A-Za-z_][\w.]*\([\w.,= ]*\)?[,;]?")  # OAuth2(client)
_FILE = re.compile(r"\.\w{1,5}$|[/\\]")
_ADDRESS = re.compile(r"[\w.+-]{2,}@(?:[\w-]+\.)+[A-Za-z]{2,}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_]*(?:\.[A-Za-z_]+)*(?:\(.*)?[,;)]?")
_MNEMONIC = re.compile(r"(?:[a-z]{3,8}\s+){11,23}[a-z]{3,8}")
_SENTENCE = re.compile(r"\S+(?:\s+\S+){5,}")
_PATH = re.compile(
    r"(?:~|\.{0,2})/[\w./-]*|[A-Za-z]:\\.*|[a-z][a-z0-9+.-]*://[^\s@]*|[a-z0-9_.-]{2,}(?:/[\w.-]+)+"
)


def looks(value: str, least: int) -> bool:
    """As somebody would choose a password or a machine a token: letters with digits or signs, no
    identifier, no path.
    """
    if len(value) < least or _IDENTIFIER.fullmatch(value) or _CALL.fullmatch(value) or path(value):
        return False
    kinds = [
        any(map(check, value))
        for check in (str.isalpha, str.isdigit, lambda char: char in "!@#$%^&*?+~=|")
    ]
    return sum(kinds) > 1 or (kinds[1] and len(value) >= 6)


def placeholder(value: str) -> bool:
    """Stands for a secret, or for none: `<your-key>`, `${SECRET}`, `settings.KEY`, `****`,
    `required`.
    """
    return _PLACEHOLDER.fullmatch(value.strip()) is not None


def address(value: str) -> bool:
    return _ADDRESS.fullmatch(value) is not None


def no_token(name: str) -> bool:
    """Ends with the words of a token that lets nobody in: next page token, CSRF token."""
    words = [word.lower() for word in WORDS.findall(name)][-2:]
    return len(words) == 2 and words[0] in _NOT_TOKENS and words[1] in HALF_NAMES


def path(value: str) -> bool:
    """A file's path or an address without a password."""
    return _PATH.fullmatch(value) is not None


def secret_value(name: str, value: str) -> bool:
    """Whether the whole string under such a key or argument, or in quotes after such a name, is a
    secret.
    """
    sure, value = named(name), value.strip()
    if _MNEMONIC.fullmatch(value) and sure:
        return True
    if not sure or not value or placeholder(value) or _SENTENCE.fullmatch(value):
        return False
    if WORDS.findall(name)[-1:] in (["d"], ["k"]):
        return re.fullmatch(r"[A-Za-z0-9_-]{42,}", value) is not None
    if sure == SURE:
        return not path(value)
    if (
        WORDS.findall(name)[-1:] == ["authorization"]
        and len(value) >= LONG
        and not re.search(r"[\s_-]", value)
    ):
        return True  # no word for a state is so long
    return looks(value, 12) and not re.search(r"\s\S+\s\S+\s", value)


def secret_argument(line: str, value: str) -> bool:
    """Whether an argument is a secret by the option or name before it, the last word of the command
    line.
    """
    option = line.split()[-1]
    if value.startswith("-") or "=" in option:
        return False
    if not option.startswith("-"):  # a name, and what may be its value or the next of several names
        return looks(value, 8) and secret_value(option, value)
    name = option.lstrip("-")
    if name == "p":  # a password, or a port, a path, a plugin
        return random_looking(value) and not _FILE.search(value)
    return secret_value(name, value)


def random_looking(value: str) -> bool:
    """Letters and digits, with capitals among small ones or signs: no word, number, version or
    path.
    """
    value = value.rstrip(".,;:)]")
    mixed = re.search(r"[a-z]", value) and re.search(r"[A-Z]|[!@#$%^&*+=~]", value)
    return (
        bool(mixed and re.search(r"\d", value))
        and looks(value, 8)
        and not re.match(r"[\w.]+\(|v?\d+[.\d]*$|[a-z_]+=\d+$", value)
    )
