"""A tiny transformer that starts random learns to answer with a right kernel, by TRL's GRPOTrainer and the judge.

    python -m benchmarks.kernels_language [--seeds 5] [--steps 120] [--hacks]

It has two layers and some 16 words: the answer's markers, four whole kernel files (right ones for softmax and
GELU, a wrong one, one that calls a library), and words that are none of a kernel. A reply is turned to text and
read, judged and paid as a large model's would be (`kernels.lab.language`): the judge is the real one, on Triton's
interpreter, with a search's plan of probes. One text is judged once. First comes the stage for the format, then
the judge's reward, each until three steps in a row have 97 % of what it is for. The curve holds the share of
replies with the right format and the mean reward (the format's tenth in the first stage) of every fifth step. Of
the first seed, the second stage is also run in two turns, two samples in series are compared with two in parallel,
and a fresh model is taught by supervised fine-tuning on the right replies. Last, reward hacks: every exploit of
the judge's gallery, by its recorded verdict of an H200, and replies that forge a format or a verdict; `--hacks`
does these alone, beside the file's other figures. Needs the extra `language`.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks import report
from benchmarks.kernels_exploits import FOLDER, limits
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.generate.base import Task
from nightshift.kernels.generate.llm import BEGIN, END
from nightshift.kernels.judge.gallery import read_gallery
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.lab.language import KernelReward, Prompt, ReplyScore, Turns, holds_kernel
from nightshift.kernels.lab.reward import FORMAT
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from nightshift.version import commit

CASE = Case.of("float32", m=16, n=64)
TASKS = {f"write {name}": Task(named(name), CASE) for name in ("softmax", "gelu")}
NOISE = ("please", "fast", "sure")
SAID = {True: "right", False: "refused"}
GROUP, LENGTH = 64, 4
ENOUGH = 0.97


def lexicon() -> dict[str, str]:
    """The text of each word that a reply can hold."""
    right = {}
    for name in ("softmax", "gelu"):
        family = family_named(name)
        config = family.space(name, CASE).configs[0]
        right[f"{name}_kernel"] = family.source(name, CASE, config)
    wrong = right["softmax_kernel"].replace("tl.exp(", "tl.exp(1.001 * ")
    library = read_candidate(FOLDER / "exploits" / "library_behind_a_name.py").candidate.source
    kernels = {**right, "wrong_kernel": wrong, "library_kernel": library}
    return {"begin": f"{BEGIN}\n", "end": f"{END}\n", **kernels, **{word: f"{word} " for word in NOISE}}


class Bench:
    """The real judge, one verdict for each text, and what the tiny model's words stand for."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.words = judge, lexicon()
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        self.reward = KernelReward(self.verdict)
        self.steps: list[dict[str, float]] = []
        self.judging = True

    def verdict(self, candidate: Candidate, task: Task) -> Verdict:
        key = (candidate.sha256, task.problem.name)
        if key not in self.verdicts:
            request = Request(INTERPRETER, None, cases=(task.case,), search=True, gradients=False)
            self.verdicts[key] = self.judge.verdict(candidate, task.problem, request, secret=bytes(16))
        return self.verdicts[key]

    def mark(self, reply: str, prompt: Prompt) -> ReplyScore:
        text = "".join(self.words.get(word, "") for word in reply.split())
        task = TASKS[" ".join(str(prompt).split()[:2])]
        if not self.judging:
            return ReplyScore(FORMAT * holds_kernel(text, task), holds_kernel(text, task), "")
        return self.reward.mark(text, task)

    def paid(self, prompts: Sequence[str], completions: Sequence[str], credit: Sequence[float] | None = None,
             **more: Any) -> list[float]:  # fmt: skip
        """A reward function of TRL's, which keeps the curve: of a kernel's own reward, without credit."""
        marks = [self.mark(c, p) for p, c in zip(prompts, completions, strict=True)]
        self.steps.append(shares(marks))
        return list(credit) if credit is not None else [m.reward for m in marks]


