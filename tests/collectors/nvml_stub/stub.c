/* A libnvidia-ml.so.1 of eight pretend GPUs, with the symbols that nightshift/collectors/telemetry/nvml.py uses, its structures and its
 * error codes (NVML API reference). stub_* functions, called through ctypes, make a GPU disappear, hang, or move. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define UNINITIALIZED 1
#define INVALID 2
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define DRIVER_NOT_LOADED 9
#define TIMED_OUT 10
#define GPU_IS_LOST 15
#define MAX 16

typedef struct { int index; } device_t;
typedef struct { unsigned int domainOld; } unused_t;
typedef struct {
  char busIdLegacy[16];
  unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} pci_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct {
  unsigned int fieldId, scopeId;
  long long timestamp, latency;
  unsigned int valueType, ret;
  union { double d; unsigned long long u; } value;
} field_t;
typedef struct { unsigned int id, ret; double value; char *name, *longName, *unit; } gpm_metric_t;
typedef struct { unsigned int version, n; void *s1, *s2; gpm_metric_t metrics[512]; } gpm_get_t;
typedef struct { unsigned int version, supported; } gpm_support_t;

static device_t devices[MAX];
static int count = 8, loaded = 1, started = 0, hang_us = 0;
static int lost[MAX], unsupported[MAX], generation[MAX];
static unsigned long long ecc[MAX], energy[MAX];
static unsigned int limit_mw[MAX];
static unsigned int clock_mhz[MAX];
static int stuck[MAX], lying[MAX];
static int denied = 0;
static int samples = 0, calls = 0;
static int watched[MAX], xid_of[64], xid_gpu[64], first_xid = 0, last_xid = 0, event_sets = 0;

void stub_reset(void) {
  count = 8; loaded = 1; hang_us = 0;
  memset(lost, 0, sizeof lost); memset(unsupported, 0, sizeof unsupported);
  memset(generation, 0, sizeof generation); memset(ecc, 0, sizeof ecc); memset(energy, 0, sizeof energy);
  memset(limit_mw, 0, sizeof limit_mw); memset(stuck, 0, sizeof stuck);
  memset(watched, 0, sizeof watched); first_xid = last_xid = 0;
  memset(clock_mhz, 0, sizeof clock_mhz); memset(lying, 0, sizeof lying); denied = 0;
}
void stub_stuck(int i, int is) { stuck[i] = is; }
void stub_lie(int i, int is) { lying[i] = is; }
void stub_deny(int is) { denied = is; }
void stub_by_hand(int i, unsigned int mw) { limit_mw[i] = mw; }
unsigned int stub_clock(int i) { return clock_mhz[i]; }
void stub_lose(int i, int is) { lost[i] = is; }
void stub_old(int i, int is) { unsupported[i] = is; }
void stub_swap(int i) { generation[i]++; ecc[i] = 0; }
void stub_ecc(int i, unsigned long long n) { ecc[i] = n; }
void stub_driver(int is) { loaded = is; if (!is) started = 0; }
void stub_count(int n) { count = n; }
void stub_hang(int us) { hang_us = us; }
void stub_xid(int i, int code) { if (watched[i]) { xid_gpu[last_xid % 64] = i; xid_of[last_xid++ % 64] = code; } }
int stub_event_sets(void) { return event_sets; }
int stub_samples(void) { return samples; }
int stub_calls(void) { return calls; }

static int check(device_t *d) {
  calls++;
  if (!loaded) return DRIVER_NOT_LOADED;
  if (!started) return UNINITIALIZED;
  if (hang_us) usleep(hang_us);
  return lost[d->index] ? GPU_IS_LOST : OK;
}
#define GUARD(d) do { int r_ = check(d); if (r_) return r_; } while (0)

int nvmlInitWithFlags(unsigned int f) { (void)f; if (!loaded) return DRIVER_NOT_LOADED; started = 1; return OK; }
int nvmlShutdown(void) { if (!started) return UNINITIALIZED; started = 0; return OK; }
const char *nvmlErrorString(int r) { return r == GPU_IS_LOST ? "GPU is lost" : r == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "error"; }
int nvmlSystemGetDriverVersion(char *v, unsigned int n) { snprintf(v, n, "580.95.05"); return OK; }
int nvmlDeviceGetCount_v2(unsigned int *n) { if (!loaded) return DRIVER_NOT_LOADED; if (!started) return UNINITIALIZED; *n = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, device_t **d) {
  if ((int)i >= count) return INVALID;
  devices[i].index = i; *d = &devices[i];
  return lost[i] ? GPU_IS_LOST : OK;
}
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *p) {
  GUARD(d); memset(p, 0, sizeof *p); p->bus = 16 + d->index;
  snprintf(p->busId, sizeof p->busId, "00000000:%02X:00.0", 16 + d->index); return OK;
}
int nvmlDeviceGetName(device_t *d, char *s, unsigned int n) { GUARD(d); snprintf(s, n, "NVIDIA H200"); return OK; }
int nvmlDeviceGetVbiosVersion(device_t *d, char *s, unsigned int n) { GUARD(d); snprintf(s, n, "96.00.A5.00.03"); return OK; }
int nvmlDeviceGetSerial(device_t *d, char *s, unsigned int n) {
  GUARD(d); if (unsupported[d->index]) return NOT_SUPPORTED;
  snprintf(s, n, "165%d%d", d->index, generation[d->index]); return OK;
}
int nvmlDeviceGetUUID(device_t *d, char *s, unsigned int n) {
  GUARD(d); snprintf(s, n, "GPU-0000000%d-0000-0000-0000-00000000000%d", d->index, generation[d->index]); return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_v2_t *m) { GUARD(d); m->total = 150ULL << 30; m->used = 10ULL << 30; m->free = 139ULL << 30; m->reserved = 1ULL << 30; return OK; }
int nvmlDeviceGetUtilizationRates(device_t *d, utilization_t *u) { GUARD(d); u->gpu = 90; u->memory = 40; return OK; }
int nvmlDeviceGetRemappedRows(device_t *d, unsigned int *c, unsigned int *u, unsigned int *p, unsigned int *f) { GUARD(d); *c = 1; *u = 2; *p = 1; *f = 0; return OK; }
int nvmlDeviceGetFieldValues(device_t *d, int n, field_t *v) {
  GUARD(d);
  for (int i = 0; i < n; i++) {
    v[i].ret = v[i].fieldId == 38 ? NOT_SUPPORTED : OK;
    if (v[i].fieldId == 82) { v[i].valueType = 1; v[i].value.u = 55; } else { v[i].valueType = 3; v[i].value.u = 7; }
  }
  return OK;
}
int nvmlDeviceGetTotalEccErrors(device_t *d, int type, int counter, unsigned long long *n) { (void)counter; GUARD(d); if (unsupported[d->index]) return NOT_SUPPORTED; *n = type == 0 ? ecc[d->index] : 0; return OK; }
int nvmlDeviceGetHandleByUUID(const char *s, device_t **d) {
  for (int i = 0; i < count; i++) {
    char own[64];
    devices[i].index = i; snprintf(own, sizeof own, "GPU-0000000%d-0000-0000-0000-00000000000%d", i, generation[i]);
    if (!strcmp(own, s)) { *d = &devices[i]; return lost[i] ? GPU_IS_LOST : OK; }
  }
  return INVALID;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *s, device_t **d) {
  for (int i = 0; i < count; i++) {
    char own[32];
    devices[i].index = i; snprintf(own, sizeof own, "00000000:%02X:00.0", 16 + i);
    if (!strcmp(own, s)) { *d = &devices[i]; return lost[i] ? GPU_IS_LOST : OK; }
  }
  return INVALID;
}
int nvmlDeviceGetPowerManagementLimitConstraints(device_t *d, unsigned int *low, unsigned int *high) { GUARD(d); *low = 200000; *high = 700000; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(device_t *d, unsigned int *v) { GUARD(d); *v = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimit(device_t *d, unsigned int *v) { GUARD(d); *v = limit_mw[d->index] ? limit_mw[d->index] : 700000; return OK; }
int nvmlDeviceSetPowerManagementLimit(device_t *d, unsigned int v) {
  GUARD(d);
  if (denied) return NO_PERMISSION;
  if (stuck[d->index]) return GPU_IS_LOST;
  if (v < 200000 || v > 700000) return INVALID;
  if (!lying[d->index]) limit_mw[d->index] = v;
  return OK;
}
int nvmlDeviceGetCurrPcieLinkWidth(device_t *d, unsigned int *v) { GUARD(d); *v = 16; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(device_t *d, unsigned int *v) { GUARD(d); *v = 5; return OK; }
int nvmlDeviceGetPowerUsage(device_t *d, unsigned int *v) { GUARD(d); *v = 612345; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(device_t *d, unsigned int *v) { return nvmlDeviceGetPowerManagementLimit(d, v); }
int nvmlDeviceGetMaxClockInfo(device_t *d, int t, unsigned int *v) { GUARD(d); *v = t == 1 ? 1980 : 3201; return OK; }
int nvmlDeviceSetGpuLockedClocks(device_t *d, unsigned int low, unsigned int high) {
  GUARD(d);
  if (denied) return NO_PERMISSION;
  if (low > high || high > 1980) return INVALID;
  clock_mhz[d->index] = high; return OK;
}
int nvmlDeviceResetGpuLockedClocks(device_t *d) { GUARD(d); if (denied) return NO_PERMISSION; clock_mhz[d->index] = 0; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(device_t *d, unsigned long long *v) { GUARD(d); *v = energy[d->index] += 612; return OK; }
int nvmlDeviceGetTemperature(device_t *d, int s, unsigned int *v) { (void)s; GUARD(d); *v = 60 + d->index; return OK; }
int nvmlDeviceGetClockInfo(device_t *d, int t, unsigned int *v) {
  GUARD(d); *v = t != 1 ? 3201 : clock_mhz[d->index] ? clock_mhz[d->index] : 1980; return OK;
}
int nvmlGpmQueryDeviceSupport(device_t *d, gpm_support_t *s) { GUARD(d); s->supported = !unsupported[d->index]; return OK; }
int nvmlGpmSampleAlloc(void **s) { static char memory[4096]; *s = &memory[samples++ % 4096]; return OK; }
int nvmlGpmSampleFree(void *s) { (void)s; samples--; return OK; }
int nvmlGpmSampleGet(device_t *d, void *s) { (void)s; GUARD(d); return OK; }
int nvmlGpmMetricsGet(gpm_get_t *g) {
  if (g->version != 1 || !g->s1 || !g->s2 || g->s1 == g->s2) return INVALID;
  for (unsigned int i = 0; i < g->n; i++) { g->metrics[i].ret = OK; g->metrics[i].value = g->metrics[i].id == 10 ? 0.0 / 0.0 : 42.0; }
  return OK;
}
typedef struct { device_t *device; unsigned long long type, data; unsigned int instance, compute; } event_t;
int nvmlEventSetCreate(void **s) { if (!started) return UNINITIALIZED; event_sets++; *s = &first_xid; return OK; }
int nvmlEventSetFree(void *s) { (void)s; event_sets--; memset(watched, 0, sizeof watched); first_xid = last_xid; return OK; }
int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, void *s) {
  (void)s; GUARD(d); if (unsupported[d->index] || !(types & 8)) return NOT_SUPPORTED; watched[d->index] = 1; return OK;
}
int nvmlEventSetWait_v2(void *s, event_t *e, unsigned int ms) {
  (void)s; (void)ms;
  if (first_xid == last_xid) return TIMED_OUT;
  e->device = &devices[xid_gpu[first_xid % 64]]; e->type = 8; e->data = xid_of[first_xid++ % 64];
  e->instance = e->compute = 0xFFFFFFFF; return OK;
}
/* nvmlDeviceGetCurrentClocksEventReasons is left out: an older driver does not have it. */
