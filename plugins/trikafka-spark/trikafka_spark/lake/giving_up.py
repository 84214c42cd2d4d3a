"""The end of a plan whose files are gone: its number is taken in the table first, so that no late commit brings what is left of it.

Who looks for a plan finds its number taken, and has to ask by whom: by its rows, or by whoever has given it up.
"""

from __future__ import annotations

from trikafka import ExportError
from trikafka.interfaces import ExportPlan


class FilesGoneError(ExportError):
    """Files of a plan that is closed are not what was written, and its table does not have them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; nothing was committed: put it back, or give the plan up (--abandon): the next export reads its records again"
        )


def refuse_given_up(title: str, plan: ExportPlan) -> None:
    """Raise :exc:`ExportError`: somebody else has given up the plan that was to be committed."""
    raise ExportError(f"plan {plan.number} of {title} was given up by another run, for files of it were gone; export again")
