"""Trees and forks where the contract cannot look: pieces and their bounds, an agent that lies, failures half-way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_contract import bash, tree_of, until

from glmgym.errors import SandboxDead, SandboxFailure
from glmgym.sandbox import BoxFileError, BoxSpec, SandboxProvider
from glmgym_sandboxes import agent, trees
from glmgym_sandboxes.bubblewrap import open_provider
from glmgym_sandboxes.client import AgentBox, Transport
from glmgym_sandboxes.fake import FakeSandbox
from glmgym_sandboxes.fork import open_siblings, writable_places

Tree = dict[bytes, "bytes | Tree"]
MakeLiar = Callable[..., Awaitable[AgentBox]]

# Speaks the agent's protocol: to request n it gives reply n of the file named first; with "again" the last for ever.
LIAR = """
import itertools, sys
from pathlib import Path
from glmgym_sandboxes import agent

replies = agent.unpack(Path(sys.argv[1]).read_bytes())
if sys.argv[2] == "again":
    replies = itertools.chain(replies, itertools.repeat(replies[-1]))
out = sys.stdout.buffer
out.write(agent.frame(0, agent.HELLO))
out.flush()
for reply in replies:
    header = sys.stdin.buffer.read(agent.HEADER_BYTES)
    if not header:
        break
    sys.stdin.buffer.read(int.from_bytes(header[:4], "big"))
    out.write(agent.frame(int.from_bytes(header[4:8], "big"), reply[0], *agent.unpack(reply[1:])))
    out.flush()
