/* Copies and fills, each as late and as asynchronous as the runtime's documentation of its kind of memory permits:

     from                to        cudaMemcpy                           cudaMemcpyAsync
     pageable memory     device    read at the call, written late       read at the call, written late
     pinned memory       device    done at the return                   late
     device              pageable  done at the return                   done at the return
     device              pinned    done at the return                   late
     device              device    late                                 late
     host                host      done at the return                   done at the return

   Those without a stream are operations of the null stream. A copy that is recorded by a capture is late in any case. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

struct copy {
  char *target;
  const char *source; /* NULL: the rows follow, dense */
  size_t target_pitch, source_pitch, width, height;
};

struct fill {
  char *target;
  int value;
  size_t bytes;
};

static void copy_rows(char *target, size_t target_pitch, const char *source, size_t source_pitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) memmove(target + row * target_pitch, source + row * source_pitch, width);
}

static size_t span(size_t pitch, size_t width, size_t height) { return height ? (height - 1) * pitch + width : 0; }

/* Whether memory that is not pageable really has these bytes: the allocation may have ended since the copy was recorded. */
static int check(const void *address, bool is_pageable, size_t bytes) {
  return is_pageable || check_device_range("copy", address, bytes);
}

struct placed_copy {
  struct copy copy;
  bool from_pageable, to_pageable;
};

static void run_copy(const void *arguments) {
  const struct placed_copy *placed = arguments;
  const struct copy *copy = &placed->copy;
  const char *source = copy->source ? copy->source : (const char *)(placed + 1);
  if (check(copy->target, placed->to_pageable, span(copy->target_pitch, copy->width, copy->height)) &&
      check(source, placed->from_pageable, span(copy->source_pitch, copy->width, copy->height)))
    copy_rows(copy->target, copy->target_pitch, source, copy->source_pitch, copy->width, copy->height);
}

/* The operation of a copy whose rows are read now. */
static struct operation *stage(struct placed_copy placed) {
  const struct copy copy = placed.copy;
  const size_t bytes = sizeof placed + copy.width * copy.height;
  struct placed_copy *staged = malloc(bytes);
  *staged = placed;
  staged->copy.source = NULL;
  staged->copy.source_pitch = copy.width;
  copy_rows((char *)(staged + 1), copy.width, copy.source, copy.source_pitch, copy.width, copy.height);
  struct operation *operation = new_operation(run_copy, staged, bytes);
  free(staged);
  return operation;
}

static const char *const PLACES[] = {"pageable", "pinned", "device"};

/* Whether both ends lie where the kind of the copy says, and within one allocation. */
static bool is_possible(const struct copy *copy, enum place from, enum place to, enum cudaMemcpyKind kind) {
  if (copy->width > copy->target_pitch || copy->width > copy->source_pitch) return false;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && ((from_device && from == PAGEABLE) || (to_device && to == PAGEABLE))) return false;
  if (kind != cudaMemcpyDefault && ((!from_device && from == DEVICE) || (!to_device && to == DEVICE))) return false;
  return (from == PAGEABLE || lies_in_allocation(copy->source, span(copy->source_pitch, copy->width, copy->height))) &&
         (to == PAGEABLE || lies_in_allocation(copy->target, span(copy->target_pitch, copy->width, copy->height)));
}

static cudaError_t copy_memory(const char *name, struct copy copy, enum cudaMemcpyKind kind, cudaStream_t handle, bool is_async) {
  const enum place from = place_of(copy.source, NULL), to = place_of(copy.target, NULL);
  char ends[64];
  strcat(strcat(strcpy(ends, PLACES[from]), " to "), PLACES[to]);
  if (!copy.width || !copy.height) return cudaSuccess;
  fake_cuda_log("%s\t%s\t%zu x %zu bytes\tto %p\tfrom %p\tstream %p", name, ends, copy.height, copy.width, (void *)copy.target,
                (const void *)copy.source, (void *)handle);
  if (!is_possible(&copy, from, to, kind)) {
    fake_cuda_log("impossible copy\t%s\tkind %d", name, kind);
    return failed(cudaErrorInvalidValue);
  }
  struct CUstream_st *stream = find_stream(handle);
  if (!stream) return failed(cudaErrorInvalidResourceHandle);
  count("copies", name, ends);
  const struct placed_copy placed = {copy, from == PAGEABLE, to == PAGEABLE};
  const bool is_recorded = stream->capture != NULL, is_staged = from == PAGEABLE && to == DEVICE;
  const bool is_done = is_async ? (from == DEVICE && to == PAGEABLE) || (from != DEVICE && to != DEVICE)
                                : !is_staged && (from != DEVICE || to != DEVICE);
  if (!is_recorded && (is_done || (is_staged && !is_async))) {
    count("blocking", name, ends);
    const cudaError_t error = execute_stream(stream);
    if (error) return error;
  }
  const cudaError_t error =
      append(handle, is_staged && !is_recorded ? stage(placed) : new_operation(run_copy, &placed, sizeof placed));
  return !error && is_done && !is_recorded ? execute_stream(stream) : error;
}

