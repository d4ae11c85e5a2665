/* Kernels of attention over caches: the lengths of rows, new keys and values with rotary positions, and the attention itself,
   as flash attention and XQA compute it. Scores, softmax and sums are float32, elements float16. */
#include "emulations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "elements.h"
#include "streams.h"

/* seqlens_k (length - 1), past, total and padded lengths; those of a cache that is a ring, which no graph here has (NULL);
   rows, new positions, whether this is the first prompt. */
void emulate_sequence_lengths(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const int32_t *last = POINTER(arguments, 0);
  int32_t *past = POINTER(arguments, 1), *total = POINTER(arguments, 2), *padded = POINTER(arguments, 3);
  if (POINTER(arguments, 4) != NULL) fake_cuda_log("UNKNOWN_OPERATOR\tcache that is a ring in %s", mangled_name);
  for (int row = 0; row < INT(arguments, 7); row++) {
    total[row] = (last[row] > 0 ? last[row] : 0) + 1;
    int32_t before = total[row] - INT(arguments, 8);
    past[row] = FLAG(arguments, 9) || before < 0 ? 0 : before;
    padded[row] = FLAG(arguments, 9) ? INT(arguments, 8) : 0;
  }
}

/* lengths as int64, as int32, rows, longest. */
void emulate_nonpad_lengths(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  const int64_t *lengths = POINTER(arguments, 0);
  for (int row = 0; row < INT(arguments, 2); row++)
    ((int32_t *)POINTER(arguments, 1))[row] = (int32_t)(lengths[row] < INT(arguments, 3) ? lengths[row] : INT(arguments, 3));
}

/* Rotary positions of one head, in place: cosines and sines are those of its position. Pairs are neighbours, or half of the
   rotated dimensions apart. */
static void rotate(_Float16 *head, const _Float16 *cosines, const _Float16 *sines, int dims, int is_interleaved) {
  for (int i = 0; i < dims / 2; i++) {
    int left = is_interleaved ? 2 * i : i, right = is_interleaved ? 2 * i + 1 : i + dims / 2;
    float x = head[left], y = head[right], c = cosines[i], s = sines[i];
    head[left] = (_Float16)(x * c - y * s);
    head[right] = (_Float16)(x * s + y * c);
  }
}

/* query, key and value in one tensor, or NULL and three tensors; the query's copy or NULL, caches of keys and values; three
   scales; heads, heads of keys, head size, elements of one position, positions of the tables, and of the cache; lengths before
   this step, and in the cache; cosines, sines, rotated dimensions, positions or NULL, whether pairs are neighbours, whether
   heads come before positions, whether scales are by channel; gains of normalised heads and their epsilon. */
void emulate_append_to_cache(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  int heads = INT(arguments, 10), kv_heads = INT(arguments, 11), size = INT(arguments, 12), capacity = INT(arguments, 15);
  int rotary = INT(arguments, 20), new_length = (int)grid.x;
  const int32_t *past = POINTER(arguments, 16), *in_cache = POINTER(arguments, 17);
  const int64_t *positions = POINTER(arguments, 21);
  if (strstr(mangled_name, "Li16E") == NULL || POINTER(arguments, 25) != NULL)
    fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int row = 0; row < (int)grid.z; row++)
    for (int s = 0; s < new_length; s++)
      for (int head = 0; head < heads + 2 * kv_heads; head++) {
        int kind = head < heads              ? 0
                   : head < heads + kv_heads ? 1
                                             : 2,
            n = head - (kind > 0 ? heads : 0) - (kind > 1 ? kv_heads : 0);
        int64_t token = (int64_t)row * new_length + s, separate = (token * (kind ? kv_heads : heads) + n) * size;
        const _Float16 *from = POINTER(arguments, 0)
                                   ? (_Float16 *)POINTER(arguments, 0) + token * INT(arguments, 13) + (int64_t)head * size
                                   : (_Float16 *)POINTER(arguments, 1 + kind) + separate;
        _Float16 values[size];
        memcpy(values, from, sizeof values);
        int64_t position = positions ? positions[token] : past[row] + s, angle = position * (rotary / 2);
        if (rotary > 0 && kind < 2 && position >= 0 && position < INT(arguments, 14))
          rotate(values, (_Float16 *)POINTER(arguments, 18) + angle, (_Float16 *)POINTER(arguments, 19) + angle, rotary,
                 FLAG(arguments, 22));
        int64_t place = in_cache[row] + s;
        if (kind == 0 && POINTER(arguments, 4) != NULL)
          memcpy((_Float16 *)POINTER(arguments, 4) + separate, values, sizeof values);
        if (kind == 0 || place < 0 || place >= capacity || POINTER(arguments, 4 + kind) == NULL) continue;
        place = FLAG(arguments, 23) ? ((int64_t)row * kv_heads + n) * capacity + place
                                    : ((int64_t)row * capacity + place) * kv_heads + n;
        memcpy((_Float16 *)POINTER(arguments, 4 + kind) + place * size, values, sizeof values);
      }
}

