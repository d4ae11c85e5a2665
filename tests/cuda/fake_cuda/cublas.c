/* Matrix products on the streams of the fake CUDA runtime: cuBLAS's general products in float16 and float32, with float32 sums.
   Matrices are column-major. The other functions that ONNX Runtime links say that they are not supported. */
#include <stdint.h>
#include <stdlib.h>

#include "elements.h"
#include "streams.h"

enum { SUCCESS = 0, NOT_SUPPORTED = 15, EXECUTION_FAILED = 13 };
enum { TYPE_FLOAT = 0, TYPE_HALF = 2 };                 /* cudaDataType_t */
enum { COMPUTE_HALF = 64, COMPUTE_HALF_PEDANTIC = 65 }; /* cublasComputeType_t: alpha and beta are float16 too */

struct handle {
  cudaStream_t stream;
  int math_mode;
};

struct matrix {
  void *data;
  enum element type;
  int is_transposed, stride; /* stride: elements between columns */
  int64_t batch_stride;
};

struct product {
  int m, n, k, batch;
  float alpha, beta;
  struct matrix a, b, c;
};

static enum element element_of(int type) { return type == TYPE_HALF ? HALF : type == TYPE_FLOAT ? FLOAT : UNKNOWN; }

/* One matrix of a batch as float32, each of its `lines` lines of k elements in a row: rows of op(A), columns of op(B). */
static float *lines_of(const struct matrix *matrix, int batch, int lines, int k, int is_left) {
  float *copy = malloc((size_t)lines * (size_t)k * sizeof *copy + 1);
  for (int line = 0; line < lines; line++)
    for (int i = 0; i < k; i++) {
      int in_column = is_left == (matrix->is_transposed != 0); /* whether a line lies in one column of the stored matrix */
      int64_t place = in_column ? i + (int64_t)line * matrix->stride : line + (int64_t)i * matrix->stride;
      copy[(int64_t)line * k + i] = (float)load_element(matrix->type, matrix->data, batch * matrix->batch_stride + place);
    }
  return copy;
}

static float dot(const float *left, const float *right, int count) {
  enum { LANES = 8 };
  float sums[LANES] = {0}, sum = 0;
  int i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int lane = 0; lane < LANES; lane++) sums[lane] += left[i + lane] * right[i + lane];
  for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
  for (; i < count; i++) sum += left[i] * right[i];
  return sum;
}

static void multiply(const void *arguments) {
  const struct product *p = arguments;
  for (int batch = 0; batch < p->batch; batch++) {
    float *rows = lines_of(&p->a, batch, p->m, p->k, 1), *columns = lines_of(&p->b, batch, p->n, p->k, 0);
    for (int j = 0; j < p->n; j++)
      for (int i = 0; i < p->m; i++) {
        int64_t place = batch * p->c.batch_stride + i + (int64_t)j * p->c.stride;
        float value = p->alpha * dot(rows + (int64_t)i * p->k, columns + (int64_t)j * p->k, p->k);
        if (p->beta != 0) value += p->beta * (float)load_element(p->c.type, p->c.data, place);
        store_element(p->c.type, p->c.data, place, value);
      }
    free(rows), free(columns);
  }
}

static int start(const struct handle *handle, const struct product *product) {
  if (product->a.type == UNKNOWN || product->b.type == UNKNOWN || product->c.type == UNKNOWN) return NOT_SUPPORTED;
  return enqueue(handle->stream, multiply, product, sizeof *product) == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}

int cublasGemmStridedBatchedEx(struct handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                               const void *a, int a_type, int a_stride, long long a_batch, const void *b, int b_type,
                               int b_stride, long long b_batch, const void *beta, void *c, int c_type, int c_stride,
                               long long c_batch, int batch, int compute, int algorithm) {
  (void)algorithm;
  enum element scalar = compute == COMPUTE_HALF || compute == COMPUTE_HALF_PEDANTIC ? HALF : FLOAT;
  struct product product = {
      m,
      n,
      k,
      batch,
      (float)load_element(scalar, alpha, 0),
      (float)load_element(scalar, beta, 0),
      {(void *)a, element_of(a_type), transpose_a, a_stride, a_batch},
      {(void *)b, element_of(b_type), transpose_b, b_stride, b_batch},
      {c, element_of(c_type), 0, c_stride, c_batch},
  };
  return start(handle, &product);
}

