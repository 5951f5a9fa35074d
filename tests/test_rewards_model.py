"""The outcome reward model: a real tiny classifier, trained here in seconds, in batches that change nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from glmgym.env import ScoreView, Task
from glmgym.errors import ConfigError, ScorerFailure
from glmgym.messages import Message, assistant, user
from glmgym.sandbox import Sandbox
from glmgym_trainers.reward_model import RewardModel, RewardModelSettings, weights_digest

WORDS = ["[PAD]", "[UNK]", "be", "kind", "please", "thanks", "no", "never", "user", "assistant", ":", "."]
TASK = "be kind ."


async def _no_box() -> Sandbox:
    raise AssertionError("no box is needed")


def view_of(answer: str, *messages: Message) -> ScoreView:
    return ScoreView(Task("k1", TASK), (*(messages or (user(TASK),)), assistant(answer)), None, _no_box)


def tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(**{"tokenizer_object": whole, "unk_token": "[UNK]", "pad_token": "[PAD]", **options})


def config(classes: int) -> BertConfig:
    names = {0: "rude", 1: "kind"} if classes == 2 else {0: "kindness"}
    return BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24, id2label=names, label2id={name: i for i, name in names.items()},
    )  # fmt: skip


def trained(directory: Path, classes: int) -> Path:
    """A classifier of "please" and "thanks" against "no" and "never"."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, words = BertForSequenceClassification(config(classes)), tokenizer()
    replies = [("please", 1), ("thanks .", 1), ("no .", 0), ("never", 0), ("thanks please", 1), ("never no .", 0)]
    batch = words([f"{TASK}\n\n{text}" for text, _ in replies], padding=True, return_tensors="pt")
    labels = torch.tensor([label for _, label in replies])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(40):
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = (
            torch.nn.functional.cross_entropy(logits, labels)
            if classes > 1
            else torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(directory)
    words.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("single"), 1)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("double"), 2)


def opened(path: Path, **options: Any) -> RewardModel:
    return RewardModel(RewardModelSettings(name="kind", path=str(path), **options))


class Counted(RewardModel):
    """Notes how many episodes each forward reads."""

    def __init__(self, settings: RewardModelSettings) -> None:
        super().__init__(settings)
        self.sizes: list[int] = []

    def scores(self, batch: list[list[int]]) -> list[float]:
        self.sizes.append(len(batch))
        return super().scores(batch)


async def test_a_trained_model_tells_kind_from_rude(single: Path, double: Path) -> None:
    for model in (opened(single), opened(double, label="kind")):
        kind, rude = await model(view_of("please thanks")), await model(view_of("no never"))
        assert kind.value > 0.9 > 0.1 > rude.value > 0.0
        assert (kind.name, kind.source, kind.version) == ("kind", "orm", model.version)
        await model.close()


async def test_the_reward_is_the_logit_or_its_probability(single: Path, double: Path) -> None:
    """One logit z goes through 1 / (1 + e^-z); two classes through a softmax, so that they add up to 1."""
    logit, probability = opened(single, output="logit"), opened(single)
    z, p = (await logit(view_of("please"))).value, (await probability(view_of("please"))).value
    assert p == pytest.approx(1 / (1 + math.exp(-z)), abs=1e-6)
    kind, rude = opened(double, label="kind"), opened(double, label="rude")
    assert (await kind(view_of("no"))).value + (await rude(view_of("no"))).value == pytest.approx(1.0, abs=1e-6)
    for model in (logit, probability, kind, rude):
        await model.close()


async def test_neighbours_in_a_batch_change_nothing(single: Path) -> None:
    """Twenty replies of different lengths, alone and together; together they take few forwards."""
    replies = [" ".join(["please", "no", "thanks"][: 1 + n % 3] * (1 + n % 4)) for n in range(20)]
    model = Counted(RewardModelSettings(name="kind", path=str(single), output="logit", batch_size=8))
    alone = [(await model(view_of(reply))).value for reply in replies]
    assert model.sizes == [1] * 20
    model.sizes.clear()
    together = await asyncio.gather(*(model(view_of(reply)) for reply in replies))
    assert [reward.value for reward in together] == pytest.approx(alone, abs=1e-5)
    assert (sum(model.sizes), max(model.sizes)) == (20, 8)
    assert len(model.sizes) <= 4
    await model.close()