/* Whether the first `count` rows of keys or values are memory of the device: lengths that were read too early are any numbers.
 */
static int are_readable(const _Float16 *rows, int64_t stride, int size, int64_t count) {
  return count <= 0 || check_device_range("keys and values", rows, (size_t)((count - 1) * stride + size) * sizeof *rows);
}

/* One query over keys [first, length): the rows of keys and values are `stride` elements apart. sum: float32 (size,). Returns
   the logarithm of the sum of exponentials, -INFINITY if there is no key; then the result is zeros. */
static double attend(const _Float16 *query, const _Float16 *keys, const _Float16 *values, int64_t key_stride,
                     int64_t value_stride, int size, int first, int length, double scale, float *sum) {
  memset(sum, 0, (size_t)size * sizeof *sum);
  if (first < 0) first = 0;
  if (first >= length || !are_readable(keys, key_stride, size, length) || !are_readable(values, value_stride, size, length))
    return -INFINITY;
  double *scores = malloc((size_t)length * sizeof *scores), largest = -INFINITY, total = 0;
  for (int key = first; key < length; key++) {
    float product = 0;
    for (int i = 0; i < size; i++) product += (float)query[i] * (float)keys[key * key_stride + i];
    scores[key] = product * scale;
    largest = fmax(largest, scores[key]);
  }
  for (int key = first; key < length; key++) total += exp(scores[key] - largest);
  for (int key = first; key < length; key++) {
    float weight = (float)(exp(scores[key] - largest) / total);
    for (int i = 0; i < size; i++) sum[i] += weight * (float)values[key * value_stride + i];
  }
  free(scores);
  return largest + log(total);
}

/* The parameters of flash attention; strides in elements. */
struct flash {
  _Float16 *query, *key, *value;
  int64_t query_batch, key_batch, value_batch, query_row, key_row, value_row, query_head, key_head, value_head;
  int32_t heads, kv_heads, group, unused_0;
  _Float16 *output;
  float *partial_output;
  int64_t output_batch, output_row, output_head;
  void *probabilities;
  float *log_sums, *partial_log_sums;
  int32_t batch, query_length, key_length, new_length, size, query_length_rounded, key_length_rounded, size_rounded, rotary,
      unused_1;
  float scale, scale_log2;
  int32_t unused_2[2];
  int32_t *query_starts, *key_lengths, *used_lengths;
  void *block_mask;
  _Float16 *new_key, *new_value;
  int64_t new_key_batch, new_value_batch, new_key_row, new_value_row, new_key_head, new_value_head;
  _Float16 *cosines, *sines;
  int32_t *cache_rows, *block_table;
  int64_t block_table_batch;
  int32_t page_size, window_left, window_right;
  uint8_t is_bfloat16, is_causal, is_cumulative, is_interleaved;
  int32_t splits;
  uint8_t unused_3[52];
};

_Static_assert(sizeof(struct flash) == 440, "as large as the kernel's argument");

/* Whether the cache of a row has room behind `past` positions. */
static int is_appendable(const struct flash *p, int row, int past) {
  int64_t heads = (int64_t)(p->kv_heads - 1), count = (int64_t)past + p->new_length;
  return past >= 0 && are_readable(p->key + row * p->key_batch, p->key_row, (int)(heads * p->key_head) + p->size, count) &&
         are_readable(p->value + row * p->value_batch, p->value_row, (int)(heads * p->value_head) + p->size, count);
}

/* Writes the new keys and values of a row to its cache, behind `past` positions. */
static void append_new(const struct flash *p, int row, int past) {
  for (int s = 0; s < p->new_length; s++)
    for (int head = 0; head < p->kv_heads; head++) {
      _Float16 *key = p->key + row * p->key_batch + (past + s) * p->key_row + head * p->key_head;
      memcpy(key, p->new_key + row * p->new_key_batch + s * p->new_key_row + head * p->new_key_head,
             (size_t)p->size * sizeof *key);
      memcpy(p->value + row * p->value_batch + (past + s) * p->value_row + head * p->value_head,
             p->new_value + row * p->new_value_batch + s * p->new_value_row + head * p->new_value_head,
             (size_t)p->size * sizeof *key);
      int64_t angle = (int64_t)(past + s) * (p->rotary / 2);
      if (p->rotary > 0) rotate(key, p->cosines + angle, p->sines + angle, p->rotary, p->is_interleaved);
    }
}

