"""The agent inside a box: runs commands and moves files for the driver, over frames on stdin and stdout.

One file, standard library only, started by ``python3 -I -S`` as the main process of the box; it also runs compiled.
It owns every process in the box: each command gets a session of its own, orphans come back to the agent, and a timeout
kills a command with everything it started. When the driver goes away (end of input) the agent kills all and exits.
Start-up time is paid once per box, so imports stay few; in particular nothing here imports ``enum``, which ``signal``,
``selectors``, ``subprocess`` and ``json`` all do.

A frame is ``length u32 | request id u32 | kind u8 | payload``, big endian; a payload is fields, each a
``length u32`` and that many bytes.

A tree travels as pieces of records in walking order, a few for each request, so neither side ever holds much of it and
small files share a frame. A record has three fields: kind, mode and time of change; a name, never a path; the content.
``read_tree`` and ``TreeWriter`` serve the driver's side too.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator

RUN, SHELL, CLOSE_SHELL, READ, WRITE, CANCEL, TAKE, GIVE, DROP, MOVE = range(1, 11)  # requests
HELLO, RESULT, DATA, DONE, BAD_COMMAND, BAD_FILE, EXHAUSTED = range(11, 18)  # replies
HEADER_BYTES = 9
MAX_FRAME_BYTES = 64 << 20
TIMEOUT_EXIT = 124  # what timeout(1) reports
SIGKILL, SIGPIPE, SIGCONT, SIGSTOP, SIGXFSZ = 9, 13, 18, 19, 25
ELOOP = 40
DRAIN_S = 0.1  # how long a finished command's output is awaited when a background child keeps it open
EMPTY_LOOKS = 3  # in a row, before nothing is left to kill
STILL = {b"T", b"t", b"Z", b"X"}  # threads that are stopped, by job control or by a tracer, or no more
KILL_S = 2.0  # how long the walk over descendants may take before everything in the box is killed
SPAWN_FDS = 10  # descriptors below are targets of dup2 in children, so the agent's own start here

DIRECTORY, FILE, MORE, LINK, PIPE, END = b"d", b"f", b"+", b"l", b"p", b"e"  # records; MORE of the file before
KINDS = {0o040000: DIRECTORY, 0o100000: FILE, 0o120000: LINK, 0o010000: PIPE}  # by the type in st_mode
REGULAR, LINKED, ALL = b"regular", b"linked", b"all"  # what may be taken, see read_tree
TAKEN = {REGULAR: (DIRECTORY, FILE), LINKED: (DIRECTORY, FILE, LINK), ALL: (DIRECTORY, FILE, LINK, PIPE)}
TREE_PIECE_BYTES = 1 << 20  # a piece ends with the record that reaches it, so it has less than twice as much
MAX_DEPTH = 128  # of directories in a tree; each level takes two descriptors, of which a process may have 1024
MAX_TIME_NS = (1 << 63) - 1  # the year 2262; a file system may hold later ones
Record = tuple[bytes, int, int, bytes, bytes]  # kind, mode, time of change in ns, name, content

# The loop of a persistent shell. Descriptors 3 (go), 4 (answer) and 5 (the command's text, in memory) are closed while
# a command runs, so neither it nor its children can hold or use them by accident; the token differs for each command.
SHELL_LOOP = r"""
while { IFS= builtin read -r __token <&3 && IFS= builtin read -r -d '' __command <&5; } 2>/dev/null; do
builtin eval "$__command" 3<&- 4>&- 5<&-
{ builtin printf '%s %d\n' "$__token" "$?" >&4; } 2>/dev/null
done
"""


def pack(*fields: bytes) -> bytes:
    return b"".join(with_lengths(fields))


def with_lengths(fields: Iterable[bytes]) -> Iterator[bytes]:
    for field in fields:
        yield len(field).to_bytes(4, "big")
        yield field


def unpack(payload: bytes | memoryview) -> list[bytes]:
    """Raises ValueError: a field runs over the end."""
    fields, at = [], 0
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        if end > len(payload):
            raise ValueError("a field runs over the end of its frame")
        fields.append(bytes(payload[at + 4 : end]))
        at = end
    return fields


def frame(request: int, kind: int, *fields: bytes) -> bytes:
    length = sum(map(len, fields)) + 4 * len(fields)
    header = length.to_bytes(4, "big") + request.to_bytes(4, "big") + bytes([kind])
    return b"".join((header, *with_lengths(fields)))


def frames(incoming: bytearray, max_bytes: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """Request, kind and fields of every whole frame at the front of ``incoming``, which keeps what comes after.

    Raises:
        ValueError: a frame is longer than ``max_bytes``, or is no frame.
    """
    while len(incoming) >= HEADER_BYTES:
        length = int.from_bytes(incoming[:4], "big")
        if length > max_bytes:
            raise ValueError(f"a frame of {length} bytes")
        end = HEADER_BYTES + length
        if len(incoming) < end:
            return
        request, kind = int.from_bytes(incoming[4:8], "big"), incoming[8]
        with memoryview(incoming) as view, view[HEADER_BYTES:end] as payload:
            fields = unpack(payload)
        del incoming[:end]
        yield request, kind, fields


class Capture:
    """The first and the last ``cap / 2`` bytes of a stream, and how many were dropped between them."""

    def __init__(self, cap: int) -> None:
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.head_cap, self.tail_cap = cap - cap // 2, cap // 2

    def feed(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.head_cap - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        if len(self.tail) > 4 * self.tail_cap + 65536:  # trimmed rarely, so that each byte is moved O(1) times
            del self.tail[: len(self.tail) - self.tail_cap]

    def kept(self) -> bytes:
        return bytes(self.head + self.tail[max(0, len(self.tail) - self.tail_cap) :])

    @property
    def dropped(self) -> int:
        return self.total - len(self.kept())


class Process:
    """A child that leads a session; ``exit_code`` is set once it has been waited for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.exit_code: int | None = None


