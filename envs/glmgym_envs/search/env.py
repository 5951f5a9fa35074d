"""``SearchEnv``: a question, a corpus to look in, and one answer that is compared on the trusted side.

An episode has a limit of searches and of pages. What the policy reads is bounded and names the ids it can open.
"""

from __future__ import annotations

from collections.abc import Sequence

from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.errors import ScorerFailure
from glmgym.messages import Message
from glmgym.sandbox import Sandbox
from glmgym.tool import Tool, ToolError, tool
from glmgym.toolenv import ToolEnv
from glmgym.trajectory import Reward
from glmgym_envs.search.answers import is_correct
from glmgym_envs.search.documents import Document, pages
from glmgym_envs.search.index import Hit, snippet
from glmgym_envs.search.library import Library, Retriever
from glmgym_envs.search.questions import read_data

MAX_TURNS = 24  # of an episode
HITS = 8  # shown for one search
MAX_SEARCHES = 20  # of an episode
MAX_PAGES = 48  # opened or looked through in an episode
_MOST_FOUND = 10  # lines shown of what find() found
_LONGEST_QUERY = 500  # characters


class Asking(ToolEnv):
    """A question to be answered by searching alone, as behind a Search-R1 server: each hit shows its whole text.

    Args:
        retriever: what is searched.
    """

    system = "Answer the question with what you find by searching. Give the answer itself, as briefly as possible."
    max_observation_chars = 12_000

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._searches = 0
        self._said: str | None = None

    @tool
    async def search(self, query: str) -> str:
        """Search the documents.

        Args:
            query: words to look for.
        """
        return "\n\n".join(f"[{hit.document}] {hit.title}\n{hit.text.strip()}" for hit in await self._find(query))

    @tool
    async def answer(self, text: str) -> str:
        """Give the final answer and end.

        Args:
            text: the answer itself, nothing else.
        """
        if not text.strip():
            raise ToolError("the answer is empty; say what the answer is")
        self._said = text
        return "The answer is noted."

    tools: Sequence[Tool] = (search, answer)

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        """Show the question.

        Raises:
            ConfigError: the task's data are not those of a question.
        """
        read_data(task)
        return await super().reset(task, box)

    async def step(self, reply: Message) -> Step:
        """Run the calls. An answer ends the episode; so does a reply without calls, whose text is then the answer."""
        if not reply.tool_calls:
            self._said = reply.content.strip() or None
        step = await super().step(reply)
        return step if self._said is None else Step(step.observation, terminated=True, info=step.info)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """1 if the answer is one of the accepted ones, after normalisation by its kind; 0 if there is no answer."""
        data = read_data(view.task)
        if self._said is None:
            return (Reward("correct", 0.0, reason="no answer"),)
        try:
            right = is_correct(self._said, data.answers, data.kind)
        except ValueError as error:
            raise ScorerFailure(f"task {view.task.id}: {error}") from error
        return (Reward("correct", float(right)),)

    async def _find(self, query: str) -> list[Hit]:
        if not query.strip():
            raise ToolError("the query is empty")
        if self._searches >= MAX_SEARCHES:
            raise ToolError(f"no searches are left: an episode has {MAX_SEARCHES}")
        self._searches += 1
        hits = await self._retriever.search(query[:_LONGEST_QUERY], HITS)
        if not hits:
            raise ToolError("nothing was found; try other words")
        return hits


class SearchEnv(Asking):
    """Multi-hop questions over a corpus: search, open, find, answer.

    Args:
        library: what is searched and opened.
    """

    system = (
        "Answer the question from the documents: search, open what looks useful, and follow it further. "
        "Then give the answer itself, as briefly as possible."
    )
    max_observation_chars = 4_000

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._library = library
        self._pages = 0

    @tool
    async def search(self, query: str) -> str:
        """Search the documents. Shows ids, pages, titles and the beginnings of texts.

        Args:
            query: words to look for; the exact title of a document finds it first.
        """
        found = [
            f"[{hit.document}]{f' page {hit.page}' if hit.page > 1 else ''} {hit.title}\n  {snippet(hit)}"
            for hit in await self._find(query)
        ]
        return "\n".join(found)

    @tool
    async def open(self, id: str, page: int = 1) -> str:
        """Read a page of a document.

        Args:
            id: the id of the document, as search shows it in brackets.
            page: which page, from 1.
        """
        document = await self._document(id)
        texts = pages(document.text)
        if not 1 <= page <= len(texts):
            raise ToolError(f"{id} has no page {page}: it has {len(texts)}")
        return f"[{document.id}] {document.title}, page {page} of {len(texts)}\n{texts[page - 1]}"

    @tool
    async def find(self, id: str, text: str) -> str:
        """Find a text in a document, whatever its case. Shows the lines that have it, with their pages.

        Args:
            id: the id of the document.
            text: what to find, literally.
        """
        if not text.strip():
            raise ToolError("the text to find is empty")
        document, wanted = await self._document(id), text.casefold()
        lines = [
            f"page {number}: {_around(line, wanted)}"
            for number, page in enumerate(pages(document.text), 1)
            for line in page.splitlines()
            if wanted in line.casefold()
        ]
        if not lines:
            raise ToolError(f"{id} does not have {text[:60]!r}")
        more = [f"({len(lines) - _MOST_FOUND} more lines)"] if len(lines) > _MOST_FOUND else []
        return "\n".join([*lines[:_MOST_FOUND], *more])

    tools = (search, open, find, Asking.answer)

    async def _document(self, id: str) -> Document:
        if self._pages >= MAX_PAGES:
            raise ToolError(f"no pages are left: an episode has {MAX_PAGES}")
        self._pages += 1
        document = await self._library.document(id)
        if document is None:
            raise ToolError(f"there is no document {id[:80]!r}; ids are what search shows in brackets")
        return document


def _around(line: str, wanted: str, length: int = 240) -> str:
    """A line, or the part of a long one around the first place of what is wanted."""
    if len(line) <= length:
        return line
    start = max(0, line.casefold().find(wanted) - length // 2)
    return f"{'…' if start else ''}{line[start : start + length]}{'…' if start + length < len(line) else ''}"
