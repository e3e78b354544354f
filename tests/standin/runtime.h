/* What the parts of the stand-in's CUDA runtime share. Everything here is guarded by one recursive lock. */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "standin.h"

/* Holds the runtime's lock until the end of the block. */
#define LOCKED \
  __attribute__((cleanup(standin_unlock), unused)) int locked_ = standin_lock()
int standin_lock(void);
void standin_unlock(int *unused);

/* Begins a runtime call: takes the lock and leaves with the error that the call has to fail with. */
#define BEGIN \
  LOCKED; \
  do { \
    int fault_ = standin_enter(__func__); \
    if (fault_) return standin_failed(fault_); \
  } while (0)

/* Keeps an error for cudaGetLastError and returns it. */
cudaError_t standin_failed(int code);

/* --- streams ---------------------------------------------------------------------------------------- */

struct stream;

/* Does all that is queued, everywhere. */
void standin_drain_device(void);
/* Does what a call on the default stream has to wait for: the blocking streams and that stream itself. */
void standin_drain_default(void);
/* Does all that is queued on a stream; returns an error for a handle that is no stream. */
cudaError_t standin_drain(cudaStream_t stream);
/* Queues work on a stream, or records it where the stream captures. */
cudaError_t standin_queue(cudaStream_t stream, standin_work work, const void *arguments, size_t size, int kernel);
/* Whether a stream records a graph. */
int standin_captures(cudaStream_t stream);
/* Whether any stream does; calls that are not allowed meanwhile spoil the graph and return an error. */
int standin_capture_spoiled(void);

/* --- memory ----------------------------------------------------------------------------------------- */

enum kind { PAGEABLE, PINNED, DEVICE };
/* Returns what kind of memory an address belongs to. */
enum kind standin_kind(const void *address);

/* Breaks the device: every later call fails with this code. */
void standin_break(int code);
int standin_broken(void);
/* Counts a kernel that is about to be done; breaks the device where that was arranged. */
void standin_count_work(void);

#endif
