/* Elements of tensors on the device: their types, as mangled kernel names spell them, and access by index.

   Values travel as double, which holds each half, float and bool, and each integer below 2^53, exactly. A sum, difference,
   product or quotient of two floats (or halves) that is computed in double and then rounded is the correctly rounded one. */
#ifndef FAKE_CUDA_ELEMENTS_H
#define FAKE_CUDA_ELEMENTS_H

#include <stddef.h>
#include <stdint.h>

enum element { UNKNOWN, HALF, FLOAT, DOUBLE, BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64 };

/* Reads `count` template arguments that are element types, from behind the first occurrence of `after` in a mangled name on.
   Any other argument reads as UNKNOWN and ends the list. */
void element_types(const char *mangled_name, const char *after, enum element *types, int count);

size_t element_bytes(enum element type);

double load_element(enum element type, const void *data, int64_t index);
void store_element(enum element type, void *data, int64_t index, double value);

/* The value rounded to the type, as a kernel does that keeps it in a variable of that type. */
double rounded(enum element type, double value);

/* An argument of a kernel: a pointer, or a number. */
#define POINTER(arguments, number) (*(void **)(arguments)[number])
#define INT(arguments, number) (*(int32_t *)(arguments)[number])
#define LONG(arguments, number) (*(int64_t *)(arguments)[number])
#define REAL(arguments, number) (*(float *)(arguments)[number])
#define FLAG(arguments, number) (*(uint8_t *)(arguments)[number] != 0)

/* ONNX Runtime's structures in arguments: a divisor with its magic numbers, and lists of at most 8 dimensions. */
struct divisor {
  int32_t value;
  uint32_t magic, shift;
};

struct longs {
  int32_t size;
  int64_t values[8];
};

struct divisors {
  int32_t size;
  struct divisor values[8];
};

/* The element of a broadcast input that belongs to an element of the output: strides of 0 repeat it. */
int64_t broadcast_index(int64_t index, int rank, const struct divisors *output_strides, const struct longs *strides);

#endif
