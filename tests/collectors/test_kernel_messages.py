"""Lines of the driver and the host without an Xid: every kind, drawn anew, in every stamp format."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kernel_log import lines
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.kernel_log.local import read_syslog
from nightshift.collectors.kernel_log.messages import (
    _NIC_DRIVERS,
    KINDS,
    MessageKind,
    read_message,
)
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, Severity
from nightshift.detectors.hardware.kernel_events import KernelEvents
from nightshift.detectors.hardware.xid_catalogue import Recovery

NODE = Subject(SubjectKind.NODE, "gpu-n7")
START_S = 1_795_266_000.0
SAMPLES = {
    "device_reserved": "nvidia {pci}: BAR 1: can't reserve [mem 0x{hex} 64bit pref]",
    "memory_online": "NVRM: Memory add failed. base: 0x{hex} size: 0x{hex} ret: -17",
    "security_fault": "NVRM: SEC_FAULT lockdown detected. This is fatal. RM will now shut down. {n}",
    "removed_in_use": "NVRM: Attempting to remove device {pci} with non-zero usage count!",
    "modeset": "nvidia-modeset: ERROR: GPU:{gpu}: Error while waiting for GPU progress: 0x{hex}:0 2:0:4048:4040",
    "drm_device": "[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x{hex}] Failed to allocate "
    "NvKmsKapiDevice",
    "module_version": "nvidia: disagrees about version of symbol module_layout",
    "module_unsigned_loading": "Loading of module with unavailable key is rejected",
    "module_unsigned_lockdown": "Lockdown: modprobe: unsigned module loading is restricted; see man {n}",
    "switch_driver": "nvidia-nvswitch{gpu}: nvswitch_poll_sub_link_state : Timeout while waiting sublink {n}",
    "node_agent_memory": "systemd: kubelet.service: A process of this unit has been killed by the OOM killer.",
    "kubelet_runtime": 'kubelet: E1123 kubelet.go:2117] "Skipping" err="PLEG is not healthy: {n}"',
    "kubelet_ended": 'kubelet: E1123 run.go:74] "command failed" err="failed to run Kubelet: misconfiguration {n}"',
    "kubelet_devices": 'kubelet: E1123 kuberuntime.go] "Failed to allocate device plugin resource for pod" {n}',
    "kubelet_evicts": 'kubelet: I1123 eviction_manager.go:366] "must evict pod(s) to reclaim" disk{n}',
    "containerd_gpus": "containerd: level=error msg=nvidia-container-cli: initialization error: nvml error: {n}",
    "dockerd_gpus": "dockerd: level=error msg=nvidia-container-cli: device error: {n}: unknown device: unknown",
    "kubelet_gpus": "kubelet: E1123 nvidia-container-cli: initialization error: load library failed {n}",
    "crio_gpus": "crio: level=error msg=nvidia-container-cli: initialization error: driver error: {n}",
    "slurmd_devices": "slurmd: error: GRES: gres/gpu count reported lower than configured ({gpu} < 8)",
    "slurmd_controller": "slurmd: error: Unable to register: Unable to contact slurm controller (connect failure)",
    "slurmd_failed": "slurmd: fatal: Unable to bind listen port ({n}): Address already in use",
    "slurm_lost": "slurmctld: error: Nodes gpu-n7 not responding, setting DOWN",
    "slurm_drained": "slurmctld: error: Setting node gpu-n7 state to DRAIN with reason:gres/gpu count too low",
    "amdgpu_queues": "kfd kfd: amdgpu: Failed to evict process queues {n}",
    "amdgpu_drm": "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma{gpu} timeout, signaled seq={n}",
    "radeon_hang": "radeon {pci}: ring {gpu} stalled for more than {n}msec",
    "xe_hang": "xe {pci}: [drm] GT0: Engine reset: engine_class=rcs, logical_mask: 0x1, guc_id={n}",
    "amdgpu_page": "amdgpu {pci}: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:{gpu} pasid:{n})",
    "infiniband_completion": "infiniband mlx5_{gpu}: dump_cqe:273:(pid {n}): dump error cqe",
    "mlx_refused": "mlx5_core {pci}: mlx5_cmd_out_err:838:(pid {n}): CREATE_QP(0x500) failed, status no "
    "resources(0xf), syndrome (0x{hex}), err(-12)",
    "bond_down": "bond0: now running without any active interface!",
    "bnxt_re_queue_pair": "bnxt_re {pci}: bnxt_re{gpu}: Failed to modify HW QP",
    "irdma_queue_pair": "irdma {pci}: abnormal AEQ event {n}",
    "page_offlined_old": "soft offline: 0x{hex}: page migration failed {n}, type 1",
    "kernel_oops_5": "divide error: 0000 [#{n}] SMP NOPTI",
    "kernel_oops_6": "double fault: 0000 [#{n}] SMP NOPTI",
    "kernel_oops_7": "stack segment: 0000 [#{n}] SMP NOPTI",
    "kernel_oops_8": "SError Interrupt on CPU{n}, code 0xbf000000 -- SError",
    "no_victim": "Out of memory and no killable processes...",
    "irq_off": 'irq {n}: nobody cared (try booting with the "irqpoll" option)',
    "file_handles": "VFS: file-max limit {n} reached",
    "no_nvme_path": "block nvme{gpu}n1: no available path - failing I/O",
    "beyond_end": "kworker/u{n}:1: attempt to access beyond end of device",
    "ext_marked": "EXT4-fs (sd{letter}1): warning: mounting fs with errors, running e2fsck is recommended",
    "raid_superblock": "md: super_written gets error=-{n}",
    "nfs_locks": "nfs4_reclaim_open_state: Lock reclaim failed!",
    "dcgm_health": "DCGM health watch PCIE failed: DCGM_FR_PCI_REPLAY_RATE (x)",
    "reset_required": "NVRM: GPU{gpu} nvAssertOkFailedNoLog: Assertion failed: Reset required "
    "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:{n}",
    "init_failed": "NVRM: GPU {pci}: RmInitAdapter failed! (0x{hex}:0x55:{n})",
    "gsp_heartbeat": "NVRM: GPU{gpu} _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff {n} timeout 5200",
    "gsp_timeout": "NVRM: GPU{gpu} _kgspLogRpcTimeout: ***** GSP Timeout *****",
    "gsp_crash": "NVRM: ****** GSP-CrashCat Report *******",
    "fsp": "NVRM: kfspWaitForResponse_GH100: FSP command timed out",
    "unsupported_gpu": "NVRM: installed in this system is not supported by the NVIDIA {n} driver release.",
    "gsp_booter": "NVRM: kgspExecuteBooterLoad_TU102: failed to execute Booter Load: 0x{hex}",
    "gsp_firmware": "NVRM: RmFetchGspRmImages: No firmware image found",
    "gsp_init": "NVRM: kgspInitRm_IMPL: cannot bootstrap riscv/gsp: 0x{hex}",
    "api_mismatch": "NVRM: API mismatch: the client has the version 580.{n}, but",
    "gpu_is_lost": "NVRM: _issueRpcLarge: rpcSendMessage failed with status 0x0000000f: NV_ERR_GPU_IS_LOST {pci}",
    "probe_failed": "NVRM: The NVIDIA probe routine failed for {n} device(s).",
    "no_gpu_found": "NVRM: No NVIDIA graphics adapter found!",
    "power_cables": "NVRM: GPU {pci}: GPU does not have the necessary power cables connected.",
    "bar_invalid": "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
    "vbios": "NVRM: failed to copy vbios to system memory.",
    "fabric_probe": "NVRM: GPU{gpu} gpuFabricProbe: fabric probe failed after {n} tries",
    "power_state": "nvidia {pci}: Unable to change power state from D3cold to D0, device inaccessible",
    "fabric_fatal": "nv-fabricmanager: detected NVSwitch fatal error 2{n} on fid 0 on NVSwitch pci bus id x",
    "fabric_nonfatal": "nv-fabricmanager: detected NVSwitch non-fatal error 2{n} on fid 0 on NVSwitch pci bus id x",
    "fabric_version": "nv-fabricmanager: fabric manager NVIDIA GPU driver interface version 5{n} don't match "
    "with driver version 570. Please update",
    "fabric_training": "nv-fabricmanager: NVLink {n} training failed between GPU and switch",
    "fabric_start": "nv-fabricmanager: failed to initialize all the available NVSwitches",
    "fabric_manager_service": "systemd: nvidia-fabricmanager.service: Failed with result 'signal'.",
    "imex_service": "systemd: nvidia-imex.service: Main process exited, code=dumped, status={n}/SEGV",
    "persistence_service": "systemd: nvidia-persistenced.service: Main process exited, code=killed, status=9/KILL",
    "dcgm_service": "systemd: nvidia-dcgm.service: Failed with result 'core-dump'.",
    "mlx_health": "mlx5_core {pci}: mlx5_health_check: device's health compromised - reached miss count",
    "mlx_fatal": "mlx5_core {pci}: mlx5_health_try_recover:{n}: handling bad device here",
    "mlx_command": "mlx5_core {pci}: ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
    "mlx_module": "mlx5_core {pci}: Port module event[error]: module {gpu}, Cable error, Bus stuck",
    "mlx_temperature": "mlx5_core {pci}: High temperature on sensors with bit set 0 {n}",
    "mlx_power": "mlx5_core {pci}: Detected insufficient power on the PCIe slot ({n}W).",
    "mlx_transmit": "mlx5_core {pci} {nic}: TX timeout detected",
    "mlx_completion": "mlx5_core {pci} {nic}: Error cqe on cqn 0x{hex}, ci 0x1, sqn 0x2",
    "mlx_pci": "mlx5_core {pci}: mlx5_pci_err_detected Device state = 1 pci_status: 0. Enter",
    "mlx_link": "mlx5_core {pci} {nic}: Link down",
    "transmit_queue": "NETDEV WATCHDOG: {nic} (mlx5_core): transmit queue {n} timed out",
    "bond_member": "bond0: (slave {nic}): link status definitely down, disabling slave",
    "bnxt_en_link": "bnxt_en {pci} {nic}: NIC Link is Down",
    "ice_link": "ice {pci} {nic}: NIC Link is Down",
    "i40e_link": "i40e {pci} {nic}: NIC Link is Down",
    "ixgbe_link": "ixgbe {pci} {nic}: NIC Link is Down",
    "igb_link": "igb {pci} {nic}: igb: {nic} NIC Link is Down",
    "dpc": "pcieport {pci}: DPC: containment event, status:0x{hex} source:0x0000",
    "slot_down": "pcieport {pci}: pciehp: Slot({n}): Link Down",
    "slot_power": "pcieport {pci}: pciehp: Slot({n}): Power fault",
    "recovery_failed": "pcieport {pci}: AER: device recovery failed",
    "retraining": "pcieport {pci}: broken device, retraining non-functional downstream link at 2.5GT/s",
    "hotplug_timeout": "pcieport {pci}: pciehp: Timeout on hotplug command 0x{hex} (issued {n} msec ago)",
    "dma_fault_DMAR": "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0x{hex} [fault reason 0x06]",
    "io_page_fault": "AMD-Vi: Event logged [IO_PAGE_FAULT device={pci} domain=0x{hex} address=0x{hex}]",
    "memory_uncorrected": "EDAC MC{gpu}: 1 UE memory read error on CPU_SrcID#0_MC#0 (channel:{gpu} page:0x{hex})",
    "memory_corrected": "EDAC MC{gpu}: 1 CE memory read error on CPU_SrcID#0_MC#0 (channel:{gpu} page:0x{hex})",
    "machine_check": "mce: [Hardware Error]: CPU {n}: Machine Check Exception: 5 Bank {gpu}: be{hex}",
    "memory_poison": "mce: Uncorrected hardware memory error in user-access at {hex}",
    "machine_check_logged": "mce: [Hardware Error]: Machine check events logged",
    "machine_check_storm": "mce: CMCI storm detected: switching to poll mode",
    "firmware_fatal": "{{{n}}}[Hardware Error]: event severity: fatal",
    "firmware_recoverable": "{{{n}}}[Hardware Error]: event severity: recoverable",
    "firmware_corrected": "{{{n}}}[Hardware Error]: event severity: corrected",
    "page_poison": "Memory failure: 0x{hex}: recovery action for dirty LRU page: Failed",
    "page_offlined": "soft_offline: 0x{hex}: page migration failed {n}, type 1",
    "throttled_cpu": "CPU{n}: Core temperature above threshold, cpu clock throttled (total events = {n})",
    "critical_temperature_0": "thermal thermal_zone{gpu}: acpitz: critical temperature reached, shutting down",
    "soft_lockup": "watchdog: BUG: soft lockup - CPU#{n} stuck for 22s! [python3:{n}]",
    "hard_lockup": "watchdog: Watchdog detected hard LOCKUP on cpu {n}",
    "nmi_hard_lockup": "NMI watchdog: Watchdog detected hard LOCKUP on cpu {n}",
    "nmi_lockup": "NMI watchdog: BUG: soft lockup - CPU#{n} stuck for 22s! [python3:{n}]",
    "rcu_stall_rcu": "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
    "kernel_bug": "BUG: unable to handle page fault for address: ffff{hex}",
    "kernel_assertion": "kernel BUG at mm/slub.c:{n}!",
    "panic": "Kernel panic - not syncing: Fatal exception in interrupt",
    "nvme_down": "nvme nvme{gpu}: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x{hex}",
    "nvme_timeout": "nvme nvme{gpu}: I/O {n} QID 3 timeout, aborting",
    "nvme_removed": "nvme nvme{gpu}: Removing after probe failure status: -19",
    "nvme_error": "nvme{gpu}n1: I/O Cmd(0x2) @ LBA {n}, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE",
    "power_supply": "ipmi: {n}, Nov-05-2025, 16:10, PS{gpu} Status, Power Supply, Critical, Assertion Event, "
    "Power Supply input lost (AC/DC)",
    "medium_error": "critical medium error, dev nvme{gpu}n1, sector {n} op 0x0:(READ) flags 0x80700",
    "io_error_0": "I/O error, dev sd{letter}, sector {n} op 0x1:(WRITE) flags 0x800",
    "io_error_1": "blk_update_request: I/O error, dev sd{letter}, sector {n}",
    "io_error_2": "Buffer I/O error on dev dm-{gpu}, logical block {n}, lost async page write",
    "ext_error": "EXT4-fs error (device nvme{gpu}n1p2): ext4_find_entry:{n}: inode #{n}: comm python3: x",
    "ext_read_only": "EXT4-fs (nvme{gpu}n1p2): Remounting filesystem read-only",
    "journal_aborted": "Aborting journal on device nvme{gpu}n1p2-8.",
    "xfs_error": "XFS (nvme{gpu}n1): metadata I/O error in \"xfs_da_read_buf+0x{hex}\" at daddr 0x{hex} len 8",
    "btrfs_error": "BTRFS error (device sd{letter}): bdev /dev/sda errs: wr {n}, rd 0, flush 0, corrupt 0, gen 0",
    "raid_failure": "md/raid1:md{gpu}: Disk failure on sd{letter}, disabling device.",
    "ata_error": "ata{gpu}.00: failed command: READ FPDMA QUEUED",
    "path_failed": "device-mapper: multipath: 253:{gpu}: Failing path 8:{n}.",
    "uvm_fatal": "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x{hex}, requiring os reboot",
    "interrupts_unhandled": "NVRM: Going over RM unhandled interrupt threshold for irq {n}",
    "locked_up": "NVRM: nvCheckOkFailedNoLog: Check failed: Call timed out [NV_ERR_TIMEOUT] (0x65) @ rpc.c:{n}",
    "device_failed": "NVRM: GPU {pci}: RmInitNvDevice failed {n}",
    "openib_service": "systemd: openibd.service: Failed with result 'exit-code'.",
    "node_agent_service": "systemd: kubelet.service: Failed with result 'exit-code'.",
    "mount_failed": "systemd: data-{n}.mount: Mount process exited, code=exited, status=32/n/a",
    "imex_log": "nvidia-imex: [ERROR] Failed to read the nodes' configuration {n}",
    "persistence_log": "nvidia-persistenced: Failed to query NVIDIA devices. Please ensure that the files exist",
    "mcelog_uncorrected": "mcelog: Uncorrected error in CPU {n}",
    "rasdaemon_uncorrected": "rasdaemon: mc_event: 1 Uncorrected error: memory read error on DIMM{gpu}",
    "rasdaemon_corrected": "rasdaemon: mc_event: 1 Corrected error: memory read error on DIMM{gpu}",
    "amdgpu": "amdgpu {pci}: amdgpu: ring gfx_0.0.0 timeout, signaled seq={n}, emitted seq={n}",
    "amdgpu_init": "amdgpu {pci}: amdgpu: Fatal error during GPU init",
    "habanalabs": "habanalabs {pci}: Failed to initialize the H/W, device is disabled. Device is NOT usable!",
    "mlx_probe": "mlx5_core {pci}: probe_one:{n}:(pid {n}): mlx5_init_one failed with error code -110",
    "ipoib_transmit": "ib0: transmit timeout: latency {n} msecs",
    "hfi_link": "hfi1 {pci}: hfi1_0: set_link_state: current ACTIVE, new OFFLINE",
    "conntrack_full": "nf_conntrack: nf_conntrack: table full, dropping packet",
    "neighbour_full": "neighbour: arp_cache: neighbor table overflow!",
    "tcp_memory": "TCP: out of memory -- consider tuning tcp_mem",
    "namespace_stuck": "unregister_netdevice: waiting for veth{hex} to become free. Usage count = {n}",
    "slot_link": "pcieport {pci}: pciehp: Slot({n}): Cannot train link: status 0x{hex}",
    "slot_down_old": "pciehp {pci}:pcie04: slot({n}): Link Down event",
    "slot_power_old": "pciehp {pci}:pcie04: Power fault on slot {n}",
    "slot_link_old": "pciehp {pci}:pcie04: Failed to check link status",
    "hotplug_timeout_old": "pciehp {pci}:pcie04: Timeout on hotplug command 0x{hex} (issued {n} msec ago)",
    "not_ready": "nvme {pci}: not ready 65535ms after FLR; giving up",
    "inaccessible": "vfio-pci {pci}: Unable to change power state from D3cold to D0, device inaccessible",
    "eeh_frozen": "EEH: Frozen PHB#{n}-PE#{gpu} detected",
    "dma_fault_dmar": "dmar: DMAR:[DMA Write] Request device [02:00.0] fault addr {hex}",
    "iommu_stuck": "AMD-Vi: Completion-Wait loop timed out",
    "smmu_fault_0": "arm-smmu-v3 arm-smmu-v3.{gpu}.auto: event 0x10 received:",
    "smmu_fault_1": "arm-smmu {n}00000.iommu: Unhandled context fault: fsr=0x{hex}, iova=0x{hex}",
    "machine_check_corrected": "mce: [Hardware Error]: CPU {n}: Machine Check: 0 Bank {gpu}: 9c00000001{gpu}10092",
    "machine_check_decoded": "[Hardware Error]: Uncorrected, software restartable error.",
    "memory_corrected_amd": "[Hardware Error]: MC4 Error (node {n}): DRAM ECC error detected on the NB.",
    "machine_check_deferred": "[Hardware Error]: Deferred error, no action required.",
    "machine_check_amd": "[Hardware Error]: Corrected error, no action required.",
    "page_killed": "MCE 0x{hex}: Killing python3:{n} due to hardware memory corruption",
    "throttled_mce": "mce: CPU{n}: Package temperature above threshold, cpu clock throttled (total events = {n})",
    "critical_temperature_1": "critical temperature reached ({n} C), shutting down",
    "critical_temperature_2": "Critical temperature reached ({n} C), shutting down",
    "critical_temperature_3": "ACPI: Critical temperature reached ({n} C), shutting down",
    "nmi_error": "NMI: PCI system error (SERR) for reason b1 on CPU {n}.",
    "nmi_unknown": "Uhhuh. NMI received for unknown reason 2d on CPU {n}.",
    "rcu_stall_info": "INFO: rcu_sched self-detected stall on CPU {{ {n}}}",
    "kernel_lockup": "BUG: workqueue lockup - pool cpus={n} node=0 flags=0x0 nice=0 stuck for {n}s!",
    "kernel_oops_0": "general protection fault, probably for non-canonical address 0x{hex}: 0000 [#1] SMP NOPTI",
    "kernel_oops_1": "Oops: 0002 [#1] SMP NOPTI",
    "kernel_oops_2": "invalid opcode: 0000 [#1] SMP NOPTI",
    "kernel_oops_3": "Internal error: Oops: 96000004 [#1] SMP",
    "kernel_oops_4": "Unable to handle kernel NULL pointer dereference at virtual address 00000000000000{hex}",
    "ipmi_memory": "ipmi: {n}, Nov-05-2025, DIMM_A{gpu}, Memory, Critical, Assertion Event, Uncorrectable ECC",
    "ipmi_processor": "ipmi: {n}, Nov-05-2025, CPU{gpu}, Processor, Critical, Assertion Event, IERR",
    "ipmi_bus": "ipmi: {n}, Nov-05-2025, PCIe, Critical Interrupt, Critical, Assertion Event, Bus Fatal Error",
    "ipmi_heat": "ipmi: {n}, Nov-05-2025, Inlet, Temperature, Critical, Assertion Event, Upper Critical going high",
    "ipmi_fan": "ipmi: {n}, Nov-05-2025, FAN{gpu}, Fan, Critical, Assertion Event, Lower Critical going low",
    "ipmi_drive": "ipmi: {n}, Nov-05-2025, Bay {gpu}, Drive Slot, Critical, Assertion Event, Drive Fault",
    "nvme_fabric": "nvme nvme{gpu}: starting error recovery",
    "ext_io": "EXT4-fs warning (device sd{letter}1): ext4_end_bio:{n}: I/O error 10 writing to inode {n}",
    "journal_error": "JBD2: Error -5 detected when updating journal superblock for sd{letter}1-8.",
    "xfs_memory": "XFS: python3({n}) possible memory allocation deadlock size {n} in kmem_alloc (mode:0x2400240)",
    "btrfs_checksum": "BTRFS warning (device sd{letter}): csum failed root 5 ino {n} off 0 csum 0x{hex} expected",
    "zfs_suspended": "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.",
    "raid_event": "mdadm: Fail event detected on md device /dev/md{gpu}, component device /dev/sda1",
    "scsi_error": "sd {gpu}:0:0:0: [sd{letter}] tag#{n} Sense Key : Medium Error [current]",
    "megaraid_sas_controller": "megaraid_sas {pci}: {n} (7s/0x0020/CRIT) - Controller encountered an error",
    "mpt_controller": "mpt3sas_cm{gpu}: fault_state(0x58{hex})!",
    "smartpqi_controller": "smartpqi {pci}: controller is offline: status code 0x{hex}",
    "hpsa_controller": "hpsa {pci}: Controller lockup detected: 0x{hex} after 30",
    "aacraid_controller": "aacraid {pci}: Adapter health - -{n}",
    "smart_failed": "smartd: Device: /dev/nvme{gpu}, Critical Warning (0x04): Reliability",
    "thin_pool_full": "device-mapper: thin: 253:{gpu}: switching pool to out-of-data-space mode",
    "no_path": "multipathd: mpath{letter}: remaining active paths: 0",
    "lustre_evicted": "LustreError: 167-0: scratch-OST00{hex}-osc: This client was evicted by scratch-OST00{hex}",
    "lustre_mount": "LustreError: {n}:0:(obd_mount.c:{n}:lustre_fill_super()) Unable to mount (-{n})",
    "lustre_request": "Lustre: {n}:0:(client.c:{n}:ptlrpc_expire_one_request()) @@@ Request sent has timed out",
    "lustre_operation": "LustreError: 11-0: scratch-MDT0000: operation obd_ping to node 10.0.0.{n}@o2ib failed: rc",
    "lustre_network_lnet": "LNet: {n}:0:(o2iblnd_cb.c:{n}:kiblnd_check_conns()) Timed out tx for 10.0.0.{n}@o2ib",
    "lustre_network_lneterror": "LNetError: {n}:0:(lib-msg.c:{n}:lnet_health()) Timed out tx: active_txs",
    "nfs_state": "NFS: state manager: lease expired failed on NFSv4 server 10.0.0.{n} with error 13",
    "cifs_silent": "CIFS: VFS: \\\\nas{n} has not responded in 180 seconds. Reconnecting...",
    "ceph_lost": "libceph: mon{gpu} (1)10.0.0.{n}:6789 session lost, hunting for new mon",
    "ceph_evicted": "ceph: mds{gpu} session blocklisted",
    "beegfs": "beegfs: messenger({n}) [Messaging (RPC)] >> Communication error: Receive timed out from: n1",
    "gpfs": "mmfs: Error=MMFS_SYSTEM_UNMOUNT, ID=0x{hex}, Tag={n}",
} | {
    f"{driver}_{name}": f"{driver} {{pci}} {{nic}}: {words}"
    for driver in _NIC_DRIVERS
    for name, words in (
        ("link", "NIC Link is Down"), ("transmit", "TX timeout detected, starting reset task!"),
        ("firmware", "Firmware recovery mode detected. Limiting functionality."),
        ("errors", "Warning firmware error detected FWSM: 0x00000000"),
    )
} | {
    f"{driver}_probe": f"{driver}: probe of {{pci}} failed with error -22"
    for driver in (
        "mlx5_core", "mlx4_core", "efa", *_NIC_DRIVERS, "nvidia", "nvme", "megaraid_sas", "mpt3sas", "smartpqi",
    )
}  # fmt: skip
HEALTHY = (
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build",
    "nvidia 0000:3b:00.0: enabling device (0140 -> 0142)",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 234",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:5e:00.0: firmware version: 28.39.1002",
    "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    "pcieport 0000:00:1c.0: pciehp: Slot(12): Card present",
    "pcieport 0000:00:1c.0: DPC: enabled with IRQ 122",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (nvme1n1): Ending clean mount",
    "BTRFS info (device sda): using crc32c (crc32c-intel) checksum algorithm",
    "thermal thermal_zone0: failed to read out thermal zone (-61)",
    "rcu: \tRCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=256.",
    "CPU0: Intel(R) Xeon(R) Platinum 8480+ (family: 0x6, model: 0x8f, stepping: 0x8)",
    "Memory: 527871264K/536588204K available",
    "watchdog: Delayed init of the lockup detector failed: 0",
    "ata1.00: configured for UDMA/133",
    "kernel: Kernel command line: BOOT_IMAGE=/vmlinuz",
    "systemd: nvidia-fabricmanager.service: Main process exited, code=killed, status=15/TERM",
    "systemd: nvidia-fabricmanager.service: Deactivated successfully.",
    "systemd: logrotate.service: Failed with result 'exit-code'.",
    "i801_smbus: probe of 0000:00:1f.4 failed with error -16",
    "mlx5_core: probe of 0000:5e:00.0 failed with error -517",
    'audit: type=1400 audit(1795260000.123:456): apparmor="ALLOWED" operation="open" profile="/usr/bin/x"',
    "traps: python3[4242] general protection fault ip:7f2b sp:7ffd error:0 in libc.so.6[7f2b+195000]",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x0",
    "sd 0:0:0:0: [sda] Attached SCSI disk",
    "sd 0:0:0:0: [sda] tag#0 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE",
    "ice 0000:3b:00.0 ens1f0: changing MTU from 1500 to 9000",
    "smartd: Device: /dev/sda [SAT], 0 Currently unreadable (pending) sectors",
    "multipathd: mpatha: remaining active paths: 3",
    "ipmi: 28, Nov-05-2025, 16:10, PS1 Status, Power Supply, Nominal, Deassertion Event, Power Supply input lost",
    "ipmi: 29, Nov-05-2025, 16:12, PS1 Status, Power Supply, Nominal, Assertion Event, Presence detected",
)


OTHER_PROGRAMS = {
    **{
        name: name
        for name in (
            *("kubelet", "containerd", "dockerd", "crio", "slurmd", "slurmctld"),
            "nv-fabricmanager", "systemd", "nvidia-imex", "nvidia-persistenced", "mmfs", "mdadm", "multipathd",
            "smartd", "mcelog", "rasdaemon",
        )
    },
    "ipmi": "ipmiseld",
}  # fmt: skip
"""The programs whose lines are read beside the kernel's, by the first word of their rows."""
MORE_WORDS = {
    "gsp_timeout": ("NVRM: GPU1 _issueRpcAndWait: rpcSendMessage failed with status 0x00000065 for fn 4!",),
    "gsp_init": (
        "NVRM: GPU3 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        "NVRM: GPU3 RmInitAdapter: Cannot initialize GSP firmware RM",
    ),
    "transmit_queue": ("r8125 0000:22:04.0 eth4: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms",),
    "io_page_fault": ("nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80]",),
    "recovery_failed": ("nvidia 0000:3b:00.0: AER: can't recover (no error_detected callback)",),
    "memory_corrected": ('EDAC MC0: CE page 0x283, offset 0xce0, grain 8, syndrome 0x6ec3, row 0, channel 1 "B1"',),
    "machine_check": ("mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408",),
    "no_gpu_found": ("NVRM: NVIDIA init module failed!", "NVRM: None of the NVIDIA devices were initialized."),
}
"""Further wordings of a kind."""


