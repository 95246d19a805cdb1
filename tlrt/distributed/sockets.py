"""Ranks that talk by TCP: each pair that differs in one bit has a connection.

A frame is one byte that says what it is (D: numbers, E: why the sender failed), its length in 8 bytes, and that many bytes.
Rank 0 listens at the address that all know. The others tell it where they listen, and get the list of all in return, with a
word that those who connect afterwards must say.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt.distributed import tree
from tlrt.distributed.group import Group, GroupError
from tlrt.errors import refusal

_HEAD = struct.Struct("<cQ")
#: bytes of one call of recv and send, seconds between two attempts to reach rank 0, and those that a last word may take
_CHUNK, _RETRY, _LAST_WORD = 1 << 20, 0.05, 1.0
#: seconds that the others wait longer than rank 0, which knows who is missing
_MARGIN = 3.0
#: the longest message while ranks meet, and the longest reason of a failure
_SHORT = 1 << 20


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self) -> float:
        return max(self.at - time.monotonic(), 0.0)


def _send(connection: socket.socket, value: Any) -> None:
    data = json.dumps(value).encode()
    connection.sendall(_HEAD.pack(b"D", len(data)) + data)


def _receive(connection: socket.socket, deadline: _Deadline) -> Any:
    """A short message of JSON. Raises OSError where there is none in time, and ValueError for what is none."""
    data, wanted = b"", _HEAD.size
    while len(data) < wanted:
        connection.settimeout(max(deadline.left(), 0.001))
        if not (more := connection.recv(wanted - len(data))):
            raise ConnectionError("the connection ended")
        data += more
        if len(data) == wanted == _HEAD.size:
            wanted += min(_HEAD.unpack(data)[1], _SHORT)
    return json.loads(data[_HEAD.size :])


class SocketGroup(Group):
    """See the module."""

    def __init__(
        self, rank: int, size: int, local_rank: int, address: tuple[str, int], timeout: float, join_timeout: float
    ) -> None:
        super().__init__(rank, size, local_rank, timeout)
        self._links: dict[int, socket.socket] = {}
        #: what `trouble` has read
        self._trouble = ""
        deadline = _Deadline(join_timeout + (_MARGIN if rank else 0.0))
        with socket.create_server(("", 0), backlog=size) as listener:
            try:
                table, word = self._meet(address, listener.getsockname()[1], deadline)
                self._connect(listener, table, word, deadline)
            except BaseException:
                self.close()
                raise

    # ---- meeting

    def _meet(self, address: tuple[str, int], port: int, deadline: _Deadline) -> tuple[list[tuple[str, int]], str]:
        """Where each rank listens, and the word."""
        return self._welcome(address, port, deadline) if self.rank == 0 else self._report(address, port, deadline)

    def _welcome(self, address: tuple[str, int], port: int, deadline: _Deadline) -> tuple[list[tuple[str, int]], str]:
        table: dict[int, tuple[str, int]] = {0: (address[0], port)}
        joined: list[socket.socket] = []
        wrong = ""
        with socket.create_server(address, backlog=self.size) as door:
            while len(table) < self.size and not wrong:
                door.settimeout(max(deadline.left(), 0.001))
                try:
                    visitor, where = door.accept()
                except TimeoutError:
                    break
                try:
                    hello = _receive(visitor, _Deadline(min(deadline.left(), 5.0)))
                    rank, size = int(hello["rank"]), int(hello["size"])
                    known = hello["hello"] == "tlrt"
                except (OSError, ValueError, KeyError, TypeError):
                    visitor.close()  # no rank
                    continue
                if not known:
                    visitor.close()
                    continue
                joined.append(visitor)
                if size != self.size:
                    wrong = f"join: size: got {size} on rank {rank}, expected {self.size}, as on rank 0"
                elif rank in table:
                    wrong = f"join: rank: got two processes of rank {rank}, expected one"
                table[rank] = (where[0], int(hello["port"]))
        missing = [r for r in range(self.size) if r not in table]
        if missing and not wrong:
            ranks = ", ".join(map(str, missing))
            wrong = (
                f"join: ranks: got no word of {ranks} in time, expected {self.size} ranks at {address[0]}:{address[1]}"
            )
        word = secrets.token_hex(16)
        for visitor in joined:
            with suppress(OSError), visitor:
                _send(
                    visitor,
                    {"wrong": wrong} if wrong else {"table": [table[r] for r in range(self.size)], "word": word},
                )
        if wrong:
            raise GroupError(wrong, op="join")
        return [table[r] for r in range(self.size)], word

    def _report(self, address: tuple[str, int], port: int, deadline: _Deadline) -> tuple[list[tuple[str, int]], str]:
        where = f"{address[0]}:{address[1]}"
        while True:
            try:
                with socket.create_connection(address, timeout=max(deadline.left(), 0.001)) as door:
                    _send(door, {"hello": "tlrt", "rank": self.rank, "size": self.size, "port": port})
                    answer = _receive(door, deadline)
                break
            except (OSError, ValueError):
                if not deadline.left():
                    got = f"no word of rank 0 at {where} in time"
                    raise refusal(GroupError, "join", f"rank {self.rank}", got, "rank 0 to listen there") from None
                time.sleep(_RETRY)
        if "wrong" in answer:
            raise GroupError(answer["wrong"], op="join")
        return [(host, number) for host, number in answer["table"]], answer["word"]

    def _connect(self, listener: socket.socket, table: list[tuple[str, int]], word: str, deadline: _Deadline) -> None:
        """The connections: the higher rank of a pair connects, the lower one listens."""
        partners = [self.rank ^ 1 << k for k in range(tree.levels(self.size))]
        try:
            for partner in (p for p in partners if p < self.rank):
                link = socket.create_connection(table[partner], timeout=max(deadline.left(), 0.001))
                self._links[partner] = link
                _send(link, {"word": word, "rank": self.rank})
            while len(self._links) < len(partners):
                listener.settimeout(max(deadline.left(), 0.001))
                link, _ = listener.accept()
                try:
                    hello = _receive(link, deadline)
                    rank = hello["rank"] if hello["word"] == word else None
                except (OSError, ValueError, KeyError, TypeError):
                    rank = None
                if rank in partners:
                    self._links[rank] = link
                else:
                    link.close()
        except OSError as error:
            missing = [p for p in partners if p not in self._links]
            raise refusal(
                GroupError, "join", f"rank {self.rank}", f"no connection to {missing} ({error})", "one"
            ) from None
        for link in self._links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setblocking(False)

    # ---- exchanges

    def exchange(self, partner: int, out: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        link = self._links.get(partner)
        if link is None:
            raise refusal(GroupError, "exchange", f"rank {partner}", "no connection", "an open group")
        sent = [
            memoryview(_HEAD.pack(b"D", out.nbytes)),
            np.ascontiguousarray(out).reshape(-1).view(np.uint8).data,
        ]
        head = bytearray(_HEAD.size)
        missing = [memoryview(head), into.reshape(-1).view(np.uint8).data]
        deadline, checked = _Deadline(self.timeout), False
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while sent or missing:
                events = (selectors.EVENT_READ if missing else 0) | (selectors.EVENT_WRITE if sent else 0)
                selector.modify(link, events)
                ready = selector.select(deadline.left())
                if not ready:
                    raise refusal(
                        GroupError, "exchange", f"rank {partner}", f"nothing for {self.timeout:g} s", "its numbers"
                    )
                deadline = _Deadline(self.timeout)
                try:
                    if ready[0][1] & selectors.EVENT_READ:
                        missing = self._read(link, missing)
                    if ready[0][1] & selectors.EVENT_WRITE:
                        sent = self._write(link, sent)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError as error:
                    raise self._ended(partner, link) from error
                if not checked and len(missing) <= 1:
                    kind, length = _HEAD.unpack(head)
                    if kind == b"E":
                        raise GroupError(self._reason(link, length), op="exchange")
                    if length != into.nbytes:
                        got = f"{length} bytes of rank {partner}"
                        raise refusal(GroupError, "exchange", f"rank {self.rank}", got, f"{into.nbytes}")
                    checked, missing = True, [m for m in missing if len(m)]

    @staticmethod
    def _read(link: socket.socket, missing: list[memoryview]) -> list[memoryview]:
        """Fills the first of the views, and gives what is still missing."""
        if not (count := link.recv_into(missing[0][:_CHUNK])):
            raise ConnectionResetError
        rest = missing[0][count:]
        return [rest, *missing[1:]] if len(rest) else missing[1:]

    @staticmethod
    def _write(link: socket.socket, sent: list[memoryview]) -> list[memoryview]:
        rest = sent[0][link.send(sent[0][:_CHUNK]) :]
        return [rest, *sent[1:]] if len(rest) else [s for s in sent[1:] if len(s)]

    def _ended(self, partner: int, link: socket.socket) -> GroupError:
        """What is known of a rank whose connection broke while numbers were sent: perhaps its last word has arrived."""
        with suppress(OSError, struct.error):
            link.settimeout(_LAST_WORD)
            kind, length = _HEAD.unpack(link.recv(_HEAD.size, socket.MSG_WAITALL))
            if kind == b"E":
                return GroupError(self._reason(link, length), op="exchange")
        return refusal(
            GroupError, "exchange", f"rank {partner}", "its end without a word (killed?)", "a rank that runs"
        )

    @staticmethod
    def _reason(link: socket.socket, length: int) -> str:
        link.settimeout(_LAST_WORD)
        data = b""
        with suppress(OSError):
            while len(data) < min(length, _SHORT) and (more := link.recv(min(length, _SHORT) - len(data))):
                data += more
        return data.decode(errors="replace")

    def fail(self, reason: str) -> None:
        data = reason.encode()[:_SHORT]
        for link in self._links.values():
            with suppress(OSError):
                link.settimeout(_LAST_WORD)
                link.sendall(_HEAD.pack(b"E", len(data)) + data)
                link.shutdown(socket.SHUT_WR)
        super().fail(reason)

    def trouble(self) -> str:
        for partner, link in () if self._trouble else list(self._links.items()):
            try:
                head = link.recv(_HEAD.size, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                head = b""
            if head[:1] == b"D":
                continue
            self._trouble = str(self._ended(partner, link))
            break
        return self._trouble

    def close(self) -> None:
        super().close()
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
