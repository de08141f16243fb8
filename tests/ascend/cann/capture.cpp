// Model capture and replay: nothing is recorded and nothing runs, but each begin, end, replay and destruction is
// logged. That is what tests ask: which graphs were captured, on which stream, and how often each was replayed.
#include "stub.h"

using namespace stub;

namespace {

// aclmdlRICaptureStatus
constexpr int kNotCapturing = 0;
constexpr int kCapturing = 1;

uint32_t next_model = 1;

} // namespace

extern "C" {

int aclmdlRICaptureBegin(void *handle, int mode) {
  Stream *stream = stream_of(handle);
  stream->model = new Model{next_model++};
  log("capture begin stream=%u mode=%d", stream->id, mode);
  return kSuccess;
}

int aclmdlRICaptureGetInfo(void *handle, int *status, void **model) {
  Stream *stream = stream_of(handle);
  *status = stream->model != nullptr ? kCapturing : kNotCapturing;
  if (model != nullptr) {
    *model = stream->model;
  }
  return kSuccess;
}

int aclmdlRICaptureEnd(void *handle, void **captured) {
  Stream *stream = stream_of(handle);
  Model *model = stream->model;
  stream->model = nullptr;
  model->open = false;
  leave_capture(model);
  *captured = model;
  log("capture end model=%u", model->id);
  return kSuccess;
}

int aclmdlRIExecuteAsync(void *handle, void *) {
  auto *model = static_cast<Model *>(handle);
  model->replays += 1;
  log("replay model=%u #%d", model->id, model->replays);
  return kSuccess;
}

// The model itself is kept: an event that was recorded in it may still point there.
int aclmdlRIDestroy(void *handle) {
  if (handle != nullptr) {
    log("destroy model=%u", static_cast<Model *>(handle)->id);
  }
  return kSuccess;
}

int aclmdlRIGetId(void *handle, uint32_t *id) {
  *id = static_cast<Model *>(handle)->id;
  return kSuccess;
}

// A task group is a range of launches that may be updated before a replay; callers only need a handle back.
int aclmdlRICaptureTaskGrpEnd(void *, void **handle) {
  static char task_group;
  *handle = &task_group;
  return kSuccess;
}

int aclmdlRIDebugJsonPrint(void *handle, const char *path, uint32_t) {
  log("dump model=%u path=%s", static_cast<Model *>(handle)->id, path);
  if (FILE *file = fopen(path, "w")) {
    fputs("[]", file);
    fclose(file);
  }
  return kSuccess;
}

} // extern "C"
