"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`; None where none is.

    Of dotted names the last part is enough, and so are initials: scaled is stage.scaled, lr is learning_rate.
    """
    by_part = {one.rpartition(".")[2]: one for one in known}
    initials = {
        "".join(word[:1] for word in part.split("_")): one for part, one in by_part.items() if "_" in part
    }
    part = name.rpartition(".")[2]
    if part in initials and part not in by_part:
        return initials[part]
    near = difflib.get_close_matches(part, by_part, n=1)
    return by_part[near[0]] if near else None
