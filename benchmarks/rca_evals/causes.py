"""The right causes, as the scorer reads them: which component broke, and by which mechanism.

A cause is a pair of patterns over plain text, wide on purpose: each holds the phrasings that people use for it. The
third pattern, `phrase`, is narrow: where it stands in an answer, this cause is named. By it an answer that names
several causes is recognised. Causes of one `family` are not told apart there, nor is a cause from those that its
truth `admits` beside it, such as the job's end beside what ended it.
"""

# ruff: noqa: E501 -- patterns are as long as they are
from __future__ import annotations

import re
from dataclasses import dataclass, field

_GPU = r"\bgpus?\b|accelerator|graphics (?:card|processor)|\bcard\b|\bdevice\b|\bboard\b"
_FAILS = r"fail|broke|error|fault|crash|died|dead|exit|stopp|abort|kill|not running|gone|terminat|went down"
_SILENT = r"time[ds]?.?out|timeout|expire|silent|silence|(?:stop(?:ped|s)|no longer|n't|not) (?:answer|respond|report)|not respond|no (?:response|answer|reply)|unresponsive|hang|hung|stuck|stall|freez|froze|deadlock"
_JOB = r"\bjobs?\b|\bcode\b|program|script|process|train(?:er|ing)|application|\brank|worker|\buser"
_HOST_MEMORY = r"memory|\bram\b|cgroup|\boom\b"
_DISK = r"disk|drive|nvme|\bssd\b|block device|storage|volume|raid|controller|\bloop|\bpath\b|dataset"
_NETWORK = r"network|\bnic\b|infiniband|\bib\b|ethernet|\blink|\bport\b|cable|adapter|mlx5|interface|fabric|connection|socket|peer|transceiver|hca"


@dataclass(frozen=True)
class Cause:
    family: str
    component: str
    mechanism: str
    phrase: str
    admits: frozenset[str] = field(default_factory=frozenset)


def _cause(family: str, component: str, mechanism: str, phrase: str, *admits: str) -> Cause:
    # a place between a component and what happened to it ("the disk of pod train-9-worker-4 is full")
    phrase = re.sub(r"\(\?:\\w\+ \)\{0,\d\}", r"(?:[\\w./#-]+ ){0,6}", phrase)
    phrase = re.sub(r"\(\?:\\w\+\\W\+\)\{0,\d\}", r"(?:\\w+\\W+){0,8}", phrase)
    for pattern in (component, mechanism, phrase):
        re.compile(pattern)
    return Cause(family, component, mechanism, phrase, frozenset(admits))


