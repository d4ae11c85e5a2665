/* Kernels that compute each element of the output from one element of each input: unary and binary operators, casts, Where, and
   the activations with a bias. */
#include "emulations.h"

#include <math.h>
#include <string.h>

#include "elements.h"
#include "streams.h"

/* Whether a mangled kernel name contains this functor, such as OP_Add. */
static int is_operator(const char *mangled_name, const char *name) {
  const char *found = strstr(mangled_name, name);
  return found != NULL && found[strlen(name)] == 'I';
}

/* ---- unary ---- */

static double gelu(double x) { return 0.5 * x * (1 + erf(x * M_SQRT1_2)); }

static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x))); }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double relu(double x) { return x > 0 ? x : 0; }

static double identity(double x) { return x; }

static double negative(double x) { return -x; }

static double reciprocal(double x) { return 1 / x; }

static double logical_not(double x) { return x == 0; }

static double silu(double x) { return x * sigmoid(x); }

static const struct {
  const char *name;
  double (*of)(double);
} UNARY[] = {
    {"OP_Cast", identity},
    {"OP_Relu", relu},
    {"OP_Sigmoid", sigmoid},
    {"OP_Tanh", tanh},
    {"OP_Erf", erf},
    {"OP_Exp", exp},
    {"OP_Log", log},
    {"OP_Sqrt", sqrt},
    {"OP_Neg", negative},
    {"OP_Abs", fabs},
    {"OP_Floor", floor},
    {"OP_Ceil", ceil},
    {"OP_Round", rint},
    {"OP_Reciprocal", reciprocal},
    {"OP_Sin", sin},
    {"OP_Cos", cos},
    {"OP_Not", logical_not},
    {"OP_Gelu", gelu},
    {"OP_FastGelu", gelu_tanh},
    {"OP_QuickGelu", silu},
    {"OP_Silu", silu},
};

/* The function of a kernel, or NULL. */
static double (*unary_function(const char *mangled_name))(double) {
  for (size_t i = 0; i < sizeof UNARY / sizeof *UNARY; i++)
    if (is_operator(mangled_name, UNARY[i].name)) return UNARY[i].of;
  fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  return NULL;
}

/* input, output, functor, count. The functor of QuickGelu holds alpha: x * sigmoid(alpha x). */
void emulate_unary(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[2];
  element_types(mangled_name, "_UnaryElementWiseI", types, 2);
  const void *input = POINTER(arguments, 0);
  double (*function)(double) = unary_function(mangled_name);
  double alpha = is_operator(mangled_name, "OP_QuickGelu") ? REAL(arguments, 2) : 1;
  for (int64_t i = 0; function != NULL && i < LONG(arguments, 3); i++)
    store_element(types[1], POINTER(arguments, 1), i, function(load_element(types[0], input, i) * alpha) / alpha);
}

/* ---- binary ---- */

static double add(double a, double b) { return a + b; }

static double subtract(double a, double b) { return a - b; }

static double multiply(double a, double b) { return a * b; }

static double divide(double a, double b) { return a / b; }

static double smaller(double a, double b) { return a < b ? a : b; }

static double larger(double a, double b) { return a > b ? a : b; }

/* With the sign of the divisor, as Python's. */
static double modulo(double a, double b) { return a - b * floor(a / b); }

static double is_less(double a, double b) { return a < b; }

static double is_less_or_equal(double a, double b) { return a <= b; }

static double is_greater(double a, double b) { return a > b; }

static double is_greater_or_equal(double a, double b) { return a >= b; }

static double is_equal(double a, double b) { return a == b; }

static double both(double a, double b) { return a != 0 && b != 0; }

static double either(double a, double b) { return a != 0 || b != 0; }

static const struct {
  const char *name;
  double (*of)(double, double);
} BINARY[] = {
    {"OP_Add", add},
    {"OP_Sub", subtract},
    {"OP_Mul", multiply},
    {"OP_Div", divide},
    {"OP_Min", smaller},
    {"OP_Max", larger},
    {"OP_Mod", modulo},
    {"OP_CMod", fmod},
    {"OP_Pow", pow},
    {"OP_Less", is_less},
    {"OP_LessOrEqual", is_less_or_equal},
    {"OP_Greater", is_greater},
    {"OP_GreaterOrEqual", is_greater_or_equal},
    {"OP_Equal", is_equal},
    {"OP_And", both},
    {"OP_Or", either},
};

