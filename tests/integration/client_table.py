# SPDX-License-Identifier: Apache-2.0
"""What test_client_table.py expects: the ways to fail, and how a call ends that meets them."""

from dataclasses import dataclass

LIMIT_MS = 150  # of whoever is to lose patience: the router or the client
PLENTY_MS = 60000

EVENTS = 4  # of a stream, before it fails
BYTES = 700  # of an answer: its head, and within one of the first events of any family


# Of these streams the router holds an event back until it is whole (it may be the usage that nobody
# asked for), so an engine that dies within one dies between two for the client.
HELD_BACK = {"chat.completions.create(stream)", "completions.create(stream)"}


@dataclass(frozen=True)
class Fault:
    """Of engines, as samovar-sim spells it; or of the client's patience."""
    name: str
    stream: str = None  # of a streamed answer; None: this cannot happen to one
    whole: str = None
    hits_one: bool = False  # only the engine that is tried first, else all
    engines: int = 2
    router_limit_ms: int = PLENTY_MS
    is_impatient: bool = False  # the client's own limit passes
    is_left: bool = False  # the client closes, or cancels
    seen_count: int = 1  # requests that engines see
    seen_idempotent: int = None  # of calls that change nothing; None: as many
    seen_held_back: int = None  # of those in HELD_BACK

    def spec(self, call):
        return self.stream if call.is_stream else self.whole

    def can_happen_to(self, call, is_async):
        if call.is_local:
            return self.spec(call) == ""
        if self.is_left and not call.is_stream and not is_async:
            return False  # nobody can call off a call that blocks
        return self.spec(call) is not None

    def seen(self, call):
        if call.is_local:
            return 0
        if call.is_idempotent and self.seen_idempotent is not None:
            return self.seen_idempotent
        if call.name in HELD_BACK and self.seen_held_back is not None:
            return self.seen_held_back
        return self.seen_count


DIES = "die_at_byte=0"
FAULTS = [
    Fault("undisturbed", "", ""),
    Fault("one-dies-before-a-byte", DIES, DIES, hits_one=True, seen_count=2),
    # The connection of the call before it was kept: that it is closed says nothing, so the same
    # engine is asked once more on a new one.
    Fault("the-only-one-dies-before-a-byte", DIES, DIES, engines=1, seen_count=2),
    Fault("both-die-before-a-byte", DIES, DIES, seen_count=2),
    Fault("dies-between-events", f"die_at_event={EVENTS}"),
    Fault("dies-within-an-event", f"die_at_byte={BYTES}"),
    Fault("resets-within-its-answer", f"die_at_byte={BYTES},how=rst", "die_at_event=1,how=rst"),
    Fault("hangs-before-a-byte", "hang", "hang", router_limit_ms=LIMIT_MS, seen_idempotent=2),
    Fault("hangs-within-its-answer", f"hang_at_event={EVENTS}", "hang_at_event=1",
          router_limit_ms=LIMIT_MS),
    Fault("one-says-429", "status=429", "status=429", hits_one=True, seen_count=2),
    Fault("both-say-429", "status=429", "status=429", seen_count=2),
    Fault("one-says-503", "status=503", "status=503", hits_one=True, seen_count=2),
    Fault("says-500", "status=500", "status=500"),
    # The router asks for usage on these streams, and once more without, in case that was wrong.
    Fault("says-400", "status=400", "status=400", seen_held_back=2),
    Fault("the-client-is-impatient", "hang", "hang", is_impatient=True),
    Fault("the-client-leaves", "slow=20", "hang", is_left=True),
]

