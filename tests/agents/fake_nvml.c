/* A stand-in for libnvidia-ml.so.1. All state is read from the file $FAKE_NVML_STATE at each call, so that a test changes
 * hardware while the agent runs. It began as this project's 45-line stub driver, extended by clocks, ECC, XID events, MIG,
 * processes, recovery actions and a driver that fails or hangs as a whole.
 *
 *   !error N          every call answers N (999 is "unknown error")
 *   !hang             every call blocks until the line is gone
 *   gpu|name|uuid|mem_total_mib|mem_used_mib|gpu_util|temp_c|power_mw|throttle_hex|lost(0/1)[|key=value ...]
 *       keys: sm=MHz  smmax=MHz  ecc=N  recovery=N  pids=1,2,3  mig=0/1  err=N (this GPU answers N)
 *   mig|parent_uuid|uuid|profile|mem_total_mib|mem_used_mib
 *
 * XIDs are lines "uuid code" appended to $FAKE_NVML_STATE.xid; an event set sees what was appended after it was made.
 * Calls that are not here fail with "function not found", as on an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int R;
enum { OK = 0, UNINIT = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };
enum { MAXG = 16, MAXM = 64 };
typedef unsigned long long u64;

typedef struct {
    char name[96], uuid[80], parent[80], profile[32], pids[128];
    u64 total, used, thr, ecc;
    unsigned util, temp, mw, clock, maxclock;
    int lost, mig, recovery, err;
} D;
typedef struct { D gpu[MAXG], inst[MAXM]; int n, m, error, hang; } State;
typedef struct { u64 total, free, used; } Mem;
typedef struct { unsigned version; u64 total, reserved, free, used; } Mem2;
typedef struct { unsigned gpu, mem; } Util;
typedef struct { char legacy[16]; unsigned dom, bus, dev, pciid, subid; char id[32]; } Pci;
typedef struct { unsigned version; int sensor; int temp; } Temp;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } Proc;
typedef struct { unsigned id, scope; long long ts, lat; unsigned type; R ret; union { unsigned u; u64 ull; } v; } Field;
typedef struct { void *dev; u64 type, data; unsigned gi, ci; } Event;
typedef struct { long at; } Set;

static int up;
static char tag[MAXG + MAXM]; /* addresses in it are handles: GPUs first, then MIG instances */

static const char *path(void) { const char *p = getenv("FAKE_NVML_STATE"); return p ? p : "/dev/null"; }

static unsigned key(const char *extra, const char *name, unsigned otherwise) {
    const char *at = strstr(extra, name);
    return at ? (unsigned)strtoul(at + strlen(name), NULL, 10) : otherwise;
}

static void load(State *s) {
    char l[1024], extra[512];
    memset(s, 0, sizeof *s);
    FILE *f = fopen(path(), "r");
    if (!f) return;
    while (fgets(l, sizeof l, f)) {
        D *g = &s->gpu[s->n], *i = &s->inst[s->m];
        if (sscanf(l, "!error %d", &s->error) == 1) continue;
        if (!strncmp(l, "!hang", 5)) { s->hang = 1; continue; }
        extra[0] = 0;
        if (s->n < MAXG && sscanf(l, "gpu|%95[^|]|%79[^|]|%llu|%llu|%u|%u|%u|%llx|%d|%511[^\n]", g->name, g->uuid, &g->total,
                                  &g->used, &g->util, &g->temp, &g->mw, &g->thr, &g->lost, extra) >= 9) {
            g->clock = key(extra, "sm=", 1000);
            g->maxclock = key(extra, "smmax=", 2000);
            g->ecc = key(extra, "ecc=", 0);
            g->recovery = (int)key(extra, "recovery=", 0);
            g->mig = (int)key(extra, "mig=", 0);
            g->err = (int)key(extra, "err=", 0);
            const char *pids = strstr(extra, "pids=");
            if (pids) sscanf(pids + 5, "%127[0-9,]", g->pids);
            s->n++;
        } else if (s->m < MAXM && sscanf(l, "mig|%79[^|]|%79[^|]|%31[^|]|%llu|%llu", i->parent, i->uuid, i->profile, &i->total,
                                         &i->used) == 5) {
            s->m++;
        }
    }
    fclose(f);
}

