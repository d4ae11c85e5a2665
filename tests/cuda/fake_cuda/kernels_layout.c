/* Kernels that only move elements: gather, split, concatenation, slices, transposition, expansion, and those that fill. An
   element is copied by its size, so its type matters to few. */
#include "emulations.h"

#include <string.h>

#include "elements.h"

/* Bytes of the element that a template's first argument is; `int4` are 16. */
static size_t bytes_after(const char *mangled_name, const char *after) {
  const char *found = strstr(mangled_name, after);
  if (found != NULL && strncmp(found + strlen(after), "4int4", 5) == 0) return 16;
  enum element type;
  element_types(mangled_name, after, &type, 1);
  return element_bytes(type);
}

static void copy(void *to, int64_t to_index, const void *from, int64_t from_index, size_t bytes) {
  memcpy((char *)to + to_index * (int64_t)bytes, (const char *)from + from_index * (int64_t)bytes, bytes);
}

static int32_t divisor(void *const *arguments, int number) { return ((const struct divisor *)arguments[number])->value; }

/* ---- gather ---- */

/* elements of the input in front of which an index counts anew, valid indices, elements of the output likewise, elements of a
   block, indices, bytes of an index, input, output, count. An index outside gives zeros. */
void emulate_gather(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_GatherKernelI");
  int64_t width = divisor(arguments, 3);
  enum element index_type = LONG(arguments, 5) == 4 ? INT32 : INT64;
  for (int64_t i = 0; i < INT(arguments, 8); i++) {
    int64_t outer = i / divisor(arguments, 2), inner = i % divisor(arguments, 2);
    int64_t index = (int64_t)load_element(index_type, POINTER(arguments, 4), inner / width);
    if (index < 0) index += LONG(arguments, 1);
    if (index < 0 || index >= LONG(arguments, 1))
      memset((char *)POINTER(arguments, 7) + i * (int64_t)bytes, 0, bytes);
    else
      copy(POINTER(arguments, 7), i, POINTER(arguments, 6), outer * LONG(arguments, 0) + index * width + inner % width, bytes);
  }
}

/* How GatherElements finds the place of an index: for any rank, and for two dimensions. */
struct offsets {
  int32_t rank;
  struct divisors indices;
  struct {
    int32_t size, values[8];
  } input_strides, index_strides;
};

struct row_offsets {
  struct divisor row;
  int32_t input_row;
};

_Static_assert(sizeof(struct offsets) == 176, "as large as the kernel's argument");

static void gather_element(void *const *arguments, const char *mangled_name, int64_t i, int64_t offset) {
  size_t bytes = bytes_after(mangled_name, "_GatherScatterElementsKernelI");
  enum element types[2];
  element_types(mangled_name, "_GatherScatterElementsKernelI", types, 2);
  int64_t index = (int64_t)load_element(types[1], POINTER(arguments, 1), i);
  if (index < 0) index += LONG(arguments, 3);
  if (index < 0 || index >= LONG(arguments, 3)) return;
  copy(POINTER(arguments, 2), i, POINTER(arguments, 0), offset + index * LONG(arguments, 4), bytes);
}

/* input, indices, output, size of the axis, its stride, offsets, functor, count. */
void emulate_gather_elements(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const struct offsets *offsets = arguments[5];
  for (int64_t i = 0; i < INT(arguments, 7); i++) {
    int64_t offset = 0, rest = i;
    for (int dim = 0; dim < offsets->rank; dim++) {
      offset += offsets->input_strides.values[dim] * (rest / offsets->indices.values[dim].value);
      rest %= offsets->indices.values[dim].value;
    }
    gather_element(arguments, mangled_name, i, offset);
  }
}

void emulate_gather_elements_2d(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const struct row_offsets *offsets = arguments[5];
  int is_outer_axis = strstr(mangled_name, "OffsetCalculatorFor2DILb1E") != NULL;
  for (int64_t i = 0; i < INT(arguments, 7); i++) {
    int64_t row = i / offsets->row.value, column = i % offsets->row.value;
    gather_element(arguments, mangled_name, i, is_outer_axis ? column : row * offsets->input_row);
  }
}

/* GatherND's first kernel: batch dimensions, input dimensions, slices, slices of a batch, its stride, indices of a slice, their
   strides, indices, offsets of the slices. */
void emulate_slice_offsets(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  element_types(mangled_name, "_ComputeSliceOffsetsKernelI", &type, 1);
  const struct longs *dims = arguments[1], *strides = arguments[6];
  int64_t parts = LONG(arguments, 5);
  for (int64_t slice = 0; slice < LONG(arguments, 2); slice++) {
    int64_t offset = slice / LONG(arguments, 3) * LONG(arguments, 4);
    for (int64_t part = 0; part < parts; part++) {
      int64_t index = (int64_t)load_element(type, POINTER(arguments, 7), slice * parts + part),
              size = dims->values[LONG(arguments, 0) + part];
      offset += (index < 0 ? index + size : index) * strides->values[part];
    }
    ((int64_t *)POINTER(arguments, 8))[slice] = offset;
  }
}

