/* What a test chooses through the environment, read once when the library is loaded. */
#include "runtime.h"

#include <stdlib.h>

struct settings settings;

static long long number(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* Of the devices that there are, those that CUDA_VISIBLE_DEVICES names, up to the first that is not there. */
static long long visible(long long num_devices) {
  const char *names = getenv("CUDA_VISIBLE_DEVICES");
  if (!names) return num_devices;
  long long count = 0;
  for (char *end; *names; names = *end ? end + 1 : end, count++) {
    const long long device = strtoll(names, &end, 10);
    if (end == names || (*end && *end != ',') || device < 0 || device >= num_devices) break;
  }
  return count;
}

__attribute__((constructor)) static void read_settings(void) {
  const long long num_devices = visible(number("FAKE_CUDA_DEVICES", 1));
  settings = (struct settings){
      .eager = number("FAKE_CUDA_EAGER", 0) != 0,
      .strict = number("FAKE_CUDA_STRICT", 0) != 0,
      .num_devices = num_devices < MAX_DEVICES ? (int)num_devices : MAX_DEVICES,
      .driver = (int)number("FAKE_CUDA_DRIVER", CUDART_VERSION),
      .capability = (int)number("FAKE_CUDA_CAPABILITY", 90),
      .memory_bytes = (size_t)number("FAKE_CUDA_MEMORY_BYTES", 139ll << 30),
      .log = getenv("FAKE_CUDA_LOG"),
      .fail_launch = (long)number("FAKE_CUDA_FAIL_LAUNCH", 0),
      .fail_call = (long)number("FAKE_CUDA_FAIL_CALL", 0),
  };
}
