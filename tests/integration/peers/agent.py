# SPDX-License-Identifier: Apache-2.0
"""samovar-agent as a process, and what may be asked of it from outside."""

from peers.daemon import Daemon
from peers.process import program, wait_until
from peers.wire import HOST


# Where SAMOVAR_FAULT_POINT can have it die: backends/runtime/fault_point.h. The latter in a RESET.
FAULT_POINTS = ("save-copied", "save-sealed", "save-indexed", "save-reported", "demote-written",
                "demote-listed", "demote-indexed", "withdraw-told", "withdraw-index", "hold-taken",
                "load-midway", "load-done")
CLEAR_POINTS = ("clear-told", "clear-durable")


class Agent(Daemon):
    def __init__(self, engine, redis, secret_file, *flags, kv_events=None, kv_replay=None,
                 advertise=None, state_dir=None, env=None):
        """engine: anything with a url, or a url; None where a file names engines. redis: a
        RedisServer or a url. Returns once its admin address listens; of Redis and the engine it may
        know nothing yet."""
        argv = [program("samovar-agent"), "--redis", getattr(redis, "url", redis),
                "--secret-file", secret_file, "--admin-host", HOST, "--admin-port", 0,
                "--log-format", "json"]
        for flag, value in (("--engine", getattr(engine, "url", engine)),
                            ("--kv-events", kv_events), ("--kv-replay", kv_replay),
                            ("--advertise", advertise), ("--state-dir", state_dir)):
            argv += [flag, value] if value is not None else []
        super().__init__([*argv, *flags], env)
        with self.killed_on_failure():
            self.admin_address = self.listening("admin_listening")

    def is_ready(self):
        """It hears its engines, and Redis takes what it says."""
        return self.admin("/ready").status == 200

    def wait_ready(self):
        wait_until(self.is_ready, lambda: f"ready: {self.admin('/ready').read_all().decode()}")
        return self
