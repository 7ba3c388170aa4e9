"""What redaction is measured on: lines with one secret or personal datum each, and lines that hold none.

The secrets are made up at run time from an alphabet, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
from random import Random

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ALNUM = _LETTERS + _LETTERS.upper() + "0123456789"


def secrets(seed: int) -> list[tuple[str, str]]:
    """(line, the part that must not survive) pairs, each in the setting in which such a thing leaks."""
    rng = Random(seed)

    def word(length: int, alphabet: str = _ALNUM) -> str:
        return "".join(rng.choice(alphabet) for _ in range(length))

    upper, hexa = _LETTERS.upper() + "0123456789", "0123456789abcdef"
    jwt = ".".join(
        base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        for text in ('{"alg":"RS256","kid":"x"}', '{"sub":"system:serviceaccount:ml:default"}', word(40))
    )
    password, body = word(14) + "!", "\n".join(word(64) for _ in range(4))
    basic = base64.b64encode(f"user:{word(10)}".encode()).decode()
    made = [
        ("botocore: using key {}", "AKIA" + word(16, upper)),
        ("export AWS_SECRET_ACCESS_KEY={}", word(40)),
        ('{{"aws_session_token": "{}"}}', word(80)),
        ("git clone https://x-access-token:{}@github.com/org/repo", "ghp_" + word(36)),
        ("GITHUB_TOKEN={} make release", "github_pat_" + word(60)),
        ("remote: denied for {}", "glpat-" + word(20)),
        ("slack: invalid_auth for {}", "xoxb-" + word(12, "0123456789") + "-" + word(24)),
        ("posting to https://hooks.slack.com/services/{}", f"T{word(8, upper)}/B{word(8, upper)}/{word(24)}"),
        ("openai.AuthenticationError: Incorrect API key provided: {}", "sk-proj-" + word(48)),
        ("anthropic client with {}", "sk-ant-api03-" + word(80)),
        ("huggingface_hub.login(token='{}')", "hf_" + word(34)),
        ("HF_TOKEN={}", "hf_" + word(34)),
        ("NGC login with {} ok", "nvapi-" + word(64)),
        ("wandb: ERROR WANDB_API_KEY={}", word(40, hexa)),
        ("wandb login --relogin --api-key {}", word(40, hexa)),
        ("gcs: key {} rejected", "AIza" + word(35)),
        ("oauth2: refreshed ya29.{}", word(60)),
        ("billing {}", "sk_live_" + word(24)),
        ("npm ERR! token {}", "npm_" + word(36)),
        ("twine upload -p {}", "pypi-" + word(90)),
        ("dbx: {}", "dapi" + word(32, hexa)),
        ("vault: lease for {}", "hvs." + word(40)),
        ("token read from file: {}", jwt),
        ("GET /api HTTP/1.1 Authorization: Bearer {}", word(43)),
        ("curl -H 'Authorization: Basic {}' http://x", basic),
        ("authorization: {}", word(32)),
        ("Set-Cookie: session={}; HttpOnly", word(32)),
        ("postgresql://trainer:{}@db.internal:5432/runs", password),
        ("redis://:{}@cache:6379/0", word(18)),
        ("connecting with password={}", password),
        ('config: {{"db_password": "{}"}}', password),
        ("PGPASSWORD='{}' psql", password),
        ("client_secret: {}", word(32)),
        ("--token {} --join 10.0.0.1:6443", word(6, hexa) + "." + word(16, hexa)),
        ("mysql --password {} -e 'select 1'", word(12)),
        ("AccountName=x;AccountKey={};EndpointSuffix=core.windows.net", word(86) + "=="),
        ("https://x.blob.core.windows.net/c?sv=2024&sig={}&se=2026", word(44)),
        ("https://s3.amazonaws.com/b/k?X-Amz-Signature={}", word(64, hexa)),
        ("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", body),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n{}", body),
        ("mail to {} bounced", f"{word(6, _LETTERS)}.{word(5, _LETTERS)}@{word(7, _LETTERS)}.example"),
        ("submitted by {}", f"{word(8, _LETTERS)}@lab.{word(5, _LETTERS)}.edu"),
        ("api_key => '{}'", word(24)),
        ("secret_key:{}", word(30)),
        ("SENDGRID={}", f"SG.{word(22)}.{word(43)}"),
        ("Authorization: Token {}", word(40, hexa)),
        ("postgresql://trainer:{}@db.internal:5432/runs", f"{word(6)}@{word(6)}"),
        ("sentry: sending to https://{}@o1.ingest.sentry.io/42", word(32, hexa)),
        ("+ curl -sS -u admin:{} https://grafana/api", word(12)),
        ("+ curl -X POST --user 'admin:{}' https://grafana/api", word(12)),
        ('{{"auths": {{"reg.example": {{"auth": "{}"}}}}}}', basic),
        ("+ sshpass -p {} ssh root@bmc", word(10)),
        ("+ wandb login {}", word(40, hexa)),
        ("machine api.wandb.ai login user password {}", word(40, hexa)),
        ("groq client with {}", "gsk_" + word(52)),
        ("docker: denied for {}", "dckr_pat_" + word(27)),
        ("grafana: {}", "glsa_" + word(32) + "_" + word(8, hexa)),
    ]
    return [(line.format(secret), secret) for line, secret in made]


HARMLESS = (
    "2026-03-02T02:11:42.968Z INFO rank=3 step=39876 loss=2.2217 grad_norm=1.0312 lr=3.000e-04 step_time=0.712s",
    "NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x00000000a1b2c300)",
    "NVRM: GPU at PCI:0000:9b:00: GPU-3f1c2d4e-aaaa-bbbb-cccc-0123456789ab",
    "Saved checkpoint step=39600 path=/checkpoints/llama-70b-v3/39600 sha256=" + "ab12" * 16,
    "tokens_per_s=81920 tokens=1234567 tokenizer=llama3 max_tokens=4096",
    "tokenizer: loaded 128256 tokens from /data/tokenizer.model",
    "password: ",
    "password=None",
    "api_key: null",
    "token = ${HF_TOKEN}",
    "secret: <redacted>",
    "PASSWORD=********",
    "NCCL INFO Bootstrap : Using eth0:10.0.3.17<0>",
    "worker 10.1.2.3:29500 joined, world_size=512",
    "commit 2277678f0e5c4f3b8a9d7e6f5a4b3c2d1e0f9a8b",
    "image registry.local/trainer@sha256:" + "0f" * 32,
    'Traceback (most recent call last): File "/opt/train.py", line 231, in step',
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 MiB.",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:123456kB, anon-rss:65432kB",
    "pcieport 0000:80:01.1: AER: Corrected error message received from 0000:81:00.0",
    "iteration 100/ 500 | elapsed time per iteration (ms): 250.0 | lm loss: 2.1E+00 | learning rate: 3.0E-04",
    "systemd[1]: Started Session 42 of user root.",
    "kubelet: pod ml/a-3 uid=0b5e0ee2-92b4-11e3-0324-d7ad523a1c7a started",
    "label nightshift-opt-out=true owner=@pretrain",
    "basic training loop started",
    "bearer of bad news: loss=nan",
    "eyJ is how a token begins",
    "sk-learn imported; hf_ prefix; npm_config_cache=/tmp",
    "key=value pairs: step=1 epoch=2",
    "authorization: Bearer",
    "the secret of good training is data",
    "num_tokens: 500000000",
    "pad_token: 0 eos_token: 2",
    "see https://docs.nvidia.com/deploy/xid-errors/index.html#topic_5_1",
    "nfs: server ckpt-store OK",
    "@rank3 meet @rank4",
    "user@ host",
    r'{"msg": "config: {\\"password\\": \\"null\\", \\"token\\": \\"none\\"}"}',
    "E1 E2 [E3] GPU-0000…",
    "authorization: RBAC access denied",
    "curl -u is deprecated here: see https://n1:9400/metrics",
    "wandb login failed: see the log",
    "login root on tty1; password expired",
    "http://n1:9400/metrics@scrape",
    "passed 12 tests; bypass=1 compass: north",
)
