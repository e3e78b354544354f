/* What the libraries of the stand-in share.
 *
 * Together they stand in for an NVIDIA GPU and its driver, so that ONNX Runtime's own, unmodified CUDA
 * execution provider can be tested where there is none. "Device" memory is host memory. Work is QUEUED on
 * its stream and done only when somebody waits for it, as late as a real device may do it: code that reads
 * a result without waiting, or lets two streams race, gets a wrong answer here every time.
 *
 * Copies, fills and fp32 GEMMs are computed. Every other kernel does nothing: its output keeps what the
 * buffer held, so a model with other operators answers wrongly. No time taken here means anything.
 *
 * Environment variables, read at the first call:
 *   STANDIN_LOG=FILE          every call of interest, one a line, with its stream
 *   STANDIN_MEMORY=BYTES      size of the device's memory
 *   STANDIN_FAULT=NAME:CODE:N the N-th call of NAME from now on fails with CODE, once, or with N+ every call
 *                             from there on; where NAME is "work", the device breaks on the N-th kernel or
 *                             GEMM that it does: every later call fails with CODE, as after a real fault
 * The functions standin_* below do the same at run time, for tests that load the library by ctypes.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stddef.h>

#define STANDIN_MEMORY_BYTES (16ULL << 30)
#define STANDIN_NAME "Stand-in GPU"
#define STANDIN_DRIVER "580.0.0"
#define STANDIN_CUDA_VERSION 13000
#define STANDIN_MAJOR 9
#define STANDIN_MINOR 0

/* One piece of work: it gets a copy of the arguments that were queued with it. */
typedef void (*standin_work)(void *arguments);

/* Writes one line to the log, where there is one. */
void standin_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the error with which a call of this name has to fail now, or 0. */
int standin_enter(const char *name);

/* Queues a kernel or a GEMM on a stream, or records it where the stream captures; work may be NULL for a
   kernel that computes nothing. Returns a cudaError_t. */
int standin_kernel(void *stream, standin_work work, const void *arguments, size_t size);

/* --- for tests ------------------------------------------------------------------------------------- */

/* Writes a line of the caller's own to the log. */
void standin_mark(const char *text);
/* Sends the log to another file from now on; NULL for none. */
void standin_log_to(const char *path);
/* Sets the size of the device's memory; 0 for the default. What is in use already counts. */
void standin_set_memory(size_t bytes);
/* Returns the bytes of device memory in use. */
size_t standin_used(void);
/* Arranges a fault as STANDIN_FAULT does; returns 0, or -1 for a text that it can't read. */
int standin_inject(const char *fault);
/* Mends the device and forgets arranged faults. A real device is mended by ending the process only. */
void standin_reset(void);

#endif
