"""More public reports, collected on 2026-11-25 by search for symptoms, before any of them was run.

The right answers were written down with them. Lines are the reporters', shortened; hosts, addresses and numbers of
processes are drawn anew. `benchmarks/results/field_batch_2.json` holds the first try. None is in batch 1.
"""

# ruff: noqa: E501 -- log lines are as long as they are
from __future__ import annotations

from benchmarks.field.collected import CRASH, MEMORY, NETWORK, NONFINITE, STORAGE, Batch
from benchmarks.field.report import FieldReport, Form, Paged, condition, event, pod

_SRE, _OWNER, _NOBODY = Paged.SRE, Paged.OWNER, Paged.NOBODY
_ADMISSION = r"admi|reject|allocat|device plugin|GPU is lost|unhealthy"

_REPORTS = Batch()
_kernel, _job, _page, _kubernetes = _REPORTS.kernel, _REPORTS.job, _REPORTS.page, _REPORTS.kubernetes


# the driver ------------------------------------------------------------------------------------------------------------
_kernel(
    "madMAx43v3r/chia-gigahorse#301",
    "Cuda V3 start to fail with latest Nvidia drivers",
    r"Xid 62|Xid 31|micro-?controller",
    _SRE,
    "NVRM: GPU at PCI:$pci: GPU-760d0170-b7c5-6817-9414-6cc7112645de",
    "NVRM: Xid (PCI:$pci): 31, pid=$pid, name=cuda_plot_k32_v, Ch 00000010, intr 00000000. MMU Fault: ENGINE CE2 HUBCLIENT_CE0 faulted @ 0x7f29_5b8c9000. Fault is of type FAULT_PRIV_VIOLATION ACCESS_TYPE_VIRT_READ",
    "NVRM: Xid (PCI:$pci): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a 2023e8b6 2023eac4 2023ec3c 2023ea86 00000000 00000000",
    "NVRM: Xid (PCI:$pci): 45, pid='<unknown>', name=<unknown>, Ch 00000008",
    "NVRM: Xid (PCI:$pci): 45, pid='<unknown>', name=<unknown>, Ch 00000009",
    "sched: RT throttling activated",
)
_kernel(
    "leptonai/gpud#1271",
    "feat(nvlink): detect post-RX link-mask failures",
    r"NVLink",
    _SRE,
    "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1030",
    "Xid 31 MMU Fault: FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    r"Xid 31|MMU",
    _OWNER,
    "NVRM: GPU at PCI:$pci: GPU-4e391288-897c-ba5d-6944-dfbea55ebcfa",
    "NVRM: GPU Board Serial Number: 0",
    "NVRM: Xid (PCI:$pci): 31, pid=$pid, name=UnrealEditor, channel 0x0000000c, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_PROP_0 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
)
_kernel(
    "Bumblebee-Project/Bumblebee#608",
    "Failed to initialize DMA error",
    r"Xid 44|Xid 31",
    _SRE,
    "NVRM: Xid (PCI:$pci): 44, Ch 00000000, engmask 00000101, intr 10000000",
    "NVRM: Xid (PCI:$pci): 31, Ch 00000001, engmask 00000101, intr 10000000",
)
_kernel(
    "NVIDIA/cuda-samples#48",
    "p2p samples crash GPUs",
    r"IOMMU|IO_PAGE_FAULT|AMD-Vi|DMA",
    _SRE,
    *["nvidia $pci.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]"] * 8,
    form=Form.JOURNAL,
)
# the host --------------------------------------------------------------------------------------------------------------
_kernel(
    "openstreetmap/operations#300",
    "Errol ECC memory Errors",
    r"memory|DIMM|EDAC|ECC",
    _SRE,
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 4 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 grain:8 syndrome:0x0)",
    "EDAC MC0: 2 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 grain:8 syndrome:0x0)",
    "EDAC MC0: 6 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 grain:8 syndrome:0x0)",
    *["EDAC MC0: 1 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 grain:8 syndrome:0x0)"]
    * 4,
)
_kernel(
    "illinois-scicomp/machine-shop-maintenance#66",
    "Dunkel may have a memory failure",
    r"memory|DIMM|EDAC|ECC",
    _SRE,
    "EDAC sbridge MC1: HANDLING MCE MEMORY ERROR",
    "EDAC sbridge MC1: CPU 0: Machine Check Event: 0 Bank 7: cc00418000010091",
    "EDAC sbridge MC1: PROCESSOR 0:406f1 TIME 1664823350 SOCKET 0 APIC 0",
    "EDAC MC1: 262 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2031c14 offset:0x940 grain:32 syndrome:0x0 -  OVERFLOW area:DRAM err_code:0001:0091 socket:0 ha:0 channel_mask:2 rank:1)",
    form=Form.DMESG_T,
)
_kernel(
    "ovro-lwa/lwa-issues#117",
    "GPU09 crashed while collecting solar beamforming data",
    r"memory|DIMM|EDAC|uncorrect",
    _SRE,
    "CMCI storm detected: switching to poll mode",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC skx MC3: HANDLING MCE MEMORY ERROR",
    "EDAC skx MC3: CPU 10: Machine Check Event: 0 Bank 8: fc00010001010092",
    "EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#2_DIMM#0 (channel:2 slot:0 page:0xb757589 offset:0xdc0 grain:32 -  OVERFLOW recoverable)",
)
_kernel(
    "andikleen/mcelog#70",
    "NUC7PJYH (J5005) - mce: [Hardware Error]",
    r"[Mm]achine check|MCE|[Hh]ardware",
    _SRE,
    "mce: CPU supports 7 MCE banks",
    "mce: [Hardware Error]: Machine check events logged",
    "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408",
    "mce: [Hardware Error]: TSC 0 ADDR fef4c9e0 ",
    "mce: [Hardware Error]: PROCESSOR 0:706a1 TIME 1537152664 SOCKET 0 APIC 0 microcode 28",
    form=Form.JOURNAL,
)
_kernel(
    "ublue-os/bazzite#5546",
    "Frequent fatal CPU machine checks",
    r"[Mm]achine check|MCE|panic",
    _SRE,
    "mce: [Hardware Error]: CPU 7: Machine Check Exception: 5 Bank 0: b200000000030005",
    "mce: [Hardware Error]: Machine check: Processor context corrupt",
    "Kernel panic - not syncing: Fatal machine check",
)
_kernel(
    "ROCm/legacy-rocm-build#1882",
    "RHEL 9.1 + w6800: no detected GPU",
    r"panic|PCIe|[Hh]ardware|fatal",
    _SRE,
    "{1}[Hardware Error]:   device_id: 0000:c3:00.0",
    "{1}[Hardware Error]:   slot: 4",
    "{1}[Hardware Error]:   vendor_id: 0x1002, device_id: 0x73a3",
    "{1}[Hardware Error]:   aer_uncor_status: 0x00000000, aer_uncor_mask: 0x00010000",
    "{1}[Hardware Error]:   TLP Header: 40001001 c000000f 9187f000 00000000",
    "Kernel panic - not syncing: Fatal hardware error!",
)
_kernel(
    "lnls-dig/bpm-gw#73",
    "[pcie] Supurious PCIe link down event",
    r"PCIe|link|slot|hotplug",
    _SRE,
    "pciehp 0000:02:05.0:pcie24: pending interrupts 0x0100 from Slot Status",
    "pciehp 0000:02:05.0:pcie24: slot(6): Link Down event",
    "pciehp 0000:02:05.0:pcie24: pciehp_unconfigure_device: domain:bus:dev = 0000:08:00",
    "pciehp 0000:02:05.0:pcie24: Timeout on hotplug command 0x1431 (issued 1000 msec ago)",
    form=Form.DMESG_T,
)
_kernel(
    "oxidecomputer/crucible#1844",
    "Disk became read-only after some heavy I/O",
    STORAGE,
    _SRE,
    "nvme0n1: I/O Cmd(0x2) @ LBA 131209936, 200 blocks, I/O Error (sct 0x3 / sc 0x71) ",
    "I/O error, dev nvme0n1, sector 131209936 op 0x0:(READ) flags 0x80700 phys_seg 25 prio class 0",
    "I/O error, dev nvme0n1, sector 167431176 op 0x1:(WRITE) flags 0x4000 phys_seg 128 prio class 0",
    "Buffer I/O error on device nvme0n1p1, logical block 1066386",
    "Aborting journal on device nvme0n1p1-8.",
)
_kernel(
    "oxidecomputer/crucible#1572",
    "Instance hitting ext4-fs read/write error",
    STORAGE,
    _SRE,
    "EXT4-fs error (device nvme0n1p1): __ext4_find_entry:1588: inode #43: comm gmain: reading directory lblock 0",
    "EXT4-fs error (device nvme0n1p1): __ext4_find_entry:1588: inode #80759: comm gmain: reading directory lblock 0",
)
_kernel(
    "longhorn/longhorn#6650",
    "Rebooting a node causes PV filesystem errors in linux",
    STORAGE,
    _SRE,
    "EXT4-fs (sdi): I/O error while writing superblock",
    "EXT4-fs error (device sdf): ext4_check_bdev_write_error:217: comm filebeat: Error while async write back metadata",
    "EXT4-fs error (device sdf) in ext4_reserve_inode_write:5795: Journal has aborted",
    form=Form.JOURNAL,
)
_kernel(
    "coolsnowwolf/lede#6147",
    "A mounted ext4 disk turns read-only",
    STORAGE,
    _SRE,
    "blk_update_request: critical target error, dev sdb, sector 629659920 op 0x1:(WRITE) flags 0x800 phys_seg 8 prio class 0",
    "Aborting journal on device sdb1-8.",
    "EXT4-fs error (device sdb1): ext4_journal_check_start:61: Detected aborted journal",
    "EXT4-fs (sdb1): Remounting filesystem read-only",
)
_kernel(
    "jade-hpc-gpu/jade-hpc-gpu.github.io#14",
    "lots of lustre client error messages in dmesg",
    rf"Lustre|{STORAGE}",
    _SRE,
    "Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) @@@ Request sent has failed due to network error: [sent 1508144508/real 1508144518]  req@ffff880eb14da700 x1570198182041824/t0(0) o250->MGC172.31.126.87@o2ib@172.31.126.87@o2ib:26/25 lens 520/544 e 0 to 1 dl 1508144563 ref 1 fl Rpc:eXN/0/ffffffff rc 0/-1",
    "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.126.87@o2ib: 403661 seconds",
    "LustreError: 11-0: jmain01-MDT0000-mdc-ffff88203810d800: operation obd_ping to node 172.31.126.88@o2ib failed: rc = -107",
    "Lustre: jmain01-MDT0000-mdc-ffff88203810d800: Connection to jmain01-MDT0000 (at 172.31.126.88@o2ib) was lost; in progress operations using this service will wait for recovery to complete",
    form=Form.DMESG_T,
)
_kernel(
    "aws/aws-parallelcluster#2701",
    "OOM killer put the cluster to unreachable state",
    rf"Lustre|{STORAGE}",
    _SRE,
    "Lustre: no2zxbmv-MDT0000-mdc-000000001785e248: Connection to no2zxbmv-MDT0000 (at 10.0.47.232@tcp) was lost; in progress operations using this service will wait for recovery to complete",
    "Lustre: 3315:0:(client.c:2116:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1619790610/real 1619790610]",
)
_kernel(
    "kubernetes/kubernetes#23342",
    "e2e flake: Not ready nodes",
    r"hung|blocked|stuck|task",
    _SRE,
    "INFO: task kworker/u4:2:$pid blocked for more than 120 seconds.",
    "      Tainted: G         C    3.16.0-4-amd64 #1",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "kworker/u4:2    D ffff880214ddb788     0   141      2 0x00000000",
    "Workqueue: netns cleanup_net",
)
_kernel(
    "raspberrypi/linux#2482",
    "Network driver causing hung tasks on an NFS mount",
    r"NFS|nfs|hung|blocked",
    _SRE,
    "nfs: server ease not responding, still trying",
    "nfs: server ease not responding, still trying",
    "INFO: task objcopy:$pid blocked for more than 120 seconds.",
    "      Tainted: G         C      4.14.31-1-ARCH #1",
)
_kernel(
    "aws/aws-parallelcluster#1150",
    "Numerous nodes orphaned for no apparent reason",
    r"hung|blocked|stuck|task",
    _SRE,
    "INFO: task strat1_sim:$pid blocked for more than 120 seconds.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "strat1_sim      D ffff9ea2033cb0c0     0 78808  78611 0x00000082",
    "Call Trace:",
    form=Form.JOURNAL,
)
_kernel(
    "csrutil/OpenWrt-NIC-Drivers#11",
    "A malfunction requires repairing the network cable or restarting",
    r"NIC|network|transmit|queue",
    _SRE,
    "r8125 0000:22:04.0 eth4: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms",
    "r8125 0000:22:04.0 eth4: rtl_rxtx_empty_cond == 0 (loop: 42, delay: 100).",
)
_kernel(
    "PeterSuh-Q3/tinycore-redpill#9",
    "ConnectX-4 Lx is not working",
    r"NIC|mlx5|network|probe",
    _SRE,
    "mlx5_core 0000:03:00.0: enabling device (0000 -> 0002)",
    "mlx5_core 0000:03:00.0: firmware version: 14.32.1010",
    "mlx5_core 0000:03:00.0: handle_hca_cap failed",
    "mlx5_core 0000:03:00.0: mlx5_load_one failed with error code -22",
    "mlx5_core: probe of 0000:03:00.0 failed with error -22",
)
_kernel(
    "aws/eks-node-monitoring-agent#240",
    "persistent unregister_netdevice stuck-teardown signature",
    r"unregister_netdevice|namespace|network|stuck",
    _SRE,
    *["unregister_netdevice: waiting for veth4f2a1b to become free. Usage count = 2"] * 6,
)
_kernel(
    "erpalma/throttled#239",
    "Dell G3 3590",
    r"therm|temperature|throttl",
    _SRE,
    "mce: CPU1: Core temperature above threshold, cpu clock throttled (total events = 2311)",
    "mce: CPU1: Package temperature above threshold, cpu clock throttled (total events = 12705)",
    "mce: CPU5: Package temperature above threshold, cpu clock throttled (total events = 12705)",
    "mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 12705)",
)
# lines that say bad words while nothing failed
_kernel(
    "hamonikr/hamonikr-system#13",
    "re-mounted. Opts: errors=remount-ro",
    "",
    _NOBODY,
    "EXT4-fs (nvme0n1p5): re-mounted. Opts: errors=remount-ro. Quota mode: none.",
    form=Form.JOURNAL,
)
_kernel(
    "hirschmann/nbfc#181",
    "nbfc triggers tons of pcieport errors in syslog",
    "",
    _NOBODY,
    "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
    "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)",
    "pcieport 0000:00:1c.5:   device [8086:9d15] error status/mask=00000001/00002000",
    "pcieport 0000:00:1c.5:    [ 0] Receiver Error ",
    form=Form.JOURNAL,
)
_kernel(
    "kubernetes/kubernetes#32929",
    "lines of a healthy node",
    "",
    _NOBODY,
    "aufs au_opts_verify:1570:docker[13979]: dirperm1 breaks the protection by the permission bits on the lower branch",
    "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "cbr0: port 44(veth17506c4e) entered forwarding state",
)
_kernel(
    "erpalma/throttled#103",
    "Still throttling issue - T480: back to normal after 3 ms",
    "",
    _NOBODY,
    "CPU5: Core temperature above threshold, cpu clock throttled (total events = 2081)",
    "CPU1: Core temperature above threshold, cpu clock throttled (total events = 2081)",
    "CPU1: Core temperature/speed normal",
    "CPU5: Core temperature/speed normal",
)
_kernel(
    "pdbear/syno_nvidia_gpu_driver#18",
    "the driver's own lines while it loads",
    "",
    _NOBODY,
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 247",
    "vgaarb: device changed decodes: PCI:$pci.0,olddecodes=io+mem,decodes=none:owns=none",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.105.17  Tue Mar 28 18:02:59 UTC 2023",
    "ACPI Warning: \\_SB_.PCI0.SE0_.S00_._DSM: Argument #4 type mismatch - Found [Buffer], ACPI requires [Package] (20150930/nsarguments-88)",
)
# jobs that end ---------------------------------------------------------------------------------------------------------
_HF = "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}"
_job(
    "nextflow-io/nextflow#5932",
    "Detected 1 oom_kill event in StepId",
    MEMORY,
    _OWNER,
    "slurmstepd: error: Detected 1 oom_kill event in StepId=$n.0. Some of the step tasks have been OOM Killed.",
    "srun: error: $host: task 0: Out Of Memory",
)
_job(
    "hafs-community/HAFS#101",
    "Jobs with 3DEnVar using GDAS ensemble fail on Orion due to memory",
    rf"{MEMORY}|[Bb]us error",
    _OWNER,
    "srun: error: $host: task 289: Bus error",
    "srun: Terminating job step $n.0",
    "slurmstepd: error: *** STEP $n.0 ON $host CANCELLED AT 2021-10-27T20:22:22 ***",
)
_job(
    "ArjunaCluster/ArjunaUsers#52",
    'Performance Issue: "Out-of-memory"',
    MEMORY,
    _OWNER,
    "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --prop hform --epochs 400",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=$n.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    before="Epoch: [0][$step/1736]\t Loss $loss MAE 0.6568 RMSE 0.7644",
)
_job(
    "cszn/KAIR#165",
    "Training RVRT just fails",
    CRASH,
    _OWNER,
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "main_train_vrt.py FAILED",
    "------------------------------------------------------------",
    "Failures:",
    "[1]:",
    "  time      : 2023-04-09_22:57:57",
    "  host      : $host",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 2 (pid: $pid)",
    "  error_file: <N/A>",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
)
_job(
    "sshaoshuai/MTR#22",
    "Error while runnung train.py",
    CRASH,
    _OWNER,
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 255) local_rank: 0 (pid: $pid) of binary: /usr/bin/python3",
    "Traceback (most recent call last):",
    '  File "/usr/local/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
)
_job(
    "exiawsh/StreamPETR#19",
    "Error in training",
    CRASH,
    _OWNER,
    '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "none", "global_rank": 3, "group_rank": 0, "worker_id": "11376", "role": "default", "hostname": "$host", "state": "FAILED", "total_run_time": 20, "rdzv_backend": "static", "raw_error": "{\\"message\\": \\"<NONE>\\"}", "agent_restarts": 3}}',
)
_job(
    "huggingface/accelerate#1192",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    r"ECC",
    _SRE,
    "│   752 │   config, cmd, cmd_args = config_from_args(args)                                         │",
    "│ ❱ 753 │   elastic_launch(                                                                        │",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    before=_HF,
)
_job(
    "MIC-DKFZ/nnUNet#1519",
    "CUDA error: uncorrectable NVLink error detected during the execution",
    r"NVLink",
    _SRE,
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
)
_job(
    "huggingface/huggingface_hub#4134",
    "single-GPU h200 can fail CUDA init with Error 802",
    r"802|not yet initialized|fabric|CUDA",
    _SRE,
    "[warmup] fabric manager never reported Completed; trying anyway",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
)
_job(
    "wilicc/gpu-burn#92",
    "H100 80GB HBM3 Error: system not yet initialized",
    r"not yet initialized|fabric|CUDA|crash|ended",
    _SRE,
    "terminate called after throwing an instance of 'std::runtime_error'",
    "  what():  Error (gpu_burn-drv.cpp:298): system not yet initialized",
)
_job(
    "NVIDIA/nccl#1232",
    "NCCL WARN socketProgress: Connection closed by remote peer",
    NETWORK,
    _SRE,
    "node0:13571:13571 [0] NCCL INFO Connected all rings",
    "node0:13571:13600 [0] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer node2<42830>",
    "node0:13571:13600 [0] NCCL INFO misc/socket.cc:57 -> 6",
)
_job(
    "NVIDIA/nccl#795",
    "ncclRemoteError surfaces as ncclInternalError",
    NETWORK,
    _SRE,
    "a100-22:183006:183220 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe",
    "a100-22:183006:183220 [1] NCCL INFO misc/socket.cc:535 -> 6",
    "a100-22:183006:183220 [1] proxy.cc:1119 NCCL WARN [Proxy Service 9] Failed to execute operation Connect from rank 9, retcode 6",
)
_job(
    "NVIDIA/nccl-tests#166",
    "Test NCCL failure common.cu:958 'internal error'",
    NETWORK,
    _SRE,
    "ubuntu:39964:40075 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Software caused connection abort",
    "ubuntu:39964:40075 [0] NCCL INFO misc/socket.cc:564 -> 2",
    "ubuntu:39964:40075 [0] proxy.cc:1519 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2",
)
_job(
    "NVIDIA/nccl#230",
    "Got async event : local catastrophic error",
    NETWORK,
    _SRE,
    "2019-06-02T16:13:44.884Z: [1,12]<stdout>:container-e275-1553839402050-12124-01-000057:815:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
    "2019-06-02T16:13:44.884Z: [1,12]<stdout>:",
    "2019-06-02T16:13:44.884Z: [1,12]<stdout>:container-e275-1553839402050-12124-01-000057:815:864 [0] misc/ibvwrap.cu:220 NCCL WARN Call to ibv_get_async_event failed",
)
_job(
    "Lightning-AI/lit-llama#380",
    "NET/IB : Got async event : port error",
    rf"{NETWORK}|port",
    _SRE,
    "$host-48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
    "",
    "$host-48:34052:34141 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
    "$host-51:73076:73185 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer node48<37948> with error 12, opcode 2, len 1, vendor err 129",
    before="iter $step: loss $loss, time: 4401.19ms, speed: 1771 toks/s/device",
)
_job(
    "NVIDIA/nccl#1919",
    "async fatal event on QP: invalid request local work queue error",
    NETWORK,
    _SRE,
    "node-0:139577:139678 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error",
)
_job(
    "llm-d/llm-d-benchmark#724",
    "vllm container crashes on standup",
    rf"engine|{CRASH}",
    _OWNER,
    "(EngineCore_DP0 pid=$pid) Process EngineCore_DP0:",
    "(EngineCore_DP0 pid=$pid) ERROR 02-24 00:11:22 [core.py:936] EngineCore failed to start.",
    "(EngineCore_DP0 pid=$pid) ERROR 02-24 00:11:22 [core.py:936] Traceback (most recent call last):",
    '(EngineCore_DP0 pid=$pid) ERROR 02-24 00:11:22 [core.py:936]   File "/opt/vllm-source/vllm/v1/engine/core.py", line 927, in run_engine_core',
)
_job(
    "llm-d-incubation/llm-d-fast-model-actuation#709",
    "flaky fail to start vLLM",
    rf"{MEMORY}|engine|{CRASH}",
    _OWNER,
    "(EngineCore pid=$pid) ERROR 08-11 13:56:14 [v1/engine/core.py:1195] ValueError: Free memory on device cuda:0 (0.41/79.18 GiB) on startup is less than desired GPU memory utilization (0.85, 67.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
)
_job(
    "vllm-project/vllm#7161",
    "vllm is crashed on v0.5.3.post1",
    rf"illegal memory|NCCL|{CRASH}",
    _OWNER,
    "rank0]:[E811 01:10:50.482336908 ProcessGroupNCCL.cpp:1515] [PG 3 Rank 0] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):",
)
_job(
    "vllm-project/vllm#27430",
    'vLLM (TP=8) on 235B model triggers "CUDA error: unspecified launch failure"',
    rf"launch failure|CUDA|{CRASH}",
    _SRE,
    "(Worker_TP3 pid=$pid) ERROR 10-23 23:14:01 [multiproc_executor.py:671] RuntimeError: CUDA error: unspecified launch failure",
)
_job(
    "sgl-project/sglang#8974",
    "[Bug] Scheduler hit an exception",
    rf"NCCL|{CRASH}",
    _SRE,
    "[2025-08-08 09:09:09 TP2] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl-workspace/sglang/python/sglang/srt/model_executor/model_runner.py", line 235, in __init__',
    "    min_per_gpu_memory = self.init_torch_distributed()",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "",
    "[2025-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.",
)
_job(
    "sgl-project/sglang#3713",
    "[Bug] Crash when run with lora.",
    rf"illegal memory|{CRASH}",
    _OWNER,
    "[2025-02-21 22:59:28 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 1825, in run_scheduler_process',
    "    scheduler.event_loop_overlap()",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "[2025-02-21 22:59:28] Received sigquit from a child proces. It usually means the child failed.",
)
_job(
    "triton-inference-server/server#3916",
    "Triton Server Crash",
    rf"{MEMORY}|bad_alloc|{CRASH}",
    _OWNER,
    "I0210 18:18:48.256927 1 server.cc:295] Polling model repository",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "  what():  std::bad_alloc",
    "Signal (6) received.",
)
_job(
    "triton-inference-server/server#1899",
    "Perf Client Failed while inferencing",
    r"driver|CUDA|insufficient|version",
    _SRE,
    "I0812 05:45:01.325936 1 server.cc:120] Initializing Triton Inference Server",
    "E0812 05:45:01.326063 1 pinned_memory_manager.cc:192] failed to allocate pinned system memory: CUDA driver version is insufficient for CUDA runtime version",
)
_job(
    "huggingface/trl#2996",
    "RuntimeError: CUDA error: device-side assert triggered",
    rf"assert|{CRASH}",
    _OWNER,
    *[
        "../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [58,0,0], thread: [99,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
    ]
    * 3,
    "RuntimeError: CUDA error: device-side assert triggered",
    before=_HF,
)
_job(
    "EleutherAI/architecture-objective#26",
    "Training larger models lead to an error",
    rf"heartbeat|worker|coordination|{CRASH}",
    _SRE,
    "I1115 16:00:39.451247 140641718562816 trainer.py:501] Training: step 198",
    "2022-11-15 16:03:15.140058: E external/org_tensorflow/tensorflow/core/distributed_runtime/coordination/coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly.",
)
_job(
    "tensorflow/tensorflow#4735",
    "Resource exhausted error in the middle of training",
    MEMORY,
    _OWNER,
    "W tensorflow/core/common_runtime/bfc_allocator.cc:275] *_Ran out of memory trying to allocate 39.81MiB.**  See logs for memory state.",
    "W tensorflow/core/framework/op_kernel.cc:968] Resource exhausted: OOM when allocating tensor with shape[256,832,7,7]",
)
_job(
    "hkust-nlp/simpleRL-reason#25",
    "worker process died",
    rf"actor|worker|{CRASH}",
    _OWNER,
    "    raise value",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "\tclass_name: ActorModelRayActorBOX",
    "\tpid: $pid",
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
)
_job(
    "hiyouga/EasyR1#324",
    "The actor died unexpectedly: Owner's node has crashed",
    rf"actor|node|{CRASH}",
    _SRE,
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "        class_name: Runner",
    "        pid: $pid",
    "The actor is dead because its owner has died. Owner Ip address: 172.21.160.9 Owner worker exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.",
)
# jobs whose figures show it --------------------------------------------------------------------------------------------
_job(
    "ymcui/Chinese-LLaMA-Alpaca#534",
    "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    rf"loss scale|overflow|{NONFINITE}|{CRASH}",
    _OWNER,
    "[2023-06-07 22:22:34,914] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8, reducing to 4",
    "[2023-06-07 22:24:46,260] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2",
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    before="{'loss': $loss, 'learning_rate': 0.0001961913563176343, 'epoch': 0.28}",
)
_job(
    "facebookresearch/fairseq#512",
    "training fails after overflow detected",
    rf"loss scale|overflow|{NONFINITE}|{CRASH}",
    _OWNER,
    "| WARNING: overflow detected, setting loss scale to: 0.000244140625",
    "| WARNING: overflow detected, setting loss scale to: 0.0001220703125",
    "Traceback (most recent call last):",
    '  File "train.py", line 361, in <module>',
    "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.",
    before="| epoch 001:    $step / 1374 loss=$loss, ppl=20899.56, wps=49604, ups=0, wpb=277035.016, bsz=8563.074, num_updates=$step, lr=4.84525e-06, gnorm=$norm, clip=0.000, oom=0.000, loss_scale=0.062, wall=1061, train_wall=945",
)
_job(
    "facebookresearch/detectron2#838",
    "FloatingPointError: Loss became infinite or NaN at iteration=2137!",
    rf"{NONFINITE}|{CRASH}",
    _OWNER,
    "ERROR [02/10 22:55:41 d2.engine.train_loop]: Exception during training:",
    "Traceback (most recent call last):",
    '  File "/home/yview/work/detectron2/engine/train_loop.py", line 239, in _detect_anomaly',
    "    self.iter, loss_dict",
    "FloatingPointError: Loss became infinite or NaN at iteration=2137!",
    "loss_dict = {'loss_cls': tensor(nan, device='cuda:0', grad_fn=<NllLossBackward>), 'loss_box_reg': tensor(nan, device='cuda:0', grad_fn=<DivBackward0>)}",
    before="[11/01 20:14:15 d2.utils.events]: eta: 5:41:49  iter: $step  total_loss: $loss  loss_cls: 1.184  loss_box_reg: 0.475  time: 0.2293  data_time: 0.0033  lr: 0.003796  max_mem: 3782M",
)
_MMENGINE = "10/30 22:18:02 - mmengine - INFO - Epoch(train) [1][$step/7350]  lr: 1.9870e-04  eta: 2:46:39  time: 2.8906  data_time: 0.0042  memory: 10762  loss: $loss  grad_norm: $norm"
_job(
    "InternLM/xtuner#187",
    "how to fix : grad_norm: nan",
    NONFINITE,
    _OWNER,
    *[_MMENGINE.replace("$norm", "nan")] * 8,
    before=_MMENGINE,
)
_job(
    "open-mmlab/mmdetection#11893",
    "loss: nan",
    NONFINITE,
    _OWNER,
    *[
        "08/03 22:09:24 - mmengine - INFO - Epoch(train)  [1][$step/29310]  lr: 2.0000e-02  eta: 0:39:15  time: 0.0578  data_time: 0.0017  memory: 2389  loss: nan  loss_rpn_cls: nan  loss_rpn_bbox: nan  loss_cls: nan  acc: 0.0000  loss_bbox: nan"
    ]
    * 8,
)
_MMDET = "2021-08-18 19:36:00,257 - mmdet - INFO - Epoch [1][$step/58080]\tlr: 1.000e-02, eta: 5:02:49, time: 0.784, data_time: 0.085, memory: 8104, loss_rpn_cls: 0.4233, loss_rpn_bbox: 0.1337, loss_cls: 0.8811, acc: 91.4893, loss_bbox: 0.2141, loss: $loss"
_job(
    "open-mmlab/mmdetection#5911",
    "some iterations of loss appear to be nan",
    NONFINITE,
    _OWNER,
    *[_MMDET.replace("$loss", "nan")] * 8,
    before=_MMDET,
)
_job(
    "OpenDriveLab/Birds-eye-view-Perception#13",
    "some training problem",
    NONFINITE,
    _OWNER,
    *[
        "2022-12-05 16:28:38,593 - mmdet - INFO - Epoch [12][$step/39530]\tlr: 3.604e-06, eta: 3:08:55, time: 3.157, data_time: 0.852, memory: 19582, loss_cls: 0.2271, loss_bbox: 0.4775, d4.loss_bbox: 0.4785, loss: $loss, grad_norm: nan"
    ]
    * 8,
    before="2022-12-05 16:28:38,593 - mmdet - INFO - Epoch [12][$step/39530]\tlr: 3.604e-06, eta: 3:08:55, time: 3.157, data_time: 0.852, memory: 19582, loss_cls: 0.2271, loss_bbox: 0.4775, d4.loss_bbox: 0.4785, loss: $loss, grad_norm: $norm",
)
_job(
    "AnswerDotAI/ModernBERT#233",
    "grad_norm Nan question",
    NONFINITE,
    _OWNER,
    "{'loss': 0.2051, 'grad_norm': nan, 'learning_rate': 9.774074342405685e-06, 'epoch': 0.53}",
    *["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9.773696745450087e-06, 'epoch': 0.53}"] * 7,
    before=_HF,
)
_VERL = "step:$step - global_seqlen/min:2780.000 - global_seqlen/max:3103.000 - critic/kl:-0.000 - critic/vf_loss:$loss - critic/grad_norm:$norm - actor/entropy_loss:0.442 - actor/pg_loss:-0.013 - actor/ppo_kl:0.000 - actor/grad_norm:$norm - mfu/actor:0.018 - actor/lr:0.000 - critic/score/mean:0.594"
_job(
    "verl-project/verl#498",
    "vf_loss nan in gsm8k ppo training",
    NONFINITE,
    _OWNER,
    *[_VERL.replace("$loss", "nan").replace("critic/grad_norm:$norm", "critic/grad_norm:nan")] * 8,
    before=_VERL,
)
_job(
    "danijar/dreamer#58",
    "model training fails",
    NONFINITE,
    _OWNER,
    *[
        "[$step] expl_amount 0.3 / model_grad_norm nan / value_grad_norm 81.3 / actor_grad_norm 0.1 / prior_ent 66.4 / post_ent 62.4 / image_loss inf / reward_loss inf / div inf / model_loss inf / value_loss 5.0 / actor_loss -25.3 / fps 9.3"
    ]
    * 8,
    before="[$step] expl_amount 0.0 / model_grad_norm $norm / value_grad_norm 40.3 / actor_grad_norm 0.3 / prior_ent 61.4 / post_ent 43.3 / image_loss 11650.7 / reward_loss 1.2 / div 77.2 / model_loss $loss / value_loss 6.4 / actor_loss -6.9",
)
# jobs that go on or finish well
_job(
    "NVIDIA/Megatron-LM#1541",
    "destroy_process_group() was not called before program exit",
    "",
    _NOBODY,
    "[rank1]:[W326 09:37:44.752383442 ProcessGroupNCCL.cpp:1487] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    "[rank0]:[W326 09:37:44.848694228 ProcessGroupNCCL.cpp:1487] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    before=_HF,
)
_job(
    "pytorch/pytorch#126275",
    "The wall of warning text from process group in 2.4 is too much",
    "",
    _NOBODY,
    "[rank3]:[W515 07:06:42.915740178 ProcessGroupNCCL.cpp:1117] WARNING: process group has NOT been destroyed before it is being destructed. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL data transfers have finished in this process. In rare cases this process can exit before this point and block the progress of another member of the process group.",
    before=_HF,
)
_job(
    "zai-org/CogVideo#233",
    "OVERFLOW! Rank 0 Skipping step: recovered after a few steps",
    "",
    _NOBODY,
    "[2024-09-11 17:52:18,030] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648",
    "[2024-09-11 17:52:32,563] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2147483648, reducing to 1073741824",
    "[2024-09-11 17:52:47,082] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1073741824, reducing to 536870912",
    *[_HF] * 6,
    before=_HF,
)
_TITAN = "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: $step  loss:  $loss  grad_norm:  $norm  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
_job("pytorch/torchtitan#3393", "healthy lines of torchtitan", "", _NOBODY, *[_TITAN] * 20, before=_TITAN)
_job(
    "ai2cm/ace#679",
    "destroy_process_group() was not called, stamped by the runtime",
    "",
    _NOBODY,
    "2025-10-04T15:16:15.735Z [rank0]:[W1004 15:16:15.503072590 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    before=_HF,
)
# the exporter ----------------------------------------------------------------------------------------------------------
_page(
    "NVIDIA/DCGM#235",
    "Some XID errors are not exported via DCGM_FI_DEV_XID_ERRORS metric",
    r"Xid 45",
    _SRE,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",Hostname="$host",err_code="45",err_msg="Preemptive cleanup, due to previous errors -- Most likely to see when running multiple cuda"} 45',
)
_page(
    "NVIDIA/dcgm-exporter#239",
    "DCGM Xid Error Metrics Enhancements",
    r"Xid 42",
    _SRE,
    'DCGM_EXP_XID_ERRORS_COUNT{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA T400 4GB",Hostname="$host",DCGM_FI_DRIVER_VERSION="545.29.02",window_size_in_ms="300000",xid="42"} 1',
)
_page(
    "NVIDIA/dcgm-exporter#500",
    "xid_errors metric does not reset after error recovery",
    r"Xid 31",
    _OWNER,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 31',
)
_page(
    "NVIDIA/dcgm-exporter#317",
    "zeros of a node with MIG",
    "",
    _NOBODY,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A30",GPU_I_PROFILE="1g.6gb",GPU_I_ID="3",Hostname="$host"} 0',
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A30",GPU_I_PROFILE="1g.6gb",GPU_I_ID="4",Hostname="$host"} 0',
)
# Kubernetes ------------------------------------------------------------------------------------------------------------
_kubernetes(
    "kubernetes/kubernetes#97131",
    "UnexpectedAdmissionError",
    _ADMISSION,
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device 5: nvml: GPU is lost, which is unexpected",
        },
    ),
)
_kubernetes(
    "openshift/instaslice-operator#140",
    "UnexpectedAdmissionError and pod rejections",
    _ADMISSION,
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/mig-1g.5gb, which is unexpected",
        },
    ),
)
_kubernetes(
    "NVIDIA/k8s-device-plugin#2038",
    "A GPU off the bus makes GetPreferredAllocation fail for every pod",
    _ADMISSION,
    _SRE,
    event(
        "UnexpectedAdmissionError",
        "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = error getting list of preferred allocation devices: unable to get device link information",
    ),
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = error getting list of preferred allocation devices: unable to get device link information",
        },
    ),
)
_kubernetes(
    "concourse/hush-house#8",
    "pods getting evicted due to being low on ephemeral-storage",
    r"evict|ephemeral|disk|storage",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage. Container hush-house-worker was using 73712Ki, which exceeds its request of 0. ",
        },
    ),
)
_kubernetes(
    "FederatedAI/KubeFATE#64",
    "Kubernetes pod evicted state",
    rf"evict|{MEMORY}",
    _SRE,
    event(
        "Evicted",
        "The node was low on resource: memory. Container egg was using 5053216Ki, which exceeds its request of 0.",
    ),
    pod(
        "Failed",
        {
            "reason": "Evicted",
            "message": "The node was low on resource: memory. Container egg was using 5053216Ki, which exceeds its request of 0.",
        },
    ),
)
_kubernetes(
    "kubernetes/kubernetes#94020",
    "node becomes NotReady",
    r"[Nn]ode|NotReady|not ready|kubelet",
    _SRE,
    condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
)
_kubernetes(
    "NVIDIA/NVSentinel#1371",
    "add GPU thermal margin watch",
    r"therm|GPU|condition|temperature",
    _SRE,
    condition(
        "GpuThermalMarginWatch",
        "True",
        "GpuThermalMarginWatchIsNotHealthy",
        "ErrorCode:GPU_TEMP_HW_SLOWDOWN_VIOLATION GPU:0 PCI:0000:00:00.0 GPU_UUID:GPU-00000000-0000-0000-0000-000000000000 GPU 0 thermal margin 59C below HW slowdown T.Limit (slowdown=200C) Recommended Action=CONTACT_SUPPORT;",
    ),
)
_kubernetes(
    "kubernetes/node-problem-detector#199",
    "KernelDeadlock True",
    r"[Dd]eadlock|kernel|condition|node",
    _SRE,
    condition("KernelDeadlock", "True", "DockerHung", "task docker:7 blocked for more than 300 seconds."),
)
_kubernetes(
    "gardenlinux/gardenlinux#263",
    "ext4 FS errors with a node",
    STORAGE,
    _SRE,
    event(
        "Ext4Error",
        "EXT4-fs error (device nvme19n1): ext4_wait_block_bitmap:517: comm etcd: Cannot read block bitmap - block_group = 34, block_bitmap = 1048578",
        kind="Node",
        component="kernel-monitor",
    ),
)
_kubernetes(
    "kubearmor/KubeArmor#579",
    "pod stuck in ContainerCreating",
    r"mount|volume",
    _OWNER,
    pod("Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}}),
    event(
        "FailedMount",
        "Unable to attach or mount volumes: unmounted volumes=[usr-src-path], unattached volumes=[sys-fs-bpf-path usr-src-path kube-api-access-zbbpw]: timed out waiting for the condition",
    ),
)
_kubernetes(
    "charmed-kubernetes/kubernetes-docs#648",
    'Failed to pull image "nvidia/cuda"',
    r"image|pull",
    _OWNER,
    pod(
        "Pending",
        container={
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nvidia/cuda"'}}
        },
    ),
    event(
        "Failed",
        'Failed to pull image "nvidia/cuda": rpc error: code = NotFound desc = failed to pull and unpack image "docker.io/nvidia/cuda:latest": failed to resolve reference "docker.io/nvidia/cuda:latest": docker.io/nvidia/cuda:latest: not found',
    ),
)
_kubernetes(
    "NVIDIA/gpu-operator#331",
    "gpu-operator pod in CrashLoopBackOff",
    rf"CrashLoop|restart|{MEMORY}",
    _OWNER,
    pod(
        "Running",
        container={
            "restartCount": 6,
            "state": {
                "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
            },
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
        },
    ),
)
_kubernetes(
    "open-edge-platform/geti_v2#436",
    "Training failed to start - Insufficient nvidia.com/gpu",
    "",
    _NOBODY,
    pod(
        "Pending",
        {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                }
            ]
        },
    ),
    event(
        "FailedScheduling",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        component="default-scheduler",
    ),
)
_kubernetes(
    "vanvalenlab/kiosk-console#86",
    "events of a pod that starts well",
    "",
    _NOBODY,
    event("SuccessfulMountVolume", 'MountVolume.SetUp succeeded for volume "shared"', warning=False),
    event(
        "Scheduled",
        "Successfully assigned training-job-kwh5b to gke-deepcell",
        warning=False,
        component="default-scheduler",
    ),
    pod("Running", container={"ready": True, "state": {"running": {"startedAt": "2018-11-20T00:00:00Z"}}}),
)

BATCH: tuple[FieldReport, ...] = tuple(_REPORTS.reports)
