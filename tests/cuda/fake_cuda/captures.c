/* Captures and graphs: what is enqueued on a captured stream is recorded, and executed once per launch of the graph.

   While a stream is captured, calls that may wait or allocate are prohibited: to the thread that captures, and if the capture
   is global, to all threads. A prohibited call fails and makes the capture invalid, which then fails as a whole. Which calls
   these are is marked by UNSAFE_IN_CAPTURE. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>
#include <unistd.h>

struct capture { /* never freed: events may refer to it */
  struct capture *next; /* of those that have not ended */
  struct CUstream_st *origin;
  enum cudaStreamCaptureMode mode;
  pid_t thread;
  bool is_valid;
  struct queue operations;
};

struct CUgraph_st {
  struct queue operations;
};

struct CUgraphExec_st {
  struct queue operations;
  long num_launches; /* kernels and products among them */
};

static struct capture *captures;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool is_valid(const struct capture *capture) { return capture->is_valid; }

void record(struct capture *capture, struct operation *operation) { push(&capture->operations, operation); }

void invalidate(struct capture *capture, const char *why) {
  if (capture->is_valid) fake_cuda_log("capture invalid\t%s", why);
  capture->is_valid = false;
}

static bool prohibits(const struct capture *capture) {
  if (capture->mode == cudaStreamCaptureModeRelaxed || thread_mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture->thread == gettid()) return true;
  return capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

bool is_prohibited(const char *name) {
  bool found = false;
  for (struct capture *capture = captures; capture; capture = capture->next) {
    if (!prohibits(capture)) continue;
    found = true;
    invalidate(capture, name);
  }
  if (found) {
    count("illegal in capture", name, NULL);
    fake_cuda_log("illegal in capture\t%s", name);
  }
  return found;
}

bool invalidate_blocking_captures(int device, const char *why) {
  bool found = false;
  for (struct capture *capture = captures; capture; capture = capture->next) {
    if (!capture->origin->is_blocking || capture->origin->device != device) continue;
    found = true;
    count("illegal in capture", "null stream", NULL);
    invalidate(capture, why);
  }
  return found;
}

static void forget(struct capture *capture) {
  struct capture **link = &captures;
  while (*link != capture) link = &(*link)->next;
  *link = capture->next;
  for (struct CUstream_st *stream = all_streams(); stream; stream = stream->next)
    if (stream->capture == capture) stream->capture = NULL;
}

/* Appends copies of operations to a queue; returns how many of them are launches. */
static long copy_operations(const struct queue *from, struct queue *to) {
  long num_launches = 0;
  for (const struct operation *operation = from->first; operation; operation = operation->next) {
    struct operation *copy = new_operation(operation->run, operation->arguments, operation->bytes);
    copy->is_launch = operation->is_launch;
    num_launches += operation->is_launch;
    push(to, copy);
  }
  return num_launches;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  API_CALL(SAFE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  if (!handle || handle == cudaStreamLegacy) return failed(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return failed(cudaErrorIllegalState);
  struct capture *capture = calloc(1, sizeof *capture);
  *capture = (struct capture){.next = captures, .origin = stream, .mode = mode, .thread = gettid(), .is_valid = true};
  captures = stream->capture = capture;
  count("captures", NULL, NULL);
  fake_cuda_log("capture begins\t%p\tmode %d", (void *)stream, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  *graph = NULL;
  API_CALL(SAFE);
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  struct capture *capture = stream->capture;
  if (!capture || capture->origin != stream) return failed(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != gettid())
    return failed(cudaErrorStreamCaptureWrongThread);
  forget(capture);
  const bool is_valid = capture->is_valid;
  capture->is_valid = false;
  if (is_valid) {
    *graph = calloc(1, sizeof **graph);
    (*graph)->operations = capture->operations;
  } else {
    count("invalid captures", NULL, NULL);
    discard(&capture->operations);
  }
  fake_cuda_log("capture ends\t%p\t%s", (void *)stream, is_valid ? "valid" : "invalid");
  return is_valid ? cudaSuccess : failed(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  API_CALL(SAFE);
  const struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  *status = !stream->capture            ? cudaStreamCaptureStatusNone
            : stream->capture->is_valid ? cudaStreamCaptureStatusActive
                                        : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  API_CALL(SAFE);
  const enum cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  (void)flags;
  API_CALL(SAFE);
  *executable = calloc(1, sizeof **executable);
  (*executable)->num_launches = copy_operations(&graph->operations, &(*executable)->operations);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  API_CALL(SAFE);
  count("graph launches", NULL, NULL);
  fake_cuda_log("graph\t%p\t%ld launches\tstream %p", (void *)executable, executable->num_launches, (void *)stream);
  struct queue copies = {0};
  copy_operations(&executable->operations, &copies);
  cudaError_t error = cudaSuccess;
  while (copies.first && !error) error = append(stream, pop(&copies));
  discard(&copies);
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  API_CALL(SAFE);
  discard(&graph->operations);
  free(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  API_CALL(SAFE);
  discard(&executable->operations);
  free(executable);
  return cudaSuccess;
}
