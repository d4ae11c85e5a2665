/* Streams and events. A stream is a queue: its operations are executed, in order, as late as CUDA allows.

   Somebody has to ask: a call that waits for the stream, another stream's operation that depends on it, a copy to the host. So
   what a program reads without having waited is what was there before, every time and not once in a thousand. The null stream
   has CUDA's legacy meaning: its operations come after everything that blocking streams were given before, and before
   everything they are given later. Streams that are not blocking know nothing of it. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct CUevent_st {
  struct CUstream_st *stream; /* where it was recorded last; NULL: never */
  ticket ticket;
  struct capture *capture; /* if it was recorded in one */
  struct timespec passed;
};

static struct CUstream_st *streams;
static ticket newest_ticket;
static int executing_on = -1; /* the device whose operation is running */

/* ---- queues ---- */

struct operation *new_operation(void (*run)(const void *), const void *arguments, size_t bytes) {
  struct operation *operation = malloc(sizeof *operation + bytes);
  *operation = (struct operation){.run = run, .bytes = bytes};
  if (bytes) memcpy(operation->arguments, arguments, bytes);
  return operation;
}

void push(struct queue *queue, struct operation *operation) {
  operation->next = NULL;
  if (queue->first) queue->last->next = operation;
  else queue->first = operation;
  queue->last = operation;
}

struct operation *pop(struct queue *queue) {
  struct operation *operation = queue->first;
  queue->first = operation->next;
  return operation;
}

void discard(struct queue *queue) {
  while (queue->first) free(pop(queue));
}

/* ---- streams ---- */

static struct CUstream_st *new_stream(int device, bool is_blocking) {
  struct CUstream_st *stream = calloc(1, sizeof *stream);
  stream->device = device;
  stream->is_blocking = is_blocking;
  stream->next = streams;
  return streams = stream;
}

struct CUstream_st *all_streams(void) { return streams; }

static struct CUstream_st *null_stream(int device) {
  if (!devices[device].null_stream) devices[device].null_stream = new_stream(device, false);
  return devices[device].null_stream;
}

struct CUstream_st *find_stream(cudaStream_t handle) {
  if (!handle || handle == cudaStreamLegacy) return null_stream(current_device());
  struct CUstream_st *stream = streams;
  while (stream && stream != handle) stream = stream->next;
  return stream && !stream->is_destroyed ? stream : NULL;
}

static bool is_null_stream(const struct CUstream_st *stream) { return stream == devices[stream->device].null_stream; }

/* ---- execution ---- */

static void execute_until(struct CUstream_st *stream, ticket last);

/* What the null stream's place among blocking streams makes an operation wait for. */
static void execute_implicit_dependencies(const struct CUstream_st *stream, ticket before) {
  if (stream->is_blocking) {
    execute_until(null_stream(stream->device), before - 1);
  } else if (is_null_stream(stream)) {
    for (struct CUstream_st *other = streams; other; other = other->next)
      if (other->is_blocking && other->device == stream->device) execute_until(other, before - 1);
  }
}

/* Whether a test has broken the device, for all processes. */
static bool is_broken(int device) {
  char path[4096];
  if (!settings.broken) return false;
  snprintf(path, sizeof path, "%s/%d", settings.broken, settings.numbers[device]);
  return access(path, F_OK) == 0;
}

static void run(struct operation *operation, int device) {
  if (operation->is_launch && settings.fail_launch && --settings.fail_launch == 0)
    fail_device(device, cudaErrorIllegalAddress, "a test asked for it");
  if (operation->is_launch && is_broken(device)) fail_device(device, cudaErrorIllegalAddress, "it is broken");
  if (!operation->run || devices[device].error) return;
  executing_on = device;
  operation->run(operation->arguments);
  executing_on = -1;
}

/* Whatever an operation waits for has a smaller ticket than itself, so this ends. */
static void execute_until(struct CUstream_st *stream, ticket last) {
  while (stream->queue.first && stream->queue.first->ticket <= last) {
    struct operation *operation = pop(&stream->queue);
    execute_implicit_dependencies(stream, operation->ticket);
    if (operation->awaited) execute_until(operation->awaited, operation->awaited_ticket);
    run(operation, stream->device);
    stream->executed = operation->ticket;
    free(operation);
  }
}

cudaError_t execute(struct CUstream_st *stream, ticket last) {
  execute_until(stream, last);
  return failed(devices[stream->device].error);
}

cudaError_t execute_stream(struct CUstream_st *stream) {
  if (is_null_stream(stream)) execute_implicit_dependencies(stream, newest_ticket + 1);
  return execute(stream, stream->newest);
}

cudaError_t execute_device(int device) {
  for (struct CUstream_st *stream = streams; stream; stream = stream->next)
    if (stream->device == device) execute_until(stream, stream->newest);
  return failed(devices[device].error);
}

int check_device_range(const char *what, const void *address, size_t bytes) {
  if (!bytes || lies_in_allocation(address, bytes)) return 1;
  fake_cuda_log("illegal address\t%s\t%zu bytes at %p", what, bytes, address);
  fail_device(executing_on < 0 ? current_device() : executing_on, cudaErrorIllegalAddress, what);
  return 0;
}