/* One query of a row of flash attention. past: keys before the new ones; length: keys with them. */
static void flash_query(const struct flash *p, int row, int head, int position, int past, int length, int is_split) {
  const _Float16 *from = p->query + row * p->query_batch + position * p->query_row + head * p->query_head;
  int kv_head = head / p->group, end = length, first = 0, diagonal = position + length - p->query_length;
  if (p->is_causal || p->window_right >= 0) {
    int right = p->is_causal ? 0 : p->window_right;
    if (diagonal + right + 1 < end) end = diagonal + right + 1;
  }
  if (!p->is_causal && p->window_left >= 0) first = diagonal - p->window_left;
  _Float16 query[p->size];
  float sum[p->size];
  memcpy(query, from, sizeof query);
  if (p->new_key != NULL && p->rotary > 0) {
    int64_t angle = (int64_t)(past + (p->is_causal || p->window_left >= 0 ? position : 0)) * (p->rotary / 2);
    rotate(query, p->cosines + angle, p->sines + angle, p->rotary, p->is_interleaved);
  }
  double log_sum = attend(query, p->key + row * p->key_batch + kv_head * p->key_head,
                          p->value + row * p->value_batch + kv_head * p->value_head, p->key_row, p->value_row, p->size, first,
                          end, p->scale, sum);
  if (is_split) { /* all keys are the first split's */
    for (int split = 0; split < p->splits; split++) {
      int64_t line = (((int64_t)split * p->batch + row) * p->heads + head) * p->query_length + position;
      p->partial_log_sums[line] = split ? -INFINITY : (float)log_sum;
      for (int i = 0; i < p->size; i++) p->partial_output[line * p->size_rounded + i] = split ? 0 : sum[i];
    }
    return;
  }
  for (int i = 0; i < p->size; i++)
    p->output[row * p->output_batch + position * p->output_row + head * p->output_head + i] = (_Float16)sum[i];
}

void emulate_flash(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const struct flash *p = arguments[0];
  int is_split = strstr(mangled_name, "flash_fwd_splitkv") != NULL && p->splits > 1;
  if (p->is_bfloat16 || p->block_table != NULL || p->cache_rows != NULL) fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int row = 0; row < p->batch; row++) {
    int past = p->key_lengths ? p->key_lengths[p->is_cumulative ? row + 1 : row] - (p->is_cumulative ? p->key_lengths[row] : 0)
                              : p->key_length;
    int length = p->used_lengths ? p->used_lengths[row] : past + (p->new_key ? p->new_length : 0);
    if (p->new_key != NULL && is_appendable(p, row, past)) append_new(p, row, past);
    for (int head = 0; head < p->heads; head++)
      for (int position = 0; position < p->query_length; position++)
        flash_query(p, row, head, position, past, length, is_split);
  }
}

/* The splits of each query, weighted by their sums of exponentials. */
void emulate_flash_combine(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block, (void)mangled_name;
  const struct flash *p = arguments[0];
  int64_t lines = (int64_t)p->batch * p->heads * p->query_length;
  for (int64_t line = 0; line < lines; line++) {
    int64_t row = line / p->query_length / p->heads, head = line / p->query_length % p->heads,
            position = line % p->query_length;
    double largest = -INFINITY, total = 0;
    for (int split = 0; split < p->splits; split++) largest = fmax(largest, p->partial_log_sums[split * lines + line]);
    for (int split = 0; split < p->splits && largest > -INFINITY; split++)
      total += exp(p->partial_log_sums[split * lines + line] - largest);
    for (int i = 0; i < p->size; i++) {
      double sum = 0;
      for (int split = 0; split < p->splits && total > 0; split++)
        sum += exp(p->partial_log_sums[split * lines + line] - largest) / total *
               p->partial_output[(split * lines + line) * p->size_rounded + i];
      p->output[row * p->output_batch + position * p->output_row + head * p->output_head + i] = (_Float16)sum;
    }
  }
}

/* XQA's caches: keys and values, heads before positions, and the lengths of the rows before this step. */
struct xqa_cache {
  _Float16 *key, *value;
  const uint32_t *lengths;
  uint32_t capacity;
  uint8_t is_position_first;
  uint32_t more; /* to be added to each length */
};

/* heads of keys, window, scale, output, query, sinks or NULL, caches, rows, two scales of quantized caches, two buffers. The
   query has one position; its heads of one group lie in a row. The name holds head size and group. */
