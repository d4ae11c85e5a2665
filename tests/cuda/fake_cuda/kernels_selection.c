/* Kernels that select the best elements of rows, each with its own order of equal ones. */
#include "emulations.h"

#include <math.h>
#include <stdlib.h>

#include "elements.h"

struct candidate {
  double value;        /* negated where the smallest are wanted */
  int64_t index, rank; /* rank: the order of equal values */
};

static int better_first(const void *left, const void *right) {
  const struct candidate *a = left, *b = right;
  if (a->value != b->value) return a->value > b->value ? -1 : 1;
  return a->rank < b->rank ? -1 : a->rank > b->rank;
}

struct rows {
  enum element type;
  const void *input;
  void *values;
  int64_t *indices;
  int64_t count, width, wanted, inner; /* inner: elements behind the axis */
  int is_largest;
  int64_t threads; /* 0: of equal values the first; else those of the first thread, which takes every threads-th */
};

static void select_best(const struct rows *rows) {
  struct candidate *found = malloc((size_t)rows->width * sizeof *found);
  for (int64_t row = 0; row < rows->count; row++) {
    int64_t from = row / rows->inner * rows->inner * rows->width + row % rows->inner;
    int64_t to = row / rows->inner * rows->inner * rows->wanted + row % rows->inner;
    for (int64_t i = 0; i < rows->width; i++) {
      double value = load_element(rows->type, rows->input, from + i * rows->inner);
      int64_t rank = rows->threads ? i % rows->threads * rows->width + i : i;
      found[i] = (struct candidate){rows->is_largest ? value : -value, i, rank};
    }
    qsort(found, (size_t)rows->width, sizeof *found, better_first);
    for (int64_t k = 0; k < rows->wanted; k++) {
      store_element(rows->type, rows->values, to + k * rows->inner,
                    load_element(rows->type, rows->input, from + found[k].index * rows->inner));
      rows->indices[to + k * rows->inner] = found[k].index;
    }
  }
  free(found);
}

/* Elements behind the axis: `pitches` are those from each dimension on. */
static int64_t elements_behind(const struct longs *pitches, int64_t rank, int axis) {
  return axis == rank - 1 ? 1 : pitches->values[axis + 1];
}

/* input, values, indices, pitches, rank, axis, wanted, wanted as a power of 2, largest, sorted, width, width as a power of 2,
   and two limits; one block for each row. */
void emulate_bitonic_top_k(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  struct rows rows = {.input = POINTER(arguments, 0),
                      .values = POINTER(arguments, 1),
                      .indices = POINTER(arguments, 2),
                      .count = grid.x,
                      .width = LONG(arguments, 10),
                      .wanted = LONG(arguments, 6),
                      .is_largest = LONG(arguments, 8) == 1,
                      .inner = elements_behind(arguments[3], LONG(arguments, 4), INT(arguments, 5))};
  element_types(mangled_name, "BitonicTopKI", &rows.type, 1);
  select_best(&rows);
}

/* As above without the powers of 2, and with the elements of a thread behind the width. Of equal values it takes those that a
   thread of lower number reads: not the lower index first. */
void emulate_radix_top_k(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  struct rows rows = {.input = POINTER(arguments, 0),
                      .values = POINTER(arguments, 1),
                      .indices = POINTER(arguments, 2),
                      .count = grid.x,
                      .width = LONG(arguments, 9),
                      .wanted = LONG(arguments, 6),
                      .is_largest = LONG(arguments, 7) == 1,
                      .inner = elements_behind(arguments[3], LONG(arguments, 4), INT(arguments, 5)),
                      .threads = block.x};
  element_types(mangled_name, "RadixTopKI", &rows.type, 1);
  select_best(&rows);
}

/* The two kernels for few of many: the first one's candidates are between the kernels only, so the second one selects. */
void emulate_partial_top_k(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)arguments, (void)grid, (void)block, (void)mangled_name;
}

/* input, values, indices, candidates, width, wanted, number of candidates; one block for each row. It follows a kernel that was
   told whether the largest are wanted; only those are ever asked for here. */
void emulate_final_top_k(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  struct rows rows = {.input = POINTER(arguments, 0),
                      .values = POINTER(arguments, 1),
                      .indices = POINTER(arguments, 2),
                      .count = grid.x,
                      .width = LONG(arguments, 4),
                      .wanted = LONG(arguments, 5),
                      .is_largest = 1,
                      .inner = 1};
  element_types(mangled_name, "FinalTopKI", &rows.type, 1);
  select_best(&rows);
}
