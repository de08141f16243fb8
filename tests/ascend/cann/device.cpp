// Devices, contexts, identity and limits: as many idle devices of one kind as the harness asks for.
//
// torch_npu decides by these whether an NPU is there, which operators its SoC has and which calls its CANN
// knows; so they must be answered, and consistently. A context is one per device, as in CANN's primary mode.
#include "stub.h"

#include <cstring>

using namespace stub;

namespace {

constexpr int kMaxDevices = 64;
char contexts[kMaxDevices]; // only the addresses matter
thread_local void *current = nullptr;

constexpr int kVectorCores = 1; // aclrtDevResLimitType
uint32_t cores(int kind) { return kind == kVectorCores ? 48 : 24; }

} // namespace

extern "C" {

int aclInit(const char *) { return device_count() > 0 ? kSuccess : kNoDevice; }

int aclrtGetDeviceCount(uint32_t *count) {
  *count = device_count();
  return *count > 0 ? kSuccess : kNoDevice;
}

int aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t *actual) {
  stub::log("operation timeout %llu us", static_cast<unsigned long long>(microseconds));
  *actual = microseconds;
  return 0;
}

int aclrtSetDevice(int device) {
  if (device < 0 || device >= device_count() || device >= kMaxDevices) {
    return kInvalidDevice;
  }
  current = &contexts[device];
  return kSuccess;
}

int aclrtGetDevice(int *device) {
  if (current == nullptr) {
    return kNoContext;
  }
  *device = static_cast<int>(static_cast<char *>(current) - contexts);
  return kSuccess;
}

int aclrtGetCurrentContext(void **context) {
  *context = current;
  return current != nullptr ? kSuccess : kNoContext;
}

int aclrtSetCurrentContext(void *context) {
  current = context;
  return kSuccess;
}

int aclrtGetPrimaryCtxState(int device, uint32_t *flags, int *active) {
  if (flags != nullptr) {
    *flags = 0;
  }
  *active = current == &contexts[device];
  return kSuccess;
}

const char *aclrtGetSocName() { return soc_name(); }

// The struct and the buffer that the two calls fill both begin with the version's text (128 bytes).
int aclsysGetCANNVersion(int, void *version) {
  memset(version, 0, 128);
  strncpy(static_cast<char *>(version), cann_version(), 127);
  return kSuccess;
}

int aclsysGetVersionStr(char *, char *version) {
  strcpy(version, cann_version());
  return kSuccess;
}

const char *aclGetRecentErrMsg() { return "the CANN stub has no message of its own"; }

// Core counts: the compilers split work by them, and refuse a device without any.
int aclrtGetDeviceInfo(uint32_t, int, int64_t *value) {
  *value = cores(0);
  return kSuccess;
}

int aclGetDeviceCapability(uint32_t, int, int64_t *value) {
  *value = cores(0);
  return kSuccess;
}

int aclrtGetDeviceResLimit(int, int kind, uint32_t *value) {
  *value = cores(kind);
  return kSuccess;
}

int aclrtGetStreamResLimit(void *, int kind, uint32_t *value) {
  *value = cores(kind);
  return kSuccess;
}

int aclrtGetResInCurrentThread(int kind, uint32_t *value) {
  *value = cores(kind);
  return kSuccess;
}

// Compile options that torch_npu reads back at start: all of them off.
size_t aclGetCompileoptSize(int) { return sizeof("disable"); }

int aclGetCompileopt(int, char *value, size_t length) {
  strncpy(value, "disable", length);
  return kSuccess;
}

} // extern "C"
