"""The lock of a destination in an object store: an object that its owner writes anew again and again, by conditional writes.

It keeps two exports from working for nothing. That they cannot harm each other does not hang on it: see :mod:`.object_store`.

Whether an owner is dead is judged by the store's clock alone: by when the store says that the lock was written, and by when it says
that our own probe was. Of an owner on this very machine the kernel is asked, so that who is killed can be followed at once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from trikafka import ExportError

from .objects import Objects

LOCK = "_trikafka/lock"
_log = logging.getLogger("trikafka.spark")


class Lease:
    """The lock, from :meth:`acquire` to :meth:`release`; a thread renews it meanwhile, three times in its ``seconds``."""

    def __init__(self, objects: Objects, seconds: float) -> None:
        self._objects, self._seconds = objects, seconds
        self._owner = str(uuid.uuid4())
        self._beats = 0
        self._version: Any = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        #: Whether somebody else has taken the lock over, because it was not renewed in time.
        self.lost = False

    def acquire(self, now: datetime) -> None:
        """Take the lock, ``now`` by the store's clock. Raises :exc:`ExportError` when its owner lives."""
        self._version = self._objects.put_new(LOCK, self._body())
        if self._version is None:
            self._take_over(now)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._renew, name="trikafka-lease", daemon=True)
        self._thread.start()
        if self._ended.is_set():  # given up meanwhile
            self.release()

    @property
    def held(self) -> bool:
        """Whether there is something to release; not in a fork."""
        return self._thread is not None and self._pid == os.getpid()

    def _take_over(self, now: datetime) -> None:
        body, found = self._objects.read(LOCK)
        try:
            holder = json.loads(body)
            free, seconds, who = bool(holder["released"]), float(holder["seconds"]), str(holder["holder"])[:200]
            dead = _is_dead(holder["process"])
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(f"{self._objects.title}/{LOCK} is not a lock of an export; remove it") from error
        age = (now - found.modified).total_seconds()
        refused = f"another export to {self._objects.title} is at work (process {who})"
        if not free and not dead and age <= seconds:
            raise ExportError(f"{refused}; its lock was renewed {max(age, 0):.0f} s ago, and is free {seconds:.0f} s after that")
        self._version = self._objects.swap(LOCK, self._body(), found.version)
        if self._version is None:
            raise ExportError(refused)
        if not free:
            _log.warning("the lock of %s was left by process %s, which is dead; it is taken over", self._objects.title, who)

    def _body(self, released: bool = False) -> bytes:
        self._beats += 1
        body = {
            "owner": self._owner,
            "beat": self._beats,
            "holder": f"{socket.gethostname()}:{os.getpid()}",
            "process": process_identity(os.getpid()),
            "seconds": self._seconds,
            "released": released,
        }
        return json.dumps(body).encode()

    def _renew(self) -> None:
        told = False
        while not self._ended.wait(self._seconds / 3):
            try:
                version = self._objects.swap(LOCK, self._body(), self._version) or self._written_before()
            except OSError as error:
                if not told:
                    _log.warning("the lock of an export cannot be renewed: %s", error)
                told = True
                continue
            if version is None:
                self.lost = True
                return
            self._version, told = version, False

    def _written_before(self) -> Any:
        """The version of a lock that is still ours: an earlier renewal was done, and its response was lost."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            body, found = self._objects.read(LOCK)
            if json.loads(body)["owner"] == self._owner:
                return found.version
        return None

    def check(self) -> None:
        """Raise :exc:`ExportError` when the lock is lost."""
        if self.lost:
            raise ExportError(
                f"another export has taken {self._objects.title} over, because this one had not renewed its lock"
                f" for {self._seconds:.0f} s; nothing is lost or doubled by that"
            )

    def release(self) -> None:
        """Give it back. Twice is fine; in a fork it does nothing. One that cannot be reached ends by itself."""
        thread = self._thread
        if thread is None or not self.held:
            return
        self._thread = None
        self._ended.set()
        thread.join()
        if not self.lost:
            with suppress(OSError):
                done = self._objects.swap(LOCK, self._body(released=True), self._version)
                if done is None and (version := self._written_before()) is not None:
                    self._objects.swap(LOCK, self._body(released=True), version)

    def give_up(self) -> None:
        """Renew it no more, and take it no more if it is just being taken. Any thread may call; never blocks."""
        self._ended.set()


def process_identity(pid: int) -> list[str]:
    """What tells a process from all others that ever were: boot, name space, number, start. Empty where there is no ``/proc``."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":  # killed, and its parent has not asked yet how
            return [boot, os.readlink("/proc/self/ns/pid"), str(pid), fields[19]]
    return []


def _is_dead(process: list[str]) -> bool:
    """Whether it ran on this machine, in containers that see each other's processes, and does not any more."""
    own = process_identity(os.getpid())
    if len(process) != 4 or not own or list(process[:2]) != own[:2]:
        return False
    return process_identity(int(process[2])) != process
