/* The stand-in's streams, events and graphs.
 *
 * A stream is a queue. Work leaves it when somebody waits: for the stream, for an event on it, for the
 * device. Streams made to block are ordered after the default stream and it after them; the others are not.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime.h"

struct task {
  struct task *next;
  standin_work work;
  int kernel; /* counts as work of the device, which may break on it */
  size_t size;
  char arguments[] __attribute__((aligned(16)));
};

struct graph {
  struct task *first, **end;
  int spoiled;
};

struct stream {
  struct stream *next;
  struct task *first, **end;
  unsigned long queued, finished; /* how many tasks were put in, and how many are done */
  int blocking, destroyed;
  struct graph *capture;
};

struct event {
  struct stream *stream;
  unsigned long ticket; /* complete once the stream has finished this many tasks */
  struct timespec when;
};

static struct stream default_stream = {.end = &default_stream.first, .blocking = 1};
static struct stream *streams = &default_stream;

/* Returns the stream behind a handle, or NULL. Streams are never freed, so a stale handle is found out. */
static struct stream *find(cudaStream_t handle) {
  if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &default_stream;
  for (struct stream *stream = streams; stream; stream = stream->next)
    if ((cudaStream_t)stream == handle && !stream->destroyed) return stream;
  return NULL;
}

static struct task *make_task(standin_work work, const void *arguments, size_t size, int kernel) {
  struct task *task = malloc(sizeof *task + size);
  if (!task) abort();
  *task = (struct task){.work = work, .kernel = kernel, .size = size};
  if (size) memcpy(task->arguments, arguments, size);
  return task;
}

static void append(struct task ***end, struct task *task) {
  **end = task;
  *end = &task->next;
}

static void drain_until(struct stream *stream, unsigned long ticket) {
  while (stream->first && stream->finished < ticket) {
    struct task *task = stream->first;
    stream->first = task->next;
    if (!stream->first) stream->end = &stream->first;
    if (task->kernel && !standin_broken()) standin_count_work();
    if (task->work && !standin_broken()) task->work(task->arguments); /* a broken device does nothing more */
    free(task);
    stream->finished++;
  }
}

void standin_drain_device(void) {
  for (struct stream *stream = streams; stream; stream = stream->next) drain_until(stream, stream->queued);
}

void standin_drain_default(void) {
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->blocking) drain_until(stream, stream->queued);
}

cudaError_t standin_drain(cudaStream_t handle) {
  struct stream *stream = find(handle);
  if (!stream) return standin_failed(cudaErrorInvalidResourceHandle);
  if (stream == &default_stream) standin_drain_default();
  drain_until(stream, stream->queued);
  return standin_broken() ? standin_failed(standin_broken()) : cudaSuccess;
}

cudaError_t standin_queue(cudaStream_t handle, standin_work work, const void *arguments, size_t size, int kernel) {
  struct stream *stream = find(handle);
  if (!stream) return standin_failed(cudaErrorInvalidResourceHandle);
  struct task *task = make_task(work, arguments, size, kernel);
  if (stream->capture) {
    append(&stream->capture->end, task);
    return cudaSuccess;
  }
  /* What is ordered after another stream may as well find that stream's work done. */
  if (stream->blocking) standin_drain_default();
  append(&stream->end, task);
  stream->queued++;
  return cudaSuccess;
}

int standin_kernel(void *stream, standin_work work, const void *arguments, size_t size) {
  LOCKED;
  if (standin_broken()) return standin_failed(standin_broken());
  return standin_queue(stream, work, arguments, size, 1);
}

int standin_captures(cudaStream_t handle) {
  struct stream *stream = find(handle);
  return stream && stream->capture;
}

int standin_capture_spoiled(void) {
  int found = 0;
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->capture) stream->capture->spoiled = found = 1;
  return found;
}

/* --- streams ---------------------------------------------------------------------------------------- */

