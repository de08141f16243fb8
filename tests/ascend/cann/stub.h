// Shared by the groups of the stub: settings, error codes, handles, the event log.
//
// The signatures follow AscendCL's public headers; the libraries that torch_npu links are C, so a wrong
// argument list shows only at run time. What no file here defines is generated as "return 0" (build.py).
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace stub {

constexpr int kSuccess = 0;
constexpr int kInvalidDevice = 107001;
constexpr int kNoContext = 107002;
constexpr int kOutOfMemory = 207001;
constexpr int kNoDevice = 507033;

int device_count();         // CANN_STUB_DEVICES, default 1
const char *soc_name();     // CANN_STUB_SOC, default Ascend910B3
const char *cann_version(); // CANN_STUB_VERSION, default 9.1.0

// One line to the file that CANN_STUB_EVENTS names, at once, so that a crash loses none.
void log(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A captured graph: what was launched between begin and end is not kept, only that it was.
struct Model {
  uint32_t id;
  bool open = true;
  int replays = 0;
};

// `model`: the capture that this stream takes part in.
struct Stream {
  uint32_t id;
  Model *model = nullptr;
};

// `model`: the capture in which the event was last recorded; a stream that waits for it joins that capture.
struct Event {
  uint32_t id;
  Model *model = nullptr;
};

Stream *stream_of(void *handle); // the default stream for null
void leave_capture(Model *model);

} // namespace stub