sys.stdin.buffer.read()
"""


@pytest.fixture
async def provider(bubblewrap_works: None) -> AsyncIterator[SandboxProvider]:
    provider = open_provider({"warm": 0})
    yield provider
    await provider.close()


@pytest.fixture
async def box(provider: SandboxProvider) -> AgentBox:
    box = await provider.open(BoxSpec())
    assert isinstance(box, AgentBox)
    return box


@pytest.fixture
async def lying_box(tmp_path: Path) -> AsyncIterator[MakeLiar]:
    """Makes a box whose agent gives the replies it is told to give."""
    boxes: list[AgentBox] = []

    async def make(*replies: bytes, again: bool = False) -> AgentBox:
        (tmp_path / "replies").write_bytes(agent.pack(*replies))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LIAR, str(tmp_path / "replies"), "again" if again else "once"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdin is not None
        assert process.stdout is not None

        async def destroy() -> str:
            await process.wait()
            return ""

        boxes.append(AgentBox("liar", "", BoxSpec(), Transport(process.stdout, process.stdin, destroy)))
        await boxes[-1].ready(20.0)
        return boxes[-1]

    yield make
    for box in boxes:
        await box.close()


def data(*records: tuple[bytes, bytes] | tuple[bytes, bytes, bytes]) -> bytes:
    """The reply that holds a piece of these records: kind, name and, for some, content."""
    whole = [(record[0], 0o777, 0, record[1], record[2] if len(record) == 3 else b"") for record in records]
    return bytes([agent.DATA]) + agent.pack(*agent.pieces(whole))


DIRECTORY, FILE, MORE, LINK, PIPE, END = (agent.DIRECTORY, agent.FILE, agent.MORE, agent.LINK, agent.PIPE, agent.END)
OVER = bytes([agent.DATA]) + agent.pack(b"")


class TestLiar:
    """hazard 12: what the agent says is judged here, and where it is wrong nothing at all is left of the tree."""

    @pytest.mark.parametrize(
        ("replies", "named"),
        [
            ([data((FILE, b"..", b"x"))], "'..': is no name"),
            ([data((FILE, b".", b"x"))], "'.': is no name"),
            ([data((DIRECTORY, b"..", b""))], "'..': is no name"),
            ([data((DIRECTORY, b"a"), (FILE, b"../../up", b"x"))], "'a/../../up': is no name"),
            ([data((FILE, b"/tmp/absolute", b"x"))], "'/tmp/absolute': is no name"),
            ([data((FILE, b"", b"x"))], "'': is no name"),
            ([data((FILE, b"a\0b", b"x"))], "is no name"),
            ([data((FILE, b"n" * 300, b"x"))], "too long"),
            ([data((LINK, b"link", b"/etc/passwd"))], "'link': is neither a file nor a directory"),
            ([data((DIRECTORY, b"a"), (LINK, b"link", b"."), (FILE, b"link/x"))], "'a/link': is neither"),
            ([data((PIPE, b"pipe"))], "'pipe': is neither"),
            ([data((b"?", b"odd"))], "'odd': is neither"),
            ([data((FILE, b"twice", b"1"), (FILE, b"twice", b"2"))], "'twice': File exists"),
            ([data((FILE, b"twice", b"1"), (DIRECTORY, b"twice"))], "'twice': File exists"),
            ([data((DIRECTORY, b"twice"), (END, b""), (DIRECTORY, b"twice"))], "'twice': File exists"),
            ([data((MORE, b"of nothing", b"x"))], "'of nothing': a record of no known kind"),
            ([data((END, b""), (FILE, b"late"))], "'late': a record after the end"),
            ([data((END, b""), (END, b""))], "a record after the end"),
            ([data((FILE, b"a")), OVER], "the tree has no end"),
            ([OVER], "the tree has no end"),
            ([bytes([agent.DATA]) + agent.pack(b"garbage")], "runs over the end"),
            ([bytes([agent.DATA]) + agent.pack(agent.pack(b"f", b"a"))], "is cut off"),
            ([data((FILE, b"big", b"x" * 1001))], "'big': the tree has more than the 1000 bytes"),
            ([data((FILE, b"big", b"x" * 600), (MORE, b"big", b"x" * 401))], "'big': the tree has more than"),
            ([data(*((DIRECTORY, b"d") for _ in range(130)))], "more than 128 directories deep"),
            ([data(*((FILE, b"%d" % number) for number in range(201)))], "'200': the tree has more than"),
        ],
    )
    async def test_a_bad_tree_is_refused_and_leaves_nothing(
        self, lying_box: MakeLiar, tmp_path: Path, replies: list[bytes], named: str
    ) -> None:
        box = await lying_box(*replies)
        (tmp_path / "place").mkdir()
        with pytest.raises(BoxFileError) as raised:
            await box.get_tree("/work/tree", tmp_path / "place/out", max_bytes=1000, max_files=200)
        assert str(raised.value).startswith("/work/tree: ")
        assert named in str(raised.value)
        assert os.listdir(tmp_path / "place") == []
        assert sorted(os.listdir(tmp_path)) == ["place", "replies"]
        assert box.is_alive

    @pytest.mark.parametrize(
        "record", [(FILE, b"same", b""), (DIRECTORY, b"same"), (MORE, b"a", b""), (MORE, b"a", b"x")]
    )
    async def test_a_tree_without_end_is_given_up(
        self,
        lying_box: MakeLiar,
        tmp_path: Path,
        record: tuple[bytes, bytes],
    ) -> None:
        box = await lying_box(data((FILE, b"a", b"x")), data(record), again=True)
        async with asyncio.timeout(10):
            with pytest.raises(BoxFileError):
                await box.get_tree("/work/tree", tmp_path / "out", max_bytes=100)
        assert os.listdir(tmp_path) == ["replies"]

    @pytest.mark.parametrize(
        "reply",
        [
            bytes([agent.DONE]),
            bytes([agent.RESULT]) + agent.pack(b"0", b"0", b"0", b"0.1", b"", b""),
            bytes([agent.DATA]) + agent.pack(b"", b""),
            bytes([agent.DATA]),
            bytes([99]) + agent.pack(b"x"),
        ],
    )
    async def test_a_reply_that_does_not_fit_the_request_ends_the_box(
        self, lying_box: MakeLiar, tmp_path: Path, reply: bytes
    ) -> None:
        box = await lying_box(reply)
        with pytest.raises(SandboxDead, match="no longer speaks the protocol"):
            await box.get_tree("/work/tree", tmp_path / "out")
        assert os.listdir(tmp_path) == ["replies"]

    @pytest.mark.parametrize("fields", [[b"x", b"0", b"0", b"0.1", b"", b""], [b"0", b"0", b"0"], []])
    async def test_a_result_that_is_none_ends_the_box(self, lying_box: MakeLiar, fields: list[bytes]) -> None:
        box = await lying_box(bytes([agent.RESULT]) + agent.pack(*fields))
        with pytest.raises(SandboxDead, match="no longer speaks the protocol"):
            await box.run(["true"])

    async def test_an_honest_tree_of_the_same_kind_is_taken(self, lying_box: MakeLiar, tmp_path: Path) -> None:
        """So that the refusals above are not refusals of everything."""
        first, second = data((DIRECTORY, b"a"), (FILE, b"x", b"12")), data((MORE, b"x", b"3"), (END, b""), (END, b""))
        box = await lying_box(first, second, OVER)
        await box.get_tree("/work/tree", tmp_path / "out")
        assert tree_of(tmp_path / "out") == {"a": None, "a/x": b"123"}


# --- pieces


NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: not {0, 47} & set(name) and name not in (b".", b".."))
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(NAMES, st.binary(max_size=40), max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(st.binary(max_size=40), inner), max_size=4),
    max_leaves=8,
)


def make(tree: Tree, place: bytes) -> None:
    os.mkdir(place)
    for name, content in tree.items():
        if isinstance(content, bytes):
            with open(os.path.join(place, name), "wb") as file:
                file.write(content)
        else:
            make(content, os.path.join(place, name))


def made(place: bytes) -> Tree:
    found: Tree = {}
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if os.path.isdir(path):
            found[name] = made(path)
        else:
            with open(path, "rb") as file:
                found[name] = file.read()
    return found


@settings(deadline=None)
@given(tree=TREES, cut=st.integers(1, 200))
def test_a_tree_survives_the_journey_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree, cut: int
) -> None:
    place = tmp_path_factory.mktemp("trees")
    make(tree, os.fsencode(place / "in"))

    async def in_pieces_of() -> AsyncGenerator[bytes]:
        records = agent.read_tree(os.fsencode(place / "in"), agent.REGULAR)
        while some := list(itertools.islice(records, cut)):
            for piece in agent.pieces(some):
                yield piece

    asyncio.run(trees.save_tree(in_pieces_of(), place / "out", about="", max_bytes=10_000, max_files=1000))
    assert made(os.fsencode(place / "out")) == tree


async def test_pieces_are_bounded_and_small_files_share_one(tmp_path: Path) -> None:
    """hazard 14: 3,000 files of 100 bytes are one piece, 5 MiB are pieces of 1 MiB and a rest."""
    (tmp_path / "small").mkdir()
    for number in range(3000):
        (tmp_path / f"small/{number:04}").write_bytes(b"x" * 100)
    assert [len(piece) async for piece in trees.read_tree(tmp_path / "small")] == [3001 * 25 + 3000 * 104]
    (tmp_path / "big").mkdir()
    (tmp_path / "big/file").write_bytes(bytes((5 << 20) + 7))
    sizes = [len(piece) async for piece in trees.read_tree(tmp_path / "big")]
    assert len(sizes) == 6
    assert max(sizes) < agent.TREE_PIECE_BYTES + 100


def test_a_file_that_grows_while_it_is_read_is_cut_at_the_size_it_had(tmp_path: Path) -> None:
    """hazard 12: otherwise a policy that appends fast enough is read for ever."""
    path = tmp_path / "log"
    path.write_bytes(b"a" * (agent.TREE_PIECE_BYTES + 5))
    records = agent.read_tree(os.fsencode(tmp_path), agent.REGULAR)
    first = next(records)
    with path.open("ab") as file:
        file.write(b"b" * agent.TREE_PIECE_BYTES)
    rest = list(records)
    assert [record[0] for record in (first, *rest)] == [FILE, MORE, END]
    assert rest[0][4] == b"aaaaa"


def open_below(place: Path) -> list[str]:
    """What this process has open below a directory; what earlier tests left open goes when it pleases."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if Path(link).is_relative_to(place)]


