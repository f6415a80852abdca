# SPDX-License-Identifier: Apache-2.0
"""What tests start here is large and lives in sessions of its own: it must not outlive them."""

import pathlib
import signal
import subprocess
import sys

import pytest

from engines import HERE, wait_until

pytestmark = pytest.mark.smoke

KILLED = """
import os, pathlib, signal, sys
from engines import Process
ended, left = (Process(name, ["sleep", 600], pathlib.Path(sys.argv[1])) for name in ("a", "b"))
ended.kill()
print(left.child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def has_ended(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rsplit(")", 1)[1].split()[0] == "Z"  # and nobody is there to ask for its status


def test_whoever_is_killed_leaves_no_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=HERE, text=True,
                          capture_output=True, check=False)

    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: has_ended(int(done.stdout)), "what it started ends", 10)