static cudaError_t create(cudaStream_t *handle, unsigned flags) {
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream) abort();
  stream->end = &stream->first;
  stream->blocking = !(flags & cudaStreamNonBlocking);
  stream->next = streams;
  streams = stream;
  *handle = (cudaStream_t)stream;
  standin_log("cudaStreamCreate stream=%p blocking=%d", (void *)stream, stream->blocking);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *handle) {
  BEGIN;
  return create(handle, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
  BEGIN;
  return create(handle, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  BEGIN;
  struct stream *stream = find(handle);
  if (!stream || stream == &default_stream) return standin_failed(cudaErrorInvalidResourceHandle);
  drain_until(stream, stream->queued);
  stream->destroyed = 1;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  BEGIN;
  standin_log("cudaStreamSynchronize stream=%p", (void *)handle);
  struct stream *stream = find(handle);
  if (stream && stream->capture) {
    stream->capture->spoiled = 1;
    return standin_failed(cudaErrorStreamCaptureUnsupported);
  }
  return standin_drain(handle);
}

cudaError_t cudaDeviceSynchronize(void) {
  BEGIN;
  standin_log("cudaDeviceSynchronize");
  if (standin_capture_spoiled()) return standin_failed(cudaErrorStreamCaptureUnsupported);
  standin_drain_device();
  return standin_broken() ? standin_failed(standin_broken()) : cudaSuccess;
}

struct host_call {
  cudaHostFn_t function;
  void *argument;
};

static void do_host_call(void *arguments) {
  struct host_call *call = arguments;
  call->function(call->argument);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  BEGIN;
  struct host_call call = {function, argument};
  return standin_queue(stream, do_host_call, &call, sizeof call, 0);
}

/* --- events ----------------------------------------------------------------------------------------- */

static cudaError_t create_event(cudaEvent_t *handle) {
  struct event *event = calloc(1, sizeof *event); /* never freed: a queued record may still write to it */
  if (!event) abort();
  *handle = (cudaEvent_t)event;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *handle) {
  BEGIN;
  return create_event(handle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
  (void)flags;
  BEGIN;
  return create_event(handle);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  (void)handle;
  BEGIN;
  return cudaSuccess;
}

static void do_record(void *arguments) {
  struct event *event = *(struct event **)arguments;
  clock_gettime(CLOCK_MONOTONIC, &event->when);
}

static cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle) {
  struct event *event = (struct event *)handle;
  struct stream *stream = find(stream_handle);
  if (!event || !stream) return standin_failed(cudaErrorInvalidResourceHandle);
  standin_log("cudaEventRecord stream=%p", (void *)stream_handle);
  cudaError_t code = standin_queue(stream_handle, do_record, &event, sizeof event, 0);
  if (!stream->capture) {
    event->stream = stream;
    event->ticket = stream->queued;
  }
  return code;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BEGIN;
  return record(event, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  (void)flags;
  BEGIN;
  return record(event, stream);
}

static void wait_for(struct event *event) {
  if (!event->stream) return;
  if (event->stream == &default_stream) standin_drain_default();
  drain_until(event->stream, event->ticket);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEGIN;
  standin_log("cudaEventSynchronize");
  wait_for((struct event *)event);
  return standin_broken() ? standin_failed(standin_broken()) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  BEGIN;
  const struct event *start = (struct event *)from, *end = (struct event *)to;
  if (!start->stream || !end->stream) return standin_failed(cudaErrorInvalidResourceHandle);
  if (start->stream->finished < start->ticket || end->stream->finished < end->ticket)
    return standin_failed(cudaErrorNotReady);
  *milliseconds = 1e3f * (end->when.tv_sec - start->when.tv_sec) + 1e-6f * (end->when.tv_nsec - start->when.tv_nsec);
  return cudaSuccess;
}

/* A point of another stream that has to be reached first: the event may be recorded anew meanwhile. */
struct point {
  struct event moment;
};

static void do_wait(void *arguments) { wait_for(&((struct point *)arguments)->moment); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  BEGIN;
  standin_log("cudaStreamWaitEvent stream=%p", (void *)stream);
  struct point point = {*(struct event *)event};
  return standin_queue(stream, do_wait, &point, sizeof point, 0);
}

/* --- graphs ----------------------------------------------------------------------------------------- */

static struct graph *make_graph(void) {
  struct graph *graph = calloc(1, sizeof *graph);
  if (!graph) abort();
  graph->end = &graph->first;
  return graph;
}

static void free_graph(struct graph *graph) {
  while (graph->first) {
    struct task *task = graph->first;
    graph->first = task->next;
    free(task);
  }
  free(graph);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  BEGIN;
  standin_log("cudaStreamBeginCapture stream=%p mode=%d", (void *)handle, mode);
  struct stream *stream = find(handle);
  if (!stream || stream == &default_stream || stream->capture) return standin_failed(cudaErrorStreamCaptureUnsupported);
  stream->capture = make_graph();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  BEGIN;
  standin_log("cudaStreamEndCapture stream=%p", (void *)handle);
  struct stream *stream = find(handle);
  if (!stream || !stream->capture) return standin_failed(cudaErrorInvalidValue);
  struct graph *made = stream->capture;
  stream->capture = NULL;
  *graph = NULL;
  if (made->spoiled) {
    free_graph(made);
    return standin_failed(cudaErrorStreamCaptureInvalidated);
  }
  *graph = (cudaGraph_t)made;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  BEGIN;
  *status = standin_captures(handle) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t handle, unsigned long long flags) {
  (void)flags;
  BEGIN;
  struct graph *copy = make_graph();
  for (struct task *task = ((struct graph *)handle)->first; task; task = task->next)
    append(&copy->end, make_task(task->work, task->arguments, task->size, task->kernel));
  *executable = (cudaGraphExec_t)copy;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  BEGIN;
  standin_log("cudaGraphLaunch stream=%p", (void *)stream);
  for (struct task *task = ((struct graph *)executable)->first; task; task = task->next) {
    cudaError_t code = standin_queue(stream, task->work, task->arguments, task->size, task->kernel);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  BEGIN;
  free_graph((struct graph *)graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  BEGIN;
  standin_drain_device();
  free_graph((struct graph *)executable);
  return cudaSuccess;
}
