// The functions of libcudart.so.13 that TVM's CUDA runtime and our engine call, with the signatures
// of cuda_runtime_api.h. The device is libcuda.so.1's.
#include <cstring>

#include "device.h"

using namespace on_host;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kVersion = 13000;
thread_local int last_error = kSuccess;

// Events and graphs are handed out as pointers to these.
struct EventHandle {
  std::shared_ptr<Event> event;
};
struct GraphHandle {
  std::shared_ptr<Graph> graph;
};

int keep(int code) {
  if (code != kSuccess) last_error = code;
  return code;
}

// cudaDeviceProp of CUDA 13, as far as it is filled in; 1008 bytes in all.
struct DeviceProperties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t memory, shared_per_block;
  int registers, warp_size;
  size_t pitch;
  int max_threads, max_block[3], max_grid[3];
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch;
  int multiprocessors;
  char rest[1008 - 388];
};
static_assert(sizeof(DeviceProperties) == 1008, "the size of cudaDeviceProp");
static_assert(offsetof(DeviceProperties, memory) == 288, "cudaDeviceProp::totalGlobalMem");
static_assert(offsetof(DeviceProperties, multiprocessors) == 384,
              "cudaDeviceProp::multiProcessorCount");

int attribute_of(const Properties& properties, int attribute, int* value) {
  switch (attribute) {
    case 1: *value = static_cast<int>(kMaxThreads); break;
    case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 0x7fffffff; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = static_cast<int>(properties.shared_default); break;
    case 9: *value = 65536; break;
    case 10: *value = static_cast<int>(kWarpSize); break;
    case 12: case 82: *value = properties.registers; break;
    case 13: *value = properties.clock_khz; break;
    case 16: *value = properties.multiprocessors; break;
    case 36: *value = properties.memory_clock_khz; break;
    case 37: *value = properties.bus_width; break;
    case 38: *value = properties.l2_bytes; break;
    case 39: *value = properties.threads_multiprocessor; break;
    case 40: *value = 3; break;
    case 75: *value = static_cast<int>(properties.capability / 10); break;
    case 76: *value = static_cast<int>(properties.capability % 10); break;
    case 81: *value = properties.shared_multiprocessor; break;
    case 97: *value = static_cast<int>(properties.shared_optin); break;
    default: return kInvalidValue;
  }
  return kSuccess;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define ENTER()                                                        \
  Device& device = Device::instance();                                 \
  Lock lock(device.lock);                                              \
  if (const int code = device.enter(__func__)) return keep(code)
#define STREAM(handle)                                                 \
  Stream* stream = device.stream(handle);                              \
  if (stream == nullptr) return keep(kInvalidHandle)

EXPORT int cudaGetDeviceCount(int* count) {
  ENTER();
  *count = device.count;
  return keep(device.count > 0 ? kSuccess : kNoDevice);
}

EXPORT int cudaGetDevice(int* ordinal) {
  ENTER();
  *ordinal = 0;
  return keep(device.count > 0 ? kSuccess : kNoDevice);
}

EXPORT int cudaSetDevice(int ordinal) {
  ENTER();
  if (device.count == 0) return keep(kNoDevice);
  return keep(ordinal >= 0 && ordinal < device.count ? kSuccess : kInvalidDevice);
}

EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= device.count) return keep(kInvalidDevice);
  return keep(attribute_of(device.properties, attribute, value));
}

EXPORT int cudaGetDeviceProperties(DeviceProperties* to, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= device.count) return keep(kInvalidDevice);
  const Properties& from = device.properties;
  std::memset(to, 0, sizeof *to);
  std::strncpy(to->name, from.name, sizeof to->name - 1);
  to->memory = from.memory;
  to->shared_per_block = from.shared_default;
  to->registers = from.registers;
  to->warp_size = static_cast<int>(kWarpSize);
  to->max_threads = static_cast<int>(kMaxThreads);
  to->major = static_cast<int>(from.capability / 10);
  to->minor = static_cast<int>(from.capability % 10);
  to->multiprocessors = from.multiprocessors;
  return kSuccess;
}

EXPORT int cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

EXPORT int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

EXPORT const char* cudaGetErrorName(int code) { return error_name(code); }
EXPORT const char* cudaGetErrorString(int code) { return error_string(code); }

EXPORT int cudaGetLastError() {
  const int code = last_error;
  last_error = kSuccess;
  return code;
}

EXPORT int cudaPeekAtLastError() { return last_error; }

// ---- Memory -------------------------------------------------------------------------------------

EXPORT int cudaMemGetInfo(size_t* available, size_t* total) {
  ENTER();
  *total = device.memory->capacity();
  *available = *total - device.memory->used();
  return kSuccess;
}

EXPORT int cudaMalloc(void** pointer, size_t size) {
  ENTER();
  if (const int code = device.unsafe_call()) return keep(code);
  *pointer = nullptr;
  if (size == 0) return kSuccess;
  const uintptr_t address = device.memory->allocate(size);
  if (address == 0) return keep(kMemoryAllocation);
  *pointer = reinterpret_cast<void*>(address);
  return kSuccess;
}

EXPORT int cudaFree(void* pointer) {
  ENTER();
  if (pointer == nullptr) return kSuccess;
  if (const int code = device.unsafe_call()) return keep(code);
  if (const int code = device.synchronize_all()) return keep(code);
  if (device.memory->release(reinterpret_cast<uintptr_t>(pointer))) return kSuccess;
  return keep(device.fail(kInvalidValue, "cudaFree of memory that cudaMalloc did not give"));
}

