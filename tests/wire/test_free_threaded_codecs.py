"""Codecs on a free-threaded Python, where cramjam writes into no ``memoryview``.

This Python has a GIL. So the module is loaded again as for one without, over a cramjam that refuses
what that of a free-threaded Python refuses.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import cramjam
import pytest

from trikafka._wire import compression


def _refusing(into: Callable[..., int]) -> Callable[..., int]:
    def checked(data: Any, out: Any, **options: Any) -> int:
        if isinstance(out, (bytes, memoryview)):
            raise TypeError("Cannot create mutable reference to `bytes` or `memoryview`")
        return into(data, out, **options)

    return checked


class _Refusing:
    """A module of cramjam whose functions with an output refuse a ``memoryview``."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        return _refusing(found) if name.endswith("_into") else found


@pytest.fixture(scope="module")
def free_threaded() -> Any:
    """Return the module as it is on a free-threaded Python."""
    fake = SimpleNamespace(
        DecompressionError=cramjam.DecompressionError,
        **{name: _Refusing(getattr(cramjam, name)) for name in ("gzip", "snappy", "lz4", "zstd")},
    )
    spec = importlib.util.find_spec(compression.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    config = sysconfig.get_config_var
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED" or config(name)
        )
        patch.setitem(sys.modules, "cramjam", fake)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("size", [1, 1000, 200_000, 3_000_000])
@pytest.mark.parametrize("in_scratch", [False, True])
def test_codec_round_trips(free_threaded: Any, name: str, size: int, in_scratch: bool) -> None:
    """3,000,000 bytes are more than a scratch has, 200,000 are several blocks of LZ4."""
    codec = free_threaded.BY_NAME[name]
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
    scratch = free_threaded.Scratch.borrow() if in_scratch else None

    packed = codec.compress(data, None)

    assert bytes(compression.BY_NAME[name].decompress(packed, size, None)) == data
    assert bytes(codec.decompress(packed, size, scratch)) == data
    with pytest.raises(ValueError, match="limit"):
        codec.decompress(packed, size - 1, scratch)


def test_output_shares_the_memory(free_threaded: Any) -> None:
    memory = bytearray(10)
    out = free_threaded._output(memoryview(memory)[3:7])
    assert len(out) == 4
    out[0] = b"x"
    assert memory[3] == ord("x")
