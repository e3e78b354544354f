/* The stand-in's memory: allocations of a bounded size, and copies between them. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define ALIGNMENT 256
/* What a fresh buffer holds; as floats, numbers no model is likely to give. */
#define GARBAGE 0xCD

static struct region {
  char *start;
  size_t size;
  enum kind kind;
} *regions;
static size_t count, room;
static size_t used, capacity = STANDIN_MEMORY_BYTES;

void standin_set_memory(size_t bytes) {
  LOCKED;
  capacity = bytes ? bytes : STANDIN_MEMORY_BYTES;
}

size_t standin_used(void) {
  LOCKED;
  return used;
}

static cudaError_t allocate(void **address, size_t size, enum kind kind) {
  if (!address) return standin_failed(cudaErrorInvalidValue);
  if (kind == DEVICE && size > capacity - (used < capacity ? used : capacity))
    return standin_failed(cudaErrorMemoryAllocation);
  if (count == room) {
    room = room ? 2 * room : 256;
    regions = realloc(regions, room * sizeof *regions);
    if (!regions) abort();
  }
  char *start;
  if (posix_memalign((void **)&start, ALIGNMENT, size ? size : 1)) return standin_failed(cudaErrorMemoryAllocation);
  memset(start, GARBAGE, size);
  regions[count++] = (struct region){start, size, kind};
  if (kind == DEVICE) used += size;
  *address = start;
  return cudaSuccess;
}

static cudaError_t release(void *address) {
  if (!address) return cudaSuccess;
  for (size_t i = 0; i < count; i++)
    if (regions[i].start == address) {
      if (regions[i].kind == DEVICE) used -= regions[i].size;
      regions[i] = regions[--count];
      free(address);
      return cudaSuccess;
    }
  return standin_failed(cudaErrorInvalidValue);
}

static const struct region *find(const void *address) {
  for (size_t i = 0; i < count; i++)
    if ((const char *)address >= regions[i].start && (const char *)address < regions[i].start + regions[i].size)
      return &regions[i];
  return NULL;
}

enum kind standin_kind(const void *address) {
  const struct region *region = find(address);
  return region ? region->kind : PAGEABLE;
}

/* --- allocation ------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **address, size_t size) {
  BEGIN;
  if (standin_capture_spoiled()) return standin_failed(cudaErrorStreamCaptureUnsupported);
  cudaError_t code = allocate(address, size, DEVICE);
  standin_log("cudaMalloc bytes=%zu code=%d", size, code);
  return code;
}

cudaError_t cudaFree(void *address) {
  BEGIN;
  if (!address) return cudaSuccess;
  if (standin_capture_spoiled()) return standin_failed(cudaErrorStreamCaptureUnsupported);
  standin_drain_device(); /* the real one waits for the device too */
  standin_log("cudaFree");
  return release(address);
}

cudaError_t cudaMallocFromPoolAsync(void **address, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
  (void)pool, (void)stream;
  BEGIN;
  cudaError_t code = allocate(address, size, DEVICE);
  standin_log("cudaMallocFromPoolAsync bytes=%zu code=%d", size, code);
  return code;
}

static void do_release(void *arguments) { release(*(void **)arguments); }

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  BEGIN;
  return standin_queue(stream, do_release, &address, sizeof address, 0);
}

cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
  (void)flags;
  BEGIN;
  return allocate(address, size, PINNED);
}

cudaError_t cudaMallocHost(void **address, size_t size) {
  BEGIN;
  return allocate(address, size, PINNED);
}

cudaError_t cudaFreeHost(void *address) {
  BEGIN;
  standin_drain_device();
  return release(address);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  BEGIN;
  *total = capacity;
  *available = used < capacity ? capacity - used : 0;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  BEGIN;
  const struct region *region = find(address);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeUnregistered;
  if (region) {
    attributes->type = region->kind == DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->devicePointer = (void *)address;
    attributes->hostPointer = region->kind == PINNED ? (void *)address : NULL;
  }
  return cudaSuccess;
}

