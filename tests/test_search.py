"""Questions over a corpus: what an episode shows, what ends it, what is right, and that the shipped ones are sound."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from glmgym import Task, assistant
from glmgym.check import check, play
from glmgym.env import ScoreView
from glmgym.errors import ConfigError, ScorerFailure
from glmgym.messages import Message, ToolCall
from glmgym_envs.search import MINI, SEARCH, SearchEnv
from glmgym_envs.search.answers import is_correct
from glmgym_envs.search.countries import read_country
from glmgym_envs.search.documents import Document, read_documents
from glmgym_envs.search.drawing import draw_questions, side, unanswered
from glmgym_envs.search.env import HITS, MAX_PAGES, MAX_SEARCHES
from glmgym_envs.search.expert import baseline
from glmgym_envs.search.index import Index, build_index
from glmgym_envs.search.library import Library, built_library, open_mini_index
from glmgym_envs.search.questions import Question, QuestionSet, data_file, read_questions
from glmgym_envs.search.wordnet import read_sense

LINES = "\n".join(f"line {n} of the long one, {'alpha' if n % 20 else 'OMEGA'} beta gamma delta" for n in range(1, 101))
DOCUMENTS = [
    Document("d/short", "Lamp", "A lamp gives light.", "ours", "Apache-2.0", "d"),
    Document("d/long", "Rope", LINES, "ours", "Apache-2.0", "d"),
]
TASK = Task("t", "What gives light?", {"answers": ["a lamp", "lantern"]})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("index") / "index.sqlite"
    build_index(path, DOCUMENTS)
    return Library(lambda: Index(path))


async def say(env: SearchEnv, name: str, **arguments: object) -> str:
    step = await env.step(assistant("", ToolCall("c", name, arguments)))
    return step.observation[0].content


async def opened(library: Library) -> SearchEnv:
    env = SearchEnv(library)
    await env.reset(TASK, None)
    return env


async def result(env: SearchEnv, task: Task = TASK) -> float:
    async def no_box(spec: object = None) -> object:
        raise AssertionError

    (reward,) = await env.score(ScoreView(task, (), None, no_box))  # type: ignore[arg-type]
    return reward.value


@pytest.mark.parametrize(
    ("said", "kind", "accepted", "right"),
    [
        ("The  Lamp!", "string", ["lamp"], True),
        ("lamps", "string", ["lamp"], False),
        ("Yaounde", "string", ["Yaoundé"], True),
        ("3.1", "string", ["3.10"], False),
        ("310", "string", ["3.10"], False),
        ("3.10.", "string", ["3.10"], True),
        ("it is Vienna", "string", ["Vienna"], False),
        ("", "string", ["Vienna"], False),
        ("the", "string", ["Vienna"], False),
        ("--", "string", ["-"], False),
        ("8847037", "number", ["8,847,037"], True),
        ("83,858.0 km2", "number", ["83858"], True),
        ("83 859", "number", ["83859"], False),
        ("between 5 and 8", "number", ["5"], False),
        ("-5", "number", ["5"], False),
        ("five", "number", ["5"], False),
        ("12,34", "number", ["12"], False),
        ("2020-03-05", "date", ["5 March 2020"], True),
        ("March 5th, 2020", "date", ["2020-03-05"], True),
        ("5 Mar 2020.", "date", ["2020-03-05"], True),
        ("3 May 2020", "date", ["2020-03-05"], False),
        ("2020-02-30", "date", ["2020-03-01"], False),
    ],
)
def test_an_answer_is_compared_by_its_kind(said: str, kind: str, accepted: list[str], right: bool) -> None:
    assert is_correct(said, accepted, kind) is right  # type: ignore[arg-type]


def test_an_accepted_answer_that_is_not_of_its_kind_is_the_tasks_mistake() -> None:
    with pytest.raises(ValueError, match="'soon' is no date"):
        is_correct("2020-01-01", ["soon"], "date")


async def test_search_shows_what_can_be_opened_and_opening_shows_pages(library: Library) -> None:
    env = await opened(library)
    assert (await say(env, "search", query="lamp")).startswith("[d/short] Lamp\n  A lamp gives light.")
    first, last = await say(env, "open", id="d/long"), await say(env, "open", id="d/long", page=3)
    assert first.startswith("[d/long] Rope, page 1 of 3\nline 1 of")
    assert last.endswith("line 100 of the long one, OMEGA beta gamma delta")
    assert (await say(env, "search", query="line 100 omega")).startswith("[d/long] page 3 Rope")


async def test_find_names_lines_and_pages(library: Library) -> None:
    env = await opened(library)
    lines = (await say(env, "find", id="d/long", text="omega")).splitlines()
    assert [line.split(" of the")[0] for line in lines] == [
        "page 1: line 20",
        "page 1: line 40",
        "page 2: line 60",
        "page 2: line 80",
        "page 3: line 100",
    ]
    assert (await say(env, "find", id="d/long", text="BETA")).endswith("(90 more lines)")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"query": " "}, "error: the query is empty"),
        ("search", {"query": "zebra"}, "error: nothing was found"),
        ("search", {"query": '((" NEAR * AND OR NOT col:x ^ -'}, "error: nothing was found"),
        ("open", {"id": "d/none"}, "error: there is no document 'd/none'"),
        ("open", {"id": "d/long", "page": 4}, "error: d/long has no page 4: it has 3"),
        ("open", {"id": "d/long", "page": 0}, "error: d/long has no page 0"),
        ("open", {"id": "d/long", "page": "1"}, "error: argument 'page' must be a valid integer"),
        ("find", {"id": "d/short", "text": "dark"}, "error: d/short does not have 'dark'"),
        ("find", {"id": "d/short", "text": ""}, "error: the text to find is empty"),
        ("answer", {"text": " "}, "error: the answer is empty"),
    ],
)
async def test_a_wrong_call_is_answered_and_the_episode_goes_on(
    library: Library, name: str, arguments: dict[str, object], said: str
) -> None:
    """T6."""
    env = await opened(library)
    step = await env.step(assistant("", ToolCall("c", name, arguments)))
    assert step.observation[0].content.startswith(said)
    assert not step.terminated
    assert step.info["failed_calls"] == 1


async def test_searches_and_pages_run_out(library: Library) -> None:
    env = await opened(library)
    answers = [await say(env, "search", query="lamp") for _ in range(MAX_SEARCHES + 1)]
    assert [answer.startswith("error: no searches are left") for answer in answers] == [False] * MAX_SEARCHES + [True]
    reads = [await say(env, "open", id="d/short") for _ in range(MAX_PAGES + 1)]
    assert [read.startswith("error: no pages are left") for read in reads] == [False] * MAX_PAGES + [True]


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (assistant("", ToolCall("c", "answer", {"text": "Lamp"})), 1.0),
        (assistant("", ToolCall("c", "answer", {"text": "rope"})), 0.0),
        (assistant("a lantern"), 1.0),
        (assistant(""), 0.0),
    ],
)
async def test_an_answer_ends_the_episode_and_is_graded(library: Library, reply: Message, value: float) -> None:
    env = await opened(library)
    assert (await env.step(reply)).terminated
    assert await result(env) == value


async def test_an_episode_without_an_answer_scores_nothing(library: Library) -> None:
    env = await opened(library)
    await say(env, "search", query="lamp")
    assert await result(env) == 0.0


async def test_a_task_that_cannot_be_graded_is_a_failure_and_no_zero(library: Library) -> None:
    task = Task("t", "When?", {"answers": ["soon"], "kind": "date"})
    env = SearchEnv(library)
    await env.reset(task, None)
    await say(env, "answer", text="2020-01-01")
    with pytest.raises(ScorerFailure, match="task t: accepted answer 'soon' is no date"):
        await result(env, task)


async def test_a_task_of_another_environment_is_refused(library: Library) -> None:
    with pytest.raises(ConfigError, match="task t: missing key 'answers'; unknown key 'answer'"):
        await SearchEnv(library).reset(Task("t", "?", {"answer": "x"}), None)


async def test_the_shipped_environment_is_sound() -> None:
    report = await check(MINI, None, tasks=8)
    assert report.problems == ()
    assert len(report.task_ids) == 16


async def test_sixty_four_episodes_share_a_library() -> None:
    tasks = [MINI.tasks.task("heldout", index) for index in range(64)]
    assert MINI.oracle is not None
    episodes = await asyncio.gather(*(play(MINI, task, MINI.oracle(task), None) for task in tasks))
    assert [episode.total for episode in episodes] == [1.0] * 64


@pytest.mark.parametrize(("name", "least"), [("search-mini-v0", 250), ("search-v0", 400)])
def test_shipped_questions_are_disjoint_by_document_and_cannot_be_guessed(name: str, least: int) -> None:
    questions = read_questions(data_file(f"{name}.jsonl"))
    assert len(questions) >= least
    assert len({question.question for question in questions}) == len(questions)
    read = {split: {d for q in questions if q.split == split for d in q.documents} for split in ("train", "heldout")}
    assert read["train"].isdisjoint(read["heldout"])
    assert all(len(question.documents) >= 2 for question in questions)
    assert all(value in question.question for question in questions for value in question.slots.values())
    guesses = baseline([(q.family, tuple(q.answers)) for q in questions if q.split == "train"])
    heldout = [question for question in questions if question.split == "heldout"]
    right = sum(is_correct(guesses[question.family], question.answers, question.kind) for question in heldout)
    assert right <= 0.02 * len(heldout)


def test_the_expert_answers_every_question_of_the_small_corpus() -> None:
    assert unanswered(read_questions(data_file("search-mini-v0.jsonl")), open_mini_index()) == []


def test_drawing_again_gives_the_shipped_questions_and_at_least_95_in_100_candidates_are_found() -> None:
    shipped = [q for q in read_questions(data_file("search-mini-v0.jsonl")) if q.family == "largest-neighbour"]
    drawn = draw_questions(
        read_documents(data_file("mini.jsonl")),
        open_mini_index(),
        name="search-mini-v0",
        most={"largest-neighbour": 50, "kind-2": 60},
    )
    assert [question for question in drawn.questions if question.family == "largest-neighbour"] == shipped
    assert sum(drawn.solved.values()) >= 0.95 * sum(drawn.candidates.values())


def test_no_other_country_answers_a_question_about_countries() -> None:
    """A second reading of the facts, by brute force over all countries and without the generator's code."""
    countries = [country for d in read_documents(data_file("mini.jsonl")) if (country := read_country(d.text))]
    counted = Counter[str]()
    for question in read_questions(data_file("search-mini-v0.jsonl")):
        slots, found = question.slots, None
        if question.family == "shared-neighbour":
            ends = [{c.name for c in countries if c.capital == slots[end]} for end in ("one", "two")]
            assert [len(end) for end in ends] == [1, 1]
            found = [c.capital for c in countries if all(end & set(c.neighbours) for end in ends)]
        elif question.family == "only-neighbour":
            found = [
                c.population
                for c in countries
                for o in countries
                if o.capital == slots["capital"] and c.name in o.neighbours
            ]
        elif question.family == "currency-neighbour":
            found = [
                c.area
                for c in countries
                for o in countries
                if o.capital == slots["capital"] and c.name in o.neighbours and c.currency == slots["currency"]
            ]
        elif question.family == "largest-neighbour":
            around = [
                c for c in countries for o in countries if o.calling_code == slots["code"] and c.name in o.neighbours
            ]
            widest = max(float(c.area) for c in around)
            found = [c.name for c in around if float(c.area) == widest]
        if found is not None:
            counted[question.family] += 1
            assert found == question.answers, question.id
    assert min(counted.values()) >= 20
    assert len(counted) == 4


