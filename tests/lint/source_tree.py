# SPDX-License-Identifier: Apache-2.0
"""The repository as the lint checks see it: its files, their code without comments, findings.

Every check is a program of its own, `check_NAME [--root DIR]`. It prints one line per finding,
`file:line: rule: message`, and exits 0 (clean), 1 (findings) or 77 (cannot judge here).
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

EXIT_SKIP = 77

# Never ours to judge: build output, caches, and the files that are wrong on purpose.
SKIPPED_FOLDERS = {".git", ".pytest_cache", "__pycache__", "node_modules"}
SKIPPED_PATHS = ("tests/lint/bad",)


class SourceTree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.finding_count = 0

    def files(self, *suffixes):
        """Paths relative to the root, sorted; all files when no suffix is given."""
        found = []
        for folder, folders, names in os.walk(self.root):
            here = pathlib.Path(folder).relative_to(self.root)
            folders[:] = sorted(f for f in folders if not is_skipped(here / f))
            found += [(here / n).as_posix() for n in names
                      if not suffixes or n.endswith(suffixes)]
        return sorted(found)

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def report(self, path, line, rule, message):
        self.finding_count += 1
        print(f"{path}:{line}: {rule}: {message}")

    def finish(self):
        sys.exit(1 if self.finding_count else 0)


def is_skipped(path):
    text = path.as_posix()
    return (path.name in SKIPPED_FOLDERS or text == "build" or text.startswith("build-")
            or text in SKIPPED_PATHS)


def open_tree(description):
    parser = argparse.ArgumentParser(description=description)
    default = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--root", default=default, help="repository to check")
    return SourceTree(parser.parse_args().root)


def find_program(name, version):
    """(program, its version): the one named for that version first; (None, 0) without any."""
    for program in (f"{name}-{version}", name):
        if shutil.which(program):
            text = subprocess.run([program, "--version"], capture_output=True, text=True,
                                  check=True).stdout
            return program, int(re.search(r"version (\d+)", text)[1])
    return None, 0


TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL)


def blank(text):
    """Spaces of the same shape, so that line numbers stay right."""
    return re.sub(r"[^\n]", " ", text)


def code_only(text):
    """C source with comments and the insides of literals blanked out."""
    def replace(match):
        if match["comment"]:
            return blank(match["comment"])
        literal = match["string"]
        return literal[0] + blank(literal[1:-1]) + literal[-1]
    return TOKEN.sub(replace, text)


def without_comments(text):
    """C source with comments blanked out and literals kept: what #include lines need."""
    return TOKEN.sub(lambda m: blank(m[0]) if m["comment"] else m[0], text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1