void emulate_xqa(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)grid, (void)block;
  const char *name = strstr(mangled_name, "4cuda") + strlen("4cuda"); /* 3H649grp2_fp16: identifiers behind their lengths */
  int size = 0, group = atoi(strstr(name, "grp") + strlen("grp")), kv_heads = INT(arguments, 0);
  for (int digit = 1; digit < name[0] - '0'; digit++) size = 10 * size + name[1 + digit] - '0';
  const struct xqa_cache *cache = arguments[6];
  if (POINTER(arguments, 5) != NULL || cache->is_position_first) fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int row = 0; row < INT(arguments, 7); row++)
    for (int head = 0; head < kv_heads * group; head++) {
      int length = (int)(cache->lengths[row] + cache->more);
      int64_t first = ((int64_t)row * kv_heads + head / group) * cache->capacity * size,
              line = ((int64_t)row * kv_heads * group + head) * size;
      float sum[size];
      attend((_Float16 *)POINTER(arguments, 4) + line, cache->key + first, cache->value + first, size, size, size,
             length - INT(arguments, 1), length, REAL(arguments, 2), sum);
      for (int i = 0; i < size; i++) ((_Float16 *)POINTER(arguments, 3))[line + i] = (_Float16)sum[i];
    }
}

/* Softmax of scores with a bias, which flash attention does not add: queries, keys, heads, scores (rows, heads, queries, keys)
   in float, bias, whether there is one, its first and its second dimension are 1, lengths of rows or NULL, causal, window,
   keys before the first query, scale, a cap of scores, a filter, output. The grid is (heads * queries, rows). With lengths,
   the last query of a row is at the last position of its length, padding or not: seen on an H200. */
void emulate_unfused_softmax(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  (void)block;
  int queries = INT(arguments, 0), keys = INT(arguments, 1), heads = INT(arguments, 2), window = INT(arguments, 10);
  const float *scores = POINTER(arguments, 3);
  const _Float16 *bias = FLAG(arguments, 5) ? POINTER(arguments, 4) : NULL;
  const int32_t *lengths = POINTER(arguments, 8);
  _Float16 *output = POINTER(arguments, 15);
  if (REAL(arguments, 13) != 0) fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int64_t line = 0; line < (int64_t)grid.x * grid.y; line++) {
    int64_t row = line / grid.x, head = line % grid.x / queries, query = line % queries;
    int length = lengths && lengths[row] < keys ? lengths[row] : keys;
    int position = (lengths ? length - queries : INT(arguments, 11)) + (int)query;
    int end = FLAG(arguments, 9) && position + 1 < length ? position + 1 : length;
    int first = window >= 0 && position - window > 0 ? position - window : 0;
    int64_t bias_row = (FLAG(arguments, 6) ? 0 : row) * (FLAG(arguments, 7) ? 1 : heads) + (FLAG(arguments, 7) ? 0 : head);
    double scaled[keys], largest = -INFINITY, total = 0;
    for (int key = first; key < end; key++) {
      scaled[key] = scores[line * keys + key] * REAL(arguments, 12);
      if (bias) scaled[key] += bias[(bias_row * queries + query) * keys + key];
      largest = fmax(largest, scaled[key]);
    }
    for (int key = first; key < end; key++) total += exp(scaled[key] - largest);
    for (int key = 0; key < keys; key++)
      output[line * keys + key] = (_Float16)(key >= first && key < end ? exp(scaled[key] - largest) / total : 0);
  }
}

/* Vectors of one head: how many elements of the kernel's type each has, in `size`, and the bytes of all. */
static size_t head_bytes(void *const *arguments, const char *mangled_name) {
  size_t element = strstr(mangled_name, "I6float2E") ? 8 : strstr(mangled_name, "I7__half2E") ? 4 : 2;
  return element * (size_t)INT(arguments, 0);
}

/* (rows, positions, matrices, heads, size) to (matrices, rows, heads, positions, size): size, whether rows and positions are
   swapped, input, output, …. The grid is (positions, rows, matrices), a block (size, heads). */
void emulate_heads_first(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  size_t bytes = head_bytes(arguments, mangled_name);
  if (FLAG(arguments, 1)) fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int64_t line = 0; line < (int64_t)grid.x * grid.y * grid.z * block.y; line++) {
    int64_t head = line % block.y, matrix = line / block.y % grid.z, position = line / block.y / grid.z % grid.x,
            row = line / block.y / grid.z / grid.x;
    int64_t target = ((matrix * grid.y + row) * block.y + head) * grid.x + position;
    memcpy((char *)POINTER(arguments, 3) + target * bytes, (char *)POINTER(arguments, 2) + line * bytes, bytes);
  }
}

/* (rows, heads, positions, size) to (rows, positions, heads, size): the arguments of emulate_heads_first. */
void emulate_heads_last(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name) {
  size_t bytes = head_bytes(arguments, mangled_name);
  if (FLAG(arguments, 1)) fake_cuda_log("UNKNOWN_OPERATOR\t%s", mangled_name);
  for (int64_t line = 0; line < (int64_t)grid.x * grid.y * block.y; line++) {
    int64_t position = line % grid.x, head = line / grid.x % block.y, row = line / grid.x / block.y;
    int64_t target = (row * grid.x + position) * block.y + head;
    memcpy((char *)POINTER(arguments, 3) + target * bytes, (char *)POINTER(arguments, 2) + line * bytes, bytes);
  }
}