static struct copy row(void *target, const void *source, size_t bytes) {
  return (struct copy){target, source, bytes, bytes, bytes, 1};
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
  API_CALL(UNSAFE_IN_CAPTURE);
  return copy_memory(__func__, row(target, source, bytes), kind, NULL, false);
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  API_CALL(SAFE);
  return copy_memory(__func__, row(target, source, bytes), kind, stream, true);
}

cudaError_t cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind) {
  API_CALL(UNSAFE_IN_CAPTURE);
  if (width > target_pitch || width > source_pitch) return failed(cudaErrorInvalidPitchValue);
  const struct copy copy = {target, source, target_pitch, source_pitch, width, height};
  return copy_memory(__func__, copy, kind, NULL, false);
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  API_CALL(SAFE);
  if (width > target_pitch || width > source_pitch) return failed(cudaErrorInvalidPitchValue);
  const struct copy copy = {target, source, target_pitch, source_pitch, width, height};
  return copy_memory(__func__, copy, kind, stream, true);
}

/* In the order of the arrays, which CUDA does not promise. */
cudaError_t cudaMemcpyBatchAsync(void *const *targets, const void *const *sources, const size_t *sizes, size_t num_copies,
                                 struct cudaMemcpyAttributes *attributes, size_t *starts, size_t num_attributes,
                                 cudaStream_t stream) {
  API_CALL(SAFE);
  if (!stream || stream == cudaStreamLegacy || !num_attributes || num_attributes > num_copies || starts[0] ||
      attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderInvalid)
    return failed(cudaErrorInvalidValue);
  for (size_t i = 0; i < num_copies; i++) {
    const cudaError_t error =
        copy_memory(__func__, row(targets[i], sources[i], sizes[i]), cudaMemcpyDefault, stream, true);
    if (error) return error;
  }
  return cudaSuccess;
}

/* No variable of a kernel has a value here: it reads as 0. */
cudaError_t cudaMemcpyFromSymbol(void *target, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  (void)symbol, (void)offset, (void)kind;
  API_CALL(UNSAFE_IN_CAPTURE);
  count("blocking", __func__, NULL);
  memset(target, 0, bytes);
  return execute_stream(find_stream(NULL));
}

static void run_fill(const void *arguments) {
  const struct fill *fill = arguments;
  if (check_device_range("fill", fill->target, fill->bytes)) memset(fill->target, fill->value, fill->bytes);
}

static cudaError_t fill_memory(const char *name, struct fill fill, cudaStream_t stream) {
  if (!fill.bytes) return cudaSuccess;
  fake_cuda_log("%s\t%zu bytes\tto %p\tstream %p", name, fill.bytes, (void *)fill.target, (void *)stream);
  if (!lies_in_allocation(fill.target, fill.bytes)) return failed(cudaErrorInvalidValue);
  count("fills", name, NULL);
  return append_call(stream, run_fill, &fill, sizeof fill);
}

cudaError_t cudaMemset(void *target, int value, size_t bytes) {
  API_CALL(UNSAFE_IN_CAPTURE);
  const cudaError_t error = fill_memory(__func__, (struct fill){target, value, bytes}, NULL);
  return !error && place_of(target, NULL) == PINNED ? execute_stream(find_stream(NULL)) : error;
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
  API_CALL(SAFE);
  return fill_memory(__func__, (struct fill){target, value, bytes}, stream);
}
