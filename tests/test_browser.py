"""The browser itself: what the policy sees, how it acts, what a page can reach, and what happens when it dies."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from browser_site import Site, browser_works, kill_browser, needs_browser, open_site, opened
from episodes import CHAT, DONE, play
from hypothesis import given, settings
from hypothesis import strategies as st

from glmgym.errors import ConfigError, SandboxFailure
from glmgym.messages import ToolCall, assistant
from glmgym.trajectory import Stop
from glmgym_envs.browser.chromium import BrowserDead, BrowserSettings, Chromium, chromium, find_chromium
from glmgym_envs.browser.observe import Element, View
from glmgym_envs.browser.server import Request, Response, Server
from glmgym_envs.browser.session import QUIET_TIMEOUT_S, Session

__all__ = ["browser_works"]  # a fixture

FORM = """<title>Form</title><h1>Order</h1>
<p>Pay <b>now</b>.</p>
<label>Name <input name=n value="A  B" required></label>
<input type=password value=secret aria-label=Code>
<label><input type=checkbox checked> Gift</label>
<select aria-label=Size><option>S</option><option selected>M</option></select>
<button disabled>Buy</button><a href=/next>Next</a><a>no link</a>
<div style="display:none">hidden</div><span style="visibility:hidden">hidden too</span>
<span style="font-size:0">tiny</span><div role=tab aria-selected=true tabindex=0>Tab</div>
<div style="width:20px;height:10px;background:#ff0000"></div>
<textarea readonly>two
lines</textarea><script>var x = 'script'</script>"""


@needs_browser
async def test_a_page_is_read_as_a_person_would() -> None:
    """Hidden text stays hidden, a value is exact to the blank, a password is not read out."""
    env = await open_site({"/": FORM})
    shown = await env.lines()
    assert [line for line in shown if " box " not in line] == [
        '[1] heading "Order"',
        '[2] text "Pay now."',
        '[3] textbox "Name" value="A  B" required',
        '[4] textbox "Code" value="******"',
        '[5] checkbox "Gift" checked',
        '[6] combobox "Size" value="M" options: S | M',
        '[7] button "Buy" disabled',
        '[8] link "Next"',
        '[9] text "no link"',
        '[10] tab "Tab" selected',
        '[12] textbox value="two\\nlines" readonly',
    ]
    assert [line.split(" at ")[0] for line in shown if " box " in line] == ["[11] box (#ff0000"]
    assert env.view.path == "/"
    assert env.view.title == "Form"
    await env.close()


@needs_browser
async def test_an_element_keeps_its_id_and_a_new_one_gets_a_new_id() -> None:
    grow = "const b = document.createElement('button'); b.innerText = 'New'; document.body.prepend(b)"
    page = f'<button onclick="{grow}">Add</button><button onclick="this.remove()">Gone</button>'
    env = await open_site({"/": page})
    assert await env.lines() == ['[1] button "Add"', '[2] button "Gone"']
    assert "[3] button" in await env.act("click", id=1)
    assert await env.lines() == ['[3] button "New"', '[1] button "Add" focused', '[2] button "Gone"']
    await env.act("click", id=2)
    assert await env.act("click", id=2) == "error: there is no element 2 on this page"
    await env.close()


@needs_browser
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("click", {"id": 99}), "there is no element 99 on this page"),
        (("click", {"id": 1}), "element 1 is disabled"),
        (("click", {"id": 2}), "element 2 is covered by 'Cover'"),
        (("fill", {"id": 4, "text": "x"}), "element 4 is read-only"),
        (("fill", {"id": 5, "text": "tomorrow"}), "element 5 does not take that value (dates are YYYY-MM-DD"),
        (("fill", {"id": 6, "text": "x"}), "element 6 is not a text field"),
        (("select", {"id": 6, "option": "XL"}), "element 6 has no such option; it has ['S', 'M']"),
        (("select", {"id": 5, "option": "S"}), "element 5 is not a list of options"),
        (("press", {"key": "Nonsense"}), "unknown key 'Nonsense'"),
        (("press", {"key": "Control+v"}), "there is no clipboard"),
        (("scroll", {"direction": "up"}), "there is nothing more up"),
        (("goto", {"path": "file:///etc/passwd"}), "'file:///etc/passwd' is no path of this site"),
        (("goto", {"path": "//127.0.0.1:1/x"}), "is no path of this site"),
        (("switch_tab", {"index": 1}), "there is no tab 1"),
        (("close_tab", {}), "the only tab stays open"),
        (("wait", {"seconds": 0.0}), "seconds must be above 0"),
        (("wait", {"seconds": 10.1}), "at most 10"),
        (("click", {"id": "1"}), "argument 'id' must be a valid integer"),
        (("back", {}), "there is no earlier page"),
    ],
)
async def test_what_the_policy_asks_for_wrongly_is_said_and_the_episode_goes_on(
    call: tuple[str, dict[str, object]], said: str
) -> None:
    page = """<button disabled>Off</button><button style="position:absolute;left:200px;top:200px">Under</button>
    <div style="position:absolute;left:150px;top:150px;width:300px;height:200px;background:#eee">Cover</div>
    <input readonly value=1><input type=date><select><option>S</option><option>M</option></select>"""
    env = await open_site({"/": page})
    answer = await env.act(call[0], **call[1])
    assert answer.startswith("error: ")
    assert said in answer
    assert "[5] date" in await env.act("fill", id=5, text="2024-02-29")
    assert any('value="2024-02-29"' in line for line in await env.lines())
    await env.close()


@needs_browser
async def test_keys_lists_hover_and_drag_reach_the_page() -> None:
    page = """<input aria-label=T onkeydown="if(event.key=='Enter')document.title='sent '+this.value">
    <select aria-label=L onchange="document.title='chose '+this.value"><option>a<option>b</select>
    <div style="width:60px" onmouseover="document.title='over'">Here</div>
    <div draggable=true id=d ondragstart="event.dataTransfer.setData('text','d')">Thing</div>
    <div style="height:50px;background:#ddd" ondragover="event.preventDefault()"
         ondrop="document.title='dropped '+event.dataTransfer.getData('text')">Box</div>"""
    env = await open_site({"/": page})
    await env.act("fill", id=1, text="old")
    assert 'value="new"' in await env.act("fill", id=1, text="new")  # what was there is replaced
    assert 'page: / "sent new"' in await env.act("press", key="Enter")
    assert '"chose b"' in await env.act("select", id=2, option="b")
    assert '"over"' in await env.act("hover", id=3)
    assert '"dropped d"' in await env.act("drag", source=4, target=5)
    await env.close()


@needs_browser
async def test_tabs_and_history() -> None:
    env = await open_site({"/": "<title>One</title><a href=/two target=_blank>Two</a><a href=/two>Same</a>",
                           "/two": "<title>Two</title><p>second</p>"})  # fmt: skip
    opened = await env.act("click", id=1)
    assert "tabs: 0 'One', *1 'Two'" in opened
    assert "second" in opened
    assert 'page: / "One"' in await env.act("switch_tab", index=0)
    await env.act("switch_tab", index=1)
    assert 'page: / "One"' in await env.act("close_tab")
    assert 'page: /two "Two"' in await env.act("click", id=2)
    assert 'page: / "One"' in await env.act("back")
    await env.close()


ONE = """<title>One</title><button onclick="window.open('/two')">Open</button>
<script>onkeydown = onmouseover = onmouseup = onscroll = () => document.title = 'struck'</script>"""
LOST = "a page closed the tab of /two"


async def with_two_tabs(two: str, *, has_clock: bool = False) -> Site:
    """On the second of two tabs, which the first opened."""
    env = await open_site({"/": ONE, "/two": f"<title>Two</title>{two}"}, has_clock=has_clock)
    await env.drive(env.session.evaluate("window.open('/two')"))
    assert "tabs: 0 'One', *1 'Two'" in await env.act("wait", seconds=0.1)
    return env


@needs_browser
@pytest.mark.parametrize(
    ("two", "call"),
    [
        ("<button onclick=window.close()>X</button>", ("click", {"id": 1})),
        ("<button onmousedown=window.close()>X</button>", ("click", {"id": 1})),
        ("<button onmouseover=window.close()>X</button>", ("hover", {"id": 1})),
        ("<button onclick=\"fetch('/slow');setTimeout(() => window.close(), 60)\">X</button>", ("click", {"id": 1})),
        (
            "<button onclick=window.close()>X</button><script>onbeforeunload = e => e.preventDefault()</script>",
            ("click", {"id": 1}),
        ),
        (
            "<button onclick=window.close()>X</button><script>"
            "onpagehide = () => { for (let t = Date.now(); Date.now() < t + 400;); }</script>",
            ("click", {"id": 1}),
        ),
        ("<input onkeydown=window.close()>", ("fill", {"id": 1, "text": "many keys"})),
        ("<select onchange=window.close()><option>a<option>b</select>", ("select", {"id": 1, "option": "b"})),
        ("<script>onkeyup = () => close()</script>", ("press", {"key": "a"})),
        ("<p style=height:9000px>x</p><script>onscroll = () => close()</script>", ("scroll", {"direction": "down"})),
        ("<script>if (location.search) close()</script>", ("goto", {"path": "/two?close"})),
    ],
)
async def test_a_tab_that_closes_itself_leaves_the_episode_on_the_last_one(
    two: str, call: tuple[str, dict[str, object]]
) -> None:
    """No browser died: the policy is told, sees what is left, and goes on."""
    env = await with_two_tabs(two)
    shown = await env.act(call[0], **call[1])
    assert shown.startswith(f'page: / "One"\n{LOST}')
    again = await env.act("click", id=1)
    assert "*1 'Two'" in again
    assert LOST not in again
    await env.close()


@needs_browser
@pytest.mark.parametrize(
    "call",
    [
        ("click", {"id": 1}),
        ("hover", {"id": 1}),
        ("drag", {"source": 1, "target": 1}),
        ("fill", {"id": 1, "text": "x"}),
        ("select", {"id": 1, "option": "x"}),
        ("press", {"key": "a"}),
        ("scroll", {"direction": "down"}),
        ("wait", {"seconds": 0.1}),
        ("back", {}),
        ("goto", {"path": "/two"}),
        ("switch_tab", {"index": 0}),
        ("close_tab", {}),
    ],
)
async def test_what_was_meant_for_a_tab_that_is_gone_strikes_no_other(call: tuple[str, dict[str, object]]) -> None:
    """A page closes its tab between two steps, as by a timer."""
    env = await with_two_tabs("<input>")
    await close_by_timer(env)
    assert await env.act(call[0], **call[1]) == f'page: / "One"\n{LOST}\n[1] button "Open"'
    await env.close()


async def close_by_timer(env: Site) -> None:
    closing = env.session.page
    await env.drive(env.session.evaluate("void setTimeout(() => window.close())"))
    for _ in range(1_500):  # 30 s at most
        if closing.is_closed():
            break
        await asyncio.sleep(0.02)
    assert closing.is_closed()


@needs_browser
async def test_a_look_and_a_picture_are_of_a_tab_that_is_there() -> None:
    env = await with_two_tabs("x")
    await close_by_timer(env)
    assert (await env.drive(env.session.screenshot())).startswith(b"\x89PNG")
    assert await env.drive(env.session.evaluate("document.title")) == "One"
    view = await env.drive(env.session.view())
    assert (view.path, view.tabs, view.active_tab, view.notes) == ("/", ("",), 0, (LOST,))
    assert (await env.drive(env.session.view())).notes == ()
    await env.close()


@needs_browser
async def test_a_tab_may_close_on_a_clock_that_stands_still() -> None:
    env = await with_two_tabs("<button onclick='setTimeout(() => window.close(), 2000)'>X</button>", has_clock=True)
    assert "tabs: 0 'One', *1 'Two'" in await env.act("click", id=1)
    assert LOST in await env.act("wait", seconds=2)
    assert env.view.title == "One"
    await env.close()


@needs_browser
async def test_when_the_last_tab_closes_itself_there_is_a_blank_one() -> None:
    env = await with_two_tabs("<button onclick=window.close()>X</button>")
    await env.act("switch_tab", index=0)
    assert "a page closed" not in await env.act("close_tab")  # the policy did
    assert await env.act("click", id=1) == f"page: blank\n{LOST}"
    assert await env.act("close_tab") == "error: the only tab stays open"
    assert 'page: / "One"' in await env.act("goto", path="/")
    await env.close()


@needs_browser
async def test_what_a_page_asks_for_as_it_closes_is_not_waited_for() -> None:
    """Unless it is answered, no end of such a request is ever told."""
    env = await with_two_tabs("<button onclick=\"new Image().src = '/never'; window.close()\">X</button>")
    started = time.monotonic()
    assert LOST in await env.act("click", id=1)
    assert time.monotonic() - started < QUIET_TIMEOUT_S
    await env.close()


@needs_browser
async def test_a_page_that_goes_elsewhere_while_it_is_looked_at_is_looked_at_again() -> None:
    env = await open_site({"/": "<button>Still here</button><script>setTimeout(() => location.reload(), 1)</script>"})
    for _ in range(100):
        assert await env.lines() in ([], ['[1] button "Still here"'])
    await env.close()


@needs_browser
async def test_a_long_page_is_cut_and_scrolling_shows_the_rest() -> None:
    env = await open_site({"/": "".join(f"<p>paragraph {i} {'x' * 100}</p>" for i in range(400))})
    first = env.view.text(2_000)
    assert len(first) <= 2_000
    assert "paragraph 0 " in first
    assert "elements below: scroll down)" in first
    for _ in range(3):
        later = await env.act("scroll", direction="down")
    assert "elements above)" in later
    assert "paragraph 0 " not in later
    await env.close()


@needs_browser
async def test_a_page_reaches_nothing_but_its_own_origin_and_is_told_on() -> None:
    """Images, scripts, fetches, sockets, frames, forms and windows: of the internet and of the machine itself."""
    asked: list[Request] = []

    async def other(request: Request) -> Response:
        asked.append(request)
        return Response(b"secret")

    browser = chromium()
    server = await browser.call(Server.start(other))
    page = f"""<img src=http://example.com/a.png><img src=http://93.184.216.34/b.png>
    <script src={server.origin}/c.js></script>
    <iframe src={server.origin}/d></iframe><p id=out>waiting</p><script>
    fetch('{server.origin}/e').then(r => r.text()).catch(e => 'refused').then(t => out.innerText = t);
    try {{ new WebSocket('{server.origin.replace("http", "ws")}/f') }} catch {{}}
    </script><button onclick="window.open('{server.origin}/g')">Open</button>
    <form action={server.origin}/h method=post><button>Send</button></form><a href=file:///etc/hostname>File</a>"""
    env = await open_site({"/": page})
    assert any("refused" in line for line in await env.lines())
    blocked = env.session.visit.blocked
    assert "blocked: the page asked for http://example.com/a.png" in env.view.notes
    await env.act("click", id=env.id_of("Open"))
    await env.act("switch_tab", index=0)
    assert "root:" not in await env.act("click", id=env.id_of("File"))
    await env.act("click", id=env.id_of("Send"))
    wanted, deadline = {"a.png", "b.png", "c.js", "d", "e", "f", "g", "h"}, time.monotonic() + 30
    while not wanted <= {url.rsplit("/", 1)[1] for url in blocked}:
        assert time.monotonic() < deadline, blocked
        await asyncio.sleep(0.02)
    assert asked == []
    await env.close()
    await browser.call(server.close())


