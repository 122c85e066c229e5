// A libnvidia-ml.so.1 with the functions garra asks for, so that the real nvidia-ml-py runs without a GPU.
// STUB_NVML names a text file that is read anew at every call, so that a test can change the machine while garra runs:
//   gpu TOTAL_MIB USED_MIB COMPUTE_CAPABILITY STATE NAME      STATE: ok; lost (no handle); mute (memory does not answer)
//   process GPU PID MIB                                       its memory comes on top of USED_MIB
//   thermal GPU CELSIUS MILLIWATTS MHZ THROTTLE_BITS
//   driver VERSION CUDA
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned pid;
    unsigned long long mib;
    unsigned instance, compute;
} Process;

typedef struct {
    unsigned long long total, used;
    int capability;
    char state[16], name[96];
    unsigned celsius, milliwatts, mhz;
    unsigned long long throttled;
} Gpu;

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { MOST_GPUS = 8, MOST_PROCESSES = 64 };

typedef struct {
    Gpu gpus[MOST_GPUS];
    Process processes[MOST_GPUS][MOST_PROCESSES];
    unsigned n_gpus, n_processes[MOST_GPUS];
    char driver[32];
    int cuda;
} Machine;

static Machine now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The machine is read in private and put in place in one go: other threads may be asking, as the real library allows.
static int load(void) {
    Machine fresh = {.driver = "580.65.06", .cuda = 13000};
    FILE *file = fopen(getenv("STUB_NVML") ? getenv("STUB_NVML") : "/dev/null", "r");
    char line[256];
    unsigned gpu, pid;
    unsigned long long mib;
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        Gpu *one = &fresh.gpus[fresh.n_gpus];
        double capability;
        if (fresh.n_gpus < MOST_GPUS && sscanf(line, "gpu %llu %llu %lf %15s %95[^\n]", &one->total, &one->used, &capability,
                                         one->state, one->name) == 5) {
            one->capability = (int)(capability * 10 + 0.5);
            one->celsius = 41, one->milliwatts = 30000, one->mhz = 1725;
            fresh.n_gpus++;
        } else if (sscanf(line, "process %u %u %llu", &gpu, &pid, &mib) == 3 && fresh.n_processes[gpu] < MOST_PROCESSES) {
            fresh.processes[gpu][fresh.n_processes[gpu]++] = (Process){pid, mib << 20, 0xffffffff, 0xffffffff};
            fresh.gpus[gpu].used += mib;
        } else if (sscanf(line, "thermal %u", &gpu) == 1) {
            sscanf(line, "thermal %*u %u %u %u %llx", &fresh.gpus[gpu].celsius, &fresh.gpus[gpu].milliwatts, &fresh.gpus[gpu].mhz,
                   &fresh.gpus[gpu].throttled);
        } else {
            sscanf(line, "driver %31s %d", fresh.driver, &fresh.cuda);
        }
    }
    fclose(file);
    pthread_mutex_lock(&lock);
    memcpy(&now, &fresh, sizeof now);
    pthread_mutex_unlock(&lock);
    return fresh.n_gpus ? SUCCESS : DRIVER_NOT_LOADED;
}

static Gpu *of(void *device) {
    return &now.gpus[(size_t)device - 1];
}

static unsigned number(void *device) {
    return (unsigned)(size_t)device - 1;
}

int nvmlInit_v2(void) { return load(); }
int nvmlInitWithFlags(unsigned flags) { return load(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    snprintf(version, size, "%s", now.driver);
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = now.cuda;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = now.n_gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= now.n_gpus) return NOT_FOUND;
    if (!strcmp(now.gpus[index].state, "lost")) return GPU_IS_LOST;
    *device = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    snprintf(name, size, "%s", of(device)->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    if (!strcmp(of(device)->state, "mute")) return GPU_IS_LOST;
    memory->total = of(device)->total << 20;
    memory->used = of(device)->used << 20;
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = of(device)->capability / 10;
    *minor = of(device)->capability % 10;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *into) {
    unsigned there = now.n_processes[number(device)];
    if (*count < there) {
        *count = there;
        return INSUFFICIENT_SIZE;
    }
    *count = there;
    if (into) memcpy(into, now.processes[number(device)], there * sizeof *into);
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *into) {
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = of(device)->celsius;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = of(device)->milliwatts;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    return NOT_SUPPORTED; // as on many laptops
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = of(device)->mhz;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = 1725;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    *reasons = of(device)->throttled;
    return SUCCESS;
}
