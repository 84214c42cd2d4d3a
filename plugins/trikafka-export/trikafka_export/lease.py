"""The lock of a destination in an object store."""

# How the lock works
# ------------------
#
# The lock is an object that its owner rewrites three times in each lease (30 s by default), by
# conditional writes on the version that the owner wrote last. It only keeps two exports from
# working for nothing. Correctness does not depend on it: a lock can be lost while its owner sleeps,
# and the owner notices later. ``object_store`` explains what rules out lost and doubled rows.
#
# Clocks of machines differ, so only the store's clock counts. The age of a lock is the difference
# of two times of the store: the lock's last write, and the write of our own probe. A lock older
# than its lease is free.
#
# Waiting for the end of a lease after each kill would make restarts slow. So the lock also names
# the process of its owner. If that process ran on this machine, in the same PID namespace, /proc
# shows whether it still runs. A PID is used again after some time, and all PIDs are after a boot;
# hence the boot id and the start time of the process beside it.
#
# A swap of which the response was lost has changed the version all the same. The next renewal then
# fails, although the lock is ours. ``_written_before`` recognizes the owner's id in the body.

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
#: The owners in this process that have ended, although the store has not taken their last write.
_ended_owners: set[str] = set()
_log = logging.getLogger("trikafka.export")


class Lease:
    """The lock, from :meth:`acquire` to :meth:`release`.

    A thread renews the lock meanwhile, three times in ``seconds``.
    """

    def __init__(self, objects: Objects, seconds: float) -> None:
        self._objects = objects
        self._seconds = seconds
        self._owner = str(uuid.uuid4())
        self._beats = 0
        self._version: Any = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        #: True after another export took over the lock because it was not renewed in time.
        self.lost = False

    def acquire(self, now: datetime) -> None:
        """Take the lock.

        Args:
            now: The current time by the store's clock.

        Raises:
            ExportError: The owner of the lock is alive.
        """
        self._pid = os.getpid()
        self._version = self._objects.begin(LOCK, self._body())
        if self._version is None:
            self._take_over(now)
        self._thread = threading.Thread(target=self._renew, name="trikafka-lease", daemon=True)
        self._thread.start()
        if self._ended.is_set():  # give_up() was called meanwhile
            self.release()

    @property
    def held(self) -> bool:
        """True while there is a lock to release; never true in a fork."""
        return self._thread is not None and self._pid == os.getpid()

    def _take_over(self, now: datetime) -> None:
        body, found = self._objects.current(LOCK)
        try:
            holder = json.loads(body)
            free = bool(holder["released"]) or str(holder.get("owner")) in _ended_owners
            seconds = float(holder["seconds"])
            who = str(holder["holder"])[:200]
            dead = _is_dead(holder["process"])
        except (ValueError, KeyError, TypeError) as error:
            raise ExportError(
                f"{self._objects.title}/{LOCK} is not a lock of an export; remove it"
            ) from error
        age = (now - found.modified).total_seconds()
        refused = f"another export to {self._objects.title} is at work (process {who})"
        if not free and not dead and age <= seconds:
            raise ExportError(
                f"{refused}; its lock was renewed {max(age, 0):.0f} s ago, and expires "
                f"{seconds:.0f} s after that"
            )
        self._version = self._objects.swap(LOCK, self._body(), found.version)
        if self._version is None:
            raise ExportError(refused)
        if not free:
            _log.warning(
                "the lock of %s was left by process %s, which is dead; this export takes the lock",
                self._objects.title,
                who,
            )

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
        logged = False
        while not self._ended.wait(self._seconds / 3):
            try:
                version = (
                    self._objects.swap(LOCK, self._body(), self._version) or self._written_before()
                )
            except OSError as error:
                if not logged:
                    _log.warning("the lock of an export cannot be renewed: %s", error)
                logged = True
                continue
            if version is None:
                self.lost = True
                return
            self._version = version
            logged = False

    def _written_before(self) -> Any:
        """Return the version of the lock if it is still ours, else ``None``.

        It is ours if an earlier renewal was done but its response was lost.
        """
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            body, found = self._objects.current(LOCK)
            if json.loads(body)["owner"] == self._owner:
                return found.version
        return None

    def check(self) -> None:
        """Raise :exc:`ExportError` if the lock is lost."""
        if self.lost:
            raise ExportError(
                f"another export holds the lock of {self._objects.title}, because this one did "
                f"not renew it for {self._seconds:.0f} s; no record is lost or doubled by that"
            )

    def release(self) -> None:
        """Release the lock.

        A second call does nothing, nor does a call in a fork. If the store cannot be reached, the
        lock expires at the end of its lease; a later export of this process takes it at once.
        """
        thread = self._thread
        if thread is None or not self.held:
            return
        self._thread = None
        self._ended.set()
        thread.join()
        if not self.lost:
            try:
                done = self._objects.swap(LOCK, self._body(released=True), self._version)
                if done is None and (version := self._written_before()) is not None:
                    self._objects.swap(LOCK, self._body(released=True), version)
            except OSError:
                # This process is alive, so its own next export would have to wait for the lease.
                _ended_owners.add(self._owner)
            else:
                _ended_owners.discard(self._owner)

    def give_up(self) -> None:
        """Stop renewing the lock, and release it at once if :meth:`acquire` is just taking it.

        A later export of this process may take the lock at once: the store may be silent, and
        :meth:`release` would wait for it. In a fork, the lock stays its parent's. Any thread may
        call; never blocks.
        """
        self._ended.set()
        if self._pid == os.getpid():
            _ended_owners.add(self._owner)


def process_identity(pid: int) -> list[str]:
    """Return what distinguishes a process from all earlier and later ones.

    The items are the boot id, the PID namespace, the PID and the start time. The list is empty if
    the process does not run, or where there is no ``/proc``.
    """
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":  # a zombie has ended; its parent has not waited for it yet
            return [boot, os.readlink("/proc/self/ns/pid"), str(pid), fields[19]]
    return []


def _is_dead(process: list[str]) -> bool:
    """Return whether a process ran on this machine and has ended.

    Only processes of this PID namespace can be judged; others count as alive.
    """
    own = process_identity(os.getpid())
    if len(process) != 4 or not own or list(process[:2]) != own[:2]:
        return False
    return process_identity(int(process[2])) != process