@needs_browser
async def test_two_episodes_at_once_share_no_cookie_and_no_storage() -> None:
    page = """<button onclick="document.cookie='who=me';localStorage.who='me'">Keep</button>
    <button onclick="document.title='['+document.cookie+localStorage.who+']'">Show</button>"""
    one, two = await asyncio.gather(open_site({"/": page}), open_site({"/": page}))
    await one.act("click", id=1)
    assert '"[who=meme]"' in await one.act("click", id=2)
    assert '"[undefined]"' in await two.act("click", id=2)
    await one.close()
    assert "Keep" in await two.act("click", id=1)
    await two.close()


@needs_browser
async def test_a_step_is_over_when_the_page_is_quiet() -> None:
    """What a click asks the server for is there, 0.2 s later, without a fixed wait."""
    fetch = "fetch('/slow').then(r => r.text()).then(t => out.innerText = t)"
    page = f'<button onclick="{fetch}">Go</button><p id=out>nothing</p>'
    env = await open_site({"/": page, "/slow": "it came"})
    assert "it came" in await env.act("click", id=1)
    await env.close()


class Asking(Session):
    """Its page asks for something while the step makes sure of the windows."""

    async def _knows_all_windows(self) -> bool:
        await self.page.evaluate("ask()")
        for _ in range(500):  # 1 s at least until playwright tells of it
            if self.visit.is_loading or not await self.page.evaluate("asks"):
                break
            await asyncio.sleep(0.002)
        return await super()._knows_all_windows()


