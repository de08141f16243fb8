// Streams and events: numbered tokens. All work is done when a call returns, so every event has happened.
//
// Records and waits are logged, since they are how a compiler orders work of several streams; and a stream that
// waits for an event of a capture joins that capture, as on the device.
#include "stub.h"

using namespace stub;

namespace {

std::mutex mutex;
std::set<Stream *> &streams() {
  static auto *all = new std::set<Stream *>; // never freed: libraries destroy streams while the process exits
  return *all;
}
uint32_t next_stream = 1;
uint32_t next_event = 1;

int create_event(void **handle) {
  std::lock_guard<std::mutex> lock(mutex);
  *handle = new Event{next_event++};
  return kSuccess;
}

} // namespace

namespace stub {

Stream *stream_of(void *handle) {
  static Stream default_stream{0};
  return handle != nullptr ? static_cast<Stream *>(handle) : &default_stream;
}

void leave_capture(Model *model) {
  std::lock_guard<std::mutex> lock(mutex);
  for (Stream *stream : streams()) {
    if (stream->model == model) {
      stream->model = nullptr;
    }
  }
}

} // namespace stub

extern "C" {

int aclrtCreateStreamWithConfig(void **handle, uint32_t, uint32_t) {
  std::lock_guard<std::mutex> lock(mutex);
  auto *stream = new Stream{next_stream++};
  streams().insert(stream);
  *handle = stream;
  return kSuccess;
}

int aclrtCreateStream(void **handle) { return aclrtCreateStreamWithConfig(handle, 0, 0); }

int aclrtDestroyStream(void *handle) {
  std::lock_guard<std::mutex> lock(mutex);
  auto *stream = static_cast<Stream *>(handle);
  if (streams().erase(stream) > 0) {
    log("destroy stream=%u", stream->id);
    delete stream;
  }
  return kSuccess;
}

int aclrtStreamGetId(void *handle, int32_t *id) {
  *id = static_cast<int32_t>(stream_of(handle)->id);
  return kSuccess;
}

int aclrtStreamQuery(void *, int *status) {
  *status = 0; // ACL_STREAM_STATUS_COMPLETE
  return kSuccess;
}

int aclrtCreateEventWithFlag(void **handle, uint32_t) { return create_event(handle); }

int aclrtCreateEventExWithFlag(void **handle, uint32_t) { return create_event(handle); }

int aclrtDestroyEvent(void *handle) {
  delete static_cast<Event *>(handle);
  return kSuccess;
}

int aclrtRecordEvent(void *event_handle, void *stream_handle) {
  auto *event = static_cast<Event *>(event_handle);
  Stream *stream = stream_of(stream_handle);
  event->model = stream->model;
  log("record event=%u stream=%u%s", event->id, stream->id, stream->model != nullptr ? " capturing" : "");
  return kSuccess;
}

int aclrtStreamWaitEvent(void *stream_handle, void *event_handle) {
  auto *event = static_cast<Event *>(event_handle);
  Stream *stream = stream_of(stream_handle);
  if (event->model != nullptr && event->model->open && stream->model == nullptr) {
    stream->model = event->model;
  }
  log("wait event=%u stream=%u%s", event->id, stream->id, stream->model != nullptr ? " capturing" : "");
  return kSuccess;
}

int aclrtQueryEventStatus(void *, int *status) {
  *status = 1; // ACL_EVENT_RECORDED_STATUS_COMPLETE
  return kSuccess;
}

int aclrtQueryEventWaitStatus(void *, int *status) {
  *status = 0; // ACL_EVENT_WAIT_STATUS_COMPLETE
  return kSuccess;
}

int aclrtEventElapsedTime(float *milliseconds, void *, void *) {
  *milliseconds = 1.0F;
  return kSuccess;
}

int aclrtGetStreamOverflowSwitch(void *, uint32_t *flag) {
  *flag = 0;
  return kSuccess;
}

} // extern "C"
