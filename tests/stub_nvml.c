// A libnvidia-ml.so.1 with the few functions garra asks for, so that the real nvidia-ml-py runs without a GPU.
// STUB_NVML_FREE_MIB in the environment: free memory of each GPU, comma-separated; "-" is a GPU that fell off the bus.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} Memory;

enum { SUCCESS = 0, NOT_FOUND = 6, GPU_IS_LOST = 15 };

static const char *entry(unsigned index) {
    const char *at = getenv("STUB_NVML_FREE_MIB");
    while (at && index--) at = (at = strchr(at, ',')) ? at + 1 : NULL;
    return at;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    for (*count = 0; entry(*count); ++*count) {}
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!entry(index)) return NOT_FOUND;
    *device = (void *)entry(index);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    snprintf(name, size, "NVIDIA GeForce RTX 3070");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    if (*(const char *)device == '-') return GPU_IS_LOST;
    memory->total = 8192ULL << 20;
    memory->free = strtoull(device, NULL, 10) << 20;
    memory->used = memory->total - memory->free;
    return SUCCESS;
}