/* slices, input, output, elements of a slice, their offsets. */
void emulate_gather_nd(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_GatherNDKernelI");
  int64_t width = LONG(arguments, 3);
  for (int64_t i = 0; i < LONG(arguments, 0) * width; i++)
    copy(POINTER(arguments, 2), i, POINTER(arguments, 1), ((const int64_t *)POINTER(arguments, 4))[i / width] + i % width,
         bytes);
}

/* ---- split and concatenation ---- */

struct pointers_4 {
  int32_t size;
  void *values[4];
};

struct longs_4 {
  int32_t size;
  int64_t values[4];
};

struct pointers_32 {
  int32_t size;
  void *values[32];
};

struct longs_32 {
  int32_t size;
  int64_t values[32];
};

/* bytes of each part, input, outputs, bytes of a row, count: along the last axis. */
void emulate_split_rows(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const struct longs_4 *parts = arguments[0];
  const struct pointers_4 *outputs = arguments[2];
  int64_t width = LONG(arguments, 3),
          rows = INT(arguments, 4) * (int64_t)bytes_after(mangled_name, "_SplitSmallInnerKernelI") / width;
  const char *input = POINTER(arguments, 1);
  for (int64_t row = 0; row < rows; row++)
    for (int part = 0; part < parts->size; part++) {
      memcpy((char *)outputs->values[part] + row * parts->values[part], input, (size_t)parts->values[part]);
      input += parts->values[part];
    }
}

/* elements of the axis and all behind it, elements behind it, size of a part, number of parts, input, outputs, count. */
void emulate_split_same(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_SplitKernelSameSplitDimI");
  int64_t width = divisor(arguments, 1), part = divisor(arguments, 2);
  const struct pointers_32 *outputs = arguments[5];
  for (int64_t i = 0; i < INT(arguments, 6); i++) {
    int64_t outer = i / divisor(arguments, 0), inner = i % divisor(arguments, 0), place = inner / width;
    copy(outputs->values[place / part], (outer * part + place % part) * width + inner % width, POINTER(arguments, 4), i, bytes);
  }
}

/* elements of the axis and all behind it, elements behind it, size of a part, output, inputs, count. */
void emulate_concat_same(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_ConcatKernelSameConcatDimI");
  int64_t width = divisor(arguments, 1), part = divisor(arguments, 2);
  const struct pointers_32 *inputs = arguments[4];
  for (int64_t i = 0; i < INT(arguments, 5); i++) {
    int64_t outer = i / divisor(arguments, 0), inner = i % divisor(arguments, 0), place = inner / width;
    copy(POINTER(arguments, 3), i, inputs->values[place / part], (outer * part + place % part) * width + inner % width, bytes);
  }
}

/* ---- slices, transposition, expansion ---- */

/* starts, steps, input strides, output strides, input, output, count. */
void emulate_slice(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(strstr(mangled_name, "ELi") + strlen("ELi8E"), ""); /* behind the number of dimensions */
  const struct longs *starts = arguments[0], *steps = arguments[1], *input_strides = arguments[2];
  const struct divisors *output_strides = arguments[3];
  for (int64_t i = 0; i < INT(arguments, 6); i++) {
    int64_t from = 0, rest = i;
    for (int dim = 0; dim < starts->size; dim++) {
      int is_last = dim == starts->size - 1;
      int64_t place = is_last ? rest : rest / output_strides->values[dim].value;
      from += (starts->values[dim] + place * steps->values[dim]) * (is_last ? 1 : input_strides->values[dim]);
      if (!is_last) rest %= output_strides->values[dim].value;
    }
    copy(POINTER(arguments, 5), i, POINTER(arguments, 4), from, bytes);
  }
}

/* rows, columns, elements of a batch, input, output: each batch, one of grid.z, as a matrix. */
void emulate_transpose_3d(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  size_t bytes = bytes_after(mangled_name, "Transpose3DKernelI");
  int64_t rows = LONG(arguments, 0), columns = LONG(arguments, 1), stride = LONG(arguments, 2);
  for (int64_t batch = 0; batch < grid.z; batch++)
    for (int64_t row = 0; row < rows; row++)
      for (int64_t column = 0; column < columns; column++)
        copy(POINTER(arguments, 4), batch * stride + column * rows + row, POINTER(arguments, 3),
             batch * stride + row * columns + column, bytes);
}

/* output, input, columns, rows of the input, in float16. */
void emulate_transpose_matrix(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  int64_t columns = INT(arguments, 2), rows = INT(arguments, 3);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++)
      copy(POINTER(arguments, 0), column * rows + row, POINTER(arguments, 1), row * columns + column, 2);
}

