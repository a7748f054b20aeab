"""A job's log as Ray's dashboard sends it while it grows: text frames of a WebSocket (RFC 6455).

Ray hands out a log whole or through this tail; what is whole gets large. Guarantees: a read never
waits; text that was read before is skipped when a tail begins anew; whatever goes wrong ends the
tail, and its reader opens another. Nothing is sent but pongs. Standard library only: the trainer's
image need not have a WebSocket client.
"""

import base64
import os
import secrets
import socket
import ssl
import struct
from urllib.parse import urlsplit

CONNECT_S = 5
TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
# More than a dashboard's greeting and one frame take; a longer one is no tail of a log.
GREETING_BYTES = 65536
FRAME_BYTES = 64 << 20


class LogTail:
    """One connection; `read` gives what came beyond the first `skip` characters, `ended` tells that no more will."""

    def __init__(self, stream, received, skip):
        self.stream, self.received, self.skip = stream, received, skip
        self.parts, self.ended = [], False

    @classmethod
    def open(cls, url, path, skip=0):
        """Ask the dashboard at `url` for the tail at `path`; None if it gives none."""
        try:
            return cls(*_greeted(url, path), skip)
        except (OSError, ValueError):
            return None

    def read(self):
        """The text that has come since the last read; "" if none has."""
        self._receive()
        text = ""
        try:
            while frame := self._frame():
                text += self._take(*frame)
        except (OSError, ValueError):
            self.ended = True
        if self.ended:
            self.close()
        skipped = min(self.skip, len(text))
        self.skip -= skipped
        return text[skipped:]

    def close(self):
        self.stream.close()

    def _receive(self):
        try:
            while data := self.stream.recv(1 << 16):
                self.received += data
            self.ended = True
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self.ended = True

    def _frame(self):
        """(opcode, whether it is a message's last, payload) of the next whole frame; None if there is none yet."""
        if len(self.received) < 2:
            return None
        size, start = self.received[1] & 0x7F, 2
        if size > 125:
            start = 4 if size == 126 else 10
            if len(self.received) < start:
                return None
            size = struct.unpack(">H" if start == 4 else ">Q", self.received[2:start])[0]
        if size > FRAME_BYTES:
            raise ValueError("no frame of a log")
        if len(self.received) < start + size:
            return None
        first, payload = self.received[0], bytes(self.received[start : start + size])
        del self.received[: start + size]
        return first & 0x0F, bool(first & 0x80), payload

    def _take(self, opcode, last, payload):
        if opcode == CLOSE:
            self.ended = True
        elif opcode == PING:
            self.stream.sendall(_masked(PONG, payload))
        elif opcode in (0, TEXT):
            self.parts.append(payload)
            if last:
                whole, self.parts = b"".join(self.parts), []
                return whole.decode("utf-8", "replace")
        return ""


def _masked(opcode, payload):
    """A frame of at most 125 bytes as a client sends it."""
    mask = os.urandom(4)
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + hidden


def _greeted(url, path):
    """(socket that no longer waits, bytes that came after the greeting). Raises OSError or ValueError."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    stream = socket.create_connection((parts.hostname, port), CONNECT_S)
    try:
        if parts.scheme == "https":
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=parts.hostname)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        lines = (
            f"GET {parts.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
        )
        stream.sendall("\r\n".join((*lines, "", "")).encode())
        received = bytearray()
        while b"\r\n\r\n" not in received and len(received) < GREETING_BYTES:
            data = stream.recv(4096)
            if not data:
                break
            received += data
        head, _, rest = bytes(received).partition(b"\r\n\r\n")
        if head.split(b" ")[1:2] != [b"101"]:
            raise ValueError("no tail there")
        stream.setblocking(False)
    except BaseException:
        stream.close()
        raise
    return stream, bytearray(rest)
