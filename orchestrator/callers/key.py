"""An API key: `sk-orc-<id>-<secret>`.

The id finds the record and may be shown; of the whole key only a hash is kept. The secret has 256
random bits, so a plain SHA-256 can't be searched, and checking it takes a microsecond. Whether the
id is known or not, one hash is made and one comparison of constant time.
"""

import hashlib
import hmac
import secrets

PREFIX = "sk-orc"
ID_BYTES = 6
SECRET_BYTES = 32
MAX_KEY = 256
"""Characters; a longer one isn't hashed."""
_NOBODYS = hashlib.sha256(secrets.token_bytes(SECRET_BYTES)).hexdigest()


def make_key() -> tuple[str, str]:
    """Makes a key; returns its id and its whole text, which is not kept anywhere."""
    key_id = secrets.token_hex(ID_BYTES)
    return key_id, f"{PREFIX}-{key_id}-{secrets.token_urlsafe(SECRET_BYTES)}"


def shown(key_id: str) -> str:
    """What may be shown of a key."""
    return f"{PREFIX}-{key_id}-..."


def id_of(key: str) -> str:
    """The id that a key names; empty if it has none."""
    begin = f"{PREFIX}-"
    return key[len(begin) :].partition("-")[0] if key.startswith(begin) else ""


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_key(key: str, digest: str | None) -> bool:
    """Whether the text is the key of that digest; with None it takes as long and is not."""
    presented = digest_of(key) if len(key) <= MAX_KEY else ""
    # one comparison on either path, so that no time tells whether an id is known
    return hmac.compare_digest(presented, digest or _NOBODYS) and digest is not None