@needs_browser
async def test_a_request_that_begins_at_the_very_end_of_a_step_is_waited_for() -> None:
    page = """<p id=out>nothing</p><button onclick="asks = false; armed = true">Go</button><script>
    armed = asks = false;
    function ask() {
      if (!armed) return;
      [armed, asks] = [false, true];
      fetch('/slow').then(r => r.text()).then(t => { out.innerText = t; asks = false });
    }</script>"""
    env = Site({"/": page, "/slow": "it came"})
    env.session_type = Asking
    await opened(env)
    assert "nothing" in (await env.lines())[0]
    assert "it came" in await env.act("click", id=2)
    await env.close()


@needs_browser
async def test_a_step_takes_less_than_half_of_a_fixed_half_second() -> None:
    """BrowserGym waits 500 ms before each observation; a step here is over in 250 ms, wait included.

    A wait of fixed length would be in the quickest step too; what a busy machine adds is in the others.
    """
    env = await open_site({"/": '<button onclick="document.title=+document.title+1">Go</button><title>0</title>'})
    walls = []
    for _ in range(20):
        started = time.perf_counter()
        await env.act("click", id=1)
        walls.append(time.perf_counter() - started)
    assert env.view.title == "20"
    assert min(walls) < 0.25
    await env.close()


@needs_browser
async def test_a_killed_browser_is_the_machines_failure_and_the_next_episode_works() -> None:
    """A browser killed in mid-episode is no reward of 0 but a failure of the sandbox, worth another try."""
    env = await open_site()
    bystander = await open_site()
    launches = chromium().launches
    await kill_browser()
    with pytest.raises(BrowserDead):
        await env.act("click", id=1)
    with pytest.raises(BrowserDead):
        await bystander.act("click", id=1)
    assert BrowserDead.retryable
    await env.close()
    await bystander.close()
    after = await open_site()
    assert "[1] button" in await after.act("click", id=1)
    assert chromium().launches == launches + 1
    await after.close()


