"""How fast logs are condensed, and whether the deciding line survives: `python -m benchmarks.log_condense`.

Each case is the logs of eight ranks and a node round one incident: some megabytes of steps, NCCL talk, loader
chatter, thousands of lines that are like no other, what follows a crash on every rank, and one line that tells the
cause, printed once. The line is kept if it stands in what is condensed to 6,000 tokens. The rival is what people
do: `grep -i error`, cut at the same budget.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from nightshift.agent.rca.joblogs import CHARS_PER_TOKEN, LogMiner, Settings

DECIDING = (
    "NVRM: Xid (PCI:0000:9b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE)",
    "NVRM: Xid (PCI:0000:5b:00): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:2d:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping",
    "NVRM: Xid (PCI:0000:44:00): 94, pid=4711, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    "NVRM: Xid (PCI:0000:44:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    "NVRM: Xid (PCI:0000:89:00): 119, pid=4711, Timeout after 45s of waiting for RPC response from GPU4 GSP!",
    "NVRM: Xid (PCI:0000:89:00): 74, pid=4711, NVLink: fatal error detected on link 3",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 46 LTSSM Fault Up",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1234567kB, anon-rss:654321kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=4711,uid=0",
    "pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0",
    "mlx5_core 0000:17:00.0: mlx5_cmd_out_err:839: ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)",
    "infiniband mlx5_0: Port: 1 Link DOWN",
    "nfs: server ckpt-store not responding, still trying",
    "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm python3: reading directory lblock 0",
    "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 MiB. GPU 0 has 139.81 GiB",
    "ERROR RuntimeError: CUDA error: an illegal memory access was encountered",
    "ERROR RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "WARNING loss is nan at step 39877, skipping the update",
    "ERROR OSError: [Errno 28] No space left on device: '/ckpt/39600/shard_3.pt'",
    "ERROR FileNotFoundError: [Errno 2] No such file or directory: 's3fs/part-00117.parquet'",
    "ERROR DataLoader worker (pid 4112) is killed by signal: Bus error. It is possible that shm is too small",
    "ERROR json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "ERROR botocore.exceptions.ClientError: An error occurred (SlowDown) when calling GetObject",
    "ERROR ValueError: tokenizer vocabulary mismatch: 128256 != 128000",
    "ERROR AssertionError: expected 4096 tokens, got 4095 in sample 77123",
    "WARNING gradient overflow, loss scale reduced to 1 and cannot go lower",
    "ERROR ModuleNotFoundError: No module named 'flash_attn_3'",
    "ERROR safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    "WARNING learning rate changed from 0.0003 to 0.05 by callback WarmRestart",
    "WARNING ibv_poll_cq: work completion with status IBV_WC_RETRY_EXC_ERR(12), vendor err 129",
    "WARNING NET/IB : Got completion from peer 10.0.3.17 with status=12 opcode=0 len=0 vendor err 129",
    "WARNING Bootstrap : no socket interface found",
    "ERROR PermissionError: [Errno 13] Permission denied: '/data/tokenizer.model'",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "mce: [Hardware Error]: Machine check events logged",
    "CPU23: Package temperature above threshold, cpu clock throttled (total events = 4711)",
    "nvidia-powerd: power brake slowdown asserted on GPU 3",
    "kubelet: Readiness probe failed: HTTP probe failed with statuscode: 503",
    "containerd: failed to pull image registry.local/trainer: unexpected status 500",
)
FOLLOWS = (
    "ERROR [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE)",
    "ERROR [Rank {r}] To avoid data inconsistency, we are taking the entire process down.",
    "WARNING torch.distributed.elastic: Sending process {n} closing signal SIGTERM",
    "ERROR torch.distributed.elastic.multiprocessing.errors.ChildFailedError: rank {r} exitcode: -6",
    "INFO Received SIGTERM, shutting down rank {r}",
)
_WORDS = (
    *("cache", "shard", "layer", "optimizer", "bucket", "plan", "graph", "epoch", "sampler", "prefetch", "kernel"),
    *("stream", "queue", "worker", "buffer", "tensor", "mesh", "gradient", "scaler", "profile", "trace", "window"),
    *("policy", "reshape", "gather", "scatter", "reduce", "barrier", "group", "tuned", "compiled", "warm", "cold"),
    *("skipped", "merged", "loaded", "saved", "checked", "waiting", "slow", "fast", "stale"),
    *("timeout", "retry", "failed", "reset", "pending", "lost"),
)
"""What lines that are like no other are made of; a few of the words sound like trouble."""
ONSET_S = 1_772_416_800.0


def stamp(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(t_s % 1 * 1000):03d}Z"


def chatter(rng: Random, rank: int, number: int) -> str:
    kind = rng.random()
    if kind < 0.55:
        return (
            f"INFO rank={rank} step={number} loss={2 + rng.random():.4f} grad_norm={rng.random():.4f} lr=3.000e-04"
            f" step_time={rng.random():.3f}s tokens_per_s={rng.randrange(90000)}"
        )
    if kind < 0.8:
        return (
            f"DEBUG node:{rng.randrange(9999)} [{rank}] NCCL INFO Channel {rng.randrange(32):02d}/0 : "
            f"{rank}[{rank}] -> {rng.randrange(8)}[{rng.randrange(8)}] via P2P/CUMEM/read 0x{rng.getrandbits(48):x}"
        )
    if kind < 0.85:
        words = " ".join(rng.choice(_WORDS) for _ in range(rng.randint(5, 12)))
        return f"{rng.choice(['INFO', 'INFO', 'INFO', 'DEBUG', 'WARNING'])} {words}"
    if kind < 0.96:
        return f"INFO dataloader worker {rng.randrange(16)} fetched s3://data/{rng.getrandbits(64):016x}.parquet"
    return rng.choice(
        (
            f"WARNING slow step {number}: {rng.random():.2f}s in optimizer",
            f"WARNING retrying GET part-{rng.randrange(9999)} after timeout (attempt 1)",
            f"WARNING tokenizer: {rng.randrange(99)} invalid characters replaced",
            f"ERROR metrics: push to gateway failed (retry {rng.randrange(5)})",
            f"INFO user {rng.choice(['ada', 'bob', 'eve', 'kim'])} attached with error-free session",
        )
    )


def case(seed: int, lines: int) -> tuple[dict[str, bytes], str]:
    """Logs of eight ranks and the node, and the deciding line."""
    rng = Random(seed)
    deciding = DECIDING[seed % len(DECIDING)]
    onset = ONSET_S + rng.uniform(0, 60)
    logs: dict[str, list[tuple[float, str]]] = {f"rank{r}": [] for r in range(8)} | {"node": []}
    for rank in range(8):
        for number in range(lines):
            logs[f"rank{rank}"].append((ONSET_S - 1800 + 2400 * number / lines, chatter(rng, rank, number)))
        for number, text in enumerate(FOLLOWS):
            logs[f"rank{rank}"].append(
                (onset + 5 + rng.random() * 20 + number, text.format(r=rank, n=rng.randrange(9999)))
            )
    for number in range(200):
        logs["node"].append((ONSET_S - 1800 + 12 * number, f"systemd[1]: Started Session {number} of user root."))
    kernel = not deciding.startswith(("ERROR", "WARNING"))
    logs["node" if kernel else f"rank{rng.randrange(8)}"].append((onset, deciding))
    return {
        name: "".join(f"{stamp(t)} {text}\n" for t, text in sorted(entries)).encode()
        for name, entries in logs.items()
    }, deciding


def grep(logs: dict[str, bytes], tokens: int) -> str:
    found = [line for text in logs.values() for line in text.decode().split("\n") if re.search("error", line, re.I)]
    return "\n".join(found)[: int(tokens * CHARS_PER_TOKEN)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3 * len(DECIDING))
    parser.add_argument("--lines", type=int, default=3000, help="lines per rank")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "log_condense.json")
    arguments = parser.parse_args()
    settings = Settings()
    ours, rival, megabytes, spent_s, missed = 0, 0, 0.0, 0.0, []
    for seed in range(arguments.cases):
        logs, deciding = case(seed, arguments.lines)
        miner = LogMiner(settings)
        began = time.process_time()
        for name, data in logs.items():
            miner.add(name, data)
        kept = miner.condense(ONSET_S + 30)
        spent_s += time.process_time() - began
        megabytes += miner.bytes / 1e6
        text = "\n".join(map(str, kept))
        assert len(text) <= settings.budget_tokens * CHARS_PER_TOKEN + len(kept)
        ours += deciding in text
        missed += [] if deciding in text else [deciding]
        rival += deciding in grep(logs, settings.budget_tokens)
    result: dict[str, Any] = {
        "cases": arguments.cases,
        "megabytes": round(megabytes, 1),
        "megabytes_per_min_one_core": round(60 * megabytes / spent_s, 1),
        "budget_tokens": settings.budget_tokens,
        "deciding_line_kept": round(ours / arguments.cases, 4),
        "rival_grep_error_kept": round(rival / arguments.cases, 4),
        "missed": sorted(set(missed)),
        "targets": {"megabytes_per_min_one_core": 200, "deciding_line_kept": 0.98},
        "environment": {"python": platform.python_version(), "machine": platform.machine()},
    }
    print(json.dumps(result, indent=1))
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
