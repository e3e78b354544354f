/* The stand-in's management library, as NVIDIA's own Python binding loads it.
 *
 * STANDIN_MIG=PROFILE, such as 1g.18gb, makes the device one that is partitioned; STANDIN_NO_NVML=1 makes
 * the library fail as it does where it doesn't fit the driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, MISMATCH = 18 };

struct memory {
  unsigned long long total, free, used;
};

static int device, partition; /* their addresses are the handles */

static const char *profile(void) {
  const char *text = getenv("STANDIN_MIG");
  return text && *text ? text : NULL;
}

static unsigned long long memory_bytes(void) {
  const char *text = getenv("STANDIN_MEMORY");
  return text && *text ? strtoull(text, NULL, 10) : STANDIN_MEMORY_BYTES;
}

static int give(char *to, unsigned room, const char *text) {
  return snprintf(to, room, "%s", text) < (int)room ? SUCCESS : 7 /* NVML_ERROR_INSUFFICIENT_SIZE */;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  const char *absent = getenv("STANDIN_NO_NVML");
  return absent && *absent ? MISMATCH : SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : "stand-in error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned room) { return give(version, room, STANDIN_DRIVER); }

int nvmlSystemGetCudaDriverVersion(int *version) {
  *version = STANDIN_CUDA_VERSION;
  return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 1;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = &device;
  return index ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned room) {
  char full[96];
  snprintf(full, sizeof full, "%s%s%s", STANDIN_NAME, handle == &partition ? " MIG " : "",
           handle == &partition ? profile() : "");
  return give(name, room, full);
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
  unsigned long long total = handle == &partition ? memory_bytes() / 8 : memory_bytes();
  *memory = (struct memory){total, total, 0};
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  (void)handle;
  *major = STANDIN_MAJOR;
  *minor = STANDIN_MINOR;
  return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  (void)handle;
  *current = *pending = profile() != NULL;
  return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
  (void)handle;
  *count = 7;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found) {
  (void)handle;
  *found = &partition;
  return index || !profile() ? NOT_FOUND : SUCCESS;
}
