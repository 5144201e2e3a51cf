r"""Characters that a provider has cut in two.

Programs that count in UTF-16 end a delta between the two halves of a character beyond U+FFFF and
begin the next one with the other half: `"\ud83d"`, then `"\ude00"`. Neither is a text by itself, so
a JSON reader refuses both. The first half is kept until the second one comes.
"""

import re

# As the last character of a text; a backslash before it may itself be escaped.
FIRST = re.compile(rb'(?<!\\)(?:\\\\)*+(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')
# As the first character of a text: only an opening quote has one of these before it.
SECOND = re.compile(rb'(?<=[:,\[\s])"(?=\\u[dD][c-fC-F][0-9a-fA-F]{2})')


def mend(data: bytes, kept: bytes) -> tuple[bytes, bytes] | None:
    """Joins the halves in an event that can't be read because of them.

    Args:
        data: The event.
        kept: The first half that came before it; empty if there is none.

    Returns:
        The event without halves, and the first half that is kept from now on; None if the event
        has nothing of that kind.
    """
    if b"\\ud" not in data and b"\\uD" not in data:  # megabytes take an expression a while
        return None
    second = SECOND.search(data) if kept else None
    if second is not None:
        data = data[: second.end()] + kept + data[second.end() :]
        kept = b""
    first = None if kept else FIRST.search(data)
    if first is not None:
        kept = first[1]
        data = data[: first.start(1)] + data[first.end(1) :]
    return None if second is None and first is None else (data, kept)