@needs_browser
async def test_a_browser_that_dies_under_two_tabs_is_dead_and_so_is_one_whose_page_crashed() -> None:
    """Both close no tab of their own."""
    env = await with_two_tabs("<button>Go</button>")
    await kill_browser()
    with pytest.raises(BrowserDead):
        await env.act("click", id=1)
    await env.close()
    env = await with_two_tabs("<button>Go</button>")
    await env.drive(crash(env.session))
    with pytest.raises(BrowserDead):
        await env.act("goto", path="/two")
    await env.close()


@needs_browser
@pytest.mark.parametrize("word", ["closed", "crashed"])
async def test_an_address_with_a_word_of_death_in_it_kills_no_browser(word: str) -> None:
    from playwright.async_api import Error

    async def nothing(request: Request) -> Response:
        return Response(b"", 204 if request.path == f"/{word}" else 200)

    browser = chromium()
    server = await browser.call(Server.start(nothing))
    session = await browser.call(Session.open(browser, server.origin, "/", on_close=server.close))
    with pytest.raises(Error, match=f"ERR_ABORTED at .*/{word}"):
        await browser.call(session.go(f"/{word}"))
    await browser.call(session.close())


async def crash(session: Session) -> None:
    devtools = await session.visit.context.new_cdp_session(session.page)
    async with session.page.expect_event("crash"):
        sending = asyncio.create_task(devtools.send("Page.crash"))
    sending.cancel()  # it is not answered