/* input strides, input, output strides, output, size of dimension 2, vectors of 16 bytes: the last dimension stays. One block
   for each pair of dimensions 0 and 1, one thread for each vector. */
void emulate_transpose_4d_vectors(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  const struct longs *from = arguments[0], *to = arguments[2];
  int64_t elements = 16 / (strstr(mangled_name, "DimILi")[6] - '0'), limit = INT(arguments, 5);
  for (int64_t a = 0; a < grid.z; a++)
    for (int64_t b = 0; b < grid.y; b++)
      for (int64_t c = 0; c < LONG(arguments, 4); c++)
        for (int64_t d = 0; d < block.x; d++) {
          int64_t i = (a * from->values[0] + b * from->values[1] + c * from->values[2]) / elements + d * from->values[3];
          int64_t o = (a * to->values[0] + b * to->values[1] + c * to->values[2]) / elements + d * to->values[3];
          if (i < limit && o < limit) copy(POINTER(arguments, 3), o, POINTER(arguments, 1), i, 16);
        }
}

/* input strides, input, output strides, output, bytes of an element, size of dimension 2, count. */
void emulate_transpose_4d(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)mangled_name;
  const struct longs *from = arguments[0], *to = arguments[2];
  for (int64_t a = 0; a < grid.z; a++)
    for (int64_t b = 0; b < grid.y; b++)
      for (int64_t c = 0; c < LONG(arguments, 5); c++)
        for (int64_t d = 0; d < block.x; d++)
          copy(POINTER(arguments, 3), a * to->values[0] + b * to->values[1] + c * to->values[2] + d * to->values[3],
               POINTER(arguments, 1), a * from->values[0] + b * from->values[1] + c * from->values[2] + d * from->values[3],
               (size_t)LONG(arguments, 4));
}

/* rank, input strides in the order of the output, input, output strides, output, count. */
void emulate_transpose(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "TransposeKernelI");
  for (int64_t i = 0; i < INT(arguments, 5); i++)
    copy(POINTER(arguments, 4), i, POINTER(arguments, 2), broadcast_index(i, INT(arguments, 0), arguments[3], arguments[1]),
         bytes);
}

/* rank, count, input, output, output strides, input strides. */
void emulate_expand(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "ExpandKernelI");
  for (int64_t i = 0; i < INT(arguments, 1); i++)
    copy(POINTER(arguments, 3), i, POINTER(arguments, 2), broadcast_index(i, INT(arguments, 0), arguments[4], arguments[5]),
         bytes);
}

/* count, input, output, elements of an output row, strides of both input dimensions. */
void emulate_expand_2d(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "ExpandKernel2DI");
  int64_t width = divisor(arguments, 3);
  for (int64_t i = 0; i < INT(arguments, 0); i++)
    copy(POINTER(arguments, 2), i, POINTER(arguments, 1), i / width * INT(arguments, 4) + i % width * INT(arguments, 5), bytes);
}

/* output, one element of the input, count. */
void emulate_fill_from_pointer(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_FillFromDataPtrKernelI");
  for (int64_t i = 0; i < INT(arguments, 2); i++) copy(POINTER(arguments, 0), i, POINTER(arguments, 1), 0, bytes);
}

/* bias, output, count, columns, strides of the bias by row and column, scale (of which this template is none). */
void emulate_broadcast_bias(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "BroadcastBiasKernelI");
  int64_t columns = divisor(arguments, 3);
  for (int64_t i = 0; i < LONG(arguments, 2); i++)
    copy(POINTER(arguments, 1), i, POINTER(arguments, 0), i / columns * INT(arguments, 4) + i % columns * INT(arguments, 5),
         bytes);
}

/* start, step, count, output; start and step have the output's type, their size differs. */
void emulate_range(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  element_types(mangled_name, "RangeKernelI", &type, 1);
  for (int64_t i = 0; i < LONG(arguments, 2); i++)
    store_element(type, POINTER(arguments, 3), i,
                  load_element(type, arguments[0], 0) + (double)i * load_element(type, arguments[1], 0));
}

/* output, updates, write positions or NULL, heads and batches, heads, positions, new positions, elements of one, count. */
void emulate_tensor_scatter(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  size_t bytes = bytes_after(mangled_name, "_TensorScatterKernelI");
  const int64_t *starts = POINTER(arguments, 2);
  int64_t heads = LONG(arguments, 4), positions = LONG(arguments, 5), added = LONG(arguments, 6), width = LONG(arguments, 7);
  int is_circular = strstr(mangled_name, "Lb1E") != NULL;
  for (int64_t i = 0; i < LONG(arguments, 8); i++) {
    int64_t head = i / (added * width), position = i / width % added + (starts ? starts[head / heads] : 0);
    if (is_circular) position %= positions;
    copy(POINTER(arguments, 0), (head * positions + position) * width + i % width, POINTER(arguments, 1), i, bytes);
  }
}
