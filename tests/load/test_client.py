"""The HTTP client against servers that speak well and badly, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from grace.load.client import Client, connector
from grace.load.target import Target

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
ANNOUNCED = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + PLAIN
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class Server:
    """Reads requests, and answers each with what its script says; counts connections."""

    def __init__(self, *answers: bytes | None):
        self.answers, self.seen, self.connections = list(answers), [], 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.seen.append((head, await reader.readexactly(length)))
                answer = self.answers.pop(0)
                if answer is None:
                    await reader.read()  # until the client goes
                    return
                for i in range(0, len(answer), 7):  # parts as a network cuts them
                    writer.write(answer[i : i + 7])
                    await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def talk(
    server: Server, conversation: Callable[[Client, Target], Awaitable[object]], limit: int = 1
) -> object:
    """Run a conversation with a server on a free port."""

    async def run() -> object:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        target = Target.parse(f"http://127.0.0.1:{port}", ["x-client-id: tester"])
        client = Client(connector(target), limit)
        try:
            return await conversation(client, target)
        finally:
            client.close()
            listening.close()

    return asyncio.run(run())


async def send_all(client: Client, target: Target, number: int, within_s: float = 5) -> list[str]:
    deadline = asyncio.get_running_loop().time() + within_s
    return [await client.exchange(target.payload(b"[1]"), deadline) for _ in range(number)]


def test_one_connection_serves_all_requests():
    server = Server(PLAIN, CHUNKED, ANNOUNCED, BUSY, PLAIN)
    outcomes = talk(server, lambda client, target: send_all(client, target, 5))
    assert outcomes == ["200", "200", "200", "429", "200"]
    assert server.connections == 1
    head, body = server.seen[0]
    assert head.startswith(b"POST /v1/retrieve HTTP/1.1\r\n")
    assert b"\r\nx-client-id: tester\r\n" in head
    assert b"\r\ncontent-type: application/json\r\n" in head
    assert body == b"[1]"


def test_a_server_that_closes_gets_a_new_connection():
    server = Server(CLOSING, CLOSING, PLAIN)
    outcomes = talk(server, lambda client, target: send_all(client, target, 3))
    assert outcomes == ["200"] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(b"SSH-2.0-OpenSSH_9.6\r\n", "malformed"), (PLAIN[:-1], "connection"), (b"", "connection")],
)
def test_what_is_no_answer(answer, outcome):
    class Hasty(Server):
        async def serve(self, reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

    assert talk(Hasty(), lambda client, target: send_all(client, target, 1)) == [outcome]


def test_a_late_answer_is_not_taken_for_the_next_requests():
    async def conversation(client: Client, target: Target) -> list[str]:
        return [
            *await send_all(client, target, 1, within_s=0.05),
            *await send_all(client, target, 1),
        ]

    server = Server(None, BUSY)
    assert talk(server, conversation) == ["timeout", "429"]
    assert server.connections == 2


def test_no_server():
    async def conversation(client: Client, target: Target) -> list[str]:
        nowhere = Target.parse("http://127.0.0.1:9/")  # the port of `discard`, which nobody runs
        return await send_all(Client(connector(nowhere), 1), nowhere, 2)

    assert talk(Server(), conversation) == ["connection"] * 2


def test_connections_are_no_more_than_allowed():
    async def conversation(client: Client, target: Target) -> list[str]:
        parts = await asyncio.gather(*(send_all(client, target, 3) for _ in range(6)))
        return [outcome for part in parts for outcome in part]

    server = Server(*[PLAIN] * 18)
    assert talk(server, conversation, limit=2) == ["200"] * 18
    assert server.connections == 2