class Killed(Site):
    async def after_action(self) -> None:
        await kill_browser()


CLICK = CHAT.turn(assistant("", ToolCall("call_0", "click", {"id": 1})))


@needs_browser
async def test_a_trajectory_whose_browser_died_has_no_reward() -> None:
    trajectory, _ = await play(Killed(), [CLICK, DONE])
    assert trajectory.outcome.stop is Stop.FAILED
    assert trajectory.outcome.failure is not None
    assert trajectory.outcome.failure.origin == "sandbox"
    assert trajectory.outcome.failure.retryable
    whole, _ = await play(Site(), [CLICK, DONE])
    assert whole.outcome.total() == 1.0


@needs_browser
async def test_a_context_is_closed_when_its_episode_is_graded_and_when_it_is_dropped() -> None:
    env = Site()
    trajectory, _ = await play(env, [CLICK, DONE])
    assert trajectory.outcome.stop is Stop.DONE
    assert env.session.visit.is_closed
    dropped = await open_site()
    visit = dropped.session.visit
    gc.disable()  # counting references must be enough: no collection is due for a long time
    try:
        del dropped
        for _ in range(1_500):  # 30 s at most
            if visit.is_closed:
                break
            await asyncio.sleep(0.02)
    finally:
        gc.enable()
    assert visit.is_closed