class LikelyToBeKilled:
    """Inside, children are born as the first to go when memory runs out, so that a command dies and not the agent.

    Make it before the agent is hardened, which then may not open the file any more.
    """

    def __init__(self) -> None:
        try:
            self.fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            self.own = os.read(self.fd, 16)
        except OSError:  # a kernel of another kind
            self.fd = -1

    def __enter__(self) -> None:
        self.set(b"1000")

    def __exit__(self, *_: object) -> None:
        self.set(self.own)

    def set(self, score: bytes) -> None:
        if self.fd >= 0:
            os.write(self.fd, score)


class Command:
    """One request in progress: its process (its own, or the shell's), its output and its deadline."""

    def __init__(
        self, request: int, process: Process, outputs: dict[int, Capture], timeout_s: float, born: int
    ) -> None:
        self.request = request
        self.process = process
        self.outputs = outputs  # descriptor -> capture, in the order stdout, stderr
        self.captures = list(outputs.values())
        self.open = set(outputs)
        self.born = born  # clock ticks since boot: whatever started earlier is not this command's
        self.began = time.monotonic()
        self.deadline = self.began + timeout_s
        self.drained_at: float | None = None


class Shell:
    """A persistent bash and the descriptors it is driven by."""

    def __init__(self, process: Process, go: int, answer: int, text: int, output: int) -> None:
        self.process, self.go, self.answer, self.text, self.output = process, go, answer, text, output
        self.command: Command | None = None
        self.token = b""
        self.heard = b""


class TreeError(Exception):
    """A path inside a tree, and what is wrong with it."""

    def __init__(self, path: bytes, said: str) -> None:
        super().__init__(f"{name(path)}: {said}")