def fill(template: str, draw: random.Random) -> tuple[str, dict[str, str]]:
    values = {
        "pci": f"0000:{draw.randrange(1, 255):02x}:00.0",
        "gpu": str(draw.randrange(8)),
        "n": str(draw.randrange(1, 100)),
        "hex": f"{draw.randrange(16, 97):x}",
        "nic": draw.choice(["eth0", "ens1f0np0", "enp5s0"]),
        "letter": draw.choice("abcdef"),
    }
    return template.format(**values), values


def stamps(draw: random.Random) -> list[str]:
    """Heads that dmesg, syslogs and shippers put before a line, of one drawn moment."""
    at = datetime.fromtimestamp(START_S - draw.randrange(3600), UTC)
    host = f"gpu-n{draw.randrange(100)}"
    return [
        f"[{draw.randrange(10**6)}.{draw.randrange(10**6):06}] ",
        f"{at:[%a %b %e %H:%M:%S %Y]} ",
        f"{at:%b %e %H:%M:%S} {host} kernel: [{draw.randrange(10**5)}.000001] ",
        f"{at:%Y-%m-%dT%H:%M:%S}.{draw.randrange(10**6):06}+00:00 {host} kernel: ",
        f"<4>1 {at:%Y-%m-%dT%H:%M:%S}.000001Z {host} kernel - - - ",
        f"{at:%Y-%m-%dT%H:%M:%S},123456+00:00 ",
        f"10.0.0.{draw.randrange(255)}: kern: warning: [{at:%Y-%m-%dT%H:%M:%S}.291660856Z]: ",
    ]


