/* libcublasLt.so.13: handles and descriptions can be made; there is no algorithm for any product, which callers must allow for. */
#include <stdlib.h>

#include "streams.h"

enum { SUCCESS = 0, NOT_SUPPORTED = 15 };

#define CREATES(function) \
  int function(void **handle) { return (*handle = malloc(1)) ? SUCCESS : NOT_SUPPORTED; }

CREATES(cublasLtCreate)
CREATES(cublasLtMatmulDescCreate)
CREATES(cublasLtMatmulPreferenceCreate)
CREATES(cublasLtMatrixLayoutCreate)
CREATES(cublasLtMatrixTransformDescCreate)

#define DESTROYS(function)     \
  int function(void *handle) { \
    free(handle);              \
    return SUCCESS;            \
  }

DESTROYS(cublasLtDestroy)
DESTROYS(cublasLtMatmulDescDestroy)
DESTROYS(cublasLtMatmulPreferenceDestroy)
DESTROYS(cublasLtMatrixLayoutDestroy)
DESTROYS(cublasLtMatrixTransformDescDestroy)

#define ACCEPTS(function) \
  int function(void) { return SUCCESS; }

ACCEPTS(cublasLtMatmulDescSetAttribute)
ACCEPTS(cublasLtMatmulPreferenceSetAttribute)
ACCEPTS(cublasLtMatrixLayoutSetAttribute)
ACCEPTS(cublasLtMatmulAlgoConfigSetAttribute)

#define REFUSES(function)               \
  int function(void) {                  \
    fake_cuda_log("refused\t" #function); \
    return NOT_SUPPORTED;               \
  }

REFUSES(cublasLtMatmul)
REFUSES(cublasLtMatmulAlgoInit)
REFUSES(cublasLtMatmulAlgoGetHeuristic)
REFUSES(cublasLtMatrixTransform)