class TreeWriter:
    """Builds below the directory ``root`` what records describe; ``close`` it in the end. Nothing here is trusted.

    Names are looked up one by one from the descriptor of their directory, never through a symlink. ``merge``: what
    exists already is replaced, or entered if it is a directory; otherwise it is an error. Modes and times come from the
    records, except those of ``root`` unless ``made``: it was there before.
    """

    def __init__(self, root: int, *, merge: bool, made: bool) -> None:
        self.merge, self.made = merge, made
        self.directories, self.names = [root], [b""]
        self.file, self.file_mode, self.file_time = -1, 0, 0

    def add(self, kind: bytes, mode: int, time_ns: int, leaf: bytes, content: bytes) -> None:
        """Raises TreeError: it cannot be, or must not be, done."""
        try:
            if kind == MORE and self.file >= 0:
                write_all(self.file, content, os.lseek(self.file, 0, os.SEEK_END))
                return
            self.end_file()
            if not self.directories:
                raise ValueError("a record after the end of the tree")
            if kind == END:
                self.end_directory(mode, time_ns)
                return
            if leaf in (b"", b".", b"..") or b"/" in leaf or b"\0" in leaf:
                raise ValueError("is no name for a file")
            if kind == DIRECTORY:
                self.enter(leaf)
            else:
                self.make(kind, mode, time_ns, leaf, content)
        except (OSError, ValueError) as error:
            raise self.refusal(leaf, said_by(error)) from None

    def refusal(self, leaf: bytes, said: str) -> TreeError:
        """What is wrong with ``leaf`` in the directory that is being built."""
        return TreeError(b"/".join([*self.names[1:], leaf]), said)

    def enter(self, leaf: bytes) -> None:
        if len(self.directories) == MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} directories deep")
        try:
            os.mkdir(leaf, 0o700, dir_fd=self.directories[-1])
        except FileExistsError:
            if not self.merge:
                raise
        self.directories.append(open_directory(leaf, self.directories[-1]))
        self.names.append(leaf)

    def make(self, kind: bytes, mode: int, time_ns: int, leaf: bytes, content: bytes) -> None:
        parent = self.directories[-1]
        for may_remove in (self.merge, False):
            try:
                if kind == FILE:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                    self.file = os.open(leaf, flags, 0o600, dir_fd=parent)
                elif kind == LINK:
                    os.symlink(content, leaf, dir_fd=parent)
                elif kind == PIPE:
                    os.mkfifo(leaf, mode & 0o7777, dir_fd=parent)
                else:
                    raise ValueError("a record of no known kind")
                break
            except FileExistsError:
                if not may_remove:
                    raise
                os.unlink(leaf, dir_fd=parent)
        if kind == FILE:
            self.file_mode, self.file_time = mode, time_ns
            write_all(self.file, content, 0)
        else:
            os.utime(leaf, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)

    def end_file(self) -> None:
        if self.file >= 0:
            fd, self.file = self.file, -1
            finish_entry(fd, self.file_mode, self.file_time)

    def end_directory(self, mode: int, time_ns: int) -> None:
        fd = self.directories.pop()
        self.names.pop()
        if self.directories or self.made:
            finish_entry(fd, mode, time_ns)
        else:
            os.close(fd)

    @property
    def is_whole(self) -> bool:
        return not self.directories

    def close(self) -> None:
        for fd in [*self.directories, *([self.file] if self.file >= 0 else [])]:
            os.close(fd)
        self.directories, self.file = [], -1


