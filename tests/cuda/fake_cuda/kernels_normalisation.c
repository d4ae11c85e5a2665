/* Kernels that normalise rows: LayerNorm and RMSNorm, with and without a sum before them, softmax and log-softmax. They compute
   in float32, as the kernels of float16 do too. */
#include "emulations.h"

#include <math.h>
#include <string.h>

#include "elements.h"

struct row {
  enum element type;
  int64_t width;
  const void *gain, *shift; /* by column; NULL: 1 and 0 */
  double epsilon;
  int is_rms; /* without subtracting the mean */
};

/* Normalises one row of `values` into a row of the output. */
static void normalise(const struct row *row, const float *values, void *output, int64_t first) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < row->width && !row->is_rms; i++) mean += values[i] / (double)row->width;
  for (int64_t i = 0; i < row->width; i++) variance += (values[i] - mean) * (values[i] - mean) / (double)row->width;
  double scale = 1 / sqrt(variance + row->epsilon);
  for (int64_t i = 0; i < row->width; i++) {
    double gain = row->gain ? load_element(row->type, row->gain, i) : 1,
           shift = row->shift ? load_element(row->type, row->shift, i) : 0;
    store_element(row->type, output, first + i, (values[i] - mean) * scale * gain + shift);
  }
}

/* output, means or NULL, inverse deviations or NULL, input, rows, columns, epsilon, gain, shift, gains by row (0: none),
   residual, bias, their sum with the input; the last three may be NULL. */
void emulate_layer_norm(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[4];
  element_types(mangled_name, "cuApplyLayerNormI", types, 3);
  int64_t width = INT(arguments, 5);
  struct row row = {
      types[0], width, POINTER(arguments, 7), POINTER(arguments, 8), REAL(arguments, 6), strstr(mangled_name, "Lb1E") != NULL};
  const void *residual = POINTER(arguments, 10), *bias = POINTER(arguments, 11);
  float values[width];
  for (int64_t first = 0; first < INT(arguments, 4) * width; first += width) {
    for (int64_t i = 0; i < width; i++) {
      double value = load_element(types[0], POINTER(arguments, 3), first + i);
      if (bias != NULL) value += load_element(types[0], bias, i);
      if (residual != NULL) value += load_element(types[0], residual, first + i);
      values[i] = (float)value;
      if (POINTER(arguments, 12) != NULL) store_element(types[0], POINTER(arguments, 12), first + i, value);
    }
    normalise(&row, values, POINTER(arguments, 0), first);
  }
}

/* output, sum or NULL, input, residual, bias or NULL, gain, shift or NULL, epsilon, columns, elements after which the residual
   repeats; one block for each row. The sum is rounded before it is normalised. */
void emulate_skip_layer_norm(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  enum element type;
  element_types(mangled_name, strstr(mangled_name, "KernelSmallI") ? "KernelSmallI" : "KernelI", &type, 1);
  int64_t width = INT(arguments, 8);
  struct row row = {
      type, width, POINTER(arguments, 5), POINTER(arguments, 6), REAL(arguments, 7), strstr(mangled_name, "Lb1E") != NULL};
  float values[width];
  for (int64_t first = 0; first < (int64_t)grid.x * width; first += width) {
    for (int64_t i = 0; i < width; i++) {
      double value = load_element(type, POINTER(arguments, 2), first + i);
      if (POINTER(arguments, 4) != NULL) value = rounded(type, value + load_element(type, POINTER(arguments, 4), i));
      value = rounded(type, value + load_element(type, POINTER(arguments, 3), (first + i) % INT(arguments, 9)));
      values[i] = (float)value;
      if (POINTER(arguments, 1) != NULL) store_element(type, POINTER(arguments, 1), first + i, value);
    }
    normalise(&row, values, POINTER(arguments, 0), first);
  }
}

/* One row of softmax, or of its logarithm. */
static void softmax_row(enum element from, const void *input, int64_t first, enum element to, void *output, int64_t out,
                        int64_t width, int is_log) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < width; i++) largest = fmax(largest, load_element(from, input, first + i));
  for (int64_t i = 0; i < width; i++) sum += exp(load_element(from, input, first + i) - largest);
  for (int64_t i = 0; i < width; i++) {
    double shifted = load_element(from, input, first + i) - largest;
    store_element(to, output, out + i, is_log ? shifted - log(sum) : exp(shifted) / sum);
  }
}

/* output, input, rows, elements between rows, columns. */
void emulate_softmax_warp(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[2];
  element_types(mangled_name, strstr(mangled_name, "resource_efficientI") ? "resource_efficientI" : "softmax_warp_forwardI",
                types, 2);
  int64_t stride = INT(arguments, 3);
  for (int64_t row = 0; row < INT(arguments, 2); row++)
    softmax_row(types[0], POINTER(arguments, 1), row * stride, types[1], POINTER(arguments, 0), row * stride, INT(arguments, 4),
                strstr(mangled_name, "Lb1E") != NULL);
}

/* output, input, columns, elements between rows of the input, and of the output; one block for each row. */
void emulate_softmax_block(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  enum element types[3];
  element_types(strstr(mangled_name, "softmax_block_forwardILi") + strlen("softmax_block_forwardILi"), "E", types, 3);
  for (int64_t row = 0; row < grid.x; row++)
    softmax_row(types[0], POINTER(arguments, 1), row * INT(arguments, 3), types[2], POINTER(arguments, 0),
                row * INT(arguments, 4), INT(arguments, 2), strstr(mangled_name, "LogSoftMax") != NULL);
}
