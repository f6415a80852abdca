# SPDX-License-Identifier: Apache-2.0
"""counts: what the connector kept from the agent, or went without, and why. An agent cannot count
whom it never heard of, least of all while it is away: so the engine does, in its own /metrics (see
metrics.py). Pure.

A request is counted when it ends, once, under the reason of its last look at the tiers; one whose
tokens may not be told, when it comes. Of an answer "nothing there" nobody was kept out: those are
the agent's to count.
"""

REQUESTS = "requests_left_out"
BLOCKS = "blocks_unsaved"

# What is counted, and why it comes to that.
REASONS = {
    REQUESTS: {
        "away": "no agent was there, or its connection had been given up",
        "embeddings": "the prompt, or a part of it, is no token ids",
        "engine": "the engine as a whole stays out: its log says why",
        "late": "the agent did not answer or read in time, or had just not done so",
        "media": "images, audio or video stand in the prompt",
        "put_off": "the agent said 'later' for too long",
        "refused": "the agent refuses this engine: both logs say why",
        "reset": "the agent has not confirmed yet that it forgot the pages of before a reset",
        "resumable": "the prompt may still grow",
        "unsayable": "the salt or the adapter's name is too long, or no UTF-8",
    },
    BLOCKS: {
        "away": "no agent was there, or it went meanwhile",
        "late": "the agent had not copied them in time",
        "unread": "the agent did not read",
    },
}

HELP = {
    REQUESTS: "Requests that the agent of the tiers was not asked about, or had no answer for, by "
              "the reason.",
    BLOCKS: "Full blocks of prompts that were to be saved in the tiers and were not, by the reason.",
}


class Counts:
    """Since they were last taken."""

    def __init__(self):
        self._numbers = {}

    def add(self, what, reason, number=1):
        assert reason in REASONS[what]
        if number:
            key = key_of(what, reason)
            self._numbers[key] = self._numbers.get(key, 0) + number

    def take(self):
        """{key: number} without zeros; what is counted begins anew."""
        taken, self._numbers = self._numbers, {}
        return taken


def key_of(what, reason):
    """A plain text, which any way between processes keeps."""
    return f"{what} {reason}"