cudaError_t append(cudaStream_t handle, struct operation *operation) {
  struct CUstream_st *stream = find_stream(handle);
  cudaError_t error = cudaSuccess;
  if (!stream) error = cudaErrorInvalidResourceHandle;
  else if (stream->capture && !is_valid(stream->capture)) error = cudaErrorStreamCaptureInvalidated;
  else if (is_null_stream(stream) && invalidate_blocking_captures(stream->device, "the null stream was used"))
    error = cudaErrorStreamCaptureImplicit;
  if (error) {
    free(operation);
    return failed(error);
  }
  if (stream->capture) {
    record(stream->capture, operation);
    return cudaSuccess;
  }
  operation->ticket = stream->newest = ++newest_ticket;
  push(&stream->queue, operation);
  return settings.eager ? execute(stream, stream->newest) : cudaSuccess;
}

cudaError_t append_call(cudaStream_t stream, void (*run)(const void *), const void *arguments, size_t bytes) {
  return append(stream, new_operation(run, arguments, bytes));
}

/* ---- the API of streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  API_CALL(SAFE);
  *stream = new_stream(current_device(), !(flags & cudaStreamNonBlocking));
  fake_cuda_log("stream\t%p\t%s\tpriority %d", (void *)*stream, (*stream)->is_blocking ? "blocking" : "not blocking", priority);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

/* What was enqueued is still executed, whenever something waits for it. */
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  API_CALL(SAFE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream || is_null_stream(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (stream->capture) invalidate(stream->capture, __func__);
  stream->is_destroyed = true;
  return cudaSuccess;
}

/* Refuses to wait for a stream that is being captured, which waits for nothing. */
static cudaError_t refuse_capturing(struct CUstream_st *stream, const char *name) {
  if (!stream->capture) return cudaSuccess;
  count("illegal in capture", name, NULL);
  if (!is_valid(stream->capture)) return failed(cudaErrorStreamCaptureInvalidated);
  invalidate(stream->capture, name);
  return failed(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  API_CALL(SAFE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  const cudaError_t refused = refuse_capturing(stream, __func__);
  if (refused) return refused;
  if (is_null_stream(stream) && invalidate_blocking_captures(stream->device, __func__))
    return failed(cudaErrorStreamCaptureImplicit);
  count("blocking", __func__, is_null_stream(stream) ? "null stream" : NULL);
  fake_cuda_log("%s\t%p", __func__, (void *)handle);
  return execute_stream(stream);
}

/* A loop of queries ends: each of them executes one operation. */
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  API_CALL(UNSAFE_IN_CAPTURE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  const cudaError_t refused = refuse_capturing(stream, __func__);
  if (refused) return refused;
  if (!stream->queue.first) return cudaSuccess;
  const cudaError_t error = execute(stream, stream->queue.first->ticket);
  return error ? error : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void) {
  API_CALL(UNSAFE_IN_CAPTURE);
  count("blocking", __func__, NULL);
  fake_cuda_log("%s", __func__);
  return execute_device(current_device());
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  API_CALL(SAFE);
  *event = calloc(1, sizeof **event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

/* It stays, as it may still be on a stream. */
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  (void)event;
  API_CALL(SAFE);
  return cudaSuccess;
}

static void pass(const void *arguments) { clock_gettime(CLOCK_MONOTONIC, &(*(const cudaEvent_t *)arguments)->passed); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  (void)flags;
  API_CALL(SAFE);
  const cudaError_t error = append_call(handle, pass, &event, sizeof event);
  if (error) return error;
  struct CUstream_st *stream = find_stream(handle);
  event->stream = stream;
  event->ticket = stream->newest;
  event->capture = stream->capture;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  (void)flags;
  API_CALL(SAFE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  if (!event->stream) return cudaSuccess;
  if (event->capture && !is_valid(event->capture)) return failed(cudaErrorInvalidValue);
  if (event->capture && !stream->capture) {
    stream->capture = event->capture; /* joins it: what is enqueued from now on is recorded in the order of the calls */
    return cudaSuccess;
  }
  if (event->capture != stream->capture) {
    count("illegal in capture", __func__, NULL);
    invalidate(stream->capture, __func__);
    return failed(cudaErrorStreamCaptureIsolation);
  }
  struct operation *operation = new_operation(NULL, NULL, 0);
  if (!stream->capture) {
    operation->awaited = event->stream;
    operation->awaited_ticket = event->ticket;
  }
  return append(handle, operation);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  API_CALL(UNSAFE_IN_CAPTURE);
  if (event->capture) return failed(cudaErrorCapturedEvent);
  count("blocking", __func__, NULL);
  fake_cuda_log("%s", __func__);
  return event->stream ? execute(event->stream, event->ticket) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  API_CALL(UNSAFE_IN_CAPTURE);
  if (event->capture) return failed(cudaErrorCapturedEvent);
  const struct CUstream_st *stream = event->stream;
  if (!stream || !stream->queue.first || stream->executed >= event->ticket) return cudaSuccess;
  const cudaError_t error = execute(event->stream, event->stream->queue.first->ticket);
  return error ? error : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  API_CALL(SAFE);
  *ms = (end->passed.tv_sec - start->passed.tv_sec) * 1e3f + (end->passed.tv_nsec - start->passed.tv_nsec) / 1e6f;
  return start->stream && end->stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}
