"""``LongHaul``: a terminal that runs as many commands as the chain has files, so that nothing can be read twice.

Without that limit a policy learns to look the early fact up again at the end, and the summary need not hold it.
"""

from __future__ import annotations

from glmgym.env import Opening, ScoreView, Step, Task
from glmgym.messages import Message
from glmgym.sandbox import Sandbox
from glmgym.trajectory import Reward
from glmgym_envs.terminal.env import Terminal, read_data


class LongHaul(Terminal):
    """Follow a chain of files too long for the context; the answer needs a fact of its start and one of its end."""

    max_observation_chars = 160  # a file has up to 138; a listing of all of them is cut

    _commands_left: int

    async def reset(self, task: Task, box: Sandbox | None) -> Opening:
        self._commands_left = int(read_data(task).slots["count"])
        return await super().reset(task, box)

    async def step(self, reply: Message) -> Step:
        """Run the calls; a command beyond the task's number of files is not run and cuts the episode short.

        A malformed call is answered and costs a turn, but no command.
        """
        self._commands_left -= sum(
            call.error is None and call.name == "shell" and self.shell.problem(call.arguments) is None
            for call in reply.tool_calls
        )
        return Step(truncated=True) if self._commands_left < 0 else await super().step(reply)

    async def score(self, view: ScoreView) -> tuple[Reward, ...]:
        """``check`` is the score. ``early`` and ``end`` weigh nothing: they say which of the two facts was right."""
        value, end = read_data(view.task).answer.split()
        said = view.answer.split()
        facts = (("early", said[:1] == [value]), ("end", said[1:] == [end]))
        return (*await super().score(view), *(Reward(name, float(right), weight=0.0) for name, right in facts))
