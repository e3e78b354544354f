"""What tests of isolated trials share: libraries of a few lines of C that bring a process down, each its own way."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ort_stacktune import SessionRecipe

CPU = ["CPUExecutionProvider"]

_BEFORE = """
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
"""

_LIBRARY = """
static void *tick(void *nothing) {
    (void)nothing;
    usleep(700000);
    raise(SIGSEGV);
    return NULL;
}

static void act(void) {
    FILE *mark = fopen(MARK, "a");
    fputs("loaded\\n", mark);
    fclose(mark);
    DO
}

void *RegisterCustomOps(void *options, const void *api) {
    (void)options, (void)api;
    act();
    return NULL;
}

void *CreateEpFactories(const char *name, const void *api, const void *log, void **made, size_t most, size_t *count) {
    (void)name, (void)api, (void)log, (void)made, (void)most;
    act();
    *count = 0;
    return NULL;
}

void *ReleaseEpFactory(void *factory) {
    (void)factory;
    return NULL;
}
"""

WAYS = {
    "healthy": 'printf("ready\\n"); fflush(stdout); fprintf(stderr, "all is well\\n");',
    "aborts": 'fprintf(stderr, "no device: giving up\\n"); abort();',
    "sleeps": "for (;;) sleep(1000);",
    "hoards": "for (;;) { void *p = malloc(1 << 22); if (p) memset(p, 1, 1 << 22); }",
    "explodes": "pthread_t bomb; pthread_create(&bomb, NULL, tick, NULL);",
    "exits": "_exit(7);",
    "scribbles": 'for (int fd = 3; fd < 64; fd++) { ssize_t n = write(fd, "garbage", 7); (void)n; } sleep(60);',
    "shuts": "for (int fd = 3; fd < 64; fd++) close(fd); sleep(60);",
    "breeds": "if (fork() == 0) { sleep(1000); _exit(0); } abort();",
}
"""What each library does when a session is made with it."""


class Libraries:
    """The libraries, compiled when first asked for; each leaves a mark whenever it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, way: str) -> str:
        """Returns the path of a library."""
        path = self._folder / f"{way}.so"
        if not path.exists():
            source = self._folder / f"{way}.c"
            source.write_text(
                _BEFORE + _LIBRARY.replace("DO", WAYS[way]).replace("MARK", f'"{self._mark(way)}"')
            )
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
        return str(path)

    def recipe(self, way: str, model: str | None = None) -> SessionRecipe:
        """Returns a recipe that loads a library."""
        return SessionRecipe(
            way,
            model=model,
            providers=CPU,
            session_options={"intra_op_num_threads": 1},
            custom_op_libraries=[self.path(way)],
        )

    def plugin(self, way: str) -> SessionRecipe:
        """Returns a recipe for an execution provider that a library brings as a plugin."""
        provider = f"{way.capitalize()}ExecutionProvider"
        return SessionRecipe(way, providers=[provider], ep_libraries={provider: self.path(way)})

    def times_loaded(self, way: str) -> int:
        """Returns how often a library was loaded, by whatever process."""
        mark = self._mark(way)
        return len(mark.read_text().splitlines()) if mark.exists() else 0

    def _mark(self, way: str) -> Path:
        return self._folder / f"{way}.mark"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The libraries; skips where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return Libraries(tmp_path_factory.mktemp("libraries"))


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie, which only waits to be reaped, does too."""
    return Path(f"/proc/{pid}").exists()


def is_gone_soon(pid: int) -> bool:
    """Whether a process, of which somebody else is the parent, ends within a few seconds."""
    return _soon(lambda: not is_running(pid) or _state(pid) == "Z")


def members(group: int) -> list[int]:
    """Returns the processes of a group that run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == group:
                    found.append(int(folder.name))
            except ProcessLookupError:
                continue
    return found


def children() -> list[int]:
    """Returns the processes that this one has started and that are not reaped."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _parent(int(folder.name)) == os.getpid():
            found.append(int(folder.name))
    return found


def _soon(condition: object) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return "".join(_stat(pid)[:1])


def _parent(pid: int) -> int:
    return int((_stat(pid) or ["", "0"])[1])