/* State of the driver as a whole: waits while it hangs, then its error or OK. */
static R driver(State *s) {
    for (load(s); s->hang; load(s)) usleep(20000);
    if (s->error) return s->error;
    return up ? OK : UNINIT;
}

static R get(void *h, D *out) {
    State s;
    R r = driver(&s);
    if (r) return r;
    int i = (int)((char *)h - tag);
    if (i >= MAXG && i - MAXG < s.m) { *out = s.inst[i - MAXG]; return OK; }
    if (i < 0 || i >= s.n) return INVALID;
    *out = s.gpu[i];
    return out->err ? out->err : out->lost ? LOST : OK;
}

static int is_instance(void *h) { return (char *)h - tag >= MAXG; }
static R copy(char *to, unsigned room, const char *from) {
    if (strlen(from) + 1 > room) return SMALL;
    strcpy(to, from);
    return OK;
}

R nvmlInitWithFlags(unsigned flags) {
    State s;
    (void)flags;
    up++;
    R r = driver(&s);
    if (r) up--;
    return r;
}
R nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
R nvmlShutdown(void) { if (!up) return UNINIT; up--; return OK; }

R nvmlDeviceGetCount_v2(unsigned *n) { State s; R r = driver(&s); *n = s.n; return r; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
    State s;
    R r = driver(&s);
    if (r) return r;
    if ((int)i >= s.n) return INVALID;
    *h = tag + i;
    return s.gpu[i].err ? s.gpu[i].err : s.gpu[i].lost ? LOST : OK;
}
R nvmlDeviceGetIndex(void *h, unsigned *i) { *i = (unsigned)((char *)h - tag); return OK; }
R nvmlDeviceGetUUID(void *h, char *b, unsigned n) { D d; R r = get(h, &d); return r ? r : copy(b, n, d.uuid); }
R nvmlDeviceGetName(void *h, char *b, unsigned n) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    if (!is_instance(h)) return copy(b, n, d.name);
    State s;
    char full[160];
    load(&s);
    for (int i = 0; i < s.n; i++)
        if (!strcmp(s.gpu[i].uuid, d.parent)) {
            snprintf(full, sizeof full, "%s MIG %s", s.gpu[i].name, d.profile);
            return copy(b, n, full);
        }
    return NOT_FOUND;
}
R nvmlDeviceGetMemoryInfo(void *h, Mem *m) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    m->total = d.total << 20, m->used = d.used << 20, m->free = m->total - m->used;
    return OK;
}
R nvmlDeviceGetMemoryInfo_v2(void *h, Mem2 *m) {
    if (getenv("FAKE_NVML_OLD")) return UNSUPPORTED;
    D d;
    R r = get(h, &d);
    if (r) return r;
    m->total = d.total << 20, m->reserved = 0, m->used = d.used << 20, m->free = m->total - m->used;
    return OK;
}
R nvmlDeviceGetUtilizationRates(void *h, Util *u) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    if (d.mig || is_instance(h)) return UNSUPPORTED;
    u->gpu = d.util, u->mem = 0;
    return OK;
}
R nvmlDeviceGetTemperature(void *h, int sensor, unsigned *t) { D d; R r = get(h, &d); (void)sensor; *t = d.temp; return r; }
R nvmlDeviceGetTemperatureV(void *h, Temp *t) {
    if (getenv("FAKE_NVML_OLD")) return UNSUPPORTED;
    D d;
    R r = get(h, &d);
    t->temp = (int)d.temp;
    return r;
}
R nvmlDeviceGetPowerUsage(void *h, unsigned *p) { D d; R r = get(h, &d); *p = d.mw; return r; }
R nvmlDeviceGetClockInfo(void *h, int type, unsigned *c) { D d; R r = get(h, &d); (void)type; *c = d.clock; return r; }
R nvmlDeviceGetMaxClockInfo(void *h, int type, unsigned *c) { D d; R r = get(h, &d); (void)type; *c = d.maxclock; return r; }
R nvmlDeviceGetTotalEccErrors(void *h, int error, int counter, u64 *n) {
    D d;
    R r = get(h, &d);
    (void)error, (void)counter;
    *n = d.ecc;
    return r;
}
R nvmlDeviceGetCurrentClocksThrottleReasons(void *h, u64 *x) { D d; R r = get(h, &d); *x = d.thr; return r; }
R nvmlDeviceGetCurrentClocksEventReasons(void *h, u64 *x) {
    return getenv("FAKE_NVML_OLD") ? UNSUPPORTED : nvmlDeviceGetCurrentClocksThrottleReasons(h, x);
}
R nvmlDeviceGetPciInfo_v3(void *h, Pci *p) {
    memset(p, 0, sizeof *p);
    p->bus = (unsigned)((char *)h - tag) + 1;
    sprintf(p->id, "00000000:%02X:00.0", p->bus);
    sprintf(p->legacy, "0000:%02X:00.0", p->bus);
    return OK;
}
R nvmlDeviceGetFieldValues(void *h, int n, Field *f) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    for (int i = 0; i < n; i++) f[i].ret = f[i].id == 230 ? OK : UNSUPPORTED, f[i].v.u = (unsigned)d.recovery;
    return OK;
}
R nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Proc *p) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    unsigned found = 0, room = *n;
    for (char *t = strtok(d.pids, ","); t; t = strtok(NULL, ",")) {
        if (found < room && p) memset(&p[found], 0, sizeof *p), p[found].pid = (unsigned)atoi(t);
        found++;
    }
    *n = found;
    return found > room ? SMALL : OK;
}

R nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) {
    D d;
    R r = get(h, &d);
    if (r) return r;
    *now = *pending = (unsigned)d.mig;
    return OK;
}
R nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { D d; R r = get(h, &d); *n = 7; return r; }
R nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned slot, void **out) {
    State s;
    D d;
    R r = get(h, &d);
    if (r) return r;
    load(&s);
    for (int i = 0; i < s.m; i++)
        if (!strcmp(s.inst[i].parent, d.uuid) && slot-- == 0) { *out = tag + MAXG + i; return OK; }
    return NOT_FOUND;
}

static FILE *xids(void) {
    char p[4096];
    snprintf(p, sizeof p, "%s.xid", path());
    return fopen(p, "r");
}
R nvmlDeviceGetSupportedEventTypes(void *h, u64 *types) { D d; R r = get(h, &d); *types = 8; return r; }
R nvmlEventSetCreate(Set **out) {
    Set *s = calloc(1, sizeof *s);
    FILE *f = xids();
    if (f) { fseek(f, 0, SEEK_END); s->at = ftell(f); fclose(f); }
    *out = s;
    return OK;
}
R nvmlEventSetFree(Set *s) { free(s); return OK; }
R nvmlDeviceRegisterEvents(void *h, u64 types, Set *s) { D d; (void)types, (void)s; return get(h, &d); }
R nvmlEventSetWait_v2(Set *set, Event *e, unsigned ms) {
    char l[256], uuid[80];
    unsigned code;
    State s;
    for (unsigned waited = 0;; waited += 10) {
        R r = driver(&s);
        if (r) return r;
        FILE *f = xids();
        if (f) {
            fseek(f, set->at, SEEK_SET);
            if (fgets(l, sizeof l, f) && strchr(l, '\n')) {
                set->at = ftell(f);
                fclose(f);
                if (sscanf(l, "%79s %u", uuid, &code) != 2) continue;
                for (int i = 0; i < s.n; i++)
                    if (!strcmp(s.gpu[i].uuid, uuid)) {
                        memset(e, 0, sizeof *e);
                        e->dev = tag + i, e->type = 8, e->data = code;
                        return OK;
                    }
                continue;
            }
            fclose(f);
        }
        if (waited >= ms) return TIMEOUT;
        usleep(10000);
    }
}

R nvmlSystemGetDriverVersion(char *b, unsigned n) { return copy(b, n, "0.0-fake"); }
const char *nvmlErrorString(R r) { return r == LOST ? "GPU is lost" : r == 999 ? "Unknown Error" : r ? "fake nvml error" : "Success"; }
