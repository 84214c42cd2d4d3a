"""The end of a plan whose files are gone.

The plan's number is taken in the table first, so that no late commit can add the remaining files. A
process that looks for the plan finds its number taken. It must then ask whether the plan's rows
took it, or its abandonment.
"""

from __future__ import annotations

from trikafka import ExportError
from trikafka.interfaces import ExportPlan


class FilesGoneError(ExportError):
    """Files of a closed plan are missing or changed, and the table does not have them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; nothing was committed: restore the file, or discard the plan (--abandon); "
            "the next export then reads its records again"
        )


def refuse_abandoned(title: str, plan: ExportPlan) -> None:
    """Raise :exc:`ExportError`: another run has abandoned the plan that was to be committed."""
    raise ExportError(
        f"plan {plan.number} of {title} was abandoned by another run, because files of it were "
        "missing; export again"
    )