EXPORT int cudaMallocHost(void** pointer, size_t size) {
  ENTER();
  return keep(device.host_allocate(pointer, size));
}

EXPORT int cudaFreeHost(void* pointer) {
  ENTER();
  return keep(device.host_free(pointer));
}

EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* handle) {
  ENTER();
  STREAM(handle);
  device.note("copy " + std::to_string(size) + " bytes, kind " + std::to_string(kind));
  return keep(device.copy(to, from, size, kind, stream));
}

EXPORT int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                               size_t size, void* handle) {
  ENTER();
  STREAM(handle);
  if (to_device != 0 || from_device != 0) return keep(kInvalidDevice);
  return keep(device.copy(to, from, size, 3, stream));
}

// ---- Streams and events -------------------------------------------------------------------------

EXPORT int cudaStreamCreate(void** handle) {
  ENTER();
  *handle = device.create_stream(true);
  return kSuccess;
}

EXPORT int cudaStreamCreateWithFlags(void** handle, unsigned flags) {
  ENTER();
  constexpr unsigned kNonBlocking = 1;
  if (flags > kNonBlocking) return keep(kInvalidValue);
  *handle = device.create_stream(flags != kNonBlocking);
  return kSuccess;
}

EXPORT int cudaStreamDestroy(void* handle) {
  ENTER();
  STREAM(handle);
  return keep(device.destroy_stream(stream));
}

EXPORT int cudaStreamSynchronize(void* handle) {
  ENTER();
  STREAM(handle);
  return keep(device.synchronize(stream));
}

EXPORT int cudaDeviceSynchronize() {
  ENTER();
  if (const int code = device.unsafe_call()) return keep(code);
  return keep(device.synchronize_all());
}

EXPORT int cudaEventCreate(EventHandle** event) {
  ENTER();
  *event = new EventHandle{std::make_shared<Event>()};
  return kSuccess;
}

EXPORT int cudaEventCreateWithFlags(EventHandle** event, unsigned flags) {
  ENTER();
  constexpr unsigned kDisableTiming = 2;
  *event = new EventHandle{std::make_shared<Event>()};
  (*event)->event->timing = (flags & kDisableTiming) == 0;
  return kSuccess;
}

EXPORT int cudaEventDestroy(EventHandle* event) {
  ENTER();
  delete event;
  return kSuccess;
}

EXPORT int cudaEventRecord(EventHandle* event, void* handle) {
  ENTER();
  STREAM(handle);
  Operation operation;
  operation.kind = Operation::kRecord;
  operation.event = event->event;
  return keep(device.submit(stream, std::move(operation)));
}

EXPORT int cudaStreamWaitEvent(void* handle, EventHandle* event, unsigned) {
  ENTER();
  STREAM(handle);
  Operation operation;
  operation.kind = Operation::kWait;
  // The event as it is now: a later record does not matter.
  operation.event = std::make_shared<Event>(*event->event);
  return keep(device.submit(stream, std::move(operation)));
}

EXPORT int cudaEventSynchronize(EventHandle* event) {
  ENTER();
  return keep(device.synchronize(*event->event));
}

EXPORT int cudaEventElapsedTime(float* milliseconds, EventHandle* start, EventHandle* end) {
  ENTER();
  if (!start->event->timing || !end->event->timing || start->event->record_ticket == 0 ||
      end->event->record_ticket == 0) {
    return keep(kInvalidHandle);
  }
  if (!start->event->done || !end->event->done) return keep(kNotReady);
  *milliseconds = static_cast<float>(end->event->milliseconds - start->event->milliseconds);
  return kSuccess;
}

// ---- Graphs -------------------------------------------------------------------------------------

EXPORT int cudaStreamBeginCapture(void* handle, int mode) {
  ENTER();
  STREAM(handle);
  if (mode < 0 || mode > 2) return keep(kInvalidValue);
  return keep(device.begin_capture(stream, mode));
}

EXPORT int cudaStreamEndCapture(void* handle, GraphHandle** graph) {
  ENTER();
  STREAM(handle);
  *graph = nullptr;
  std::shared_ptr<Graph> captured;
  if (const int code = device.end_capture(stream, captured)) return keep(code);
  *graph = new GraphHandle{captured};
  return kSuccess;
}

EXPORT int cudaGraphInstantiate(GraphHandle** executable, GraphHandle* graph, uint64_t) {
  ENTER();
  if (graph == nullptr) return keep(kInvalidValue);
  *executable = new GraphHandle{std::make_shared<Graph>(Graph{graph->graph->nodes, graph->graph})};
  return kSuccess;
}

EXPORT int cudaGraphUpload(GraphHandle*, void* handle) {
  ENTER();
  STREAM(handle);
  return kSuccess;
}

EXPORT int cudaGraphLaunch(GraphHandle* executable, void* handle) {
  ENTER();
  STREAM(handle);
  Operation operation;
  operation.kind = Operation::kGraph;
  operation.graph = executable->graph;
  return keep(device.submit(stream, std::move(operation)));
}

EXPORT int cudaGraphDestroy(GraphHandle* graph) {
  ENTER();
  delete graph;
  return kSuccess;
}

EXPORT int cudaGraphExecDestroy(GraphHandle* executable) {
  ENTER();
  delete executable;
  return kSuccess;
}
