# SPDX-License-Identifier: Apache-2.0
"""HTTP/1 messages on a Wire, read strictly and in pieces: what libraries hide is the point."""

import json

from peers.wire import WireEnded


class Truncated(AssertionError):
    """The connection ended inside a body. partial holds what had come."""

    def __init__(self, how, partial):
        super().__init__(f"body cut by {how} after {len(partial)} bytes: {partial[-200:]!r}")
        self.partial = partial


class Head:
    """Start line and fields, in the order and spelling of the wire."""

    def __init__(self, raw):
        lines = raw.decode("latin-1").split("\r\n")
        self.start = lines[0]
        self.fields = []
        for line in lines[1:]:
            if line:
                name, colon, value = line.partition(":")
                assert colon, f"header line without a colon: {line!r}"
                self.fields.append((name, value.strip(" \t")))

    def all(self, name):
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def get(self, name):
        """The only value of that name; None where absent. Twice is an error of the sender."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None


class Message:
    """A message whose head was read; the body comes piece by piece."""

    def __init__(self, wire, raw_head, has_body):
        self.wire = wire
        self.head = Head(raw_head)
        self.chunks = 0  # of a chunked body: how many came
        self.body = bytearray()  # all that has been read of it
        self.handed_out = 0  # how much of it read() and read_until() have given
        length = self.head.get("content-length")
        encoding = (self.head.get("transfer-encoding") or "").lower() or None
        assert not (length and encoding), "both Content-Length and Transfer-Encoding"
        assert encoding in (None, "chunked"), f"Transfer-Encoding: {encoding}"
        if not has_body:
            self.framing, self.left = "none", 0
        elif encoding:
            self.framing, self.left = "chunked", None
        elif length is not None:
            self.framing, self.left = "length", int(length)
        else:
            self.framing, self.left = "close", None
        self.is_complete = self.framing == "none" or self.left == 0

    def get(self, name):
        return self.head.get(name)

    @property
    def status(self):
        version, status = self.head.start.split(" ")[:2]
        assert version in ("HTTP/1.1", "HTTP/1.0"), self.head.start
        return int(status)

    @property
    def method(self):
        return self.head.start.split(" ")[0]

    @property
    def target(self):
        return self.head.start.split(" ")[1]

    def _read_chunk(self):
        size = int(self.wire.read_until(b"\r\n", "chunk size").split(b";")[0], 16)
        if size == 0:
            while self.wire.read_until(b"\r\n", "trailers") != b"\r\n":
                pass
            self.is_complete = True
            return
        self.chunks += 1
        left = size
        while left > 0:
            if not self.wire.pending:
                piece = self.wire.read_some("chunk")
            else:
                piece = self.wire._take(min(left, len(self.wire.pending)))
            if len(piece) > left:
                self.wire.pending[:0] = piece[left:]
                piece = piece[:left]
            if not piece:
                raise WireEnded(f"{self.wire.end.kind} inside a chunk")
            self.body += piece
            left -= len(piece)
        assert self.wire.read(2, "end of chunk") == b"\r\n"

    def _read_piece(self):
        """Reads more of the body; raises Truncated where the connection ended inside it."""
        try:
            if self.framing == "chunked":
                self._read_chunk()
                return
        except WireEnded as ended:
            raise Truncated(str(ended), bytes(self.body)) from None
        piece = self.wire.read_some("body")
        if self.framing == "close":
            self.is_complete = not piece
            if not piece and self.wire.end.kind == "rst":
                raise Truncated("rst", bytes(self.body))
            self.body += piece
            return
        if not piece:
            raise Truncated(self.wire.end.kind, bytes(self.body))
        self.wire.pending[:0] = piece[self.left :]
        piece = piece[: self.left]
        self.body += piece
        self.left -= len(piece)
        self.is_complete = self.left == 0

    def read(self, count):
        """The next count bytes of the body."""
        while len(self.body) - self.handed_out < count:
            assert not self.is_complete, f"body ended early: {bytes(self.body[self.handed_out:])!r}"
            self._read_piece()
        taken = bytes(self.body[self.handed_out : self.handed_out + count])
        self.handed_out += count
        return taken

    def read_all(self):
        """The rest, to the clean end of the message. Returns the whole body."""
        while not self.is_complete:
            self._read_piece()
        self.handed_out = len(self.body)
        return bytes(self.body)

    def read_until_cut(self):
        """The whole body as far as it came; fails where the message ends cleanly."""
        try:
            self.read_all()
        except Truncated as cut:
            return cut.partial
        raise AssertionError(f"ended cleanly: {bytes(self.body[-200:])!r}")

    def json(self):
        return json.loads(self.read_all())


def read_answer(wire, method="POST", timeout_s=None):
    """The next final answer; interim ones (1xx) are skipped."""
    while True:
        raw = wire.read_until(b"\r\n\r\n", "head of an answer", timeout_s)
        status = int(raw.split(b" ", 2)[1])
        if status >= 200:
            return Message(wire, raw, method != "HEAD" and status not in (204, 304))


def read_request(wire):
    raw = wire.read_until(b"\r\n\r\n", "head of a request")
    head = Head(raw)
    has_body = head.get("content-length") is not None or head.get("transfer-encoding") is not None
    return Message(wire, raw, has_body)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def head_bytes(start, fields):
    """fields: a dict, or pairs where a name comes twice. A value of None leaves the field out."""
    pairs = fields.items() if isinstance(fields, dict) else fields
    lines = [start] + [f"{name}: {value}" for name, value in pairs if value is not None]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request_bytes(method, target, body=None, fields=(), framing="length", version="1.1"):
    """A whole request. framing: "length", or "chunked" with chunks of growing odd sizes."""
    all_fields = {"Host": "samovar.test", **dict(fields)}
    payload = b""
    if body is not None:
        all_fields = {"Content-Type": "application/json", **all_fields}
        if framing == "chunked":
            all_fields["Transfer-Encoding"] = "chunked"
            payload = b"".join(chunk(piece) for piece in cut_oddly(body)) + LAST_CHUNK
        else:
            all_fields["Content-Length"] = len(body)
            payload = body
    return head_bytes(f"{method} {target} HTTP/{version}", all_fields) + payload


def cut_oddly(data):
    """Pieces of 1, 8, 50, 300, ... bytes: small ones to hit borders, large ones to get done."""
    size, at = 1, 0
    while at < len(data):
        yield data[at : at + size]
        at += size
        size = min(size * 6 + 2, 100_003)