def parsed(text: str) -> Callable[[float], object]:
    parser = KernelLogParser(NODE)
    return lambda t_s: parser.read(LogRecord(Instant(t_s), "/dev/kmsg", NODE, text, int(t_s)))


def test_the_table_has_a_sample_of_each_kind_and_speaks_the_detectors_words() -> None:
    assert set(SAMPLES) == {kind.name for kind in KINDS}
    assert len(KINDS) >= 60
    for kind in KINDS:
        assert Fault(kind.fault)
        assert Severity(kind.severity)
        assert kind.source
        assert not kind.recovery or Recovery(kind.recovery)
        assert kind.about in ("gpu", "nic", "disk", "node")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_is_read_in_every_stamp_format(kind: MessageKind) -> None:
    """Drawn addresses, numbers and devices: the words tell, and the line's own names are kept."""
    draw = random.Random(kind.name)
    for _ in range(5):
        text, values = fill(SAMPLES[kind.name], draw)
        found = read_message(text)
        assert found is not None, text
        assert found.kind is kind, text
        if "{nic}" in SAMPLES[kind.name]:
            assert found.device == values["nic"]
        if "{pci}" in SAMPLES[kind.name] and kind.about == "gpu":
            assert found.pci_address == values["pci"]
        for head in stamps(draw) if kind.first_word not in OTHER_PROGRAMS else ():
            line = read_syslog(head + text, START_S)
            assert line is not None, head
            assert line.text == text, head


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_opens_its_fault_once_there_are_enough_lines(kind: MessageKind) -> None:
    """A kind that a healthy machine writes now and then needs as many as its row says."""
    draw, detector = random.Random(f"{kind.name} again"), KernelEvents()
    text, _ = fill(SAMPLES[kind.name], draw)
    read = parsed(text)
    findings: list[Finding] = []
    for number in range(kind.least):
        assert not findings, "one line too early"
        at_s = START_S + (0.1 if kind.lasts_s else 20.0) * number
        event = read(at_s)
        assert event is not None
        assert event.kind is KernelEventKind.MESSAGE  # type: ignore[attr-defined]
        findings = detector.update(Tick(at_s, {}, events=(event,)), Inventory())  # type: ignore[arg-type]
    (finding,) = findings
    assert (finding.fault.value, finding.severity.value) == (kind.fault, kind.severity)
    assert finding.summary.startswith(kind.meaning)
    assert finding.facts.get("log_recovery", "") == kind.recovery
    assert finding.subject.name.partition("/")[0] == NODE.name
    assert finding.subject.kind.value in (kind.about, "node")