def take_all(inside: agent.Agent, key: bytes, path: Path) -> None:
    while inside.take(key, os.fsencode(path), agent.REGULAR):
        assert inside.taken.keys() == {key}


def test_the_agent_forgets_a_tree_that_ended_failed_or_was_dropped(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2 * agent.TREE_PIECE_BYTES))
    source, sink = os.pipe()
    inside = agent.Agent(source, sink, os.fsencode(tmp_path))
    take_all(inside, b"1", tmp_path)
    inside.take(b"2", os.fsencode(tmp_path), agent.REGULAR)
    assert open_below(tmp_path) != []
    inside.drop_tree(b"2")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(agent.TreeError, match="is a symlink"):
        take_all(inside, b"3", tmp_path)
    piece = b"".join(agent.pieces([(FILE, 0o644, 0, b"x", b"")]))
    inside.give(b"4", os.fsencode(tmp_path), empty_first=False, piece=piece)
    inside.drop_tree(b"4")
    with pytest.raises(ValueError, match="no end"):
        inside.give(b"5", os.fsencode(tmp_path), empty_first=False, piece=b"")
    assert (inside.taken, inside.given) == ({}, {})
    assert open_below(tmp_path) == []
    os.close(source)
    os.close(sink)


# --- failures half-way, over real boxes


