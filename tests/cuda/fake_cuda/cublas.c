/* libcublas.so.13: handles, and products that are enqueued and counted. */
#include <stdlib.h>

#include "streams.h"

struct handle {
  cudaStream_t stream;
  int math_mode;
};

int cublasCreate_v2(struct handle **handle) { return (*handle = calloc(1, sizeof **handle)) ? 0 : 3; }

int cublasDestroy_v2(struct handle *handle) {
  free(handle);
  return 0;
}

int cublasSetStream_v2(struct handle *handle, cudaStream_t stream) {
  handle->stream = stream;
  return 0;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
  *mode = handle->math_mode;
  return 0;
}

int cublasSetMathMode(struct handle *handle, int mode) {
  handle->math_mode = mode;
  return 0;
}

const char *cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_SUCCESS"; }
const char *cublasGetStatusString(int status) { return cublasGetStatusName(status); }

#define PRODUCT(function) \
  int function(struct handle *handle) { return enqueue(handle->stream, NULL, NULL, 0) ? 13 : 0; }

PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasSgemmBatched)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasDgemmBatched)
PRODUCT(cublasDgemmStridedBatched)
PRODUCT(cublasSgeam)
PRODUCT(cublasDgeam)
PRODUCT(cublasScopy_v2)
PRODUCT(cublasDcopy_v2)
PRODUCT(cublasSscal_v2)
PRODUCT(cublasSgetrfBatched)
PRODUCT(cublasDgetrfBatched)
PRODUCT(cublasSgetriBatched)
PRODUCT(cublasDgetriBatched)
