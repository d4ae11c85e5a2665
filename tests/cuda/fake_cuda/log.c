/* Counters and the log: what a test reads afterwards. Both have a lock of their own, so that anything may write to them. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct counter {
  struct counter *next;
  long value;
  char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counter *counters;
static FILE *file;
static long num_lines;

void fake_cuda_log(const char *format, ...) {
  if (!settings.log || !*settings.log) return;
  pthread_mutex_lock(&lock);
  if (!file && (file = fopen(settings.log, "a"))) setvbuf(file, NULL, _IOLBF, 0);
  if (file) {
    fprintf(file, "%ld\tthread %d\t", ++num_lines, (int)gettid());
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fputc('\n', file);
  }
  pthread_mutex_unlock(&lock);
}

static struct counter *find(const char *name) {
  struct counter *counter = counters;
  while (counter && strcmp(counter->name, name)) counter = counter->next;
  return counter;
}

void count(const char *what, const char *of, const char *detail) {
  char name[1024]; /* kernels of templates have long names, which differ early enough */
  snprintf(name, sizeof name, "%s%s%s%s%s", what, of ? " " : "", of ? of : "", detail ? " " : "", detail ? detail : "");
  pthread_mutex_lock(&lock);
  struct counter *counter = find(name);
  if (!counter) {
    counter = malloc(sizeof *counter + strlen(name) + 1);
    strcpy(counter->name, name);
    counter->value = 0;
    counter->next = counters;
    counters = counter;
  }
  counter->value++;
  pthread_mutex_unlock(&lock);
}

/* The value of one counter; 0 if nothing was counted under this name. */
long fake_cuda_count(const char *name) {
  pthread_mutex_lock(&lock);
  const struct counter *counter = find(name);
  const long value = counter ? counter->value : 0;
  pthread_mutex_unlock(&lock);
  return value;
}

/* Writes a line "VALUE NAME" per counter, 0-terminated, and returns how many bytes this takes; with fewer than that it is cut. */
size_t fake_cuda_counts(char *text, size_t size) {
  size_t used = 0;
  pthread_mutex_lock(&lock);
  for (const struct counter *counter = counters; counter; counter = counter->next) {
    const size_t room = used < size ? size - used : 0;
    used += (size_t)snprintf(room ? text + used : NULL, room, "%ld %s\n", counter->value, counter->name);
  }
  pthread_mutex_unlock(&lock);
  if (!used && size) *text = '\0';
  return used + 1;
}

void reset_counters(void) {
  pthread_mutex_lock(&lock);
  while (counters) {
    struct counter *counter = counters;
    counters = counter->next;
    free(counter);
  }
  pthread_mutex_unlock(&lock);
}

/* A line of the test's own in the log. */
void fake_cuda_mark(const char *text) { fake_cuda_log("mark\t%s", text); }