SAME = "same answer"
# How a call ends: fault -> by package and whether it is streamed, from the general to the special.
# An error is its class, status and code; where the family has no codes, the type.
EXPECTED = {
    "undisturbed": {"": SAME},
    "one-dies-before-a-byte": {"": SAME},
    "one-says-429": {"": SAME},
    "one-says-503": {"": SAME},
    "the-only-one-dies-before-a-byte": {
        "openai": "InternalServerError 502 upstream_closed",
        "anthropic": "InternalServerError 502 api_error"},
    "both-die-before-a-byte": {
        "openai": "InternalServerError 502 upstream_closed",
        "anthropic": "InternalServerError 502 api_error"},
    # An error event: the client is told, in the words of its family.
    "dies-between-events": {
        "openai": "APIError upstream_closed", "anthropic": "APIStatusError 200 api_error"},
    # A part of an event was sent, so nothing can follow it: the connection is cut. The anthropic
    # client lets its transport's error through.
    "dies-within-an-event": {
        "openai": "APIConnectionError", "anthropic": "RemoteProtocolError"},
    "resets-within-its-answer": {
        "openai": "APIConnectionError", "anthropic": "APIConnectionError",
        "anthropic stream": "RemoteProtocolError"},
    "hangs-before-a-byte": {
        "openai": "InternalServerError 504 upstream_header_timeout",
        "anthropic": "GatewayTimeoutError 504 timeout_error"},
    "hangs-within-its-answer": {
        "": "APIConnectionError", "openai stream": "APIError upstream_idle_timeout",
        "anthropic stream": "APIStatusError 200 timeout_error"},
    "both-say-429": {
        "openai": "RateLimitError 429 429", "anthropic": "RateLimitError 429 RateLimitError"},
    "says-500": {
        "openai": "InternalServerError 500 500",
        "anthropic": "InternalServerError 500 InternalServerError"},
    "says-400": {
        "openai": "BadRequestError 400 400", "anthropic": "BadRequestError 400 BadRequestError"},
    "the-client-is-impatient": {"": "APITimeoutError"},
    "the-client-leaves": {"": "CancelledError", "openai stream": "left",
                          "anthropic stream": "left"},
}
def expected(call, fault):
    name = fault.name
    if name in ("dies-within-an-event", "resets-within-its-answer") and call.name in HELD_BACK:
        name = "dies-between-events"
    ends = EXPECTED[name]
    for key in (f"{call.sdk.name} stream" if call.is_stream else "", call.sdk.name, ""):
        if key in ends:
            return ends[key]
    raise AssertionError(f"{call.name} has no end under {fault.name}")


def outcome(error, said, heard):
    """In the words of EXPECTED."""
    if error is None:
        return SAME if said == heard else "left"
    words = [type(error).__name__]
    if getattr(error, "status_code", None):
        words.append(str(error.status_code))
    word = getattr(error, "code", None) or getattr(error, "type", None)
    return " ".join(words + ([str(word)] if word else []))


def table_text(cells):
    """Of {(call, is_async, fault): outcome}: a table for each package, calls by faults."""
    lines = ["# How calls of the official clients end when engines fail", "",
             "How it ended, and how many requests the engines saw. `-`: cannot happen.", ""]
    for package in sorted({call.sdk.name for call, _, _ in cells}):
        calls = list(dict.fromkeys((call, is_async) for call, is_async, _ in cells
                                   if call.sdk.name == package))
        lines += ["| " + " | ".join([package] + [("await " if is_async else "") + call.name
                                                 for call, is_async in calls]) + " |",
                  "|---" * (len(calls) + 1) + "|"]
        for fault in FAULTS:
            row = [cells.get((call, is_async, fault), "-") for call, is_async in calls]
            lines.append("| " + " | ".join([fault.name.replace("-", " "), *row]) + " |")
        lines.append("")
    return "\n".join(lines)


# Requests that engines see of one call of a client that tries three times by itself. It does so
# only where it was told when: the router tells it not to repeat what it repeated itself, and what
# an engine failed at once it is likely to fail at again.
REQUESTS_OF_A_PATIENT_CLIENT = {
    "one-dies-before-a-byte": 2,
    "both-die-before-a-byte": 2,
    "hangs-before-a-byte": 1,
    "one-says-429": 2,
    "both-say-429": 6,
    "says-500": 1,
    "says-400": 1,
}
