"""Masks passwords in messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from urllib.parse import quote

MASK = "***"
_WORDS = frozenset(
    ["user", "username", "password", "login", "database", "server", "host", "port", "name", "role", "connection"]
)
"""Words of the messages themselves. They stay readable even if the password is such a word."""
_SHORTEST_WORD = 4
_SHORTEST_CODE = 6
_BEFORE_A_VALUE = r"""(?P<name>(?i:pass|passwd|password|passphrase|pwd|secret|token|key)['"]?\s?[=:]\s?['"]?)"""
_WORD_BEGINS = r"(?:(?<!\w)|(?<=%[0-9A-Fa-f]{2})|(?<=\\[abfnrtv0]))"
"""No letter stands before it, except the letter of an escape: ``%3A``, ``\\n``."""
_SECRET_OPTION = re.compile("pass|pwd|secret|token|credential|key$", re.IGNORECASE)
_FILE_OPTION = re.compile("passfile|(ssl|tls)?_?key", re.IGNORECASE)


def is_secret_option(name: str) -> bool:
    """Return whether the URL option ``name`` holds a secret. The path of a file is not secret: errors must name it."""
    return bool(_SECRET_OPTION.search(name)) and not _FILE_OPTION.fullmatch(name)


class Masking:
    """Replaces passwords in messages, but no other words.

    A password is replaced

    - in a URL, a DSN or a setting: ``user:…@host``, ``password=…``;
    - in quotation marks;
    - as a whole word of at least four characters. So ``u:p@`` leaves "port" and the letter "p" alone. Words that
      messages use themselves, such as "password", stay;
    - anywhere, if it has at least six characters, with letters and other characters: a text does not contain it by
      chance.

    A password that is also a user, a host or a database is replaced only in a URL, a DSN or a setting: the message
    ``password authentication failed for user "postgres"`` must name the user.

    :param passwords: as the URL or the driver writes them. Their percent-encoded and escaped forms are found, too.
    :param names: other names in the URL: user, hosts, database.
    """

    def __init__(self, passwords: Iterable[str], names: Iterable[str] = ()) -> None:
        found = {password for password in passwords if password}
        self._passwords = sorted(found, key=len, reverse=True)  # a password may be a part of a longer one
        self._names = frozenset(names)

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        """Compiled at the first error, so that applications start faster."""
        return [_pattern(password, is_name=password in self._names) for password in self._passwords]

    def masked(self, text: str) -> str:
        """Return ``text`` without the passwords."""
        for pattern in self._patterns:
            text = pattern.sub(_mask, text)
        return text


def _mask(found: re.Match[str]) -> str:
    return (found["name"] or "") + MASK


def _pattern(password: str, *, is_name: bool) -> re.Pattern[str]:
    body = _any_form(password)
    places = [rf"(?<=:){body}(?=@)", f"{_BEFORE_A_VALUE}{body}"]
    is_code = not (password.isalpha() or password.isdecimal())
    if not is_name and is_code and len(password) >= _SHORTEST_CODE and any(map(str.isalpha, password)):
        places.append(body)
    elif not is_name:
        begin = _WORD_BEGINS if _is_of_a_word(password[0]) else ""
        end = r"(?!\w)" if _is_of_a_word(password[-1]) else ""
        places.append(rf"""(?<=['"`]){body}(?=['"`])""")
        if len(password) >= _SHORTEST_WORD and password not in _WORDS:
            places.append(f"{begin}{body}{end}")
    return re.compile("|".join(places))


def _is_of_a_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _any_form(password: str) -> str:
    """Return a pattern for the password: as it is, with percent-encoded characters, or escaped as in a string."""
    escaped = {repr(password)[1:-1], ascii(password)[1:-1], json.dumps(password)[1:-1]}
    escaped.add(re.sub(r"""([\\'"])""", r"\\\1", password))  # as in a DSN
    forms = [re.escape(form) for form in sorted(escaped - {password}, key=len, reverse=True)]
    return f"(?:{'|'.join([*forms, ''.join(map(_encoded, password))])})"


def _encoded(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    encoded = quote(character, safe="", errors="replace")
    forms = {character, encoded, encoded.lower(), *(" +" if character.isspace() else "")}
    return f"(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})"