/* Pools exist by name only: memory comes from the same place. */
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  (void)properties;
  BEGIN;
  *pool = (cudaMemPool_t)&regions;
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  (void)pool;
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  (void)pool, (void)attribute;
  *(uint64_t *)value = 0;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  (void)pool, (void)attribute, (void)value;
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t kept) {
  (void)pool, (void)kept;
  return cudaSuccess;
}

/* --- copies and fills ------------------------------------------------------------------------------- */

/* Rows of a copy; an ordinary copy has one. `staged` holds the rows where the source had to be read early. */
struct copy {
  char *to;
  const char *from;
  size_t to_pitch, from_pitch, width, rows;
  char *staged;
};

static void do_copy(void *arguments) {
  struct copy *copy = arguments;
  const char *from = copy->staged ? copy->staged : copy->from;
  size_t pitch = copy->staged ? copy->width : copy->from_pitch;
  for (size_t row = 0; row < copy->rows; row++)
    memmove(copy->to + row * copy->to_pitch, from + row * pitch, copy->width);
  free(copy->staged);
}

/* A copy on the default stream; the host waits until it is done. Streams that don't block are not waited for. */
static cudaError_t copy_now(struct copy copy) {
  standin_drain_default();
  if (standin_broken()) return standin_failed(standin_broken());
  do_copy(&copy);
  return cudaSuccess;
}

static cudaError_t copy_later(struct copy copy, cudaStream_t stream) {
  enum kind to = standin_kind(copy.to), from = standin_kind(copy.from);
  if (standin_captures(stream)) return standin_queue(stream, do_copy, &copy, sizeof copy, 0);
  if (to == PAGEABLE) {
    /* Into memory the device can't reach by itself: the real call returns when the copy is complete. */
    cudaError_t code = standin_drain(stream);
    if (code == cudaSuccess) do_copy(&copy);
    return code;
  }
  if (from == PAGEABLE) {
    /* The real call reads such a source before it returns; the caller may change it at once. */
    copy.staged = malloc(copy.width * copy.rows + 1);
    if (!copy.staged) abort();
    for (size_t row = 0; row < copy.rows; row++)
      memcpy(copy.staged + row * copy.width, copy.from + row * copy.from_pitch, copy.width);
  }
  return standin_queue(stream, do_copy, &copy, sizeof copy, 0);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  BEGIN;
  standin_log("cudaMemcpy bytes=%zu kind=%d", size, kind);
  if (standin_capture_spoiled()) return standin_failed(cudaErrorStreamCaptureUnsupported);
  return copy_now((struct copy){to, from, size, size, size, 1, NULL});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  BEGIN;
  standin_log("cudaMemcpyAsync bytes=%zu kind=%d stream=%p", size, kind, (void *)stream);
  return copy_later((struct copy){to, from, size, size, size, 1, NULL}, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t stream) {
  BEGIN;
  standin_log("cudaMemcpy2DAsync bytes=%zu kind=%d stream=%p", width * rows, kind, (void *)stream);
  return copy_later((struct copy){to, from, to_pitch, from_pitch, width, rows, NULL}, stream);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, enum cudaMemcpyKind kind) {
  (void)symbol, (void)offset, (void)kind;
  BEGIN;
  memset(to, 0, size); /* no kernel ran that could have written the variable */
  return cudaSuccess;
}

struct fill {
  void *to;
  int value;
  size_t size;
};

static void do_fill(void *arguments) {
  struct fill *fill = arguments;
  memset(fill->to, fill->value, fill->size);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
  BEGIN;
  struct fill fill = {to, value, size};
  return standin_queue(stream, do_fill, &fill, sizeof fill, 0);
}

cudaError_t cudaMemset(void *to, int value, size_t size) { return cudaMemsetAsync(to, value, size, 0); }
