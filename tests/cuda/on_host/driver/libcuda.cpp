// The functions of libcuda.so.1 that TVM's CUDA runtime calls, with the signatures of cuda.h.
#include <cstring>

#include "check.h"
#include "device.h"

using namespace on_host;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ENTER()                                                   \
  Device& device = Device::instance();                            \
  Lock lock(device.lock);                                         \
  if (const int code = device.enter(__func__)) return code

EXPORT int cuInit(unsigned) {
  ENTER();
  return device.count > 0 ? kSuccess : kNoDevice;
}

EXPORT int cuDeviceGetName(char* name, int length, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= device.count) return kInvalidDevice;
  std::strncpy(name, device.properties.name, static_cast<size_t>(length));
  return kSuccess;
}

EXPORT int cuGetErrorName(int code, const char** name) {
  // CUDA_ERROR_OUT_OF_MEMORY and so on: the runtime's names serve.
  *name = error_name(code);
  return kSuccess;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  *text = error_string(code);
  return kSuccess;
}

EXPORT int cuModuleLoadData(Module** module, const void* image) {
  ENTER();
  if (const int code = device.unsafe_call()) return code;
  return device.load(image, *module);
}

EXPORT int cuModuleUnload(Module*) {
  ENTER();
  // Code stays mapped: queued work and graphs may still hold its kernels.
  return kSuccess;
}

EXPORT int cuModuleGetFunction(const Function** function, Module* module, const char* name) {
  ENTER();
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) {
    return device.fail(kNotFound, std::string("no kernel ") + name);
  }
  *function = found->second.get();
  return kSuccess;
}

EXPORT int cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER();
  if (attribute != kMaxDynamicSharedBytes) return kNotSupported;
  if (value < 0 || static_cast<size_t>(value) > device.properties.shared_optin) {
    return device.fail(kInvalidValue,
                       std::to_string(value) + " bytes of dynamic shared memory, and " +
                           std::to_string(device.properties.shared_optin) +
                           " are the most of this device");
  }
  function->max_dynamic_shared = static_cast<size_t>(value);
  return kSuccess;
}

EXPORT int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** arguments,
                            void** extra) {
  ENTER();
  if (extra != nullptr) return kNotSupported;
  if (config->num_attributes != 0) {
    return device.fail(kNotSupported, "a launch with attributes (clusters, cooperation)");
  }
  Stream* stream = device.stream(config->stream);
  if (stream == nullptr) return kInvalidHandle;
  return device.launch(function, {config->grid_x, config->grid_y, config->grid_z},
                       {config->block_x, config->block_y, config->block_z},
                       config->dynamic_shared, stream, arguments);
}

EXPORT int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned dynamic_shared, void* handle, void** arguments, void** extra) {
  ENTER();
  if (extra != nullptr) return kNotSupported;
  Stream* stream = device.stream(handle);
  if (stream == nullptr) return kInvalidHandle;
  return device.launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                       dynamic_shared, stream, arguments);
}

EXPORT int cuTensorMapEncodeTiled(...) { return kNotSupported; }

// For tests.

// How often a function was called; "kernel" counts executions, in graphs too.
EXPORT uint64_t stand_in_gpu_calls(const char* name) {
  Device& device = Device::instance();
  Lock lock(device.lock);
  return device.calls(name);
}

// What exactly the last error was.
EXPORT const char* stand_in_gpu_report() { return Device::instance().report.c_str(); }

// Bytes of device memory: 0 in use, 1 the most that were.
EXPORT uint64_t stand_in_gpu_memory(int what) {
  Device& device = Device::instance();
  Lock lock(device.lock);
  return what == 0 ? device.memory->used() : device.memory->peak();
}

// Forget an error that a kernel left, which only a new process could on a real device.
EXPORT void stand_in_gpu_reset() {
  Device& device = Device::instance();
  Lock lock(device.lock);
  device.sticky = kSuccess;
  device.report.clear();
}

// 0 forward, 1 reverse, 2 random with a seed.
EXPORT void stand_in_gpu_order(int kind, uint64_t seed) {
  Device& device = Device::instance();
  Lock lock(device.lock);
  device.order = {static_cast<Order::Kind>(kind), seed};
}

// See bank_report in check.h; valid until the next call.
EXPORT const char* stand_in_gpu_banks() {
  Device& device = Device::instance();
  Lock lock(device.lock);
  static std::string text;
  text = bank_report();
  return text.c_str();
}

EXPORT int stand_in_gpu_capability() {
  return static_cast<int>(Device::instance().properties.capability);
}

// Turn the device into one of another architecture, as between two runs of a program.
EXPORT void stand_in_gpu_become(int capability) {
  Device& device = Device::instance();
  Lock lock(device.lock);
  device.become(static_cast<unsigned>(capability));
}
