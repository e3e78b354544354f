/* The stand-in's lock, its log and the faults that are arranged for it. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int standin_lock(void) {
  pthread_mutex_lock(&lock);
  return 0;
}

void standin_unlock(int *unused) {
  (void)unused;
  pthread_mutex_unlock(&lock);
}

/* --- the log ---------------------------------------------------------------------------------------- */

static FILE *log_file;

static void read_environment(void);

void standin_log(const char *format, ...) {
  LOCKED;
  read_environment();
  if (!log_file) return;
  va_list arguments;
  va_start(arguments, format);
  vfprintf(log_file, format, arguments);
  va_end(arguments);
  fputc('\n', log_file);
  fflush(log_file); /* a test reads it while this process runs, or after it was ended */
}

void standin_mark(const char *text) { standin_log("mark %s", text); }

void standin_log_to(const char *path) {
  LOCKED;
  read_environment();
  if (log_file) fclose(log_file);
  log_file = path && *path ? fopen(path, "a") : NULL;
}

/* --- faults ----------------------------------------------------------------------------------------- */

static int broken;
static struct {
  char name[64];
  int code;
  long countdown;
  char stays; /* '+': every further call fails too */
} arranged;

int standin_inject(const char *fault) {
  LOCKED;
  memset(&arranged, 0, sizeof arranged);
  if (!fault || !*fault) return 0;
  int read = sscanf(fault, "%63[^:]:%d:%ld%c", arranged.name, &arranged.code, &arranged.countdown, &arranged.stays);
  return read == 3 || (read == 4 && arranged.stays == '+') ? 0 : -1;
}

/* Whether this is the call that was arranged to fail. */
static int is_due(const char *name) {
  if (arranged.countdown <= 0 || strcmp(name, arranged.name) != 0 || --arranged.countdown > 0) return 0;
  if (arranged.stays) arranged.countdown = 1;
  return 1;
}

int standin_enter(const char *name) {
  LOCKED;
  read_environment();
  if (broken) return broken;
  if (!is_due(name)) return 0;
  standin_log("fault %s code=%d", name, arranged.code);
  return arranged.code;
}

void standin_break(int code) {
  LOCKED;
  broken = code;
  standin_log("fault device code=%d", code);
}

int standin_broken(void) { return broken; }

void standin_count_work(void) {
  LOCKED;
  if (is_due("work")) standin_break(arranged.code);
}

void standin_reset(void) {
  LOCKED;
  broken = 0;
  memset(&arranged, 0, sizeof arranged);
}

static void read_environment(void) {
  static int was_read;
  if (was_read) return;
  was_read = 1;
  const char *path = getenv("STANDIN_LOG");
  if (path && *path) log_file = fopen(path, "a");
  const char *memory = getenv("STANDIN_MEMORY");
  if (memory && *memory) standin_set_memory(strtoull(memory, NULL, 10));
  const char *fault = getenv("STANDIN_FAULT");
  if (fault && standin_inject(fault)) {
    fprintf(stderr, "STANDIN_FAULT is '%s'; expected NAME:CODE:COUNT\n", fault);
    abort(); /* a test that arranges nothing would pass for the wrong reason */
  }
}

/* --- the last error --------------------------------------------------------------------------------- */

static __thread int last_error;

cudaError_t standin_failed(int code) {
  last_error = code;
  return code;
}

cudaError_t cudaGetLastError(void) {
  int code = broken ? broken : last_error;
  last_error = 0;
  return code;
}

cudaError_t cudaPeekAtLastError(void) { return broken ? broken : last_error; }

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {714, "cudaErrorHardwareStackError", "hardware stack error"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == (int)code) return errors[i].name;
  return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == (int)code) return errors[i].text;
  return "unrecognized error code";
}