LASTING = {
    "mlx_link": ("mlx5_core 0000:5e:00.0 ens1: Link down", "mlx5_core 0000:5e:00.0 ens1: Link up"),
    "ice_link": ("ice 0000:5e:00.0 ens1: NIC Link is Down", "ice 0000:5e:00.0 ens1: NIC Link is up 100 Gbps"),
    "bond_member": (
        "bond0: link status definitely down for interface ens1, disabling it",
        "bond0: link status definitely up for interface ens1, 100000 Mbps full duplex",
    ),
    "throttled_cpu": (
        "CPU5: Package temperature is above threshold, cpu clock is throttled (total events = 12)",
        "CPU5: Package temperature/speed normal",
    ),
    "ceph_lost": ("libceph: mon0 (1)10.0.0.4:6789 session lost, hunting for new mon",
                  "libceph: mon2 (1)10.0.0.6:6789 session established"),
    "nfs": ("nfs: server nas1 not responding, still trying", "nfs: server nas1 OK"),
    "lustre": ("Lustre: s-OST0012-osc-ffff8: Connection to s-OST0012 (at 10.0.0.2@o2ib) was lost; in progress",
               "Lustre: s-OST0012-osc-ffff8: Connection restored to s-OST0012 (at 10.0.0.2@o2ib)"),
}  # fmt: skip


