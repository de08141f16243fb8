// The stub's own settings and its event log: what the test harness selects and reads.
#include "stub.h"

#include <cstdarg>
#include <cstdlib>

namespace stub {
namespace {

const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

} // namespace

int device_count() { return atoi(setting("CANN_STUB_DEVICES", "1")); }

const char *soc_name() { return setting("CANN_STUB_SOC", "Ascend910B3"); }

const char *cann_version() { return setting("CANN_STUB_VERSION", "9.1.0"); }

void log(const char *format, ...) {
  static const char *path = setting("CANN_STUB_EVENTS", nullptr);
  static FILE *file = path != nullptr ? fopen(path, "a") : nullptr;
  if (file == nullptr) {
    return;
  }
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fputc('\n', file);
  fflush(file);
}

} // namespace stub
