"""Random command lines: whatever the words, `nonloc` answers with a result or with one short line.

parsed    `main` in this process, up to where the work of a command begins
executed  the same with the work, which is tiny: one step of training, images of 8 × 8 pixels, a few checks
process   `python -m nonloc`, with nothing replaced

A line has options of the command's own parser, so that new ones join by themselves. Their values are sound or hostile,
and some come from config files and the environment. The parser of a command is shared between lines, because to make
one takes longer than to parse; a line that fails is tried again with a new one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from PIL import Image
from tiny import tiny_data

from faults.trial import Trial
from nonloc.cli import entry, main
from nonloc.cli.commands import find_commands, load_command
from nonloc.cli.parser import make_command_parser
from nonloc_paper.data import NAMES
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.theory import all_checks

GOALS = {"parsed": 100_000, "executed": 2_000, "process": 200}
# Of a processor, because others may work on the machine; and of waiting.
SECONDS, WAIT = 10, 60
LONGEST = 2000  # characters of an error
CODES = {0, 1, 2, 3, 4, 5, 130, 141, 143}

TINY = shlex.split(
    "--network restorer8/diffusive-1@2 --data motifs --train_images 16 --test_images 8 --epochs 1 --steps_per_epoch 1 "
    "--batch_size 8 --optimizer adam --schedule constant --device cpu"
)
# Sound words for the positional argument of each command, and what keeps its work short; the last one wins.
FIRST = {
    "simulate": ("diffusion", "damped", "reverse", "jump"),
    "data": ("motifs", "cifar10"),
    "eval": ("run", "."),
    "explore": ("new", "run", "."),
    "map": ("one_epoch", "ten_epochs", "ten-epochs-heat"),
    "report": ("run", "."),
    "reproduce": ("demo", "table1", "figure1"),
    "spectrum": ("run",),
    "stability": ("run",),
}
BEFORE = {
    "simulate": ["--size", "6", "--steps", "2", "--quiet"],
    "train": TINY,
    "stability": ["--images", "1"],
    "check": ["--positions", "4"],
}
AFTER = {
    "train": ["--budget", "0s", "--train_images", "16", "--quiet"],
    "reproduce": ["--budget", "0s", "--kept", "null", "--quiet"],
    "map": ["--budget", "0s", "--quiet"],
    "report": ["--output", "page.html"],
}
# Where the work of each command begins.
BEGINNINGS = shlex.split("""
    nonloc.processes.images.patch_features nonloc_paper.theory.all_checks.check_all nonloc_paper.data.download
    nonloc_paper.data.load nonloc_paper.suites.recheck.recheck nonloc_paper.suites.archive.lock_folder
    nonloc_paper.report.records.collect nonloc_paper.commands.reproduce.write_plan
    nonloc_paper.report.reproduction.write_reproduction nonloc_paper.training.observe.observe_spectra
    nonloc_paper.training.certificates.certify_run nonloc_paper.training.fit.fit
    nonloc_paper.explorer.build.write_explorer
""")
LOADERS = shlex.split(
    "data suites.recheck training.fit training.observe training.scheduler training.certificates"
)

HUGE = str(10**20)
SOUND = shlex.split("""
    0 1 2 3 0.5 1e-3 true false null cpu motifs cifar10 sgd adam step constant onecycle float32 bfloat16 std row
    sinkhorn gaussian heat normal zero factored stable auto '[1, 2]' [] [3] 5s 1.5h median all none baseline 5-block
    restorer8/diffusive-2@2 restorer8/baseline preresnet20/original-2@2 'rate 0.1' epochs=1 seed=1 stage.hidden=2
    exact euler implicit batch_size=8 skip_default '{hidden: 2}' good.yaml
