"""What the main functions of the programs share: options, one line for an error, exit codes, signals."""

import argparse
import functools
import importlib.util
import math
import os
import signal
import sys
import unicodedata
import warnings
from pathlib import Path

import glade


class ProgramError(Exception):
    """What ends a program with one line and exit code 1."""


class UsageError(ProgramError):
    """Options that cannot be followed: exit code 2."""


class Silent(Exception):
    """What ends a program with exit code 1 and no message: another process gives it."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the options in one line, and in the help of each what it is without it."""

    def __init__(self, description):
        layout = functools.partial(argparse.HelpFormatter, max_help_position=30, width=100)
        super().__init__(description=description, allow_abbrev=False, formatter_class=layout)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")

    def option(self, name, text, default=None, *, shown=None, **how):
        """Adds an option. The help shows its default, or what is `shown` instead."""
        add_option(self, name, text, default, shown=shown, **how)


def add_option(parser, name, text, default=None, *, shown=None, **how):
    """Parser.option, for a group of options, too."""
    if how.get("required"):
        text += " (required)"
    elif shown is not None or (default is not None and default is not False):
        text += f" [{default if shown is None else shown}]"
    parser.add_argument(name, default=default, help=text.replace("%", "%%"), **how)


def printable(text, keep=""):
    """The text with ? for control characters, which a terminal obeys and files may have in names and texts, but for those to keep."""
    return "".join("?" if unicodedata.category(c) == "Cc" and c not in keep else c for c in text)


def print_error(error):
    """One line for an exception or a message."""
    if isinstance(error, OSError):
        error = f"{error.filename or 'the output cannot be written'}: {error.strerror}"
    print(f"{os.path.basename(sys.argv[0])}: {printable(str(error))}", file=sys.stderr, flush=True)


def run(main):
    """Runs `main`, whose result is the exit code. Every error that can be foreseen is one line."""
    warnings.showwarning = lambda message, *_: print_error(message)
    sys.stdout.reconfigure(errors="surrogateescape")  # for names of files that are no UTF-8
    code, message = 1, ""
    try:
        code = main()
    except (UsageError, glade.ValueError) as error:
        code, message = 2, str(error)
    except (ProgramError, glade.Error) as error:
        message = str(error)
    except Silent:
        pass
    except OSError as error:
        message = error
    except ModuleNotFoundError as error:
        message = f"this needs the package {error.name}: pip install {error.name}"
    except KeyboardInterrupt:
        code, message = 128 + signal.SIGINT, "interrupted"
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == 0:
            code, message = 1, f"the output cannot be written: {error.strerror}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where Python tries again at its end
    if message:
        print_error(message)
    sys.exit(code)


def number_type(kind, is_right, expected):
    """The type of an option for a finite number; `expected` names in errors what `is_right` asks for."""

    def parse(text):
        try:
            value = kind(text)
            passes = abs(value) < math.inf and is_right(value)
        except ValueError:
            passes = False
        if not passes:
            raise argparse.ArgumentTypeError(f"{text}, expected {expected}")
        return value

    return parse


positive = number_type(float, lambda x: x > 0, "a number above 0")
non_negative = number_type(float, lambda x: x >= 0, "a number of at least 0")
probability = number_type(float, lambda x: 1e-6 <= x <= 1, "a number above 0 and at most 1")
count = number_type(int, lambda n: 0 <= n < 2**63, "a whole number of at least 0")
size = number_type(int, lambda n: 1 <= n <= 2**40, "a whole number from 1 to 2^40")
seed = number_type(int, lambda n: 0 <= n < 2**64, "a whole number from 0 to 2^64 - 1")


def file_name(text):
    """The type of an option for a file."""
    if not text:
        raise argparse.ArgumentTypeError("an empty file name")
    return Path(text)


def check_package(option, package):
    """UsageError where a package that `option` needs is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{option} needs the package {package}: pip install {package}")


def check_plot(path):
    """UsageError where --plot names a kind of image that matplotlib does not make, or that is not installed."""
    check_package("--plot", "matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise UsageError(f"--plot {path}: expected a name that ends in .png, .svg, .pdf or the like")


def is_same_file(a, b):
    """Whether both, which may be missing, mean one file."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def temporary_of(output):
    """The file beside an output in which it is collected, where one that is whole takes its place."""
    return Path(f"{output.resolve()}.tmp")


def check_folder(option, path):
    """UsageError where `path`, which `option` names for a file to write, lies in no folder or in one that cannot be written to."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder cannot be written to: {folder}")


def check_distinct(option, path, others):
    """UsageError where `path`, which `option` names for a file to write, is one of `others`: pairs of an option and its file,
    or one of both is the temporary file beside the other ("m.h5.tmp" for "m.h5")."""
    for other, file in others:
        if is_same_file(path, file):
            raise UsageError(f"{option} {path}: that is a file of {other}")
        if is_same_file(temporary_of(path), file) or is_same_file(path, temporary_of(file)):
            raise UsageError(f"{option} {path}: this file and that of {other} collide: one is the temporary file of the other")


def catch_interrupts():
    """The list to which SIGINT (Ctrl-C), SIGTERM and SIGHUP (a terminal that closes) are added, for a program that ends when it has
    saved. A second one of the same kind ends it at once."""
    received = []

    def receive(number, _):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # nohup ignores SIGHUP, and means it
            signal.signal(number, receive)
    return received