async def test_a_cancelled_episode_takes_nobody_with_it(single: Path) -> None:
    model = Counted(RewardModelSettings(name="kind", path=str(single), batch_size=1))
    waiting = [asyncio.ensure_future(model(view_of("please"))) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert done[0] == done[2]
    assert model.sizes == [1, 1]  # nobody reads for the one that left
    assert (await model(view_of("please"))) == done[0]
    await model.close()


async def test_a_model_that_breaks_fails_those_who_wait_and_nobody_else(single: Path) -> None:
    class Fragile(RewardModel):
        def scores(self, batch: list[list[int]]) -> list[float]:
            no_such_id = len(WORDS)
            return super().scores([[*row, no_such_id] if len(row) > 6 else row for row in batch])

    model = Fragile(RewardModelSettings(name="kind", path=str(single)))
    replies = ("please thanks please thanks", "please")
    broken = await asyncio.gather(*(model(view_of(reply)) for reply in replies), return_exceptions=True)
    assert [type(error) for error in broken] == [ScorerFailure, ScorerFailure]
    assert str(broken[0]).startswith("reward model kind: IndexError")
    assert (await model(view_of("please"))).value > 0.5
    await model.close()


async def test_what_it_reads(single: Path, tmp_path: Path) -> None:
    reply, whole = opened(single, output="logit"), opened(single, output="logit", sees="transcript")
    view = view_of("please", user(TASK), assistant("never"), user(TASK))
    assert (await reply(view)).value == (await reply(view_of("please"))).value
    assert (await whole(view)).value != (await whole(view_of("please"))).value
    with_template = tmp_path / "templated"
    shutil.copytree(single, with_template)
    tokenizer(chat_template="{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}").save_pretrained(
        with_template
    )
    templated = opened(with_template)
    ids = templated._encode(view_of("thanks"))
    assert [WORDS[i] for i in ids] == ["user", ":", "be", "kind", ".", "assistant", ":", "thanks"]
    for model in (reply, whole, templated):
        await model.close()


@pytest.mark.parametrize(("options", "longest"), [({}, 24), ({"max_tokens": 10}, 10)])
async def test_an_episode_longer_than_it_reads_is_a_failure_not_a_cut(
    single: Path, options: dict[str, Any], longest: int
) -> None:
    """The task is 3 tokens; the model's own limit is 24 positions."""
    model = opened(single, **options)
    assert (await model(view_of(" ".join(["please"] * (longest - 3))))).value > 0.5
    with pytest.raises(ScorerFailure, match=f"has {longest + 1} tokens, kind reads {longest}: raise max_tokens"):
        await model(view_of(" ".join(["please"] * (longest - 2))))
    await model.close()


def test_the_version_is_a_digest_of_the_weights(single: Path, tmp_path: Path) -> None:
    copy = tmp_path / single.name
    shutil.copytree(single, copy)
    assert weights_digest(copy) == weights_digest(single)
    assert opened(copy).version == f"{single.name}@{weights_digest(single)[:16]}"
    file = copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert weights_digest(copy) != weights_digest(single)


def test_a_directory_that_cannot_judge_is_refused(
    double: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match="has 2 classes: set label to one of rude, kind"):
        opened(double)
    with pytest.raises(ConfigError, match=r"no class 'kid'; did you mean 'kind'\?"):
        opened(double, label="kid")
    BertModel(config(2)).save_pretrained(tmp_path / "headless")
    tokenizer().save_pretrained(tmp_path / "headless")
    with pytest.raises(ConfigError, match=r"no trained classifier: it lacks .*classifier\.weight"):
        opened(tmp_path / "headless", label="kind")
    unpadded = tmp_path / "unpadded"
    shutil.copytree(double, unpadded)
    tokenizer(pad_token=None).save_pretrained(unpadded)
    with pytest.raises(ConfigError, match="no padding token"):
        opened(unpadded, label="kind")
    (double_copy := tmp_path / "torn").mkdir()
    shutil.copytree(double, double_copy, dirs_exist_ok=True)
    (double_copy / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match=r"\[rewards.model\] kind: .*torn"):
        opened(double_copy, label="kind")