@needs_browser
async def test_contexts_are_bounded_and_a_freed_one_is_used_again() -> None:
    await chromium().call(chromium().stop())
    browser = Chromium(BrowserSettings(max_contexts=1, slot_wait_s=0.2))
    try:
        first = await browser.call(browser.visit("http://127.0.0.1:1"))
        with pytest.raises(SandboxFailure, match=r"all 1 browser contexts stayed in use for 0.2 s"):
            await browser.call(browser.visit("http://127.0.0.1:1"))
        planner = await browser.call(browser.visit("http://127.0.0.1:1", counted=False))
        await browser.call(planner.close())
        await browser.call(first.close())
        await browser.call(first.close())  # frees one slot, not two
        second = await browser.call(browser.visit("http://127.0.0.1:1"))
        with pytest.raises(SandboxFailure):
            await browser.call(browser.visit("http://127.0.0.1:1"))
        await browser.call(second.close())
    finally:
        await browser.call(browser.stop())


async def test_what_breaks_after_nobody_waits_any_more_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    """An interrupted episode's work may end with an error of playwright's, its page being gone.

    What asyncio says of it names it; of other tests' garbage it says other things, whenever that is collected.
    """
    started, loop = asyncio.Event(), asyncio.get_running_loop()
    browser = chromium()

    async def work() -> None:
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise RuntimeError("no such page") from None

    waiting = asyncio.create_task(browser.call(work()))
    await started.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    await browser.call(asyncio.sleep(0.05))
    gc.collect()
    assert "no such page" not in caplog.text


def test_a_missing_browser_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Chromium found .*apt-get install chromium"):
        find_chromium()
    with pytest.raises(ConfigError, match="the browser /nowhere is not an executable file"):
        find_chromium(BrowserSettings(executable="/nowhere"))


def _view(lengths: list[int], first_shown: int) -> View:
    elements = [Element(i, "text", "x" * n, shown=i >= first_shown) for i, n in enumerate(lengths)]
    return View("/", "t", tuple(elements))


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(0, 70), st.integers(400, 3_000))
def test_a_view_is_never_longer_than_it_may_be(lengths: list[int], first_shown: int, most: int) -> None:
    view = _view(lengths, first_shown)
    text = view.text(most)
    assert len(text) <= most
    shown = [line for line in text.split("\n") if line.startswith("[")]
    if len(shown) == len(lengths):
        assert shown == [element.line() for element in view.elements]
    else:
        assert "elements below" in text or "elements above" in text


def test_find_says_what_is_there() -> None:
    view = View("/", "t", (Element(1, "button", "Buy"), Element(2, "button", "Sell"), Element(3, "text", "Buy")))
    assert view.find("button", "Buy").id == 1
    assert view.find(contains="uy", nth=1).id == 3
    assert view.find("button", nth=-1).id == 2
    with pytest.raises(LookupError, match=r"no button 'Rent' number 0 on:[\s\S]*Sell"):
        view.find("button", "Rent")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /a%20b?x=1&x=2 HTTP/1.1\r\n\r\n", b"200"),
        (b"PUT / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
async def test_the_server_answers_what_it_cannot_read(raw: bytes, status: bytes) -> None:
    async def echo(request: Request) -> Response:
        return Response(f"{request.path} {request.query.get('x')}".encode())

    server = await Server.start(echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.origin.rsplit(":", 1)[1]))
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    if status == b"200":
        assert await reader.readexactly(6) == b"/a b 2"
    writer.close()
    await server.close()