async def entries(place: Path) -> int:
    return len(os.listdir(place))


@pytest.mark.bubblewrap
async def test_a_cancelled_copy_leaves_nothing_and_the_box_goes_on(box: AgentBox, tmp_path: Path) -> None:
    for number in range(30):
        await box.write(f"/work/tree/{number}", os.urandom(2 << 20))
    copying = asyncio.create_task(box.get_tree("/work/tree", tmp_path / "out"))
    await until(lambda: entries(tmp_path), at_least=1)
    assert not copying.done()
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert os.listdir(tmp_path) == []
    await box.get_tree("/work/tree", tmp_path / "out")
    assert len(tree_of(tmp_path / "out")) == 30


@pytest.mark.bubblewrap
async def test_a_box_that_dies_under_a_copy_leaves_nothing(box: AgentBox, tmp_path: Path) -> None:
    """X2"""
    for number in range(30):
        await box.write(f"/work/tree/{number}", os.urandom(2 << 20))
    copying = asyncio.create_task(box.get_tree("/work/tree", tmp_path / "out"))
    await until(lambda: entries(tmp_path), at_least=1)
    await box.close()
    with pytest.raises(SandboxDead):
        await copying
    assert os.listdir(tmp_path) == []


@pytest.mark.bubblewrap
async def test_many_refused_copies_cost_the_agent_nothing(box: AgentBox, tmp_path: Path) -> None:
    """Each had directories open; the agent has 1024 descriptors, so leaks of four a copy would end it."""
    await bash(box, "mkdir -p tree/a/b/c/d; ln -s x tree/a/b/c/d/link")
    for _ in range(300):
        with pytest.raises(BoxFileError, match="a/b/c/d/link"):
            await box.get_tree("/work/tree", tmp_path / "out")
    assert (await bash(box, "echo fine")).stdout == b"fine\n"


@pytest.mark.bubblewrap
async def test_a_time_beyond_what_a_record_holds_harms_nobody(box: AgentBox, tmp_path: Path) -> None:
    await bash(box, "mkdir tree; touch -d @99999999999 tree/late; touch -d @-99999999999 tree/early")
    await box.get_tree("/work/tree", tmp_path / "out")
    (sibling,) = await box.fork()
    assert tree_of(tmp_path / "out") == {"late": b"", "early": b""}
    times = await sibling.run(["stat", "-c", "%n %Y", "tree/early", "tree/late"])
    assert times.stdout == b"tree/early -9223372037\ntree/late 9223372036\n"