""")
SOUND_OF_TYPE = {
    "int": ("0", "1", "2", "3", "8"),
    "float": ("0", "0.5", "1e-3", "2"),
    "bool": ("true", "false"),
    "tuple": ("[]", "[1]", "[2, 3]"),
}
# Numbers; YAML and JSON; files and devices; networks and fields.
HOSTILE = shlex.split(
    """
    -1 -0.0 nan NaN .nan inf -inf .inf 1e999 1e-999 0x10 1_000 0b1 1.0 ١ ½ HUGE -HUGE

    {0} '{0: 1}' [1 {a } [[[]]] '- - - - - 1' '? ? ? a' '&a [*a]' *a '<<: {a: 1}' '!!binary aGk=' '!x y' '!!int x'
    '!!python/object:os.system x' '!!timestamp 2001-01-01' '!!timestamp x' '!!set {a, b}' '{class_path: os.system}'
    os.system nonloc.nn.options.StageOptions '{class_path: 3, init_args: 4}'

    folder file.txt binary.bin missing missing/deep loop dangling unreadable locked latin.yaml bomb.yaml deep.yaml
    large.yaml empty.yaml self.yaml binary.png picture.png ../outside file.txt/below /dev/null /dev/null/x file:///x
    http://127.0.0.1:9/x no_such_device meta cpu:7 cuda:99 mps xla vulkan '' ' ' - -- 🦊 %s %(prog)s

    restorer1000000/baseline restorer65536/baseline restorer8/original-9@9 restorer8/diffusive-HUGE@2
    preresnet9000000000000000000000000000002/baseline stage=3 stage=null network=3 seed=HUGE stage.hidden=HUGE
    stage.embed=1000000000000 epochs=[[[ = a=
    """.replace("HUGE", HUGE)
)
HOSTILE += map(str, (10**400, 2**31, 2**63 - 1, 2**63, 2**64))
HOSTILE += ["9" * 5000, "[" * 3000, "[" * 30 + "]" * 30, "{a: " * 60, "x" * 5000, "é" * 5000, "a" * 300]
HOSTILE += ["\n", "a\nb", "a\tb", "\r", "\x1b[31m", "\u202e", "\ud800", "\udcff"]
HOSTILE += [f"milestones={'[' * 100_000}", f"preresnet20/diffusive-1@{','.join(map(str, range(1, 3000)))}"]
ODD = ("--no_such", "-x", "--", "-", "--=1", "---", "extra")


class Begun(BaseException):
    """The work of a command begins here."""


class Late(BaseException):
    """A command has not ended in time."""


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """Yield trials of the three kinds, as many of each as GOALS says in proportion."""
    place = Place(folder)
    with place:
        while True:
            with contextlib.ExitStack() as stack:
                for name in BEGINNINGS:
                    stack.enter_context(mock.patch(name, _begin))
                for _ in range(500):
                    yield Trial("parsed", place.parsed(chance))
            for _ in range(10):
                yield Trial("executed", place.executed(chance))
            yield Trial("process", place.process(chance))


class Place:
    """A folder with files to name, as the working directory, and the environment of all lines."""

    def __init__(self, folder: Path) -> None:
        self.work, self.spare, self.config = folder / "work", folder / "spare", folder / "config.yaml"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NONLOC_")},
            # What would be read or written elsewhere is in the folder, and no download comes far.
            **{"NONLOC_RESULTS": str(folder / "results"), "NONLOC_DATA": str(folder / "data")},
            **{"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9"),
        }
        self.parsers: dict[str, argparse.ArgumentParser] = {}
        self.written: list[str] = []
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Place:
        enter = self._ending.enter_context
        enter(mock.patch.dict(os.environ, self.environment, clear=True))
        enter(mock.patch.object(entry, "make_command_parser", lambda name, command: self.parser(name)))
        enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for number in (signal.SIGPROF, signal.SIGALRM):
            self._ending.callback(signal.signal, number, signal.signal(number, _raise_late))
        self.spare.mkdir()
        enter(contextlib.chdir(self.spare))
        _make_files(self.spare)
        small = functools.cache(_small_data)
        for module in LOADERS:
            enter(mock.patch(f"nonloc_paper.{module}.load", lambda name, *_: small(name)))
        # The outcome of a few statements is as good as that of all, and a second in place of twenty.
        enter(mock.patch.object(all_checks, "STATEMENTS", all_checks.STATEMENTS[:3]))
        enter(mock.patch.object(all_checks, "continuum_checks", list))
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["train", *TINY, "--run", "run", "--quiet"]) == 0
        self._renew()
        enter(contextlib.chdir(self.work))
        sys.addaudithook(self._note_write)
        return self

    def __exit__(self, *error: object) -> None:
        self.work = Path("/")  # the hook stays for ever, and has nothing to note any more
        self._ending.close()

    def parsed(self, chance: random.Random) -> str | None:
        return self._in_process(*_line(chance, self, is_executed=False))

    def executed(self, chance: random.Random) -> str | None:
        failure = self._in_process(*_line(chance, self, is_executed=True))
        self._renew()
        return failure

    def process(self, chance: random.Random) -> str | None:
        assert self.limit  # measured before the first line, not in its process
        words, settings = _line(chance, self, is_executed=True)
        if words[:1] == ["check"]:
            words.append("--help")  # all of it takes longer than a line may
        words = [word for word in words if _is_encodable(word)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "nonloc", *words],
                capture_output=True,
                timeout=WAIT,
                check=False,
                env=self.environment | settings,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (self.limit, self.limit)),
            )
        except subprocess.TimeoutExpired:
            return f"{_shown(words, settings)}: not ended after {WAIT} s"
        finally:
            self._renew()
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return _judge(words, settings, done.returncode, out, err)

    def parser(self, name: str) -> argparse.ArgumentParser:
        """Return the parser of a command, made once."""
        if name not in self.parsers:
            self.parsers[name] = make_command_parser(name, load_command(find_commands()[name]))
        return self.parsers[name]

    def options(self, name: str) -> list[argparse.Action]:
        """Return the options of a command that its help shows."""
        actions = self.parser(name)._actions
        return [action for action in actions if action.option_strings and action.help != argparse.SUPPRESS]

    @functools.cached_property
    def limit(self) -> int:
        """Return the seconds of a processor for a line: SECONDS more than a sound line takes, mostly for imports."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        command = [sys.executable, "-m", "nonloc", "train", *TINY, "--run", "sound"]
        subprocess.run(command, capture_output=True, check=True, env=self.environment)
        return SECONDS + round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)

    def _in_process(self, words: list[str], settings: dict[str, str]) -> str | None:
        failure = self._once(words, settings)
        if failure is not None:
            # What earlier lines have left in a parser or in the folder must not be blamed on this one.
            self.parsers.clear()
            self._renew()
            failure = self._once(words, settings)
        return failure

    def _once(self, words: list[str], settings: dict[str, str]) -> str | None:
        out, err = io.StringIO(), io.StringIO()
        self.written.clear()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.dict(os.environ, settings),
        ):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.setitimer(signal.ITIMER_REAL, WAIT)
            try:
                code: Any = main(words)
            except Begun:
                code = None
            except SystemExit as end:
                code = end.code or 0
            except Late:
                return f"{_shown(words, settings)}: not ended after {SECONDS} s"
            except BaseException as error:  # KeyboardInterrupt from the keyboard stops the trials
                if isinstance(error, KeyboardInterrupt):
                    raise
                return f"{_shown(words, settings)}: {type(error).__name__}: {str(error)[:200]}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                for parser in self.parsers.values():
                    vars(parser).pop("print_config", None)
                os.chdir(self.work)
        if self.written:
            return f"{_shown(words, settings)}: wrote {self.written[:3]}"
        return _judge(words, settings, code, out.getvalue(), err.getvalue())

    def _renew(self) -> None:
        """Make all files as they were."""
        self.work.mkdir(exist_ok=True)
        for path in self.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.copytree(self.spare, self.work, symlinks=True, dirs_exist_ok=True)

    def _note_write(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note the files that are written outside the folder."""
        if event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"):
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        else:
            path = arguments[0]
        with contextlib.suppress(Exception):
            whole = os.path.realpath(os.fsdecode(path))
            if not whole.startswith((str(self.work.parent.resolve()), "/dev/", "/proc/")):
                self.written.append(whole)


def _begin(*arguments: Any, **keywords: Any) -> Any:
    raise Begun


def _raise_late(number: int, frame: object) -> None:
    raise Late


def _judge(words: list[str], settings: dict[str, str], code: int | None, out: str, err: str) -> str | None:
    """Return what is wrong with the end of a line; code None is where its work began."""
    errors = [line for line in err.split("\n") if line.startswith("nonloc: ")]
    wrong = ""
    if code is not None and code not in CODES:
        wrong = f"exit code {code}"
    elif "Traceback" in out + err or "this is a bug of nonloc" in err:
        wrong = "a traceback or a bug"
    elif code in (1, 2, 4, 5) and not errors and words[:1] not in (["check"], ["eval"]):
        wrong = f"exit code {code} without an error"
    elif len(errors) > 1:
        wrong = f"{len(errors)} errors"
    elif errors and len(errors[0]) > LONGEST:
        wrong = f"an error of {len(errors[0])} characters"
    return f"{_shown(words, settings)}: {wrong}; code {code}; {err[-500:]!r}" if wrong else None


def _shown(words: list[str], settings: dict[str, str]) -> str:
    short = [word if len(word) < 200 else f"{word[:100]}…({len(word)})" for word in words]
    content = Path("../config.yaml").read_bytes()[:500] if "../config.yaml" in words else b""
    return f"{short!r} {str(settings)[:300] if settings else ''} {content if content else ''}".rstrip()


def _line(chance: random.Random, place: Place, *, is_executed: bool) -> tuple[list[str], dict[str, str]]:
    """Return the words, and what is set in the environment."""
    name = chance.choice([*find_commands(), "train", "train"])
    options = place.options(name)
    words, settings = [], {}
    if is_executed:
        words += BEFORE.get(name, [])
    # Lines with one fault reach further than lines with many.
    hostility = chance.choice((0.05, 0.3, 0.7))
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 5, 8))):
        action = chance.choice(options)
        if isinstance(action, argparse._HelpAction) and chance.random() < 0.9:
            continue
        words += _option(chance, action, hostility)
    if name == "train" and chance.random() < 0.25:
        place.config.write_bytes(_config(chance, options, hostility))
        words += ["--config", "../config.yaml"]
    if name != "simulate" and chance.random() < 0.15:
        action = chance.choice(options)
        value = _value(chance, action, hostility)
        if _is_encodable(value):
            settings[f"NONLOC_{name.upper()}__{action.dest.upper().replace('.', '__')}"] = value
    if chance.random() < 0.05:
        words.insert(chance.randrange(len(words) + 1), chance.choice(ODD))
    if name in FIRST and chance.random() < 0.97:
        first = chance.choice(HOSTILE) if chance.random() < hostility / 3 else chance.choice(FIRST[name])
        words.insert(chance.choice((0, 0, len(words))), first)
    if is_executed:
        words += AFTER.get(name, [])
    return [name, *words], settings


def _option(chance: random.Random, action: argparse.Action, hostility: float) -> list[str]:
    """Return an option as one may write it: with - or _, cut short, doubled, with = or without."""
    name = chance.choice(action.option_strings)
    if chance.random() < 0.1:
        name = name.replace("_", "-")
    if chance.random() < 0.02:
        name = name[: chance.randrange(2, len(name) + 1)]
    if action.nargs == 0:
        return [name] if chance.random() < 0.95 else [f"{name}={_value(chance, action, hostility)}"]
    if isinstance(action, argparse._ExtendAction):
        return [name, *(_value(chance, action, hostility) for _ in range(chance.choice((0, 1, 1, 2, 3))))]
    value = _value(chance, action, hostility)
    if chance.random() < 0.02:
        return [name]
    words = [f"{name}={value}"] if chance.random() < 0.4 else [name, value]
    return words * 2 if chance.random() < 0.03 else words


def _value(chance: random.Random, action: argparse.Action, hostility: float) -> str:
    if chance.random() >= hostility:
        return chance.choice(_own_values(action)) if chance.random() < 0.9 else chance.choice(SOUND)
    if chance.random() < 0.7:
        return chance.choice(HOSTILE)
    pieces: list[Callable[[], str]] = [
        lambda: chance.choice(HOSTILE)[:20],
        lambda: chance.choice(SOUND),
        lambda: "".join(
            chance.choices("[]{}:,-&*!|>'\"#%@`?~ \n\t0123456789.eE+_=/\\", k=chance.randrange(1, 12))
        ),
        lambda: str(chance.randrange(10 ** chance.randrange(1, 30))),
        lambda: chr(chance.randrange(1, 0x11000)),
    ]
    text = "".join(chance.choice(pieces)() for _ in range(chance.choice((1, 2, 3))))
    # A folder outside is not made by chance: a command may write where it is asked to.
    return text.lstrip("/.")


def _own_values(action: argparse.Action) -> list[str]:
    """Return values of the option's type."""
    hint = str(getattr(action, "_typehint", action.type))
    values = [*map(str, action.choices or ()), *re.findall(r"'(\w+)'", hint if "Literal" in hint else "")]
    values += [value for kind, those in SOUND_OF_TYPE.items() if kind in hint for value in those]
    values += ["null"] if "None" in hint else []
    # A word could be anything; names of devices, files and networks are among SOUND.
    return values if values and "str" not in hint else [*values, *SOUND]


def _config(chance: random.Random, options: list[argparse.Action], hostility: float) -> bytes:
    """Return the content of a config file: some options as YAML or JSON, often damaged."""
    values: dict[Any, Any] = {}
    for _ in range(chance.randrange(6)):
        action = chance.choice(options)
        text = _value(chance, action, hostility)
        value: Any = text
        with contextlib.suppress(Exception):
            value = yaml.safe_load(text)
        outer, dot, inner = action.dest.partition(".")
        if dot and isinstance(values.setdefault(outer, {}), dict):
            values[outer][inner] = value
        else:
            values[outer] = value
    if chance.random() < 0.1:
        values["stage"] = chance.choice(
            (None, 3, [1], "x", {}, {"hidden": [1]}, {1: 2}, {"no_such": 1}, True, 1.5)
        )
    try:
        text = json.dumps(values) if chance.random() < 0.4 else yaml.safe_dump(values, allow_unicode=True)
    except Exception:  # what cannot be written is no file
        text = "{}"
    content = bytearray(text.encode(errors="surrogatepass"))
    if chance.random() < 0.5:
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(content) + 1)
            damage = chance.randrange(4)
            if damage == 0:
                content[at:at] = bytes([chance.randrange(256)])
            elif damage == 1:
                del content[at : at + chance.randrange(1, 9)]
            elif damage == 2:
                content[at:at] = chance.choice(HOSTILE).encode(errors="surrogatepass")
            else:
                del content[at:]
    return bytes(content)


def _is_encodable(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _small_data(name: str) -> Dataset:
    """Return images of 8 × 8 pixels under the name of a data set."""
    if name not in NAMES:
        raise ValueError(f"{name[:50]!r} is not a data set")
    return replace(tiny_data(labels=name != "motifs"), name=name)


def _make_files(folder: Path) -> None:
    """Make the files that lines name."""
    (folder / "folder").mkdir()
    (folder / "locked").mkdir(mode=0o000)
    (folder / "file.txt").write_text("words\n")
    (folder / "binary.bin").write_bytes(bytes(range(256)))
    (folder / "binary.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    (folder / "unreadable").write_text("x")
    (folder / "unreadable").chmod(0)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    Image.new("RGB", (9, 7), "teal").save(folder / "picture.png")
    (folder / "good.yaml").write_text("epochs: 1\nstage: {hidden: 2}\n")
    (folder / "latin.yaml").write_bytes("network: é\n".encode("latin-1"))
    (folder / "empty.yaml").write_text("")
    (folder / "large.yaml").write_text("# x\n" * 100_000)
    (folder / "deep.yaml").write_text(f"milestones: {'[' * 3000}{']' * 3000}\n")
    (folder / "self.yaml").write_text("{milestones: &a [*a]}\n")
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (folder / "bomb.yaml").write_text("\n".join(["a0: &a0 [x, x, x]", *levels]) + "\n")