class Agent:
    """The event loop. ``cwd`` is where relative paths start and commands run unless told otherwise."""

    def __init__(self, source: int, sink: int, cwd: bytes) -> None:
        self.sink, self.cwd = sink, cwd
        self.likely_to_be_killed = LikelyToBeKilled()
        self.env = dict(os.environb)
        self.incoming, self.chunk = bytearray(), bytearray(1 << 20)
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        self.processes: dict[int, Process] = {}  # session leaders that have not been waited for
        self.commands: dict[int, Command] = {}
        self.shells: dict[bytes, Shell] = {}
        self.shell_cwds: dict[bytes, bytes] = {}
        self.taken: dict[bytes, Generator[bytes]] = {}  # trees on their way out
        self.given: dict[bytes, TreeWriter] = {}  # trees on their way in
        self.watch(source, select.POLLIN, self.receive)

    def serve(self) -> None:
        """Work until end of input."""
        self.reply(0, HELLO)
        while True:
            # Wakes once a second while there are children, since only session leaders announce their end.
            for fd, _ in self.poll.poll(self.reap_and_expire()):
                handler = self.handlers.get(fd)
                if handler is not None:
                    handler(fd)

    def watch(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, mask)

    def ignore(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def drop(self, fd: int) -> None:
        self.ignore(fd)
        os.close(fd)

    # --- the protocol

    def receive(self, fd: int) -> None:
        count = os.readv(fd, [self.chunk])  # into memory that is there: to allocate it takes longer than most commands
        if not count:
            self.exit()
        self.incoming += memoryview(self.chunk)[:count]
        for request, kind, fields in frames(self.incoming, MAX_FRAME_BYTES):
            self.handle(request, kind, fields)

    def handle(self, request: int, kind: int, fields: list[bytes]) -> None:
        try:
            if kind == RUN:
                self.run(request, fields)
            elif kind == SHELL:
                self.run_in_shell(request, fields)
            elif kind == CLOSE_SHELL:
                self.close_shell(fields[0])
                self.reply(request, DONE)
            elif kind == READ:
                path, limit, offset, count = fields
                self.reply(request, DATA, read_file(self.absolute(path), int(limit), int(offset), int(count)))
            elif kind == WRITE:
                path, mode, offset, data = fields
                write_file(self.absolute(path), int(mode), int(offset), data)
                self.reply(request, DONE)
            elif kind == TAKE:
                key, path, what = fields
                self.reply(request, DATA, self.take(key, self.absolute(path), what))
            elif kind == GIVE:
                key, path, empty_first, piece = fields
                self.give(key, self.absolute(path), empty_first == b"1", piece)
                self.reply(request, DONE)
            elif kind == DROP:
                self.drop_tree(fields[0])
            elif kind == MOVE:
                self.move(request, fields[0])
            elif kind == CANCEL and request in self.commands:
                self.commands[request].deadline = 0.0
        except (OSError, ValueError, TreeError) as error:
            said = said_by(error)
            if kind in (READ, WRITE, TAKE, GIVE):
                self.reply(request, BAD_FILE, said.encode())
            else:
                full = isinstance(error, OSError) and error.errno in (11, 12)  # EAGAIN, ENOMEM: no room for a process
                self.reply(request, EXHAUSTED if full else BAD_COMMAND, said.encode())

    def reply(self, request: int, kind: int, *fields: bytes) -> None:
        data = memoryview(frame(request, kind, *fields))
        while data:
            data = data[os.write(self.sink, data) :]

    def move(self, request: int, path: bytes) -> None:
        """Speak over the Unix socket at ``path`` from now on. The end of either input is the end."""
        import _socket  # what ``socket`` is made of: that one takes longer to import than everything here

        line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        line.connect(path)
        self.reply(request, DONE)
        self.sink = line.detach()
        self.watch(self.sink, select.POLLIN, self.receive)

    def absolute(self, path: bytes) -> bytes:
        return os.path.join(self.cwd, path)

    # --- trees

    def take(self, key: bytes, path: bytes, what: bytes) -> bytes:
        """The next piece of a tree; empty after the last. With an error the tree is over, too."""
        if key not in self.taken:
            self.taken[key] = pieces(read_tree(path, what))
        piece = b""
        try:
            piece = next(self.taken[key], b"")
        finally:
            if not piece:
                del self.taken[key]
        return piece

    def give(self, key: bytes, path: bytes, empty_first: bool, piece: bytes) -> None:
        """Write a piece of a tree; an empty one says that it was whole. With an error the tree is over, too."""
        writer = self.given.pop(key, None)
        if writer is None:
            made = not os.path.lexists(path)
            os.makedirs(path, exist_ok=True)
            writer = TreeWriter(open_directory(path), merge=True, made=made)
        else:
            empty_first = False
        going_on = False
        try:
            if empty_first:
                remove_content(writer.directories[0])
            for record in records(piece):
                writer.add(*record)
            going_on = bool(piece)
            if not (going_on or writer.is_whole):
                raise ValueError("the tree has no end")
        finally:
            if going_on:
                self.given[key] = writer
            else:
                writer.close()

    def drop_tree(self, key: bytes) -> None:
        if key in self.taken:
            self.taken.pop(key).close()
        if key in self.given:
            self.given.pop(key).close()

    # --- starting things

    def spawn(
        self, argv: list[bytes], cwd: bytes, env: dict[bytes, bytes], fds: Iterable[tuple[int, int]]
    ) -> tuple[Process, int]:
        """Start a session leader with ``fds`` (from, to), without one for 0 with an empty stdin.

        Returns it and its time of birth in ticks since boot.

        Raises:
            OSError: the working directory or the program does not exist or may not be used.
        """
        try:
            os.chdir(self.absolute(cwd))
        except OSError as error:
            raise OSError(error.errno, f"working directory {name(cwd)}: {error.strerror}") from None
        program = find_program(argv[0], env.get(b"PATH", b"/usr/bin:/bin"))
        born = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in fds]
        # Python ignores these two signals, and an ignored signal stays ignored in a child.
        unignore = [SIGPIPE, SIGXFSZ]
        try:
            with self.likely_to_be_killed:
                pid = os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigdef=unignore)
        except OSError as error:
            raise OSError(error.errno, f"program {name(argv[0])}: {error.strerror}") from None
        process = Process(pid)
        self.processes[pid] = process
        self.watch(process.pidfd, select.POLLIN, lambda _: None)  # only a wake-up: reap_and_expire does the work
        return process, born

    def environment(self, pairs: list[bytes]) -> dict[bytes, bytes]:
        """The box's environment with ``KEY=VALUE`` pairs put over it."""
        env = self.env.copy()
        for pair in pairs:
            key, _, value = pair.partition(b"=")
            env[key] = value
        return env

    def run(self, request: int, fields: list[bytes]) -> None:
        timeout_s, cap, cwd, stdin, argc = float(fields[0]), int(fields[1]), fields[2], fields[3], int(fields[4])
        argv, env = fields[5 : 5 + argc], self.environment(fields[5 + argc :])
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        ours, theirs = [out, err], [(out_end, 1), (err_end, 2)]
        if stdin:
            source, feed = os.pipe()
            ours.append(feed)
            theirs.append((source, 0))
        try:
            process, born = self.spawn(argv, cwd, env, theirs)
        except OSError:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd, _ in theirs:
                os.close(fd)
        command = Command(request, process, {out: Capture(cap), err: Capture(cap)}, timeout_s, born)
        self.commands[request] = command
        for fd in (out, err):
            os.set_blocking(fd, False)
            self.watch(fd, select.POLLIN, self.collect)
        if stdin:
            os.set_blocking(feed, False)
            self.watch(feed, select.POLLOUT, self.feeder(stdin))

    def feeder(self, data: bytes) -> Callable[[int], None]:
        left = memoryview(data)

        def feed(fd: int) -> None:
            nonlocal left
            try:
                left = left[os.write(fd, left[:65536]) :]
            except BlockingIOError:
                return
            except BrokenPipeError:  # the command does not read its input, as it may
                left = left[:0]
            if not left:
                self.drop(fd)

        return feed

    def run_in_shell(self, request: int, fields: list[bytes]) -> None:
        timeout_s, cap, key, cwd, text = float(fields[0]), int(fields[1]), fields[2], fields[3], fields[4]
        if b"\0" in text:
            raise ValueError("a command line cannot hold a NUL byte")
        self.reap()  # a shell that ended since is replaced, not spoken to
        shell = self.shells.get(key)
        if shell is None or shell.process.exit_code is not None or shell.output not in self.handlers:
            if shell is not None:  # it ended, or closed its own output for good
                self.forget_shell(key)
            shell = self.start_shell(key, cwd, self.environment(fields[5:]))
        if shell.command is not None:
            raise ValueError("the shell is busy with another command")
        born = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        shell.command = Command(request, shell.process, {shell.output: Capture(cap)}, timeout_s, born)
        self.commands[request] = shell.command
        shell.token, shell.heard = os.urandom(16).hex().encode(), b""
        os.ftruncate(shell.text, 0)
        write_all(shell.text, text + b"\0", 0)
        os.lseek(shell.text, 0, os.SEEK_SET)
        try:
            os.write(shell.go, shell.token + b"\n")
        except BrokenPipeError:  # it ended this instant; the reaper answers with its exit code
            return

    def start_shell(self, key: bytes, cwd: bytes, env: dict[bytes, bytes]) -> Shell:
        text = os.memfd_create("command")
        (go_end, go), (answer, answer_end), (output, output_end) = os.pipe(), os.pipe(), os.pipe()
        fds = [(output_end, 1), (output_end, 2), (go_end, 3), (answer_end, 4), (text, 5)]
        argv = [b"bash", b"--norc", b"--noprofile", b"-c", SHELL_LOOP.encode()]
        last = self.shell_cwds.get(key, cwd)
        try:
            # A shell that replaces one goes on where that one was, if the place still exists.
            process, _ = self.spawn(argv, last if os.path.isdir(last) else cwd, env, fds)
        except OSError:
            for fd in (text, go, answer, output):
                os.close(fd)
            raise
        finally:
            for fd in (go_end, answer_end, output_end):
                os.close(fd)
        shell = self.shells[key] = Shell(process, go, answer, text, output)
        for fd in (output, answer):
            os.set_blocking(fd, False)
        self.watch(output, select.POLLIN, self.collect)
        self.watch(answer, select.POLLIN, lambda fd: self.hear(fd, key))
        return shell

    # --- what comes back

    def collect(self, fd: int) -> bool:
        """Read everything there is now. A finished command's background children are read on, into nothing, so that
        they do not die of a closed pipe. True if there may be more."""
        command = next((c for c in self.commands.values() if fd in c.open), None)
        for _ in range(64):  # up to 4 MiB, then others get their turn
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                return False
            if not chunk:
                if command is not None:
                    command.open.discard(fd)
                self.ignore(fd)
                if not any(fd == shell.output for shell in self.shells.values()):
                    os.close(fd)
                return False
            if command is not None:
                command.outputs[fd].feed(chunk)
        return True

    def hear(self, fd: int, key: bytes) -> None:
        shell = self.shells[key]
        try:
            chunk = os.read(fd, 4096)
        except BlockingIOError:  # the number was reused within one round of the poll
            return
        if not chunk:
            self.ignore(fd)
            return
        shell.heard = (shell.heard + chunk)[-4096:]
        for line in shell.heard.split(b"\n")[:-1]:
            token, _, status = line.partition(b" ")
            if shell.command is not None and token == shell.token and status.isdigit():
                self.shell_cwds[key] = cwd_of(shell.process.pid)
                self.finish(shell.command, int(status))

    def reap_and_expire(self) -> int | None:
        """Wait for dead children, finish or kill what is due. Returns how long the poll may sleep, in ms."""
        has_children = self.reap()
        now = time.monotonic()
        due = now + 1.0 if has_children else None
        for command in list(self.commands.values()):
            code = command.process.exit_code
            if code is not None:
                if command.drained_at is None:
                    command.drained_at = now + DRAIN_S
                    for fd in list(command.open):
                        self.collect(fd)
                if not command.open or now >= command.drained_at:
                    self.finish(command, code)
                    continue
                next_due = command.drained_at
            elif now >= command.deadline:
                self.expire(command)
                continue
            else:
                next_due = command.deadline
            due = next_due if due is None else min(due, next_due)
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def reap(self) -> bool:
        """Collect every dead child, orphans included. True if children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            process = self.processes.pop(pid, None)
            if process is not None:
                code = os.waitstatus_to_exitcode(status)
                process.exit_code = code if code >= 0 else 128 - code
                self.drop(process.pidfd)

    def finish(self, command: Command, exit_code: int, *, timed_out: bool = False) -> None:
        wall_s = time.monotonic() - command.began
        end = time.monotonic() + DRAIN_S
        for fd in list(command.open):
            while fd in command.open and self.collect(fd) and time.monotonic() < end:
                pass
        del self.commands[command.request]
        for shell in self.shells.values():
            if shell.command is command:
                shell.command = None
        kept = [capture.kept() for capture in command.captures]
        dropped = sum(capture.dropped for capture in command.captures)
        facts = [str(value).encode() for value in (exit_code, int(timed_out), dropped, f"{wall_s:.6f}")]
        self.reply(command.request, RESULT, *facts, *kept)

    # --- killing

    def expire(self, command: Command) -> None:
        for key, shell in self.shells.items():
            if shell.command is command:
                self.shell_cwds[key] = cwd_of(shell.process.pid)
        self.kill(lambda: self.started_by(command))
        self.finish(command, TIMEOUT_EXIT, timed_out=True)

    def kill(self, targets: Callable[[], list[int]]) -> None:
        """SIGKILL what ``targets`` finds until it finds nothing; at last everything in the box.

        One look may miss a process that is born while its parent ends, so more of them have to.
        """
        end = time.monotonic() + KILL_S
        empty = 0
        while empty < EMPTY_LOOKS:
            alive = targets()
            empty = 0 if alive else empty + 1
            if not alive:
                continue
            if time.monotonic() > end and os.getpid() == 1:
                alive = [-1]
            for pid in alive:
                try:
                    os.kill(pid, SIGKILL)
                except ProcessLookupError:
                    continue
            self.reap()
            if time.monotonic() > end + KILL_S:
                return
            time.sleep(0.001)

    def started_by(self, command: Command) -> list[int]:
        """The command's process, its descendants, and the orphans born since that belong to no other live command."""
        processes = proc_table()
        leader = command.process.pid
        others = self.processes.keys() - {leader}
        own = descendants(processes, leader)
        for pid, (parent, session, _) in processes.items():
            if parent == os.getpid() and pid not in self.processes and session not in others:
                own |= descendants(processes, pid)
        return [pid for pid in own if pid == leader or processes[pid][2] >= command.born]

    def close_shell(self, key: bytes) -> None:
        shell = self.shells.get(key)
        if shell is None:
            return
        if shell.process.exit_code is None:
            tree: set[int] = set()  # all stand still before the first dies: nobody would find an orphan
            halt(tree, lambda: descendants(proc_table(), shell.process.pid), KILL_S)
            self.kill(lambda: list(tree & proc_table().keys()))
        if shell.command is not None:
            self.finish(shell.command, 128 + SIGKILL)
        self.forget_shell(key)
        self.shell_cwds.pop(key, None)

    def forget_shell(self, key: bytes) -> None:
        shell = self.shells.pop(key)
        for fd in (shell.go, shell.answer, shell.text, shell.output):
            self.drop(fd)

    def exit(self) -> None:
        """Leave nothing behind. As process 1 the kernel does it; otherwise the walk does."""
        if os.getpid() != 1:
            self.kill(lambda: list(descendants(proc_table(), os.getpid()) - {os.getpid()}))
        os._exit(0)