def findings_of(*timed: tuple[float, str]) -> list[Finding]:
    """What the detector says of these lines (s after the start), with ticks for 200 s beyond the last."""
    parser, detector = KernelLogParser(NODE), KernelEvents()
    told, left = [], list(timed)
    for tick in range(int(timed[-1][0]) // 5 + 40):
        at_s, events = 5.0 * tick, []
        while left and left[0][0] <= at_s:
            t_s, text = left.pop(0)
            event = parser.read(LogRecord(Instant(START_S + t_s), "/dev/kmsg", NODE, text, tick))
            events += [event] if event else []
        told += detector.update(Tick(START_S + at_s, {}, events=tuple(events)), Inventory())
    return told


@pytest.mark.parametrize("kind", LASTING)
def test_what_stays_down_for_a_minute_is_a_fault_and_what_comes_back_is_none(kind: str) -> None:
    down, back = LASTING[kind]
    assert {f.severity for f in findings_of((0.0, down))} == {Severity.WARNING}
    assert findings_of((0.0, down), (30.0, back)) == []


def test_a_port_without_a_cable_says_so_after_a_boot() -> None:
    down = LASTING["ice_link"][0]
    assert findings_of((0.0, "Linux version 6.8.0 (x@y)"), (30.0, down)) == []
    assert findings_of((0.0, "Linux version 6.8.0 (x@y)"), (400.0, down)) != []


def test_a_task_is_stuck_after_two_minutes_in_all() -> None:
    line = "INFO: task jbd2/sda1:{} blocked for more than {} seconds."
    assert findings_of((0.0, line.format(7, 30))) == []
    assert findings_of((0.0, line.format(7, 120)))[0].summary.startswith("A process is stuck in the kernel")


def test_errors_that_one_line_counts_weigh_as_many() -> None:
    line = "EDAC MC1: {} CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)"
    assert findings_of((0.0, line.format(9))) == []
    assert findings_of((0.0, line.format(262))) != []


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_line_is_of_no_kind(text: str) -> None:
    assert read_message(text) is None


@pytest.mark.parametrize("kind", MORE_WORDS)
def test_every_wording_of_a_kind_is_read(kind: str) -> None:
    assert {found.kind.name for text in MORE_WORDS[kind] if (found := read_message(text))} == {kind}
    assert all(map(read_message, MORE_WORDS[kind]))


@pytest.mark.parametrize("kind", [k for k in KINDS if k.first_word in OTHER_PROGRAMS], ids=lambda kind: kind.name)
def test_a_line_of_a_program_that_runs_the_host_is_read_from_every_log(kind: MessageKind) -> None:
    """Syslog with and without a process number, RFC 5424, and journald's JSON; of any other program nothing is."""
    text, _ = fill(SAMPLES[kind.name], random.Random(kind.name))
    program, words = OTHER_PROGRAMS[kind.first_word], text.partition(": ")[2]
    row = {"__REALTIME_TIMESTAMP": str(int(START_S * 1e6)), "_HOSTNAME": "n1", "SYSLOG_IDENTIFIER": program}
    for line in (
        f"Nov 21 12:59:50 n1 {program}[712]: {words}",
        f"2026-11-21T12:59:50.000001+00:00 n1 {program}: {words}",
        f"<27>1 2026-11-21T12:59:50.000001Z n1 {program} 712 - - {words}",
        json.dumps(row | {"MESSAGE": words}),
    ):
        read = read_syslog(line, START_S)
        assert read is not None, line
        assert (read.host, read.text) == ("n1", text), line
        other = read_syslog(line.replace(program, "sshd"), START_S)
        assert other is not None, line
        assert other.text is None, line


def test_every_marker_of_a_reader_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for heads, marker, _ in lines._READERS:
        for head in heads:
            entry = (marker, lambda parser, record, text: asked.append(text))
            monkeypatch.setitem(lines._BY_HEAD, head, (entry,))
            KernelLogParser(NODE).read(LogRecord(Instant(START_S), "k", NODE, f"{head} {marker}", 0))
            assert asked.pop() == f"{head} {marker}"