static double (*binary_function(const char *mangled_name))(double, double) {
  for (size_t i = 0; i < sizeof BINARY / sizeof *BINARY; i++)
    if (is_operator(mangled_name, BINARY[i].name)) return BINARY[i].of;
  fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  return NULL;
}

/* left, right, output, functor, count. The template's first arguments say whether each side advances: a scalar does not. */
void emulate_binary_simple(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[3];
  const char *flags = strstr(mangled_name, "SimpleILb");
  int left_advances = flags[9] == '1', right_advances = flags[13] == '1';
  element_types(mangled_name, left_advances ? (right_advances ? "Lb1ELb1E" : "Lb1ELb0E") : "Lb0ELb1E", types, 3);
  double (*function)(double, double) = binary_function(mangled_name);
  for (int64_t i = 0; function != NULL && i < INT(arguments, 4); i++)
    store_element(types[0], POINTER(arguments, 2), i,
                  function(load_element(types[1], POINTER(arguments, 0), left_advances ? i : 0),
                           load_element(types[2], POINTER(arguments, 1), right_advances ? i : 0)));
}

/* rank, left strides, left, right strides, right, output strides, output, functor, count. A side without broadcasting has its
   element at the output's index: the template says which sides are to be computed. */
void emulate_binary_broadcast(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[3];
  element_types(mangled_name, "_BinaryElementWiseI", types, 3);
  const char *flags = strstr(mangled_name, "ELb");
  int left_broadcasts = flags[3] == '1', right_broadcasts = flags[7] == '1', rank = INT(arguments, 0);
  double (*function)(double, double) = binary_function(mangled_name);
  for (int64_t i = 0; function != NULL && i < INT(arguments, 8); i++) {
    int64_t left = left_broadcasts ? broadcast_index(i, rank, arguments[5], arguments[1]) : i;
    int64_t right = right_broadcasts ? broadcast_index(i, rank, arguments[5], arguments[3]) : i;
    store_element(
        types[0], POINTER(arguments, 6), i,
        function(load_element(types[1], POINTER(arguments, 2), left), load_element(types[2], POINTER(arguments, 4), right)));
  }
}

/* left, right, height, output, functor, count: the right side has one element for `height` elements in a row. */
void emulate_binary_channel(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[3];
  element_types(mangled_name, "Batch1I", types, 3);
  int64_t height = ((const struct divisor *)arguments[2])->value;
  double (*function)(double, double) = binary_function(mangled_name);
  for (int64_t i = 0; function != NULL && i < INT(arguments, 5); i++)
    store_element(
        types[0], POINTER(arguments, 3), i,
        function(load_element(types[1], POINTER(arguments, 0), i), load_element(types[2], POINTER(arguments, 1), i / height)));
}

/* left, right, height, channels, output, functor, count: as above, and the channels of all batches are the same. */
void emulate_binary_channels(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element types[3];
  element_types(mangled_name, "BatchNI", types, 3);
  int64_t height = ((const struct divisor *)arguments[2])->value, channels = ((const struct divisor *)arguments[3])->value;
  double (*function)(double, double) = binary_function(mangled_name);
  for (int64_t i = 0; function != NULL && i < INT(arguments, 6); i++)
    store_element(types[0], POINTER(arguments, 4), i,
                  function(load_element(types[1], POINTER(arguments, 0), i),
                           load_element(types[2], POINTER(arguments, 1), i / height % channels)));
}

/* ---- Where ---- */

enum broadcast { ADVANCES, SCALAR, BY_STRIDES };

