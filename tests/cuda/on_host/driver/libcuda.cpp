// The functions of libcuda.so.1 that TVM's CUDA runtime and libraries without runtime call, with the
// signatures of cuda.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "check.h"
#include "device.h"

using namespace on_host;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// Graphs are handed out as pointers to these.
struct GraphHandle {
  std::shared_ptr<Graph> graph;
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared;
  void* stream;
  void* attributes;
  unsigned num_attributes;
};

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS, version 2
  const Function* function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared;
  void** arguments;
  void** extra;
  void* kernel;
  void* context;
};

// Contexts that the thread has made current, the last on top.
thread_local std::vector<void*> current;

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define STREAM(handle)                                            \
  Stream* stream = device.stream(handle);                         \
  if (stream == nullptr) return kInvalidHandle
#define ENTER()                                                   \
  Device& device = Device::instance();                            \
  Lock lock(device.lock);                                         \
  if (const int code = device.enter(__func__)) return code

// What the driver's own allocations, copies and graphs need, unlike those of CUDA's runtime.
#define ENTER_CONTEXT() \
  ENTER();              \
  if (current.empty()) return kInvalidContext

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

// Of libraries without runtime. The primary context is the device.

EXPORT int cuDriverGetVersion(int* version) {
  ENTER();
  const char* text = std::getenv("STAND_IN_GPU_DRIVER");
  *version = text == nullptr ? 13000 : std::atoi(text);
  return kSuccess;
}

EXPORT int cuDeviceGetCount(int* count) {
  ENTER();
  *count = device.count;
  return kSuccess;
}

EXPORT int cuDeviceGet(int* found, int ordinal) {
  ENTER();
  *found = ordinal;
  return ordinal >= 0 && ordinal < device.count ? kSuccess : kInvalidDevice;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER();
  const int capability = static_cast<int>(device.properties.capability);
  switch (attribute) {
    case 16: *value = device.properties.multiprocessors; break;
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    default: return kInvalidValue;
  }
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  ENTER();
  *context = &device;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  ENTER();
  return kSuccess;
}

EXPORT int cuCtxPushCurrent_v2(void* context) {
  ENTER();
  current.push_back(context);
  return kSuccess;
}

