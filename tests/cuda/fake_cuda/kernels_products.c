/* Products with weights of 4 bits: those that unpack the weights as they multiply, for few rows, and what unpacks them for
   cuBLAS. Two integers lie in a byte, the first one in its lower half, and 8 stands for zero. */
#include "emulations.h"

#include <stdlib.h>
#include <string.h>

#include "elements.h"

struct weights {
  enum element type; /* of the scales, and of the unpacked weights */
  int block;         /* consecutive inputs that share a scale */
  const uint8_t *integers;
  const void *scales; /* one for each block */
};

/* An unpacked weight, by its place among all of them, where the last block of each output is padded. */
static double weight(const struct weights *weights, int64_t place) {
  int integer = (weights->integers[place / 2] >> place % 2 * 4 & 15) - 8;
  return rounded(weights->type, integer * load_element(weights->type, weights->scales, place / weights->block));
}

/* results, rows of inputs, integers, scales, zero points (NULL: none), rows, outputs, inputs. The size of a block is the first
   number among the template's arguments. */
void emulate_block_product(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  int rows = INT(arguments, 5), outputs = INT(arguments, 6), inputs = INT(arguments, 7);
  enum element type;
  element_types(mangled_name, strstr(mangled_name, "KernelM1I") != NULL ? "KernelM1I" : "KernelI", &type, 1);
  int size = atoi(strstr(mangled_name, "Li") + strlen("Li")), padded = (inputs + size - 1) / size * size;
  struct weights weights = {type, size, POINTER(arguments, 2), POINTER(arguments, 3)};
  float *given = malloc((size_t)rows * (size_t)inputs * sizeof *given), *column = malloc((size_t)inputs * sizeof *column);
  for (int64_t i = 0; i < (int64_t)rows * inputs; i++) given[i] = (float)load_element(type, POINTER(arguments, 1), i);
  for (int64_t output = 0; output < outputs; output++) {
    for (int64_t i = 0; i < inputs; i++) column[i] = (float)weight(&weights, output * padded + i);
    for (int64_t row = 0; row < rows; row++) {
      float sum = 0;
      for (int64_t i = 0; i < inputs; i++) sum += given[row * inputs + i] * column[i];
      store_element(type, POINTER(arguments, 0), row * outputs + output, sum);
    }
  }
  free(given), free(column);
}

/* unpacked weights, integers, scales, zero points (NULL: none), size of a block, blocks of an output, blocks of a thread block,
   blocks. */
void emulate_unpack_blocks(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  element_types(mangled_name, "BitsKernelI", &type, 1);
  struct weights weights = {type, INT(arguments, 4), POINTER(arguments, 1), POINTER(arguments, 2)};
  for (int64_t i = 0; i < (int64_t)INT(arguments, 7) * weights.block; i++)
    store_element(type, POINTER(arguments, 0), i, weight(&weights, i));
}

/* results, bias, outputs, elements of the results: adds the bias to each row. */
void emulate_add_bias(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  element_types(mangled_name, "BiasAddKernelI", &type, 1);
  void *results = POINTER(arguments, 0);
  for (int64_t i = 0; i < LONG(arguments, 3); i++) {
    double bias = load_element(type, POINTER(arguments, 1), i % INT(arguments, 2));
    store_element(type, results, i, load_element(type, results, i) + bias);
  }
}
