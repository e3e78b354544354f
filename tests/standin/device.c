/* The stand-in's one device and the code that is registered for it. No kernel computes anything. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* --- the device ------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
  BEGIN;
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BEGIN;
  return device ? standin_failed(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = STANDIN_CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = STANDIN_CUDA_VERSION;
  return cudaSuccess;
}

/* Figures of a Hopper GPU, for which the provider has kernels. */
static const struct {
  enum cudaDeviceAttr attribute;
  int value;
} attributes[] = {
    {cudaDevAttrComputeCapabilityMajor, STANDIN_MAJOR},
    {cudaDevAttrComputeCapabilityMinor, STANDIN_MINOR},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  BEGIN;
  *value = 0;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].attribute == attribute) *value = attributes[i].value;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  BEGIN;
  if (device) return standin_failed(cudaErrorInvalidDevice);
  size_t available, total;
  cudaMemGetInfo(&available, &total);
  *properties = (struct cudaDeviceProp){
      .name = STANDIN_NAME,
      .major = STANDIN_MAJOR,
      .minor = STANDIN_MINOR,
      .totalGlobalMem = total,
      .multiProcessorCount = 132,
      .warpSize = 32,
      .maxThreadsPerBlock = 1024,
      .maxThreadsPerMultiProcessor = 2048,
      .maxBlocksPerMultiProcessor = 32,
      .sharedMemPerBlock = 49152,
      .sharedMemPerBlockOptin = 232448,
      .sharedMemPerMultiprocessor = 233472,
      .regsPerBlock = 65536,
      .regsPerMultiprocessor = 65536,
      .l2CacheSize = 60 << 20,
      .maxGridSize = {2147483647, 65535, 65535},
      .maxThreadsDim = {1024, 1024, 64},
      .cooperativeLaunch = 1,
  };
  return cudaSuccess;
}

/* --- registered code: names of kernels by the address of their host stub ------------------------------ */

#define SLOTS (1u << 18) /* far more than a provider has kernels */

static struct {
  const void *stub;
  const char *name;
} names[SLOTS];

static size_t slot_of(const void *stub) {
  size_t slot = ((uintptr_t)stub >> 4) * 0x9E3779B97F4A7C15ull >> 46;
  while (names[slot].stub && names[slot].stub != stub) slot = (slot + 1) % SLOTS;
  return slot;
}

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  (void)binary;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *stub, char *device_stub, const char *name, int threads,
                            void *thread, void *block, void *block_dim, void *grid_dim, int *warp) {
  (void)handle, (void)device_stub, (void)threads, (void)thread, (void)block, (void)block_dim, (void)grid_dim,
      (void)warp;
  LOCKED;
  size_t slot = slot_of(stub);
  names[slot].stub = stub;
  names[slot].name = name;
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global) {
  (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* --- launches ---------------------------------------------------------------------------------------- */

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared = shared;
  configuration.stream = stream;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *(void **)stream = configuration.stream;
  return cudaSuccess;
}

static cudaError_t launch(const void *stub, cudaStream_t stream) {
  const char *name = names[slot_of(stub)].name;
  standin_log("kernel %s stream=%p", name ? name : "?", (void *)stream);
  return standin_kernel(stream, NULL, NULL, 0);
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
  (void)grid, (void)block, (void)arguments, (void)shared;
  BEGIN;
  return launch(stub, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
  (void)grid, (void)block, (void)arguments, (void)shared;
  BEGIN;
  return launch(stub, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **arguments) {
  (void)arguments;
  BEGIN;
  return launch(stub, config->stream);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
  *kernel = (cudaKernel_t)stub;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  (void)grid, (void)block, (void)arguments, (void)shared;
  BEGIN;
  return launch((const void *)kernel, stream);
}

/* --- what is asked about kernels ---------------------------------------------------------------------- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *stub) {
  (void)stub;
  BEGIN;
  *found = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90};
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) {
  (void)stub, (void)attribute, (void)value;
  return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value,
                                            int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int threads,
                                                                   size_t shared, unsigned flags) {
  (void)stub, (void)threads, (void)shared, (void)flags;
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  (void)symbol, (void)version, (void)flags;
  *function = NULL;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned count, enum cudaLibraryOption *library_options, void **library_values,
                                unsigned library_count) {
  (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
  *library = (cudaLibrary_t)code;
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  (void)library;
  *kernel = (cudaKernel_t)name;
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  (void)library;
  return cudaSuccess;
}
