"""The generator of files that are made from the code.

``python scripts/generate.py`` (``make generated``) needs trikafka importable. It writes the types of the
keywords of ``open_*``, the stub of the package for editors and type checkers, and the page of
settings and that of licences. tests/test_generated.py checks that the committed files are what this
script writes.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection
from pathlib import Path

import licences
import settings_page

import trikafka
from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ShareConsumerConfig,
    settings_of,
)
from trikafka.config.describe import default, describe

ROOT = Path(__file__).resolve().parent.parent
MADE = "Made by scripts/generate.py from {source}: run `make generated` after a change there; do not edit."
WIDTH = 100
#: Names in the annotations of settings, by their modules.
_IMPORTS = {
    "collections.abc": ("Awaitable", "Callable", "Mapping", "Sequence"),
    "typing": ("Any", "Literal", "TypedDict"),
}
_TYPED = {
    ClientConfig: None,
    AdminConfig: ClientConfig,
    ConsumerConfig: ClientConfig,
    ProducerConfig: ClientConfig,
    ShareConsumerConfig: ClientConfig,
}


#: The settings of consumers without these two, for records of bytes.
_BYTES_SETTINGS = {
    ConsumerConfig: "BytesConsumerSettings",
    ShareConsumerConfig: "BytesShareConsumerSettings",
}
_DESERIALIZERS = ("key_deserializer", "value_deserializer")


def typed_name(config: type) -> str:
    return config.__name__.replace("Config", "Settings")


def typed() -> str:
    """Return the settings as typed keywords: one ``TypedDict`` per client."""
    classes = "\n\n\n".join(
        _typed_class(config, base)
        for config, base in _TYPED.items()
        if config not in _BYTES_SETTINGS
    )
    # open_consumer() names the deserializers itself, so that type checkers learn what they return.
    for config, bytes_only in _BYTES_SETTINGS.items():
        whole = typed_name(config)
        classes += "\n\n\n" + _typed_class(config, ClientConfig, bytes_only, _DESERIALIZERS)
        classes += "\n\n\n" + _typed_class(config, bytes_only, whole, only=_DESERIALIZERS)
    words = set(
        classes.replace("[", " ").replace("]", " ").replace(",", " ").replace("(", " ").split()
    )
    imports = [
        f"from {module} import {', '.join(name for name in names if name in words)}"
        for module, names in _IMPORTS.items()
        if words & set(names)
    ]
    made = MADE.format(source="trikafka/config/clients.py")
    own = [
        "from ..types import Deserializer",
        "from .budget import MemoryBudget",
        "from .security import Credentials, TokenProvider",
    ]
    lines = [
        "from __future__ import annotations",
        "",
        "import ssl",
        *imports,
        "",
        "import trio.abc",
        "",
        *own,
    ]
    return f'"""The settings as typed keywords of ``open_*``.\n\n{made}\n"""\n\n' + "\n".join(
        [*lines, "", "", classes, ""]
    )


def _typed_class(
    config: type,
    base: type | str | None,
    called: str | None = None,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
) -> str:
    inherited = settings_of(base) if isinstance(base, type) else {}
    above = "TypedDict" if base is None else typed_name(base) if isinstance(base, type) else base
    name = called or typed_name(config)
    doc = [
        f'"""The keywords of :class:`{config.__name__}`, for annotations: ``**settings: Unpack[{name}]``."""'
    ]
    if without:
        doc = [doc[0][:-3], "", f"Without {' and '.join(without)}: records have bytes.", '"""']
    lines = [f"class {name}({above}, total=False):", *(f"    {line}".rstrip() for line in doc)]
    for name, one in settings_of(config).items():
        if name not in (*inherited, *without) and (only is None or name in only):
            text = textwrap.wrap(
                f'"""{describe(one)} Default: {default(one)}."""'.replace('""""', '"" """'),
                WIDTH - 4,
            )
            lines += ["", f"    {name}: {one.annotation}", *(f"    {line}" for line in text)]
    return "\n".join(lines)


def stub() -> str:
    """Return the public names for type checkers, which cannot follow the package's lazy imports."""
    homes: dict[str, list[str]] = {}
    for name, module in trikafka._HOME.items():
        homes.setdefault(module, []).append(name)
    imports = ["from ._version import VERSION as __version__"]
    imports += [_import(module, sorted(names, key=_by_type)) for module, names in homes.items()]
    names = [f'    "{name}",' for name in sorted(trikafka.__all__, key=_by_type)]
    made = MADE.format(source="trikafka/__init__.py")
    return f"# {made}\n\n" + "\n".join([*sorted(imports), "", "__all__ = [", *names, "]", ""])


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return (
        line
        if len(line) <= WIDTH
        else "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])
    )


def _by_type(name: str) -> tuple[bool, str]:
    return name[0].islower(), name.lower()


def page_of_settings() -> str:
    """Return the page of settings."""
    return settings_page.page(MADE.format(source="trikafka/config"))


def page_of_security_settings() -> str:
    """Return the page of the settings for TLS and SASL."""
    return settings_page.security_page(MADE.format(source="trikafka/config"))


def _formatted(name: str, make: Callable[[], str]) -> Callable[[], str]:
    """Return `make` with its code in the layout that ``make lint`` accepts."""

    def formatted() -> str:
        command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", name]
        ran = subprocess.run(
            command, input=make(), cwd=ROOT, capture_output=True, text=True, check=True
        )
        return ran.stdout

    return formatted


FILES: dict[str, Callable[[], str]] = {
    "trikafka/config/typed.py": _formatted("typed.py", typed),
    "trikafka/__init__.pyi": _formatted("__init__.pyi", stub),
    "docs/settings.md": page_of_settings,
    "docs/settings-security.md": page_of_security_settings,
    "docs/licences.md": licences.page,
}


def main() -> None:
    for name, make in FILES.items():
        path = ROOT / name
        text = make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{name} is new")


if __name__ == "__main__":
    main()
