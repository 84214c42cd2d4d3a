"""CRC-32C, the checksum of record batches: ``crc32c(data, crc=0)``, where ``crc`` is that of what comes before.

Compiled, or by ``_fallback`` where that could not be built; ``TRIKAFKA_PURE=1`` in the environment forces the fallback.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = ["crc32c"]

if TYPE_CHECKING or os.environ.get("TRIKAFKA_PURE") == "1":
    from ._fallback import crc32c
else:
    try:
        from ._native import crc32c
    except ImportError:
        from ._fallback import crc32c