EXPORT int cuCtxPopCurrent_v2(void** context) {
  ENTER();
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(uintptr_t* address, size_t size) {
  ENTER_CONTEXT();
  if (const int code = device.unsafe_call()) return code;
  *address = size == 0 ? 0 : device.memory->allocate(size);
  return *address != 0 ? kSuccess : size == 0 ? kInvalidValue : kMemoryAllocation;
}

EXPORT int cuMemFree_v2(uintptr_t address) {
  ENTER_CONTEXT();
  if (const int code = device.unsafe_call()) return code;
  if (const int code = device.synchronize_all()) return code;
  return device.memory->release(address) ? kSuccess : kInvalidValue;
}

EXPORT int cuMemHostAlloc(void** address, size_t size, unsigned) {
  ENTER_CONTEXT();
  return device.host_allocate(address, size);
}

EXPORT int cuMemFreeHost(void* address) {
  ENTER_CONTEXT();
  return device.host_free(address);
}

EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t size, void* handle) {
  ENTER_CONTEXT();
  STREAM(handle);
  return device.copy(reinterpret_cast<void*>(to), from, size, 1, stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t size, void* handle) {
  ENTER_CONTEXT();
  STREAM(handle);
  return device.copy(to, reinterpret_cast<const void*>(from), size, 2, stream);
}

EXPORT int cuStreamCreate(void** handle, unsigned flags) {
  ENTER_CONTEXT();
  *handle = device.create_stream(flags == 0);
  return kSuccess;
}

EXPORT int cuStreamDestroy_v2(void* handle) {
  ENTER_CONTEXT();
  STREAM(handle);
  return device.destroy_stream(stream);
}

EXPORT int cuStreamSynchronize(void* handle) {
  ENTER_CONTEXT();
  STREAM(handle);
  return device.synchronize(stream);
}

EXPORT int cuStreamBeginCapture_v2(void* handle, int mode) {
  ENTER_CONTEXT();
  STREAM(handle);
  return mode < 0 || mode > 2 ? kInvalidValue : device.begin_capture(stream, mode);
}

EXPORT int cuStreamEndCapture(void* handle, GraphHandle** graph) {
  ENTER_CONTEXT();
  STREAM(handle);
  *graph = nullptr;
  std::shared_ptr<Graph> captured;
  if (const int code = device.end_capture(stream, captured)) return code;
  *graph = new GraphHandle{captured};
  return kSuccess;
}

EXPORT int cuGraphInstantiateWithFlags(GraphHandle** executable, GraphHandle* graph,
                                       unsigned long long) {
  ENTER_CONTEXT();
  *executable = new GraphHandle{std::make_shared<Graph>(Graph{graph->graph->nodes, graph->graph})};
  return kSuccess;
}

EXPORT int cuGraphLaunch(GraphHandle* executable, void* handle) {
  ENTER_CONTEXT();
  STREAM(handle);
  Operation operation;
  operation.kind = Operation::kGraph;
  operation.graph = executable->graph;
  return device.submit(stream, std::move(operation));
}

// Nodes are operations of the captured graph.

EXPORT int cuGraphGetNodes(GraphHandle* graph, Operation** nodes, size_t* count) {
  ENTER();
  std::vector<Operation>& all = graph->graph->nodes;
  if (nodes == nullptr) {
    *count = all.size();
  } else {
    *count = std::min(*count, all.size());
    for (size_t i = 0; i < *count; ++i) nodes[i] = &all[i];
  }
  return kSuccess;
}

EXPORT int cuGraphNodeGetType(const Operation* node, int* type) {
  ENTER();
  *type = node->kind == Operation::kKernel ? 0 : node->kind == Operation::kCopy ? 1 : 4;
  return kSuccess;
}

EXPORT int cuFuncGetName(const char** name, const Function* function) {
  ENTER();
  *name = function->kernel->name;
  return kSuccess;
}

EXPORT int cuGraphKernelNodeGetParams_v2(Operation* node, KernelNode* found) {
  ENTER();
  if (node->kind != Operation::kKernel) return kInvalidValue;
  // They belong to the node, as with the driver, and are good until somebody else asks.
  static std::vector<void*> arguments;
  arguments.clear();
  for (size_t i = 0; i < node->arguments.size(); i += kArgumentSize) {
    arguments.push_back(&node->arguments[i]);
  }
  *found = {node->function,       node->grid.x,     node->grid.y,     node->grid.z,
            node->block.x,        node->block.y,    node->block.z,    node->dynamic_shared,
            arguments.data(),     nullptr,          nullptr,          nullptr};
  return kSuccess;
}

EXPORT int cuGraphExecKernelNodeSetParams_v2(GraphHandle* executable, const Operation* node,
                                             const KernelNode* wanted) {
  ENTER();
  Graph& graph = *executable->graph;
  const std::vector<Operation>& captured = graph.source->nodes;
  if (node < captured.data() || node >= captured.data() + captured.size() ||
      node->kind != Operation::kKernel || wanted->extra != nullptr) {
    return kInvalidValue;
  }
  return device.prepare(wanted->function, {wanted->grid_x, wanted->grid_y, wanted->grid_z},
                        {wanted->block_x, wanted->block_y, wanted->block_z},
                        wanted->dynamic_shared, wanted->arguments,
                        graph.nodes[static_cast<size_t>(node - captured.data())]);
}

EXPORT int cuGraphDestroy(GraphHandle* graph) {
  ENTER_CONTEXT();
  delete graph;
  return kSuccess;
}

EXPORT int cuGraphExecDestroy(GraphHandle* executable) {
  ENTER_CONTEXT();
  delete executable;
  return kSuccess;
}

// For tests.

// How often a function was called; "kernel" counts executions, in graphs too, and "block" their
// blocks.
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