def proc_table() -> dict[int, tuple[int, int, int]]:
    """pid -> (parent, session, ticks since boot at its start) of every process that is not a zombie."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if fields[0] not in (b"Z", b"X"):
                table[int(entry)] = (int(fields[1]), int(fields[3]), int(fields[19]))
    return table


def descendants(table: dict[int, tuple[int, int, int]], root: int) -> set[int]:
    """``root``, if alive, and everything below it."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, todo = set(), [root]
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found & table.keys()


def halt(halted: set[int], find: Callable[[], set[int]], timeout_s: float) -> bool:
    """SIGSTOP what ``find`` finds, adding it to ``halted``, until all of it stands still. False: it was not in time.

    Who is in the middle of a fork when the signal comes has its child nevertheless: the look that finds nobody new
    has to come after all stood still. In the middle of a vfork, it waits for its child, which has to go on to its exec;
    a child that has not come there after half of the time is killed.
    """
    began = time.monotonic()
    end = began + timeout_s
    still = False
    while True:
        found = find()
        moving = found - halted
        if still and not moving:
            return True
        if time.monotonic() > end:
            return False
        halted |= moving
        for pid in moving:
            try:
                os.kill(pid, SIGSTOP)
            except ProcessLookupError:
                continue
        states = {pid: thread_states(pid) for pid in found}
        still = all(those <= STILL for those in states.values())
        waiting = {pid for pid, those in states.items() if b"D" in those}
        held = {pid for pid, (parent, _, _) in proc_table().items() if parent in waiting} & halted if waiting else set()
        halted -= held
        for pid in held:
            try:
                os.kill(pid, SIGCONT if time.monotonic() < began + timeout_s / 2 else SIGKILL)
            except ProcessLookupError:
                continue


