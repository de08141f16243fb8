// Lets torch_npu load beside a CUDA build of torch, which has claimed two of its allocator settings by then.
//
// torch keeps the names of all devices' allocator settings in one set and throws on a second claim, in a static
// initialiser, where nobody can catch it. This runs before torch_npu's own and gives the names back.
#include <dlfcn.h>

#include <string>
#include <unordered_set>

namespace {

constexpr const char *kClaimedByBoth[] = {"per_process_memory_fraction", "pinned_reserve_segment_size_mb"};
constexpr const char *kAllKeys = // c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys()
    "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev";

__attribute__((constructor)) void give_back() {
  void *core = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  void *keys = core != nullptr ? dlsym(core, kAllKeys) : nullptr;
  if (keys == nullptr) {
    return; // a torch without the set, or a process without torch
  }
  for (const char *name : kClaimedByBoth) {
    reinterpret_cast<std::unordered_set<std::string> &(*)()>(keys)().erase(name);
  }
}

} // namespace