int cublasGemmEx(struct handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c, int c_type,
                 int c_stride, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, a_stride, 0, b, b_type,
                                    b_stride, 0, beta, c, c_type, c_stride, 0, 1, compute, algorithm);
}

int cublasSgemm_v2(struct handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const float *alpha,
                   const float *a, int a_stride, const float *b, int b_stride, const float *beta, float *c, int c_stride) {
  return cublasGemmEx(handle, transpose_a, transpose_b, m, n, k, alpha, a, TYPE_FLOAT, a_stride, b, TYPE_FLOAT, b_stride, beta,
                      c, TYPE_FLOAT, c_stride, 0, 0);
}

int cublasSgemmStridedBatched(struct handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const float *alpha,
                              const float *a, int a_stride, long long a_batch, const float *b, int b_stride, long long b_batch,
                              const float *beta, float *c, int c_stride, long long c_batch, int batch) {
  return cublasGemmStridedBatchedEx(handle, transpose_a, transpose_b, m, n, k, alpha, a, TYPE_FLOAT, a_stride, a_batch, b,
                                    TYPE_FLOAT, b_stride, b_batch, beta, c, TYPE_FLOAT, c_stride, c_batch, batch, 0, 0);
}

struct sum {
  int m, n;
  struct matrix a, b, c;
  float alpha, beta;
};

static float element(const struct matrix *matrix, int row, int column) {
  return ((const float *)matrix
              ->data)[matrix->is_transposed ? column + (int64_t)row * matrix->stride : row + (int64_t)column * matrix->stride];
}

static void add(const void *arguments) {
  const struct sum *s = arguments;
  for (int j = 0; j < s->n; j++)
    for (int i = 0; i < s->m; i++) {
      float value = s->alpha != 0 ? s->alpha * element(&s->a, i, j) : 0;
      if (s->beta != 0) value += s->beta * element(&s->b, i, j);
      ((float *)s->c.data)[i + (int64_t)j * s->c.stride] = value;
    }
}

/* The sum of two matrices, each perhaps transposed. ONNX Runtime transposes with it. */
int cublasSgeam(struct handle *handle, int transpose_a, int transpose_b, int m, int n, const float *alpha, const float *a,
                int a_stride, const float *beta, const float *b, int b_stride, float *c, int c_stride) {
  struct sum sum = {m,
                    n,
                    {(void *)a, FLOAT, transpose_a, a_stride, 0},
                    {(void *)b, FLOAT, transpose_b, b_stride, 0},
                    {c, FLOAT, 0, c_stride, 0},
                    *alpha,
                    *beta};
  return enqueue(handle->stream, add, &sum, sizeof sum) == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}

int cublasCreate_v2(struct handle **handle) {
  *handle = calloc(1, sizeof **handle);
  return *handle ? SUCCESS : 3; /* CUBLAS_STATUS_ALLOC_FAILED */
}

int cublasDestroy_v2(struct handle *handle) {
  free(handle);
  return SUCCESS;
}

int cublasSetStream_v2(struct handle *handle, cudaStream_t stream) {
  handle->stream = stream;
  return SUCCESS;
}

int cublasSetMathMode(struct handle *handle, int mode) {
  handle->math_mode = mode;
  return SUCCESS;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
  *mode = handle->math_mode;
  return SUCCESS;
}

const char *cublasGetStatusName(int status) {
  return status == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

const char *cublasGetStatusString(int status) {
  return status == SUCCESS ? "success" : "not supported by the fake CUDA libraries";
}

#define UNSUPPORTED(name)                 \
  int name(void) {                        \
    fake_cuda_log("UNSUPPORTED\t" #name); \
    return NOT_SUPPORTED;                 \
  }

UNSUPPORTED(cublasDgeam)
UNSUPPORTED(cublasDgemmBatched)
UNSUPPORTED(cublasDgemmStridedBatched)
UNSUPPORTED(cublasDgemm_v2)
UNSUPPORTED(cublasDgetrfBatched)
UNSUPPORTED(cublasDgetriBatched)
UNSUPPORTED(cublasGemmBatchedEx)
UNSUPPORTED(cublasScopy_v2)
UNSUPPORTED(cublasSgemmBatched)
UNSUPPORTED(cublasSgetrfBatched)
UNSUPPORTED(cublasSgetriBatched)
UNSUPPORTED(cublasSscal_v2)