def thread_states(pid: int) -> set[bytes]:
    """The letters of ``ps`` for its threads, each of which stops by itself. None: it is no more."""
    states = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                    states.add(file.read().rpartition(b")")[2].split()[0])
            except OSError:  # it ended meanwhile
                continue
    except OSError:
        pass
    return states


def find_program(program: bytes, path: bytes) -> bytes:
    """Raises FileNotFoundError: no directory of ``path`` has it."""
    if b"/" in program:
        return program
    for directory in path.split(b":"):
        candidate = os.path.join(directory, program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(2, f"program {name(program)}: not found in {name(path)}")


def cwd_of(pid: int) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/cwd".encode())
    except OSError:  # it ended already
        return b""


def open_regular(path: bytes, flags: int, mode: int = 0, directory: int | None = None) -> int:
    """Open, from ``directory`` on, without following a final symlink and without waiting for a pipe's other end.

    Raises:
        OSError: as open(2), or ``path`` is not a regular file.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=directory)
    except OSError as error:
        raise OSError(error.errno, "is a symlink" if error.errno == ELOOP else error.strerror) from None
    if os.fstat(fd).st_mode & 0o170000 != 0o100000:
        os.close(fd)
        raise OSError(22, "is not a regular file")
    return fd


def read_file(path: bytes, limit: int, offset: int, count: int) -> bytes:
    fd = open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise OSError(27, f"has {size} bytes, more than the {limit} allowed")
        parts, at = [], offset
        # Not by size alone: the files of /proc have none.
        while at < offset + count and (part := os.pread(fd, min(offset + count - at, max(size - at, 65536)), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def write_file(path: bytes, mode: int, offset: int, data: bytes) -> None:
    """Write at ``offset``; at 0 the file is made anew, with its parent directories."""
    if offset == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = open_regular(path, os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if offset == 0 else 0), mode)
    try:
        write_all(fd, data, offset)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done


def read_tree(path: bytes, what: bytes) -> Iterator[Record]:
    """The records of what lies in the directory ``path``.

    A directory comes as DIRECTORY, what is in it, END; the outermost has only its END. A file may go on in MORE.
    ``what`` may be there: ``REGULAR`` is files and directories, ``LINKED`` symlinks as well; ``ALL`` adds pipes, leaves
    out sockets and devices, and opens what its owner has locked.

    Every name is looked up from the descriptor of its directory, never through a symlink: swapping one in meanwhile
    gives an error. A file that grows while it is read is cut at the size it had.

    Raises:
        OSError: ``path`` cannot be opened, or is not a directory.
        TreeError: something in it cannot be, or must not be, read.
    """
    root = open_directory(path)
    try:
        yield from read_directory(root, b"", os.fstat(root), what, 1)
    finally:
        os.close(root)


def read_directory(directory: int, path: bytes, info: os.stat_result, what: bytes, depth: int) -> Iterator[Record]:
    with os.scandir(directory) as entries:
        for entry in entries:
            leaf = os.fsencode(entry.name)
            try:
                found = entry.stat(follow_symlinks=False)
                kind = KINDS.get(found.st_mode & 0o170000, b"")
                if kind in TAKEN[what]:
                    yield from read_entry(directory, path, leaf, kind, found, what, depth)
                elif what != ALL:
                    raise ValueError("is a symlink" if kind == LINK else "is a device, pipe or socket")
            except FileNotFoundError:  # removed since it was listed
                if what != ALL:
                    raise TreeError(path + leaf, "was removed meanwhile") from None
            except (OSError, ValueError) as error:
                raise TreeError(path + leaf, said_by(error)) from None
    yield END, info.st_mode & 0o7777, info.st_mtime_ns, b"", b""


def read_entry(
    directory: int, path: bytes, leaf: bytes, kind: bytes, info: os.stat_result, what: bytes, depth: int
) -> Iterator[Record]:
    mode, time_ns = info.st_mode & 0o7777, info.st_mtime_ns
    if kind in (LINK, PIPE):
        yield kind, mode, time_ns, leaf, os.readlink(leaf, dir_fd=directory) if kind == LINK else b""
        return
    if depth == MAX_DEPTH and kind == DIRECTORY:
        raise ValueError(f"more than {MAX_DEPTH} directories deep")
    needed = 0o500 if kind == DIRECTORY else 0o400
    locked = what == ALL and mode & needed != needed
    if locked:
        os.chmod(leaf, 0o700, dir_fd=directory)
    fd = open_directory(leaf, directory) if kind == DIRECTORY else open_regular(leaf, os.O_RDONLY, 0, directory)
    try:
        if kind == DIRECTORY:
            yield kind, 0, 0, leaf, b""
            yield from read_directory(fd, path + leaf + b"/", info, what, depth + 1)
            return
        left = os.fstat(fd).st_size
        content = os.read(fd, min(left, TREE_PIECE_BYTES))
        yield kind, mode, time_ns, leaf, content
        while (left := left - len(content)) and (content := os.read(fd, min(left, TREE_PIECE_BYTES))):
            yield MORE, mode, time_ns, leaf, content
    finally:
        if locked:
            os.fchmod(fd, mode)
        os.close(fd)


def pieces(tree: Iterable[Record]) -> Generator[bytes]:
    """Records packed into pieces of about ``TREE_PIECE_BYTES``."""
    fields: list[bytes] = []
    size = 0
    for kind, mode, time_ns, leaf, content in tree:
        time_ns = max(-MAX_TIME_NS, min(time_ns, MAX_TIME_NS))
        fields += (kind + mode.to_bytes(4, "big") + time_ns.to_bytes(8, "big", signed=True), leaf, content)
        size += len(leaf) + len(content) + 25
        if size >= TREE_PIECE_BYTES:
            yield pack(*fields)
            fields, size = [], 0
    if fields:
        yield pack(*fields)


def records(piece: bytes) -> Iterator[Record]:
    """Raises ValueError: it is no piece of a tree."""
    fields = unpack(piece)
    if len(fields) % 3 or any(len(head) != 13 for head in fields[::3]):
        raise ValueError("a record of a tree is cut off")
    for head, leaf, content in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        yield head[:1], int.from_bytes(head[1:5], "big"), int.from_bytes(head[5:], "big", signed=True), leaf, content


def open_directory(path: bytes, directory: int | None = None) -> int:
    """Open, from ``directory`` on, without following a final symlink. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)


