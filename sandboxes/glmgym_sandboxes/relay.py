"""The relay inside a box: lets programs there reach the gateway outside through a unix socket, by ordinary ports.

One file, standard library only, run as ``python3 -I -S -c``. Arguments are the socket's path and listeners, each
``PORT`` (spoken to as an HTTP proxy) or ``PORT=HOST:PORT`` (carried to that one place). It ends once all of them
listen, and a child goes on. It decides nothing: what may be reached is the gateway's affair.
"""

import os
import selectors
import socket
import sys
import threading
import time

CHUNK = 1 << 16


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the end of ``source``, and pass the end on."""
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def serve(client: socket.socket, path: str, place: str) -> None:
    gate = socket.socket(socket.AF_UNIX)
    with client, gate:
        try:
            gate.connect(path)
            if place:
                gate.sendall(f"CONNECT {place} HTTP/1.1\r\n\r\n".encode())
                answer = b""
                while not answer.endswith(b"\r\n\r\n"):
                    byte = gate.recv(1)
                    if not byte:
                        return
                    answer += byte
                if b" 200 " not in answer.partition(b"\r\n")[0]:
                    return
        except OSError:
            return
        back = threading.Thread(target=carry, args=(gate, client), daemon=True)
        back.start()
        carry(client, gate)
        back.join()


def main() -> None:
    path, *listeners = sys.argv[1:]
    ready = selectors.DefaultSelector()
    for listener in listeners:
        port, _, place = listener.partition("=")
        ready.register(socket.create_server(("127.0.0.1", int(port)), backlog=128), selectors.EVENT_READ, place)
    if os.fork():
        # A command that times out takes with it what was born in its own clock tick, so the next one comes later.
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))
        os._exit(0)
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        for key, _ in ready.select():
            client, _ = key.fileobj.accept()  # type: ignore[union-attr]
            threading.Thread(target=serve, args=(client, path, key.data), daemon=True).start()


if __name__ == "__main__":
    main()
