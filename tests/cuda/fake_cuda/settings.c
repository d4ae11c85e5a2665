/* What a test chooses through the environment, read once when the library is loaded. */
#include "runtime.h"

#include <stdlib.h>

struct settings settings;

static long long number(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* Of the devices that there are, those that CUDA_VISIBLE_DEVICES names, up to the first that is not there. */
static int visible(int num_devices, int *numbers) {
  const char *names = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  for (; !names && count < num_devices; count++) numbers[count] = count;
  for (char *end; names && *names && count < MAX_DEVICES; names = *end ? end + 1 : end) {
    const long long device = strtoll(names, &end, 10);
    if (end == names || (*end && *end != ',') || device < 0 || device >= num_devices) break;
    numbers[count++] = (int)device;
  }
  return count;
}

__attribute__((constructor)) static void read_settings(void) {
  const long long num_devices = number("FAKE_CUDA_DEVICES", 1);
  settings = (struct settings){
      .eager = number("FAKE_CUDA_EAGER", 0) != 0,
      .strict = number("FAKE_CUDA_STRICT", 0) != 0,
      .driver = (int)number("FAKE_CUDA_DRIVER", CUDART_VERSION),
      .capability = (int)number("FAKE_CUDA_CAPABILITY", 90),
      .memory_bytes = (size_t)number("FAKE_CUDA_MEMORY_BYTES", 139ll << 30),
      .log = getenv("FAKE_CUDA_LOG"),
      .fail_launch = (long)number("FAKE_CUDA_FAIL_LAUNCH", 0),
      .fail_call = (long)number("FAKE_CUDA_FAIL_CALL", 0),
      .broken = getenv("FAKE_CUDA_BROKEN"),
  };
  settings.num_devices = visible(num_devices < MAX_DEVICES ? (int)num_devices : MAX_DEVICES, settings.numbers);
}
