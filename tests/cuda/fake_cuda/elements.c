/* See elements.h. */
#include "elements.h"

#include <string.h>

/* One type at the start of `name`, and the end of its spelling. `named` is the last type with a name of its own, which later
   arguments repeat as a substitution (S2_). */
static enum element read_type(const char **name, enum element *named) {
  static const char half[] = "6__half", letters[] = "fdbahstijlm";
  static const enum element builtin[] = {FLOAT, DOUBLE, BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64};
  if (strncmp(*name, half, strlen(half)) == 0) {
    *name += strlen(half);
    return *named = HALF;
  }
  if (**name == 'S' && (*name)[1] >= '0' && (*name)[1] <= '9' && (*name)[2] == '_') {
    *name += 3;
    return *named;
  }
  const char *letter = **name ? strchr(letters, **name) : NULL;
  if (letter == NULL) return UNKNOWN;
  *name += 1;
  return builtin[letter - letters];
}

void element_types(const char *mangled_name, const char *after, enum element *types, int count) {
  enum element named = UNKNOWN;
  const char *name = strstr(mangled_name, after);
  if (name != NULL) name += strlen(after);
  for (int i = 0; i < count; i++) types[i] = UNKNOWN;
  for (int i = 0; name != NULL && i < count; i++)
    if ((types[i] = read_type(&name, &named)) == UNKNOWN) return;
}

size_t element_bytes(enum element type) {
  switch (type) {
    case BOOL:
    case INT8:
    case UINT8: return 1;
    case HALF:
    case INT16:
    case UINT16: return 2;
    case FLOAT:
    case INT32:
    case UINT32: return 4;
    case DOUBLE:
    case INT64:
    case UINT64: return 8;
    case UNKNOWN: break;
  }
  return 0;
}

double load_element(enum element type, const void *data, int64_t index) {
  switch (type) {
    case HALF: return ((const _Float16 *)data)[index];
    case FLOAT: return ((const float *)data)[index];
    case DOUBLE: return ((const double *)data)[index];
    case BOOL: return ((const uint8_t *)data)[index] != 0;
    case INT8: return ((const int8_t *)data)[index];
    case UINT8: return ((const uint8_t *)data)[index];
    case INT16: return ((const int16_t *)data)[index];
    case UINT16: return ((const uint16_t *)data)[index];
    case INT32: return ((const int32_t *)data)[index];
    case UINT32: return ((const uint32_t *)data)[index];
    case INT64: return (double)((const int64_t *)data)[index];
    case UINT64: return (double)((const uint64_t *)data)[index];
    case UNKNOWN: break;
  }
  return 0;
}

void store_element(enum element type, void *data, int64_t index, double value) {
  switch (type) {
    case HALF: ((_Float16 *)data)[index] = (_Float16)value; break;
    case FLOAT: ((float *)data)[index] = (float)value; break;
    case DOUBLE: ((double *)data)[index] = value; break;
    case BOOL: ((uint8_t *)data)[index] = value != 0; break;
    case INT8: ((int8_t *)data)[index] = (int8_t)value; break;
    case UINT8: ((uint8_t *)data)[index] = (uint8_t)value; break;
    case INT16: ((int16_t *)data)[index] = (int16_t)value; break;
    case UINT16: ((uint16_t *)data)[index] = (uint16_t)value; break;
    case INT32: ((int32_t *)data)[index] = (int32_t)value; break;
    case UINT32: ((uint32_t *)data)[index] = (uint32_t)value; break;
    case INT64: ((int64_t *)data)[index] = (int64_t)value; break;
    case UINT64: ((uint64_t *)data)[index] = (uint64_t)value; break;
    case UNKNOWN: break;
  }
}

double rounded(enum element type, double value) {
  double place = 0;
  store_element(type, &place, 0, value);
  return load_element(type, &place, 0);
}

int64_t broadcast_index(int64_t index, int rank, const struct divisors *output_strides, const struct longs *strides) {
  int64_t found = 0;
  for (int dim = 0; dim < rank; dim++) {
    int64_t divisor = output_strides->values[dim].value;
    found += strides->values[dim] * (index / divisor);
    index %= divisor;
  }
  return found;
}
