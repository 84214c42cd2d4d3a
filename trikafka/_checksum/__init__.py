"""CRC-32C, the checksum of record batches: ``crc32c(data, crc=0)``.

``crc`` is the checksum of the bytes before ``data``. The function is compiled. Where it could not
be built, ``_fallback`` replaces it; ``TRIKAFKA_PURE=1`` in the environment forces the fallback.
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