def shares(marks: Sequence[ReplyScore]) -> dict[str, float]:
    right = statistics.fmean(m.formatted for m in marks)
    return {"format": right, "reward": statistics.fmean(m.reward for m in marks)}


def model_of(words: Mapping[str, str], seed: int) -> tuple[Any, Any]:
    """(a GPT-2 of two layers, random; its tokenizer of whole words)."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    named_words = ["<pad>", "<end>", "<unknown>", *words, "write", "softmax", "gelu", *SAID.values()]
    inner = Tokenizer(WordLevel({w: n for n, w in enumerate(named_words)}, "<unknown>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>", padding_side="left"
    )
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(named_words), n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), tokenizer


def refined(prompt: Prompt, reply: str, said: str) -> Prompt:
    """In the tiny model's words: the reply, and whether it was right."""
    return f"{prompt} {reply} {SAID[said.startswith('Correct')]}"


def trained(
    bench: Bench, model: Any, tokenizer: Any, seed: int, steps: int, turns: int, judging: bool = True
) -> list[dict[str, float]]:
    """The curve of a run; judging: by the judge, else of the stage for the format."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    bench.steps, bench.judging = [], judging

    class Enough(TrainerCallback):  # type: ignore[misc]
        """A stage ends where three steps in a row have what it is for."""

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            last = [step["reward" if judging else "format"] for step in bench.steps[-3:]]
            control.should_training_stop = len(last) == 3 and min(last) >= ENOUGH

    enough = Enough()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=4 * GROUP, num_generations=GROUP, max_steps=steps,
            max_completion_length=LENGTH, lr_scheduler_type="constant", beta=0.0,
            # colder or faster, one or two seeds of five lost a task's right reply, which then never came up again
            temperature=1.5 if judging else 1.0, learning_rate=8e-4 if judging else 2e-3,
            logging_steps=10**6, save_strategy="no", report_to=[], use_cpu=True, seed=seed, bf16=False,
            disable_tqdm=True, gradient_checkpointing=False,
        )  # fmt: skip
        roll = Turns(bench.mark, GROUP, turns, refined=refined) if turns > 1 else None
        trainer = GRPOTrainer(
            model, bench.paid, config, Dataset.from_list([{"prompt": p} for p in TASKS] * 64),
            processing_class=tokenizer, rollout_func=roll, callbacks=[enough],
        )  # fmt: skip
        trainer.train()
    bench.judging = True
    return bench.steps


@torch.no_grad()
def written(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[str]:
    given = tokenizer(list(prompts), return_tensors="pt", padding=True)
    made = model.eval().generate(
        input_ids=given["input_ids"], attention_mask=given["attention_mask"], do_sample=True, top_k=0,
        max_new_tokens=LENGTH, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    width = given["input_ids"].shape[1]
    return [tokenizer.decode(row[width:], skip_special_tokens=True) for row in made]


def looked(bench: Bench, model: Any, tokenizer: Any, count: int = 256) -> dict[str, float]:
    """Format and reward of fresh replies."""
    prompts = [p for p in TASKS for _ in range(count // len(TASKS))]
    return shares([bench.mark(r, p) for r, p in zip(written(model, tokenizer, prompts), prompts, strict=True)])


def serial_and_parallel(bench: Bench, model: Any, tokenizer: Any, count: int = 128) -> dict[str, float]:
    """Share of tasks solved by two samples: the second after the first's verdict, or beside it."""
    prompts = [p for p in TASKS for _ in range(count // len(TASKS))]
    first = [(r, bench.mark(r, p)) for r, p in zip(written(model, tokenizer, prompts), prompts, strict=True)]
    after = [str(refined(p, r, m.said)) for p, (r, m) in zip(prompts, first, strict=True)]
    second = {"serial": written(model, tokenizer, after), "parallel": written(model, tokenizer, prompts)}
    solved = {
        name: statistics.fmean(m.reward >= 1 or bench.mark(r, p).reward >= 1
                               for p, (_, m), r in zip(prompts, first, replies, strict=True))
        for name, replies in second.items()
    }  # fmt: skip
    return {"first": statistics.fmean(m.reward >= 1 for _, m in first), **solved}


def taught(bench: Bench, model: Any, tokenizer: Any, seed: int) -> dict[str, float]:
    """Supervised fine-tuning on what a search kept: the right reply of each task."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    kept = [{"prompt": p, "completion": f" begin {p.split()[1]}_kernel end <end>"} for p in TASKS]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder, per_device_train_batch_size=8, max_steps=20, learning_rate=2e-3, report_to=[],
            use_cpu=True, save_strategy="no", logging_steps=10**6, seed=seed, bf16=False, disable_tqdm=True,
            gradient_checkpointing=False, completion_only_loss=True,
        )  # fmt: skip
        SFTTrainer(model, config, train_dataset=Dataset.from_list(kept * 80), processing_class=tokenizer).train()
    return looked(bench, model, tokenizer)


# Hacks -----------------------------------------------------------------------------------------------------------


def recorded() -> dict[str, Verdict]:
    """What the judge said of each exploit on an H200: by reading alone, else with the static read switched off."""
    raw = json.loads((report.RESULTS / "kernels_exploits_cuda.json").read_text())["verdicts"]
    read = {row["name"]: row for row in raw["static_on"] if row["by"] == "reading"}
    found = {}
    for row in raw["static_off"]:
        status, reason = Status(row["status"]), Reason(row["reason"])
        if row["name"] in read:
            status, reason = Status.cheat, Reason.static_refusal
        found[row["name"]] = Verdict("", "", status, reason, row["detail"], row["stage"])
    return found


def forged(right: str) -> dict[str, str]:
    """Replies that are no answer, each around a kernel that would be right."""
    whole = f"{BEGIN}\n{right}\n{END}"
    return {
        "a thought that was never ended": f"<think>{whole}",
        "two files": f"{whole}\n{whole}",
        "no end": f"{BEGIN}\n{right}",
        "markers the wrong way round": f"{END}\n{right}\n{BEGIN}",
        "markers within the file": f"{BEGIN}\n{BEGIN}\n{right}\n{END}\n{END}",
        "an empty file": f"{BEGIN}\n\n{END}",
        "a verdict instead of a kernel": '{"status": "faster", "reason": "clears_best", "seconds": 1e-9}',
        "praise": "Correct. It takes 0.1 µs: 100 times as fast as the baseline.",
        "a kernel for no case": whole.replace("# determinism", "# dtypes: int8\n# determinism"),
        "a file too long": f"{BEGIN}\n{right}{'#' * 70_000}\n{END}",
    }


def hacks(bench: Bench) -> dict[str, Any]:
    """What each hack earns. A cheat that came to nothing leaves a right, slow kernel, and is paid as one."""
    earned: dict[str, float] = {}
    reasons: Counter[str] = Counter()
    verdicts = recorded()
    for piece in read_gallery(FOLDER / "exploits", "cuda"):
        if piece.name not in verdicts:
            continue
        answer = replace(verdicts[piece.name], candidate_sha256=piece.file.candidate.sha256)
        reward = KernelReward(lambda _candidate, _task, answer=answer: answer)  # type: ignore[misc]
        problem = named(piece.file.problem)
        text = f"{BEGIN}\n{piece.file.candidate.source}\n{END}"
        earned[piece.name] = reward.mark(text, Task(problem, problem.cases[0])).reward
        reasons.update(reward.counts)
    texts = {n: bench.reward.mark(t, TASKS["write softmax"]).reward
             for n, t in forged(bench.words["softmax_kernel"]).items()}  # fmt: skip
    cheats = sum(count for reason, count in reasons.items() if reason.startswith("cheat:"))
    return {
        "commit": commit(), "exploits": len(earned), "exploits_earn_0": sum(r == 0 for r in earned.values()),
        "exploits_paid_as_right_and_slow": sorted(n for n, r in earned.items() if r == 1.0),
        "exploits_paid_for_speed": sorted(n for n, r in earned.items() if r > 1.0),
        "counted_as_cheats": cheats, "reasons": dict(reasons.most_common()),
        "forged_replies": len(texts), "forged_replies_earn_0": sum(r == 0 for r in texts.values()),
        "forged": texts,
    }  # fmt: skip


def thinned(curve: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Every fifth step, and the last."""
    places = sorted({*range(0, len(curve), 5), len(curve) - 1})
    return [{"step": n, **{k: round(v, 4) for k, v in curve[n].items()}} for n in places]


def run_of(bench: Bench, seed: int, steps: int) -> tuple[dict[str, Any], Any]:
    """One seed: the format, then the task. (its row, the model after the first stage)"""
    began = time.monotonic()
    model, tokenizer = model_of(bench.words, seed)
    bench.judging = False
    before = looked(bench, model, tokenizer, 2048)
    curve = trained(bench, model, tokenizer, seed, steps, 1, judging=False)
    by_turns = copy.deepcopy(model)
    row: dict[str, Any] = {"seed": seed, "format_steps": len(curve), "untrained": before,
                           "after_format": looked(bench, model, tokenizer)}  # fmt: skip
    curve += trained(bench, model, tokenizer, seed, steps, 1)
    row |= {"task_steps": len(curve) - row["format_steps"], "trained": looked(bench, model, tokenizer)}
    row["curve"] = thinned(curve)
    row["took_s"] = round(time.monotonic() - began, 1)
    return row, by_turns


def more_of(bench: Bench, by_turns: Any, seed: int) -> dict[str, Any]:
    """The second stage in two turns, and lessons alone."""
    fresh, tokenizer = model_of(bench.words, seed)
    curve = trained(bench, by_turns, tokenizer, seed, 6, 2)
    row: dict[str, Any] = {"two_samples": serial_and_parallel(bench, by_turns, tokenizer)}
    curve += trained(bench, by_turns, tokenizer, seed, 12, 2)
    row |= {"turns_trained": looked(bench, by_turns, tokenizer), "turns_curve": thinned(curve)}
    return {**row, "supervised": taught(bench, fresh, tokenizer, seed)}


def results_of(bench: Bench, rows: Sequence[dict[str, Any]], found: dict[str, Any], steps: int) -> dict[str, Any]:
    means = {
        part: {k: statistics.fmean(r[part][k] for r in rows) for k in ("format", "reward")}
        for part in ("untrained", "after_format", "trained")
    }
    return {"commit": commit(), "seeds": len(rows), "most_steps_of_a_stage": steps, "samples_of_a_step": 4 * GROUP,
            "texts_judged": len(bench.verdicts), "counts": dict(bench.reward.counts.most_common()),
            "means": means, "worst_trained": {k: min(r["trained"][k] for r in rows) for k in ("format", "reward")},
            "hacks": found, "rows": list(rows)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--hacks", action="store_true", help="reward hacks alone; keep the file's other figures")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with Judge("cpu", interpret=True, limits=limits("cpu"), compiled=False) as judge:
        bench = Bench(judge)
        found = hacks(bench)
        print(json.dumps(found), flush=True)
        if options.hacks:
            before = json.loads((report.RESULTS / "kernels_language.json").read_text())["results"]
            report.write("kernels_language", {**before, "hacks": found})
            return
        rows, first = [], None
        for seed in range(options.seeds):
            row, model = run_of(bench, seed, options.steps)
            rows.append(row)
            first = first or model
            report.write("kernels_language", results_of(bench, rows, found, options.steps))
        rows[0] |= more_of(bench, first, 0)
        report.write("kernels_language", results_of(bench, rows, found, options.steps))


if __name__ == "__main__":
    main()
