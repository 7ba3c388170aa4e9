"""TRL's own trainer takes the reward and the turns as they are: a tiny random transformer learns by them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Task
from nightshift.kernels.generate.llm import BEGIN, END
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.lab.language import KernelReward, Prompt, ReplyScore, Turns
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

if os.environ.get("CI"):
    import trl  # of `make setup-test`: its absence is an error there
else:
    trl = pytest.importorskip("trl", reason="teaching a language model needs the extra language")

TASK = Task(named("softmax"), Case.of("float32", m=16, n=64))
FAMILY = family_named("softmax")
REPLY = f"{BEGIN}\n{FAMILY.source('softmax', TASK.case, FAMILY.space('softmax', TASK.case).configs[0])}\n{END}"
WORDS = ["<pad>", "<end>", "write", "softmax", "refused", "please", "fast", "sure", REPLY]
GROUP = 16


def random_model() -> tuple[Any, Any]:
    """(a GPT-2 of one layer, its tokenizer of whole words). One word is a whole reply."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, "<pad>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<pad>", padding_side="left"
    )
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), tokenizer


def chance_of_a_kernel(model: Any, tokenizer: Any) -> float:
    given = tokenizer("write softmax", return_tensors="pt")["input_ids"]
    return float(model.eval()(input_ids=given).logits[0, -1].softmax(-1)[WORDS.index(REPLY)])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of TRL and transformers: rollout_func is experimental
@pytest.mark.parametrize("turns", [1, 2])
def test_grpo_teaches_the_reply_that_the_judge_accepts(turns: int, tmp_path: Path) -> None:
    from datasets import Dataset

    judged: list[Candidate] = []

    def judge(candidate: Candidate, task: Task) -> Verdict:
        judged.append(candidate)
        return Verdict(candidate.sha256, task.problem.name, Status.correct, Reason.passed, "", "correctness")

    def refined(prompt: Prompt, reply: str, said: str) -> Prompt:
        return f"{prompt} refused"

    def mark(reply: str, prompt: Prompt) -> ReplyScore:
        return reward.mark(reply, TASK)

    reward = KernelReward(judge)
    model, tokenizer = random_model()
    before = chance_of_a_kernel(model, tokenizer)
    config = trl.GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2 * GROUP, num_generations=GROUP, max_steps=12,
        max_completion_length=1, lr_scheduler_type="constant", beta=0.0, learning_rate=2e-2, save_strategy="no",
        report_to=[], use_cpu=True, bf16=False, seed=0, disable_tqdm=True, gradient_checkpointing=False,
        mask_truncated_completions=False,
    )  # fmt: skip
    row = {"prompt": "write softmax", "problem": "softmax", "case": json.dumps(TASK.case.to_json())}
    trl.GRPOTrainer(
        model, reward, config, Dataset.from_list([row] * 64), processing_class=tokenizer,
        rollout_func=Turns(mark, GROUP, turns, refined=refined) if turns > 1 else None,
    ).train()  # fmt: skip
    assert before < 0.3
    assert chance_of_a_kernel(model, tokenizer) > 0.9
    assert reward.counts["no kernel"] + len(judged) == 12 * 2 * GROUP  # every sample, once