def finish_entry(fd: int, mode: int, time_ns: int) -> None:
    """Give it its mode and time, and close it."""
    try:
        os.fchmod(fd, mode & 0o7777)
        os.utime(fd, ns=(time_ns, time_ns))
    finally:
        os.close(fd)


def remove_content(directory: int) -> None:
    """Remove what is in a directory."""
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                child = open_directory(os.fsencode(entry.name), directory)
                try:
                    remove_content(child)
                finally:
                    os.close(child)
                os.rmdir(entry.name, dir_fd=directory)
            else:
                os.unlink(entry.name, dir_fd=directory)


def said_by(error: Exception) -> str:
    """What an error says, without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def name(value: bytes) -> str:
    return repr(value.decode("utf-8", "replace"))


def harden(max_pids: int, max_data_mb: int) -> None:
    """Adopt orphans, die with the parent, hide memory and descriptors from the commands, set limits (0: none)."""
    libc = ctypes.CDLL(None)
    libc.prctl(1, SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER; process 1 is one anyway
    # PR_SET_DUMPABLE: makes /proc/1/mem and /proc/1/fd unreadable to the commands; exec resets it in children.
    libc.prctl(4, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if max_pids:
        resource.setrlimit(resource.RLIMIT_NPROC, (max_pids, max_pids))
    if max_data_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (max_data_mb << 20, max_data_mb << 20))


def main() -> None:
    """``agent CWD MAX_PIDS MAX_DATA_MB``."""
    os.closerange(3, 256)
    null = os.open("/dev/null", os.O_RDWR)
    while null < SPAWN_FDS:  # occupy 3..9, so that no descriptor of ours collides with a dup2 target
        null = os.dup(null)
    source, sink = os.dup(0), os.dup(1)
    os.dup2(null, 0)  # the stdin of commands that are given none
    os.dup2(null, 1)
    agent = Agent(source, sink, os.fsencode(sys.argv[1]))
    harden(int(sys.argv[2]), int(sys.argv[3]))
    agent.serve()


if __name__ == "__main__":
    main()
