"""Compression codecs of plugins: checked when a client opens, guarded while it runs.

Kafka's record batches have five codec ids, so a plugin cannot add a codec. It replaces the
implementation of one, and other clients must be able to read what it writes.
"""

from __future__ import annotations

import pluggy

from ..._wire.compression import BY_ID, CODECS, Codec, Codecs, codec_named, replaced
from ...errors import PluginError
from ...hooks import first_answer
from ...interfaces import CompressionCodec
from ...interfaces.context import Buffer

#: The samples of the check at opening: text that repeats, and no text.
_SAMPLES = (b"trikafka " * 200 + bytes(range(256)), b"")


class GuardedCodec:
    """A plugin's codec whose errors name the plugin."""

    def __init__(self, codec: CompressionCodec, plugin: str, name: str) -> None:
        self._codec = codec
        self.name = f"plugin {plugin}: codec {name!r}"

    def compress(self, data: Buffer, level: int | None) -> Buffer:
        """Compress as :class:`CompressionCodec` says. Raises :exc:`PluginError`."""
        try:
            packed = self._codec.compress(data, level)
        except Exception as error:
            raise PluginError(
                f"{self.name} failed to compress {len(data)} bytes: {error!r}"
            ) from error
        return self._bytes("compress", packed)

    def decompress(self, data: Buffer, limit: int) -> Buffer:
        """Decompress as :class:`CompressionCodec` says.

        Raises ``ValueError`` for corrupt data, :exc:`PluginError` for all else.
        """
        try:
            found = self._codec.decompress(data, limit)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        except Exception as error:
            raise PluginError(
                f"{self.name} failed to decompress {len(data)} bytes: {error!r}"
            ) from error
        found = self._bytes("decompress", found)
        if len(found) > limit:
            raise PluginError(
                f"{self.name} decompressed {len(data)} bytes to {len(found)}, over the limit of "
                f"{limit}"
            )
        return found

    def _bytes(self, method: str, found: object) -> Buffer:
        if isinstance(found, bytes | bytearray):
            return found
        if isinstance(found, memoryview) and found.c_contiguous:
            return found.cast("B")
        # Not the object itself: it may be made of the records' values.
        raise PluginError(
            f"{self.name}: {method} returned an object of type {type(found).__name__}, not bytes, "
            "bytearray or a contiguous memoryview"
        )


def codecs_of(plugins: pluggy.PluginManager) -> Codecs:
    """Return the codecs for decompression. Raises :exc:`PluginError`."""
    offered = {codec.id: (codec.name, codec_of(plugins, codec.name, None)) for codec in CODECS}
    replacements = {
        number: replaced(name, by) for number, (name, by) in offered.items() if by is not None
    }
    return {**BY_ID, **replacements} if replacements else BY_ID


def codec_of(plugins: pluggy.PluginManager, name: str, level: int | None) -> GuardedCodec | None:
    """Return the codec that a plugin offers by this name, if one does.

    Raises :exc:`PluginError` if the codec is wrong.
    """
    if name == "none":
        return None
    offered = first_answer(plugins, "trikafka_compression", CompressionCodec, name=name)
    if offered is None:
        return None
    plugin, codec = offered
    guarded = GuardedCodec(codec, plugin, name)
    _check_format(guarded, codec_named(name), level)
    return guarded


def _check_format(guarded: GuardedCodec, own: Codec, level: int | None) -> None:
    """Raise unless the codec and the built-in one can read each other's output."""
    for sample in _SAMPLES:
        packed = guarded.compress(sample, level)
        try:
            same = bytes(own.decompress(packed, len(sample), None)) == sample
        except ValueError as error:
            raise PluginError(
                f"{guarded.name}: what it compresses cannot be read as {own.name}: {error}"
            ) from error
        if not same:
            raise PluginError(
                f"{guarded.name}: what it compresses is not what was to be compressed"
            )
        try:
            same = bytes(guarded.decompress(own.compress(sample, None), len(sample))) == sample
        except ValueError as error:
            raise PluginError(f"{guarded.name}: it cannot read {own.name}: {error}") from error
        if not same:
            raise PluginError(f"{guarded.name}: what it decompresses is not what was compressed")
