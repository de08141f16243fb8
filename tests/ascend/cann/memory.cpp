// Device and pinned memory: both are host memory, so copies between the two are real.
//
// Fresh memory is zero: no kernel ever writes it (aclnn* calls are generated as "return 0"), and zeros make a
// result that no kernel wrote look the same in every run.
#include "stub.h"

#include <cstdlib>
#include <cstring>

using namespace stub;

namespace {

constexpr size_t kAlignment = 512; // what torch_npu's caching allocator expects of a device address

int allocate(void **address, size_t size) {
  const size_t whole = size > 0 ? size : kAlignment;
  if (posix_memalign(address, kAlignment, whole) != 0) {
    return kOutOfMemory;
  }
  memset(*address, 0, whole);
  return kSuccess;
}

int copy(void *to, const void *from, size_t size) {
  if (size > 0) {
    memmove(to, from, size);
  }
  return kSuccess;
}

} // namespace

extern "C" {

int aclrtMalloc(void **address, size_t size, int) { return allocate(address, size); }

int aclrtMallocAlign32(void **address, size_t size, int) { return allocate(address, size); }

int aclrtMallocHost(void **address, size_t size) { return allocate(address, size); }

int aclrtMallocHostWithCfg(void **address, uint64_t size, void *) { return allocate(address, size); }

int aclrtFree(void *address) {
  free(address);
  return kSuccess;
}

int aclrtFreeHost(void *address) { return aclrtFree(address); }

int aclrtMemcpy(void *to, size_t, const void *from, size_t size, int) { return copy(to, from, size); }

int aclrtMemcpyAsync(void *to, size_t, const void *from, size_t size, int, void *) { return copy(to, from, size); }

int aclrtMemset(void *address, size_t, int value, size_t size) {
  memset(address, value, size);
  return kSuccess;
}

int aclrtMemsetAsync(void *address, size_t room, int value, size_t size, void *) {
  return aclrtMemset(address, room, value, size);
}

int aclrtGetMemInfo(int, size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = size_t{32} << 30;
  *total_bytes = size_t{64} << 30;
  return kSuccess;
}

int aclrtPointerGetAttributes(const void *, void *attributes) {
  memset(attributes, 0, 16);
  return kSuccess;
}

int aclrtDeviceCanAccessPeer(int *can, int, int) {
  *can = 1;
  return kSuccess;
}

} // extern "C"
