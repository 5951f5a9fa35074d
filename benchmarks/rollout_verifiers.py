"""verifiers 0.4.0 on the workload of ``rollout.py``, which runs this file with that package's own interpreter.

Measured twice. *Public API*: ``Agent.run`` with an in-process ``Harness`` (its documented form: the loop may run in
process as long as every model call goes through the endpoint), so with its interception server and local HTTP. *Core*:
what is left without any HTTP, its message graph and its ``TrainClient`` on an in-process transport. Both take its
token-in-token-out path, the GLM-5 renderer's bridge. Reads the workload from argv[1], writes what it found to argv[2].
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import verifiers.v1 as vf
from aiohttp import web
from openai import AsyncOpenAI
from renderers import GLM5RendererConfig
from verifiers.v1 import graph
from verifiers.v1.clients import ModelContext
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.runtimes import ProgramResult, Runtime, SubprocessConfig
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import SamplingConfig, ToolMessage

__all__ = ["ScriptedHarness"]  # how verifiers finds the harness of a module

MODEL = "scripted"


class WorkData(vf.TaskData):
    replies: list[str]
    tools: list[dict[str, Any]]


class WorkTask(vf.Task[WorkData]):
    """No hooks and no scoring."""


class ScriptedHarness(vf.Harness[HarnessConfig]):
    """The agent loop: ask the model, answer its calls with the scripted replies, until it calls nothing."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = False
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        **options: Any,
    ) -> ProgramResult:
        messages: list[dict[str, Any]] = [{"role": "user", "content": data.prompt}]
        replies = iter(data.replies)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=600) as client:
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": data.tools}
                response = await client.post(f"{endpoint}/chat/completions", json=body)
                response.raise_for_status()
                message = response.json()["choices"][0]["message"]
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                messages.append(message)
                for call in message["tool_calls"]:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": next(replies)})


class ScriptedEngine:
    """Answers /inference/v1/generate from prepared bytes; request bodies are kept and parsed after the clock stops."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.answers = [self._answer(ids) for ids in turns]
        self.requests: list[bytes] = []
        self.arrivals: list[float] = []

    def next_answer(self, request: bytes) -> bytes:
        self.arrivals.append(time.perf_counter())
        self.requests.append(request)
        return self.answers[len(self.requests) - 1]

    async def generate(self, request: web.Request) -> web.Response:
        return web.Response(body=self.next_answer(await request.read()), content_type="application/json")

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": []})

    def in_process(self, request: httpx.Request) -> httpx.Response:
        """The same without a socket, as a transport of the HTTP client."""
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": []})
        return httpx.Response(200, content=self.next_answer(request.content))

    def found(self, wall_s: float) -> dict[str, Any]:
        prompts = [json.loads(raw)["token_ids"] for raw in self.requests]
        return {"wall_s": wall_s, "arrivals": self.arrivals, "prompts": prompts}

    @staticmethod
    def _answer(ids: list[int]) -> bytes:
        logprobs = {"content": [{"token": f"token_id:{i}", "logprob": -0.5} for i in ids]}
        return json.dumps(
            {"choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}], "request_id": "r"}
        ).encode()


def client_config(work: dict[str, Any], base_url: str) -> TrainClientConfig:
    return TrainClientConfig(
        base_url=base_url,
        api_key_var="NO_KEY",
        renderer=GLM5RendererConfig(enable_thinking=False, clear_thinking=False),
        renderer_model_name=work["tokenizer"],
    )


def task_of(work: dict[str, Any]) -> WorkTask:
    return WorkTask(WorkData(prompt=work["prompt"], replies=work["replies"], tools=work["tools"]))


async def play(work: dict[str, Any]) -> dict[str, Any]:
    """One rollout through the public API: its wall time, when each request reached the engine, and the prompts."""
    engine = ScriptedEngine(work["turns"])
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.post("/inference/v1/generate", engine.generate), web.get("/v1/models", engine.models)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = AgentConfig(
        harness=HarnessConfig(id=Path(__file__).stem),
        runtime=SubprocessConfig(),
        model=MODEL,
        client=client_config(work, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"),
    )
    try:
        async with vf.Agent(config) as agent:
            started = time.perf_counter()
            trace = await agent.run(task_of(work))
            wall_s = time.perf_counter() - started
    finally:
        await runner.cleanup()
    if trace.errors:
        raise RuntimeError(f"verifiers failed: {trace.errors}")
    return engine.found(wall_s)


async def play_core(work: dict[str, Any]) -> dict[str, Any]:
    """The same turns through the message graph and the train client alone: no server, no harness, no socket."""
    engine, dialect, task = ScriptedEngine(work["turns"]), ChatDialect(), task_of(work)
    client = TrainClient(client_config(work, "http://engine/v1"))
    transport = httpx.MockTransport(engine.in_process)
    client.client = AsyncOpenAI(
        base_url="http://engine/v1", api_key="none", http_client=httpx.AsyncClient(transport=transport)
    )
    what = TraceTask(type="WorkTask", data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=what, agent=AgentInfo(config=AgentConfig(model=MODEL)))
    body = {"model": MODEL, "messages": [{"role": "user", "content": work["prompt"]}], "tools": work["tools"]}
    request = dialect.parse_request(body)
    messages, replies, sampling = list(request.messages), iter(work["replies"]), SamplingConfig()
    started = time.perf_counter()
    while True:
        turn = graph.prepare_turn(trace, messages, request.tools)
        response = await client.get_response(dialect, body, sampling, session_id="core", turn=turn)
        turn.commit(response)
        calls = response.message.tool_calls or []
        if not calls:
            break
        messages += [response.message, *(ToolMessage(tool_call_id=call.id, content=next(replies)) for call in calls)]
    wall_s = time.perf_counter() - started
    await client.close()
    return engine.found(wall_s)


async def measure(work: dict[str, Any]) -> dict[str, Any]:
    short = {**work, "turns": [work["turns"][0], work["turns"][-1]]}
    found = {}
    for name, one in (("public", play), ("core", play_core)):
        await one(short)  # loads the tokenizer
        found[name] = [await one(work) for _ in range(work["repetitions"])]
    return found


if __name__ == "__main__":
    given, found = map(Path, sys.argv[1:])
    found.write_text(json.dumps(asyncio.run(measure(json.loads(given.read_text())))))
