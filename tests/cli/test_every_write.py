"""The n-th write of a command fails, for every n: one sentence, no half file, and it goes on.

A library that the linker puts before the system's lets a write fail in a process that was forked
from one which has imported everything.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
static char root[PATH_MAX];
static long count, fatal;
static int number, once;
void fail_at(const char *folder, long n, int error, int only_once) {
    strcpy(root, folder); count = 0; fatal = n; number = error; once = only_once;
}
long writes(void) { return count; }
static int fails(const char *path) { /* 2 at the n-th write, 1 at later ones */
    if (!*root || !path || strncmp(path, root, strlen(root))) return 0;
    long n = __sync_add_and_fetch(&count, 1);
    return n == fatal ? 2 : fatal && n > fatal && !once;
}
static int fails_at(int fd) {
    char link[64], path[PATH_MAX];
    if (!*root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return fails(path);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE do { errno = number; return -1; } while (0)
#define WRITE(name, parameters, whole, half) \
    ssize_t name parameters { \
        int f = fails_at(fd); \
        if (f == 2 && !once && size > 1) return REAL(name) half; /* a disk is full in a block */ \
        if (f) REFUSE; \
        return REAL(name) whole; \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at),
      (fd, data, size / 2, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at),
      (fd, data, size / 2, at))
ssize_t writev(int fd, const struct iovec *data, int n) {
    if (fails_at(fd)) REFUSE;
    return REAL(writev)(fd, data, n);
}
int fsync(int fd) { if (fails_at(fd)) REFUSE; return REAL(fsync)(fd); }
int fdatasync(int fd) { if (fails_at(fd)) REFUSE; return REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { if (fails_at(fd)) REFUSE; return REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { if (fails_at(fd)) REFUSE; return REAL(ftruncate64)(fd, n); }
int mkdir(const char *path, mode_t mode) {
    if (fails(path)) REFUSE;
    return REAL(mkdir)(path, mode);
}
int rename(const char *a, const char *b) { if (fails(b)) REFUSE; return REAL(rename)(a, b); }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if (flags & O_CREAT && fails(path)) REFUSE; \
        return REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
"""

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("a write that fails is compiled by gcc, on Linux")
    place = tmp_path_factory.mktemp("shim")
    (place / "shim.c").write_text(SHIM)
    options = ["-shared", "-fPIC", "-O1", "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run([compiler, *options], cwd=place, check=True)
    return place / "shim.so"


FULL, BROKEN = (errno.ENOSPC, 0), (errno.EIO, 1)
QUICK, LONG = ("predict", "convert"), ("annotate", "export", "fit", "test")
SOME, ALL = 3, 10**6


def test_the_table_names_these_commands(repository):
    text = (repository / "docs" / "faults.md").read_text("utf-8")
    (row,) = [line for line in text.splitlines() if "the n-th write fails" in line]
    assert re.findall(r"`(\w+)`", row.split("|")[1]) == [*QUICK, *LONG]


@pytest.mark.process
@pytest.mark.parametrize(
    ("names", "fault", "count"),
    [
        *((name, FULL, ALL) for name in QUICK),
        pytest.param("+".join(LONG), FULL, SOME, marks=pytest.mark.slow),
        *(pytest.param(n, BROKEN, ALL, marks=pytest.mark.slow) for n in (*QUICK, *LONG)),
        *(pytest.param(n, FULL, ALL, marks=pytest.mark.slow) for n in LONG),
    ],
)
def test_every_write_may_fail(names, fault, count, shim, tmp_path):
    parts = [str(REPOSITORY / "tests"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    variables = {"LD_PRELOAD": str(shim), "PYTHONPATH": os.pathsep.join(parts)}
    arguments = [sys.executable, "-P", __file__, names, tmp_path, *map(str, (*fault, count))]
    ended = subprocess.run(
        arguments,
        env={**os.environ, **variables},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(re.search(r"^writes (\d+)$", ended.stdout, re.M)[1]) > 5


# What follows runs in the process with the library.


def run_predict(place):
    from support.runs import command

    given = ("--prompts", place / "prompts.json", "--format=masks,coco,overlays", "--batch-size=2")
    return command(
        "predict", place / "photos", *given, "--model", place / "m", "--output", place / "room/out"
    )


def run_convert(place):
    from support.runs import command

    kinds = ("--from=coco", "--to=png")
    return command("data", "convert", place / "coco.json", place / "room/out", *kinds)


def run_export(place):
    from probseg.export import folder
    from probseg.export.parity import Parity
    from support.runs import command

    if not GRAPHS:  # which are traced, and read again, in seconds; neither writes anything
        trace = folder.trace
        folder.Runner = lambda *_: None
        folder.trace = lambda *given: GRAPHS or GRAPHS.update(trace(*given)) or GRAPHS
        folder.measure = lambda *_: Parity(1, 1.0, 0.0, 1, 0, 1.0)
    given = ("--to=torch", "--size=32", "--output", place / "room/out")
    return command("export", place / "m", *given)


def run_fit(place):
    from support.runs import command, folder_fit

    more = ("--trainer.max_epochs=1", f"--trainer.logger.save_dir={place / 'room'}")
    last = [*place.glob("room/probseg/*/checkpoints/last.ckpt")]
    go_on = ("--ckpt_path", last[-1]) if last else ()
    return command(*folder_fit(place / "photos_and_masks", *more, *go_on))


def run_test(place):
    from support.runs import TEST, command

    os.chdir(REPOSITORY)
    data = f"--data.test.root={place / 'photos_and_masks'}"
    return command(*TEST, data, f"--trainer.logger.save_dir={place / 'room'}")


def run_annotate(place):
    """Go through a session as a page does; what cannot be stored is refused with the reason."""
    from probseg import cli
    from probseg.annotate.answers import ModelHost
    from probseg.annotate.sessions import Sessions
    from support.annotate_client import Client

    def session(arguments):
        sessions = Sessions(place / "photos", place / "room", HOST[0])
        try:
            client = Client(sessions)
            for n in (0, 1):
                for action in (
                    {"type": "click", "x": 20, "y": 20, "positive": True},
                    {"type": "finish", "label": "disk"},
                ):
                    answer = client.http.get(client.path(n))
                    if answer.status_code == 200:
                        body = {
                            "sequence": 1,
                            "revision": answer.json()["revision"],
                            "action": action,
                        }
                        answer = client.http.post(f"{client.path(n)}/actions", json=body)
                    assert answer.status_code in (200, 507, 400), answer.text
            for kind in ("coco", "report"):
                answer = client.http.post("/api/export", json={"format": kind})
                assert answer.status_code in (200, 507, 422), answer.text
        finally:
            sessions.close()

    if not HOST:
        HOST.append(ModelHost(str(place / "m")))
    cli.VERBS = {"annotate": session}
    return cli.main(["annotate"])


HOST: list = []
GRAPHS: dict = {}


def whole(path):
    """Say whether a file is no half one."""
    try:
        match path.suffix:
            case ".json":
                json.loads(path.read_text())
            case ".yaml":
                return isinstance(yaml.safe_load(path.read_text()), dict)
            case ".png":
                Image.open(path).load()
            case ".ckpt":
                torch.load(path, weights_only=True)
            case ".pt2":
                return zipfile.ZipFile(path).testzip() is None
            case ".md" | ".html" | ".csv":
                return path.stat().st_size > 0 or path.name == "metrics.csv"
            case ".part":
                return False
    except Exception:
        return False
    return True


def child(work, place):
    """Run a command in a process of its own; return its status and what it printed."""
    output = place / "output.txt"
    with output.open("w") as file:
        number = os.fork()
        if number == 0:
            os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
            try:
                status = work()
            except SystemExit as stop:
                status = stop.code
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status or 0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), output.read_text()


def every_write(name, place, error, once, count):
    library, work, room = ctypes.CDLL(None), globals()[f"run_{name}"], place / "room"

    def armed(n):
        def run():
            library.fail_at(str(room).encode(), ctypes.c_long(n), error, once)
            try:
                return work(place)
            finally:
                (place / "writes").write_text(str(library.writes()))

        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        return child(run, place)

    place.mkdir()
    prepare(place)
    if name == "export":
        room.mkdir()
        work(place)
    status, text = armed(0)
    assert status == 0, text
    total, faults = int((place / "writes").read_text()), []
    before = {path.relative_to(room) for path in room.rglob("*") if path.suffix != ".log"}
    print("writes", total, flush=True)
    refused, seen = 0, set()
    for n in range(1, total + 1, max(1, total // count)):
        status, text = armed(n)
        refused += status == 2
        print(n, status, flush=True)
        found = []
        if status not in (0, 2) or "Traceback" in text:
            found.append(f"status {status}: {text[-1500:]}")
        found += [f"half file {path}: {text[-300:]}" for path in room.rglob("*") if not whole(path)]
        # From the same files a command goes on in the same way; a database has more than a size.
        state = frozenset(
            (re.sub(r"\d|\.tfevents.*", "", str(path.relative_to(room))), path.stat().st_size)
            for path in room.rglob("*")
            if path.is_file()
        )
        known, again = state in seen and name != "annotate", 0
        seen.add(state)
        # Two of them refuse to write over what they wrote where they found another way.
        if not known and (status or name not in ("convert", "export")):
            again, text = child(lambda: work(place), place)
        there = {path.relative_to(room) for path in room.rglob("*")}
        lost = set() if known or name in ("fit", "test") else before - there
        if again or lost:
            found.append(f"again: status {again}, without {lost}: {text[-1500:]}")
        for fault in found:
            print(f"{n}: {fault}", flush=True)
        faults += found
    print(f"{name}: {total} writes, {refused} ended with a sentence, {len(faults)} faults")
    return bool(faults)


def blank(figure, target):
    """Save a figure without its pixels."""
    Image.new("RGB", (8, 8)).save(target, format="PNG")


def prepare(place):
    """Draw photographs with masks and prompts, and save a small network."""
    import probseg.annotate.sessions
    import probseg.cli.predict_photographs
    import probseg.cli.trainer
    import probseg.reports.figures
    from probseg.zoo import store
    from support.fakes import micro_model, write_folder
    from support.micro import described

    probseg.reports.figures._save = blank  # drawing takes most of a report's time

    torch.manual_seed(1)
    store.save(micro_model("micro_csa"), described("micro_csa"), place / "m")
    root = write_folder(place / "photos_and_masks", images=2, size=(40, 48))
    shutil.copytree(root / "images", place / "photos")
    names = sorted(path.name for path in (place / "photos").iterdir())
    (place / "prompts.json").write_text(json.dumps({n: [{"box": [5, 5, 30, 30]}] for n in names}))
    square = {"segmentation": [[5, 5, 30, 5, 30, 30, 5, 30]], "bbox": [5, 5, 25, 25], "iscrowd": 0}
    content = {
        "images": [
            {"id": i, "file_name": n, "height": 40, "width": 48} for i, n in enumerate(names, 1)
        ],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1, "area": 625, **square} for i in (1, 2)
        ],
        "categories": [{"id": 1, "name": "x"}],
    }
    (place / "coco.json").write_text(json.dumps(content))


if __name__ == "__main__":
    NUMBERS = [int(argument) for argument in sys.argv[3:]]
    NAMES = sys.argv[1].split("+")
    sys.exit(any([every_write(name, Path(sys.argv[2]) / name, *NUMBERS) for name in NAMES]))
