/* Streams as the libraries beside the runtime (cuBLAS) see them. */
#ifndef FAKE_CUDA_STREAMS_H
#define FAKE_CUDA_STREAMS_H

#include <stddef.h>

#include "driver_types.h"

/* Append an operation to a stream, or to the graph that the stream records. `bytes` bytes of `arguments` are copied now; `run`
   is called with the copy when the stream executes, once per replay if it was recorded. Counted as a matrix product.
   Returns the sticky error of the device if there is one. */
cudaError_t enqueue(cudaStream_t stream, void (*run)(const void *arguments), const void *arguments, size_t bytes);

/* For code that runs inside an operation: whether the range lies inside one live allocation on the device. If it does not, the
   access is logged under `what` and the device fails for good (cudaErrorIllegalAddress), as on a real one. */
int check_device_range(const char *what, const void *address, size_t bytes);

/* One line in the log (FAKE_CUDA_LOG): printf's conventions, no newline, fields separated by tabs. */
void fake_cuda_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