def test_no_other_noun_answers_a_question_about_words() -> None:
    senses = [sense for d in read_documents(data_file("mini.jsonl")) if (sense := read_sense(d.text))]
    hops = {"kind-2": 2, "kind-3": 3}
    for question in read_questions(data_file("search-mini-v0.jsonl")):
        if question.family in hops:
            reached = [sense for sense in senses if sense.definition == question.slots["definition"]]
            for _ in range(hops[question.family] - 1):
                reached = [sense for sense in senses if any(sense.words in below.kind_of for below in reached)]
            ends = [words for sense in reached for words in sense.kind_of]
            assert ends == [", ".join(question.answers)], question.id


def test_sides_do_not_depend_on_the_questions() -> None:
    assert {part: side(f"country/{part}") for part in ("Africa", "Europe")} == {"Africa": "heldout", "Europe": "train"}


async def test_the_large_environment_says_how_to_build_its_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SEARCH.tasks.size("heldout") > 100
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m glmgym_envs\.search build"):
        await built_library().search("x", HITS)


def test_question_files_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "a", "question": "q?", "answers": ["x"]}\n\n{"id": "b", "question": "q?", "answer": []}\n')
    with pytest.raises(ConfigError, match=r"q\.jsonl, line 3: .*missing key 'answers'.*|.*unknown key 'answer'"):
        read_questions(path)
    path.write_text("[]\n")
    with pytest.raises(ConfigError, match="line 1: wanted a JSON object"):
        read_questions(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_questions(path)
    twice = [Question(id="a", question="q?", answers=["x"])] * 2
    with pytest.raises(ConfigError, match="2 questions have the id 'a'"):
        QuestionSet(twice, name="mine")