@pytest.mark.bubblewrap
async def test_emptied_first_a_place_holds_the_tree_alone(box: AgentBox, tmp_path: Path) -> None:
    """As fork fills a sibling: what its image had there, and the original deleted, must not come back."""
    await bash(box, "mkdir -p old/er; echo old > old/er/file; ln -s /etc old/link; echo > .hidden")
    (tmp_path / "new").write_text("new")
    async with box.receiving("/work", empty_first=True) as give:
        await trees.pump(trees.read_tree(tmp_path), give)
    assert (await bash(box, "find . ! -name .; test -f /etc/passwd")).stdout == b"./new\n"


@pytest.mark.bubblewrap
@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_no_sibling_is_left_when_one_cannot_be_opened(
    provider: SandboxProvider, box: AgentBox, failing: int
) -> None:
    """It fails when the two others are there already."""
    opened: list[AgentBox] = []
    numbers = itertools.count()

    async def how_many() -> int:
        return len(opened)

    async def open_or_fail(spec: BoxSpec) -> AgentBox:
        if next(numbers) == failing:
            await until(how_many, at_least=2, timeout_s=30.0)
            raise SandboxFailure("no room")
        sibling = await provider.open(spec)
        assert isinstance(sibling, AgentBox)
        opened.append(sibling)
        return sibling

    with pytest.raises(SandboxFailure, match="no room"):
        await open_siblings(box, BoxSpec(), 3, open_or_fail, None)
    assert [sibling.is_alive for sibling in opened] == [False, False]
    assert box.is_alive


@pytest.mark.bubblewrap
async def test_no_sibling_is_left_when_the_files_cannot_be_copied(provider: SandboxProvider, box: AgentBox) -> None:
    opened: list[AgentBox] = []

    async def open_box(spec: BoxSpec) -> AgentBox:
        sibling = await provider.open(spec)
        assert isinstance(sibling, AgentBox)
        opened.append(sibling)
        return sibling

    await bash(box, "for i in $(seq 130); do mkdir d; cd d; done")
    with pytest.raises(BoxFileError, match="128 directories deep"):
        await open_siblings(box, BoxSpec(), 2, open_box, None)
    assert [sibling.is_alive for sibling in opened] == [False, False]
    assert (await bash(box, "echo fine")).stdout == b"fine\n"


@pytest.mark.bubblewrap
async def test_a_backend_that_cannot_fork_says_so(provider: SandboxProvider, box: AgentBox) -> None:
    with pytest.raises(SandboxFailure, match="opens no siblings"):
        await open_siblings(box, BoxSpec(), 1, None, None)
    with pytest.raises(SandboxFailure, match="takes no snapshot"):
        await open_siblings(box, BoxSpec(writable_root=True), 1, provider.open, None)  # type: ignore[arg-type]


@pytest.mark.bubblewrap
async def test_more_siblings_than_can_ever_live_are_refused(bubblewrap_works: None) -> None:
    """They would be waited for without end."""
    provider: SandboxProvider = open_provider({"warm": 0, "max_live": 3})
    box = await provider.open(BoxSpec())
    with pytest.raises(ValueError, match=r"fork: 3 siblings and the box itself are more than max_live = 3"):
        await box.fork(3)
    assert len(await box.fork(2)) == 2
    await provider.close()


async def test_forking_into_nothing_is_a_mistake(box: AgentBox) -> None:
    for one in (box, FakeSandbox()):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            await one.fork(0)


@pytest.mark.parametrize(
    ("cwd", "places"),
    [
        ("/work", ("/work", "/tmp")),
        ("/app/src/", ("/app/src", "/tmp")),
        ("/tmp/x", ("/tmp",)),
        ("/tmpx", ("/tmpx", "/tmp")),
    ],
)
def test_no_writable_place_is_copied_twice(cwd: str, places: tuple[str, ...]) -> None:
    assert writable_places(BoxSpec(cwd=cwd)) == places
