import socket
import threading
import time

from redelivery_beanstalk.client.connection import Connection


def test_many_commands_at_once_do_not_wait_for_each_other():
    """A server reads no more while nobody reads its answers, so whoever only writes waits for it, and it for them."""
    answer = b"OK 500\r\n" + b"x" * 500 + b"\r\n"

    def serve():
        there, _ = listener.accept()
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with there, there.makefile("rb") as lines:
            for _ in lines:
                there.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        connection = Connection("127.0.0.1", listener.getsockname()[1], 5)
        answers = connection.ask([b"stats-tube " + b"n" * 200] * 50_000, time.monotonic() + 15)
        connection.close()
        thread.join(10)
    assert [each.word for each in answers] == ["OK"] * 50_000
