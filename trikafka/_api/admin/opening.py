"""The function that opens an admin client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Unpack

from ...config import AdminConfig
from ...config.describe import documented
from ...config.typed import AdminSettings
from ..client import loading
from ..client.loading import load
from ..client.opens import opens
from ..client.service import Service, run_client

if TYPE_CHECKING:
    from .admin import Admin


@documented(AdminConfig)
@opens
async def open_admin(**settings: Unpack[AdminSettings]) -> AsyncIterator[Admin]:
    """Open an admin client.

    Args:
        settings: Those of :class:`AdminConfig`.

    Raises:
        ConfigurationError: A setting is wrong. Raised before any I/O.
        IllegalStateError: No Trio runs.
        BootstrapError: No bootstrap address answers.
        ClientFailedError: A background task failed; raised by the end of the block.
    """
    config = AdminConfig.take(settings)

    await load(loading.ADMIN, config)
    from .admin import Admin

    async def start(service: Service) -> Admin:
        admin = Admin(config, service)
        await admin._start()
        return admin

    async with run_client(config, start) as admin:
        yield admin