/* Of condition, left and right: the template's arguments after the type. */
static void read_kinds(const char *mangled_name, enum broadcast *kinds) {
  const char *flag = strstr(mangled_name, "BroadcastIndexTypeE") + strlen("BroadcastIndexTypeE");
  kinds[0] = (enum broadcast)(flag[0] - '0');
  for (int i = 1; i < 3; i++) {
    flag = strchr(flag, '_') + 1; /* ELS2_0E: the number after a substitution */
    kinds[i] = (enum broadcast)(flag[0] - '0');
  }
}

static int64_t input_index(enum broadcast kind, int64_t i, int rank, const struct divisors *output,
                           const struct longs *strides) {
  return kind == ADVANCES ? i : kind == SCALAR ? 0 : broadcast_index(i, rank, output, strides);
}

/* rank, condition strides, condition, left strides, left, right strides, right, output strides, output, count. */
void emulate_where(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  enum broadcast kinds[3];
  element_types(mangled_name, "_TenaryElementWiseI", &type, 1);
  read_kinds(mangled_name, kinds);
  int rank = (int)LONG(arguments, 0);
  for (int64_t i = 0; i < INT(arguments, 9); i++) {
    int64_t place[3];
    for (int side = 0; side < 3; side++) place[side] = input_index(kinds[side], i, rank, arguments[7], arguments[1 + 2 * side]);
    int side = load_element(BOOL, POINTER(arguments, 2), place[0]) ? 1 : 2;
    store_element(type, POINTER(arguments, 8), i, load_element(type, POINTER(arguments, 2 + 2 * side), place[side]));
  }
}

/* condition, left, right, output, count; none has strides. */
void emulate_where_simple(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  enum element type;
  enum broadcast kinds[3];
  element_types(mangled_name, "_TenaryElementWiseSimpleI", &type, 1);
  read_kinds(mangled_name, kinds);
  for (int64_t i = 0; i < INT(arguments, 4); i++) {
    int side = load_element(BOOL, POINTER(arguments, 0), kinds[0] == SCALAR ? 0 : i) ? 1 : 2;
    store_element(type, POINTER(arguments, 3), i, load_element(type, POINTER(arguments, side), kinds[side] == SCALAR ? 0 : i));
  }
}

/* ---- activations with a bias ---- */

/* bias length, input, bias, output; one block of rows is grid.x, so is the number of rows. */
void emulate_bias_gelu(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  enum element type;
  element_types(mangled_name, "BiasGeluKernelI", &type, 1);
  int64_t width = LONG(arguments, 0);
  for (int64_t i = 0; i < (int64_t)grid.x * width; i++) {
    double x =
        rounded(type, load_element(type, POINTER(arguments, 1), i) + load_element(type, POINTER(arguments, 2), i % width));
    store_element(type, POINTER(arguments, 3), i, gelu(x));
  }
}

/* three coefficients, input length, bias length, input, bias or NULL, output. Coefficients are as large as an element, or as
 * two. */
static void fast_gelu(enum element type, int elements, void *const *arguments) {
  int64_t length = (int64_t)INT(arguments, 3) * elements, width = (int64_t)INT(arguments, 4) * elements;
  const void *bias = POINTER(arguments, 6);
  for (int64_t i = 0; i < length; i++) {
    double x = load_element(type, POINTER(arguments, 5), i);
    if (bias != NULL) x = rounded(type, x + load_element(type, bias, i % width));
    store_element(type, POINTER(arguments, 7), i, gelu_tanh(x));
  }
}

void emulate_fast_gelu_float(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  fast_gelu(FLOAT, 1, arguments);
}

void emulate_fast_gelu_half(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  fast_gelu(HALF, 1, arguments);
}

void emulate_fast_gelu_half_pairs(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  fast_gelu(HALF, 2, arguments);
}

/* Integers between two others: input, output, bounds on the device or NULL, bounds instead of those, count. */
void emulate_clip(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  const int64_t *input = POINTER(arguments, 0), *least = POINTER(arguments, 2), *most = POINTER(arguments, 3);
  int64_t *output = POINTER(arguments, 1), low = least ? *least : LONG(arguments, 4), high = most ? *most : LONG(arguments, 5);
  for (int64_t i = 0; i < LONG(arguments, 6); i++) output[i] = input[i] < low ? low : input[i] > high ? high : input[i];
}