CAUSES: dict[str, Cause] = {
    # the GPU and its driver
    "gpu_off_bus": _cause(
        "bus", _GPU,
        r"(?:fall\w*|fell|drop\w*|lost|gone|vanish\w*|disappear\w*|drop\w*|came) (?:\w+ )?(?:off|from|out of)? ?(?:the )?(?:pci\w* ?(?:express )?)?bus"
        r"|\blost\b|vanish|disappear|unreachable|no longer (?:visible|reachable|there|answers|on the bus|enumerat)|not responding to commands"
        r"|\bxid 79\b|off the bus",
        r"off the (?:pci\w* )?bus|\bxid 79\b|lost from the bus|vanish\w* from the bus|disappear\w* from the (?:pci\w* )?bus",
        "pcie", "driver", "power",
    ),
    "gpu_memory": _cause(
        "gpu_memory", r"\bhbm\b|\bdram\b|\becc\b|memory|framebuffer|\brow|\bl2\b|\bsram\b|" + _GPU,
        r"\becc\b|double.?bit|\bdbe\b|uncorrect\w*|row.?remap|remap\w* fail|(?:bad|failing|faulty|defective|broken|worn) (?:gpu |device |hbm )?(?:memory|hbm|cells?|rows?)"
        r"|memory (?:error|fault|cell|defect|failure|is failing)|contained error|uncontained|bit error|\bxid (?:48|63|64|94|95|140)\b",
        r"\bhbm\b|double.?bit|row.?remap|uncorrect\w* ecc|gpu memory (?:error|fault|defect|fail)|framebuffer|\bxid (?:48|63|64|94|95|140)\b|uncontained",
        "app",
    ),
    "gpu_firmware": _cause(
        "driver", r"\bgsp\b|firmware|micro.?controller|system processor|" + _GPU,
        rf"{_SILENT}|heartbeat|\brpc\b|exception|crash|halt|could not boot|not boot|booting|bad state|page fault|dead|died|\bxid (?:119|120|62)\b",
        r"\bgsp\b|gpu firmware|\bxid (?:119|120|62)\b|micro.?controller halt",
        "gpu_hang",
    ),
    "gpu_init": _cause(
        "driver", r"driver|adapter|\bnvidia\b|amdgpu|kernel module|\bnvml\b|" + _GPU,
        r"initiali[sz]|\binit\b|(?:did|does|could|can|would) ?n[o']t (?:start|load|come up|attach|take over|be set up|bring up)|fail\w* to (?:start|load|come up|attach|probe|take over|bring up)"
        r"|no(?:t)? (?:supported|found|ready)|probe|never came up|unsupported|rminitadapter|load\w* fail|setting up",
        r"initiali[sz]\w* (?:of )?(?:the )?(?:gpu|adapter|driver)|(?:gpu|adapter|driver) (?:fail\w* to|could not|did not|does not|cannot) (?:initiali|init|load|start|come up)|rminitadapter",
        "bus",
    ),
    "driver_mismatch": _cause(
        "driver", r"driver|module|librar|client|version|cuda|user.?space",
        r"mismatch|different version|do(?:es)? not match|incompatib|out of step|not the same version|older than|newer than|too old|insufficient|disagree|two versions|out of sync|differ",
        r"version mismatch|driver mismatch|versions? (?:of the driver )?(?:do(?:es)? not match|differ|disagree)|driver (?:is |was )?too old",
    ),
    "gpu_hang": _cause(
        "gpu_hang", r"\bring\b|context|channel|engine|scheduler|\bsdma\b|queue|command processor|\bcp\b|" + _GPU,
        rf"{_SILENT}|no progress|does not advance|preempt|\bxid 109\b|switch",
        r"(?:gpu|ring|context.?switch|graphics engine|sdma)\w* (?:\w+ )?(?:hang|hung|hangs|timeout|timed out|stall|stuck)|\bxid 109\b",
        "driver", "app",
    ),
    "app_fault": _cause(
        "app", r"kernel|cuda|pointer|index|address|access|instruction|assert|" + _JOB,
        r"illegal|page fault|\bmmu\b|out.of.(?:range|bounds)|misalign|assert|bad (?:pointer|index|address)|invalid (?:address|pointer|index|memory)|launch failure|warp exception|wrote past|reads? past"
        r"|unmapped|\bxid (?:13|31|43)\b|wild pointer",
        r"illegal (?:memory|address|instruction|access)|\bmmu fault|gpu page fault|device.?side assert|out.of.bounds|\bxid (?:13|31|43)\b|warp exception|wild pointer",
        "job", "gpu_hang", "engine",
    ),
    "nvlink": _cause(
        "nvlink", r"nv.?link|nv.?switch|\bsxid\b|nvlink switch",
        rf"{_FAILS}|fatal|down|sxid|crc|flit|bad|degrad|train|discover|\bxid (?:74|145|137|149)\b|lost",
        r"nv.?link\w* (?:\w+ ){0,3}(?:error|fail|fault|fatal|down|broke|degrad)|nv.?switch\w* (?:\w+ ){0,2}(?:error|fail|fatal|report)|\bsxid\b|\bxid (?:74|145|149)\b",
    ),
    "gpu_service": _cause(
        "service", r"fabric.?manager|imex|persistenced|\bdcgm\b|openibd|nvidia\S* (?:service|daemon)|systemd (?:unit|service)",
        rf"{_FAILS}|could not query|cannot query|never reported|signal",
        r"fabric.?manager|imex (?:service|daemon)|persistenced",
        "nvlink",
    ),
    "gpu_throttle": _cause(
        "heat", r"clock|" + _GPU,
        r"throttl|slow.?down|slowed|power brake|thermal|held down|reduced|too hot|overheat|brake|clocks? (?:down|capped|lowered)",
        r"gpu\w* (?:is |was |are )?(?:\w+ )?throttl|power brake|hardware slow.?down|clocks? (?:are |were |is |was )?(?:held|capped|lowered|reduced)",
        "power",
    ),
    # the host
    "pcie": _cause(
        "pcie", r"pci\w*|\bbus\b|root port|\bslot\b|\baer\b",
        rf"{_FAILS}|uncorrect|fatal|\baer\b|contain|\bdpc\b|link (?:is |went |was )?down|card not present|hot.?plug|surprise|lost|not present|reset|replay|narrow|lanes?|width",
        r"(?:pcie|pci express|root port)\w* (?:\w+ ){0,3}(?:error|fail|fault|down|uncorrect|fatal|broke|replay)|downstream port containment|\bdpc\b|uncorrect\w* pcie|fatal pcie",
        "bus",
    ),
    "iommu": _cause(
        "iommu", r"iommu|smmu|amd-?vi|dmar|\bdma\b|remapping unit",
        r"fault|block|reject|denied|unmapped|not mapped|refus|not allowed|permission",
        r"iommu|smmu|dmar|\bdma (?:fault|read|write)|io_page_fault",
        "pcie",
    ),
    "host_memory": _cause(
        "host_memory", r"dimm|\bram\b|system memory|host memory|memory module|edac|memory controller|memory|\bdram\b",
        r"error|fail|correct\w*|uncorrect\w*|\becc\b|\bbad\b|defect|faulty|worn|storm",
        r"\bdimm|edac|memory module|(?:host|system) memory (?:error|fault|fail)|\bram (?:is |module )?(?:bad|fail|faulty|error)",
        "cpu",
    ),
    "machine_check": _cause(
        "cpu", r"cpu|processor|socket|\bcore\b|hardware|machine.?check",
        r"machine.?check|\bmce\b|hardware error|context corrupt|ierr|fatal",
        r"machine.?check|\bmce\b|processor context corrupt|\bierr\b",
        "host_memory",
    ),
    "lockup": _cause(
        "kernel", r"cpu|processor|\bcore\b|kernel|\brcu\b|watchdog|interrupt",
        rf"lock.?up|{_SILENT}|locked|spin|interrupts? (?:\w+ )?(?:off|disabled)|does not (?:come out|return|leave|schedule)|never (?:schedul|return)",
        r"(?:soft|hard) ?lock.?up|\brcu\b \w*\s?stall|cpu\w* (?:\S+ )?(?:is |was |are |got )?(?:stuck|locked up|hung|hangs)|rcu stall",
    ),
    "hung_task": _cause(
        "kernel", r"task|process|thread|kernel|kworker|nfsd|docker|i/o wait",
        r"block|hung|hang|uninterruptible|d.state|stuck|wait|did not (?:run|wake)|120 s|300 s",
        r"hung task|blocked for (?:more|over|longer)|uninterruptible|\bd.state\b",
        "storage", "remote",
    ),
    "host_oops": _cause(
        "kernel", r"kernel|module|driver",
        r"oops|null.?pointer|general protection|paging request|panic|invalid (?:address|pointer|opcode)|\bbug\b|dereferenc|page fault",
        r"kernel (?:oops|panic|bug|crash)|null.?pointer|general protection fault",
        "driver",
    ),
    "host_oom": _cause(
        "host_oom", _HOST_MEMORY,
        r"oom.?kill|out.of.memory|out of (?:host |system |its |the )?(?:\w+ )?memory|ran out|exhaust|used up|too much (?:host )?memory|over its (?:memory )?limit|memory pressure|low on memory|memory limit"
        r"|not enough (?:host )?memory|bad_alloc|no memory left|memory (?:was |is )?full|above its limit|exceeded",
        r"oom.?kill|out of (?:host|system) memory|host memory (?:ran out|exhaust|was full|is full)|(?:container|cgroup|pod|slurm)\W+(?:\w+ )*memory limit|over its memory limit|memory pressure",
        "job", "engine", "k8s",
    ),
    "host_heat": _cause(
        "heat", r"cpu|processor|\bcore\b|package|node|host|server",
        r"temperature|therm|overheat|too hot|\bheat|throttl|cool",
        r"(?:cpu|processor|core|package)\w* (?:\w+ ){0,3}(?:overheat|too hot|temperature|thermal|throttl)",
    ),
    "power_supply": _cause(
        "power", r"power|\bpsu\b|supply",
        r"fail|lost|fault|no input|broke|dead|insufficient|not enough|absent|redundan|too little|low",
        r"power supply|\bpsu\b|insufficient power|power (?:feed|input) (?:lost|fail)",
        "pcie",
    ),
    # the network
    "nic": _cause(
        "network", _NETWORK,
        rf"down|lost|flap|cable|unplug|no carrier|{_FAILS}|bad|{_SILENT}|health|firmware|recovery mode|probe|transmit|\btx\b|did not (?:load|start|come up)",
        r"(?:nic|mlx5\S*|network (?:link|adapter|card|port|interface)|infiniband (?:link|port|adapter)|ethernet|cable|ib port|transmit queue)\W+(?:\w+\W+){0,4}(?:down|lost|flap\w*|fail\w*|bad|broke\w*|error|fault\w*|timed out|stuck|unplug\w*|dead|died|unhealthy|damaged)"
        r"|link (?:went |is |was )?down|bad cable|cable (?:error|fault)",
        "collective",
    ),
    "nccl_network": _cause(
        "network", r"nccl|\bucx\b|ofi|" + _NETWORK,
        r"clos|lost|reset|drop|gone|died|left|async|completion|retry|retries|unresponsive|remote|broke|error|fail|unreachable|down|did not answer|no answer|abort",
        r"connection (?:\w+ ){0,4}(?:closed|lost|reset|dropped|broke)|network (?:error|failure|fault)|ib (?:completion|async|port) (?:error|event)|peer (?:\w+ )?(?:closed|died|gone|left|unresponsive)|transport retry",
        "collective", "job",
    ),
    "collective": _cause(
        "collective", r"collective|all.?reduce|broadcast|all.?gather|nccl|\branks?\b|watchdog|\bop(?:eration)?\b|barrier|communicat|tensor|\bp2p\b",
        rf"{_SILENT}|did not (?:finish|arrive|join|complete|reach)|never (?:finish|join|came|complet|arriv|reach)|wait|missing|out of step|desync",
        r"collective\w* (?:\w+ ){0,3}(?:timed? ?out|timeout|hang|hung|stuck|never)|(?:all.?reduce|broadcast|all.?gather) (?:\w+ ){0,3}(?:timed? ?out|hang|hung|stuck|never)|nccl (?:watchdog )?(?:timeout|hang)|watchdog (?:timeout|caught)",
        "job",
    ),
    "rendezvous": _cause(
        "rendezvous", r"rendezvous|\bstore\b|c10d|tcp.?store|master|clients?|ranks?|nodes?|workers|connect|peer",
        r"time[ds]?.?out|timeout|not (?:join|connect|reach|arrive|meet)|n't (?:join|connect|reach)|fail\w* to (?:connect|recv|receive|join|meet)|unreachable|refused|never (?:join|connect|met|came)|lost|clos|cannot (?:reach|connect|find)|heartbeat|keep.?alive|missing|received no|no data",
        r"rendezvous|tcp.?store|c10d|ranks? (?:could|did) not (?:connect|join|meet|find)",
        "job", "network",
    ),
    # storage
    "disk_full": _cause(
        "space", r"disk|storage|space|quota|volume|file ?system|ephemeral|image",
        r"\bfull\b|no (?:\w+ )?space|quota|out of (?:disk )?space|exhaust|ran out|used up|low on|pressure|nothing left|not enough|filled|could not free|cannot free",
        r"disk (?:is |was |got |ran )?full|no space|out of (?:disk )?space|quota|disk.?pressure|ephemeral.?storage|filled (?:up )?the (?:disk|volume)",
        "job", "k8s",
    ),
    "disk_fault": _cause(
        "storage", _DISK,
        rf"i/o (?:error|timeout|command)|input/output|time[ds]?.?out|timeout|not ready|{_FAILS}|media|unreadable|sector|smart|bad|wear|{_SILENT}|reset|warning|cannot be (?:read|written)|disabled|down",
        r"(?:disk|nvme\w*|drive|ssd|raid|block device|storage controller|sd[abc])\W+(?:\w+\W+){0,4}(?:i/o|fail\w*|error|time[sd]? ?out|timeout|dead|died|broke\w*|not ready|unreadable|reset|down)|i/o error|input/output error|unreadable sector|media error",
        "filesystem", "job", "k8s",
    ),
    "filesystem": _cause(
        "filesystem", r"file ?system|ext4|\bxfs\b|journal|metadata|inode|directory|volume",
        r"corrupt|error|read.?only|shut|crc|inconsisten|damage|given up|aborted|fail|broken",
        r"(?:file ?system|ext4|xfs)\W+(?:\w+\W+){0,4}(?:corrupt|error|read.?only|shut|damage|fail|inconsist)|remount\w* read.?only|metadata (?:crc|corrupt)",
        "storage",
    ),
    "remote_storage": _cause(
        "remote", r"lustre|\bnfs\b|cifs|\bsmb\b|ceph|filer|\bnas\b|remote (?:storage|file)|share|mount|file server|\bost\b|\bmds\b|\bmgs\b|monitor",
        rf"{_SILENT}|lost|went away|gone|evict|unreachable|silent|connection|fail|clos|reset|session|unavailable|not reach|-5|-107|did not answer|no longer answers|down",
        r"(?:lustre|nfs|cifs|ceph|filer|nas|remote storage|file server)\W+(?:\w+\W+){0,5}(?:not respond|lost|evict|unreachable|silent|connection|time[sd]? ?out|fail|reset|closed|down|stopped)",
        "network", "storage", "kernel",
    ),
    # the job
    "gpu_oom": _cause(
        "gpu_oom", r"gpu|cuda|device|vram|\bhbm\b|\bcard\b|allocat|batch|memory|xla",
        r"out.of.memory|\boom\b|ran out|exhaust|does not fit|did not fit|could not allocate|too (?:large|big|much)|no room|not enough|used up|cannot allocate|full",
        r"cuda (?:out of memory|oom)|gpu (?:ran )?out of memory|gpu memory (?:ran out|exhaust|was full|is full|used up)|out of gpu memory|vram",
        "job", "engine",
    ),
    "shm": _cause(
        "shm", r"shared memory|\bshm\b|/dev/shm|data ?loader|loader worker",
        r"too small|insufficient|full|exhaust|bus error|out of|ran out|not enough|used up|limit",
        r"shared memory|\bshm\b|/dev/shm",
        "job", "loader",
    ),
    "time_limit": _cause(
        "limit", r"slurm|\bjob|allocation|\bstep\b|schedul|reservation|wall",
        r"time.?limit|wall.?(?:time|clock)|ran longer|longer than|deadline|timed.?out|time (?:was |is |ran )?(?:up|out)|out of time|expired|allotted",
        r"time.?limit|wall.?time|deadline|allotted time",
        "job",
    ),
    "node_failure": _cause(
        "node", r"node|host|machine|server",
        r"fail|died|dead|lost|went down|gone|crash|unreachable|down",
        r"node (?:failure|fail|died|crash|went down|was lost)",
        "job",
    ),
    "numerics": _cause(
        "numerics", r"loss|grad|train|scale|model|weight|optimi[sz]er|step|activation|reward|precision|fp16|bf16",
        r"\bnan\b|not a number|\binf\b|infinit|diverg|overflow|underflow|explod|blew up|non.?finite|no(?:t|t any more| longer) finite|zero|collaps|invalid values?|jumped",
        r"loss (?:\w+ )?(?:is |was |became |went |turned )?(?:to )?(?:\w+ )?(?:nan|infinit|not a number|diverg|explod|zero|non.?finite|not finite)|gradients? (?:\w+ ){0,3}(?:nan|infinit|explod|overflow|not finite)|loss.?scale|\bnans?\b",
        "job",
    ),
    "job_exception": _cause(
        "job", _JOB + r"|python|exception|argument|file|librar|import|torchrun|child",
        r"exception|traceback|raised|error|bug|exit|unhandled|uncaught|crash|wrong|missing|fail|status|code 1|255",
        r"python exception|unhandled exception|uncaught exception|bug in (?:the|its) (?:own )?(?:code|script)|(?:script|trainer|own code) raised",
    ),
    "job_signal": _cause(
        "job", _JOB + r"|launcher|torchrun|child|subprocess",
        r"signal|sigkill|sigsegv|sigabrt|sighup|segfault|segmentation|kill|-9\b|-11\b|-6\b|abort|core dump",
        r"sigkill|sigsegv|sigabrt|segmentation fault|segfault|killed by signal",
        "host_oom",
    ),
    "engine": _cause(
        "engine", r"engine|server|vllm|sglang|scheduler|inference|triton|worker|startup|shard|model",
        rf"{_FAILS}|{_SILENT}|fail\w* to (?:start|load)|did not (?:start|load|come up)|could not (?:start|load)|watchdog|bad_alloc|never (?:start|came up)|shut",
        r"(?:(?<!graphics )(?<!gpu )engine|inference server|vllm|sglang|triton|scheduler) (?:\w+ ){0,3}(?:died|crash|fail|exit|stopp|hang|stuck|watchdog|did not start)",
        "job", "app", "host_oom",
    ),
    "actor": _cause(
        "job", r"\bray\b|actor|worker|task|coordination|remote|jax|owner",
        rf"{_FAILS}|heartbeat|lost|gone|{_SILENT}|unavailable|stopped answering|preempt",
        r"(?:ray )?actor (?:\w+ ){0,2}(?:died|dead|lost|crash|kill)|worker (?:\w+ )?(?:lost|stopped answering|heartbeat)",
        "node", "network",
    ),
    "load": _cause(
        "load", r"checkpoint|weights|dataset|\bfile\b|state.?dict|archive|model|safetensors|data\b|json|tokenizer",
        r"corrupt|missing|cannot be (?:read|loaded|opened)|could not be (?:read|loaded|opened)|not found|fail\w* to (?:load|read|open)|mismatch|invalid|truncat|not a zip|damaged|broken|incomplete|do(?:es)? not (?:match|fit)|generat",
        r"(?:checkpoint|weights|state.?dict|dataset|model file)\W+(?:\w+\W+){0,4}(?:corrupt|missing|truncat|not found|mismatch|invalid|damaged|cannot be read|could not be (?:read|loaded))",
        "job",
    ),
    "loader": _cause(
        "loader", r"data ?loader|loader|worker",
        r"kill|exit|crash|died|signal|terminat|segfault|gone",
        r"data ?loader worker|loader (?:process|worker)",
        "job", "host_oom",
    ),
    "service": _cause(
        "external", r"api|service|endpoint|\bhub\b|server|wandb|connection|hugging ?face|remote|url|https?|network",
        r"refus|reset|unreachable|time[ds]?.?out|timeout|retries|clos|rate|too many|429|fail|abort|limit|no answer|not reach|down",
        r"(?:hub|api|wandb|hugging ?face|external service|metrics service|endpoint)\W+(?:\w+\W+){0,5}(?:refus|rate|429|too many|unreachable|timeout|time[sd]? out|reset|down)|too many requests",
        "job",
    ),
    "leak_gpu": _cause(
        "leak", r"gpu|device|cuda|\bhbm\b|vram|memory|allocator|tensor",
        r"leak|grow|rises?|rising|climb|accumulat|kept|keeps|never freed|not freed|creep",
        r"(?:gpu|device|cuda) memory (?:leak|grow|climb|ris)|leak",
        "job",
    ),
    "leak_host": _cause(
        "leak", r"host|system|\bram\b|memory|cache|container|loader",
        r"leak|grow|rises?|rising|climb|accumulat|kept|keeps|never freed|not freed|creep|fill",
        r"(?:host|system) memory (?:leak|grow|climb|ris)|leak",
        "job", "host_oom",
    ),
    "learning_rate": _cause(
        "rate", r"learning.?rate|\blr\b|schedule",
        r"jump|rose|raised|spike|too (?:high|large)|increas|step|chang|left its schedule|wrong|up",
        r"learning.?rate|\blr\b",
        "numerics", "job",
    ),
    "stall": _cause(
        "stall", r"data|loader|input|storage|read|step|batch|pipeline",
        rf"wait|slow|{_SILENT}|starv|late|pause|longer|block",
        r"data (?:loading )?stall|(?:data ?loader|input pipeline|loader) (?:\w+ ){0,3}(?:slow|stall|starv|late|wait)|starv\w* (?:of|for) data",
        "job",
    ),
    "straggler": _cause(
        "straggler", r"\brank|gpu|worker|straggler|process",
        r"slow|straggl|behind|late|longer|holds? (?:\w+ )?(?:back|up)|lag",
        r"straggler|slow rank|(?:rank|gpu) \S* ?(?:is |was )?(?:slower|lagging|behind)",
    ),
    # Kubernetes
    "pod_rejected": _cause(
        "k8s", r"device.?plug.?in|kubelet|node|\bpod|allocat|nvidia\.com|mig",
        r"reject|unhealthy|no healthy|fail|refus|lost|unavailable|admission|cannot|could not|unknown",
        r"(?:device.?plug.?in|kubelet)\W+(?:\w+\W+){0,5}(?:reject|unhealthy|fail|refus|unavailable)|unhealthy devices?|no healthy (?:gpu|device)|pod (?:was |is )?rejected",
        "driver", "bus",
    ),
    "node_not_ready": _cause(
        "node", r"kubelet|node|runtime|pleg|docker|container",
        r"stopped (?:posting|reporting)|not ready|\bdown\b|unreachable|unknown|unhealthy|silent|dead|stopp|block|hung|stuck|deadlock",
        r"kubelet (?:\w+ )?(?:stopped|died|down|dead)|node (?:is |was |became |went )?(?:not ready|notready)|container runtime (?:is |was |went )?down|pleg",
        "k8s", "kernel",
    ),
    "volume": _cause(
        "volume", r"volume|mount|attach|\bpvc?\b|csi",
        r"fail|time[ds]?.?out|timeout|cannot|could not|not attached|deadline|exit status|stuck|unable",
        r"(?:volume|mount|attach)\w*\W+(?:\w+\W+){0,4}(?:fail|time[sd]? ?out|timeout|could not|cannot|deadline)",
        "k8s",
    ),
    "image": _cause(
        "image", r"image|registry|pull|tag",
        r"cannot be pulled|could not be pulled|pull|not found|unauthori|back.?off|fail|missing|denied|does not exist",
        r"image (?:\w+ ){0,4}(?:pull|not found|missing|does not exist|unauthori)|pull\w* (?:of )?(?:the )?image|registry",
        "k8s",
    ),
    "crash_loop": _cause(
        "k8s", r"container|\bpod\b|process|server|vllm",
        r"crash|restart|back.?off|exit|137|oom|kill|fail|memory",
        r"crash.?loop|restarts? (?:again|over and over|in a loop)|keeps (?:crashing|restarting)",
        "host_oom", "engine", "job",
    ),
    "runtime": _cause(
        "runtime", r"sandbox|runtime|container|\boci\b|containerd|hook|nvidia.container|docker",
        r"fail|cannot (?:be )?(?:created?|start)|could not (?:be )?(?:created?|start)|no runtime|not configured|missing|unable|not (?:found|known)|error",
        r"(?:sandbox|container runtime|oci runtime|nvidia.container\S*)\W+(?:\w+\W+){0,5}(?:fail|missing|not configured|cannot|could not|unable|unknown)|no runtime (?:for|named)",
        "k8s", "driver",
    ),
}  # fmt: skip
